"""Owns the choice of where a model's hyperparameters are read from."""

from midstream.modelfile.folder_config import config_from_folder
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.gguf_config import config_from_gguf
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles, ModelKind


def read_config(files: ModelFiles, gguf: GgufFile | None = None) -> ModelConfig:
    """Raises ModelFileError for an architecture that is not served, or a number that cannot be."""
    if files.kind is ModelKind.FOLDER:
        return config_from_folder(files.path)
    return config_from_gguf(gguf or GgufFile.open(files.path))
