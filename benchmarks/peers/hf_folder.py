"""Owns the Hugging Face folder of a GGUF file: `hf_folder.py FILE.gguf FOLDER` writes its weights as float32."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_folder(source: Path, folder: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = loaded.config
    # A model that was read from a GGUF file counts as quantised and cannot be saved; one of its weights can.
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
