"""Owns models that are named by a hub's id: found in the Hugging Face cache, else downloaded into it.

`org/name` is a repository with config.json, tokenizer.json and safetensors; `org/name/file.gguf` is one file of one.
"""

import re
from collections.abc import Callable
from pathlib import Path

from midstream.errors import ModelFileError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
"""What a folder is served from; pickled weights are never fetched."""


def is_hub_id(model: str) -> bool:
    repository, _ = _split(model)
    return _REPOSITORY.fullmatch(repository) is not None


def fetch(model: str) -> Path:
    """The folder or the .gguf file of a hub id. Raises ModelFileError with the remedy where it cannot be had."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository, file_name = _split(model)

    def find(*, local_files_only: bool) -> Path:
        if file_name:
            return Path(hf_hub_download(repository, file_name, local_files_only=local_files_only))
        return Path(snapshot_download(repository, allow_patterns=_FILES, local_files_only=local_files_only))

    cached = _cached(find, LocalEntryNotFoundError)
    if cached is not None:
        return cached
    try:
        return find(local_files_only=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelFileError(
            f"{model!r} is not in the Hugging Face cache and could not be downloaded ({reason}); "
            "check the name and the network (HF_TOKEN for a gated model), or download it elsewhere and give its path"
        ) from error


def _cached(find: Callable[..., Path], missing: type[Exception]) -> Path | None:
    """What a download before has left, whole; a part of one is fetched again."""
    try:
        path = find(local_files_only=True)
    except missing:
        return None
    is_whole = path.is_file() or ((path / "config.json").is_file() and any(path.glob("*.safetensors")))
    return path if is_whole else None


def _split(model: str) -> tuple[str, str]:
    """The repository, and the file in it where the id names one."""
    parts = model.split("/")
    if len(parts) > 2 and model.endswith(".gguf"):
        return "/".join(parts[:2]), "/".join(parts[2:])
    return model, ""
