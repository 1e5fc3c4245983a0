"""Owns `midstream models`: what can be served without asking further. Reads no model."""

from dataclasses import dataclass
from typing import Any

from midstream.errors import ModelFileError
from midstream.modelfile.folder_config import FOLDER_ARCHITECTURES
from midstream.modelfile.gguf_config import GGUF_ARCHITECTURES
from midstream.modelfile.resolve import ALIASES, resolve


@dataclass(frozen=True)
class Listed:
    name: str
    """As `--model` takes it."""
    num_bytes: int | None
    """None where it is not on this machine."""
    note: str


def listed_models() -> list[Listed]:
    """The aliases, installed or not, and what the Hugging Face cache holds that could be a model."""
    return [*(_alias(name) for name in ALIASES), *_cached()]


def as_lines(models: list[Listed]) -> str:
    width = max(len(model.name) for model in models)
    lines = [f"{model.name:<{width}}  {_size(model.num_bytes):>10}  {model.note}" for model in models]
    ggufs, folders = ", ".join(GGUF_ARCHITECTURES), ", ".join(FOLDER_ARCHITECTURES)
    lines += [
        "",
        f"Also a .gguf file ({ggufs}), a Hugging Face folder ({folders}; others through transformers),",
        "or a hub's id: org/name, org/name/file.gguf.",
    ]
    return "\n".join(lines)


def _size(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"


def _alias(name: str) -> Listed:
    try:
        files = resolve(name)
    except ModelFileError as error:
        return Listed(name, None, error.message)
    return Listed(name, files.path.stat().st_size, "installed")


def _cached() -> list[Listed]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found: list[Listed] = []
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model":
            found += _of_repository(repository)
    return found


def _of_repository(repository: Any) -> list[Listed]:
    """Its folder, where that could be a model, and every .gguf file by its path in the repository."""
    sizes = {
        file.file_path.relative_to(revision.snapshot_path).as_posix(): file.size_on_disk
        for revision in repository.revisions
        for file in revision.files
    }
    note = "in the Hugging Face cache"
    found = []
    if "config.json" in sizes and any(path.endswith(".safetensors") for path in sizes):
        found.append(Listed(repository.repo_id, repository.size_on_disk, note))
    ggufs = sorted(path for path in sizes if path.endswith(".gguf"))
    return found + [Listed(f"{repository.repo_id}/{path}", sizes[path], note) for path in ggufs]
