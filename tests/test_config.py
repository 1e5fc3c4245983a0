"""Configuration: defaults, file, environment, command line; the same names and the same words everywhere."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from midstream.cli.options import with_config_options
from midstream.config import ENV_PREFIX, Config, load_config
from midstream.errors import ConfigError

DEFAULTS = Path(__file__).parent.parent / "configs" / "default.yaml"
FIELDS = Config.model_fields

SAMPLES: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": 9000,
    "served_model_name": "acme",
    "api_keys": ("a", "b"),
    "cors_origins": ("https://x", "https://y"),
    "max_body_bytes": 4096,
    "max_waiting": 0,
    "request_timeout_s": 1.5,
    "keep_alive_s": 0.0,
    "drain_s": 0.5,
    "model": "model.gguf",
    "chat_template": Path("t.jinja"),
    "dtype": "float16",
    "device": "cpu",
    "max_model_len": 512,
    "kv_cache_bytes": 1 << 20,
    "block_size": 32,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 64,
    "kernels": False,
    "quantize": "q8",
    "prompt_lookup": False,
    "num_threads": 3,
    "tools": ("demo", "x:y"),
    "tool_dialect": "required_json",
    "tool_timeout_s": 2.0,
    "tool_budget_s": 9.0,
    "max_tool_rounds": 1,
    "max_result_tokens": 16,
    "transcript_tokens": 0,
    "log_level": "debug",
    "log_json": True,
}


@pytest.fixture(autouse=True)
def _no_environment_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def defaults() -> Config:
    return load_config(None, {})


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return file


def as_yaml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def from_command_line(*arguments: str) -> Config:
    """The configuration that `midstream serve` would start with."""
    got: list[Config] = []

    def serve(config_file: Path | None, overrides: dict[str, Any]) -> None:
        """Start."""
        got.append(load_config(config_file, overrides))

    app = typer.Typer()
    app.command()(with_config_options(serve))
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return got[0]


# --- every key has every way in ---


def test_the_samples_are_all_keys_and_no_defaults() -> None:
    assert set(SAMPLES) == set(FIELDS)
    for name, value in SAMPLES.items():
        assert value != FIELDS[name].default, name


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_can_be_set_in_the_file(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, yaml.safe_dump({name: as_yaml(SAMPLES[name])}))
    assert getattr(load_config(file, {}), name) == SAMPLES[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_can_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"MIDSTREAM_{name.upper()}", as_text(SAMPLES[name]))
    assert getattr(load_config(None, {}), name) == SAMPLES[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_can_be_set_on_the_command_line(name: str) -> None:
    option = name.replace("_", "-")
    switches = {True: [f"--{option}"], False: [f"--no-{option}"]}
    value = SAMPLES[name]
    arguments = switches[value] if isinstance(value, bool) else [f"--{option}", as_text(value)]
    assert getattr(from_command_line(*arguments), name) == SAMPLES[name]


def test_a_switch_can_be_switched_off_on_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, "log_json: true")
    assert from_command_line("--config", str(file)).log_json is True
    assert from_command_line("--config", str(file), "--no-log-json").log_json is False


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_says_what_it_is(name: str) -> None:
    description = FIELDS[name].description
    assert description
    assert description.endswith(".")


def test_the_commented_file_holds_every_key_with_its_default() -> None:
    text = DEFAULTS.read_text()
    assert not yaml.safe_load(text), "as it stands the file changes nothing"
    keys = re.findall(rf"^# ?((?:{'|'.join(FIELDS)}):.*)$", text, re.MULTILINE)
    values = yaml.safe_load("\n".join(keys))
    assert list(values) == list(FIELDS), "the file's order is the record's"
    assert values == {name: as_yaml(field.default) for name, field in FIELDS.items()}
    assert load_config(DEFAULTS, {}) == defaults()


def test_the_commented_file_is_a_configuration_once_it_is_uncommented(tmp_path: Path) -> None:
    text = re.sub(rf"^# ?((?:{'|'.join(FIELDS)}):)", r"\1", DEFAULTS.read_text(), flags=re.MULTILINE)
    assert load_config(write(tmp_path, text), {}) == defaults()


# --- which one wins ---


def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "port: 1111\nmax_waiting: 1111\nblock_size: 111")
    monkeypatch.setenv("MIDSTREAM_PORT", "2222")
    monkeypatch.setenv("MIDSTREAM_MAX_WAITING", "2222")
    config = load_config(file, {"port": 3333, "max_waiting": None})
    assert (config.port, config.max_waiting, config.block_size) == (3333, 2222, 111)
    assert config.max_num_seqs == FIELDS["max_num_seqs"].default


def test_the_environment_is_read_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("midstream_port", "2222")
    assert load_config(write(tmp_path, "port: 1111"), {}).port == 2222


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("MIDSTREAMX_PORT", "1")
    assert load_config(None, {}) == defaults()


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        defaults().port = 1


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "# nothing\n"), {}) == defaults()


# --- what is refused ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 8000", ("prot", "config.yaml", "did you mean port?")),
        ("max-waiting: 1", ("max-waiting", "did you mean max_waiting?")),
        ("zzzzzz: 1", ("zzzzzz", "config.yaml")),
        ("5: 1", ("5",)),
        ("port: [", ("config.yaml", "not YAML", "line 1")),
        ("port: 1\n  host: x", ("not YAML", "line 2")),
        ("- port", ("config.yaml", "list", "key: value")),
        ("just words", ("str", "key: value")),
        ("!!python/object/apply:os.getcwd []", ("not YAML",)),
        ("port: high", ("port", "'high'", "integer")),
        ("port: 65536", ("port", "65536", "less than or equal to 65535")),
        ("port: -1", ("port", "-1", "greater than or equal to 0")),
        ("port: null", ("port", "None")),
        ("block_size: 1.5", ("block_size", "1.5", "integer")),
        ("host: 5", ("host", "5", "string")),
        ("host: [a]", ("host", "string")),
        ("tools: {a: b}", ("tools",)),
        ("tools: [1]", ("tools.0", "1", "string")),
        ("dtype: int8", ("dtype", "'int8'", "'float32'")),
        ("log_level: LOUD", ("log_level", "'LOUD'", "'debug'")),
        ("log_json: perhaps", ("log_json", "'perhaps'", "boolean")),
        ("request_timeout_s: 0", ("request_timeout_s", "greater than 0")),
        ("request_timeout_s: .nan", ("request_timeout_s", "nan")),
        ("request_timeout_s: .inf", ("request_timeout_s", "inf")),
        ("max_model_len: 1", ("max_model_len", "greater than or equal to 16")),
        ("kv_cache_bytes: 0", ("kv_cache_bytes", "greater than or equal to")),
        ('api_keys: [""]', ("api_keys", "empty")),
        ('api_keys: ["a", "  "]', ("api_keys", "empty")),
    ],
)
def test_a_bad_file_says_which_key_what_value_and_what_instead(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, text), {})
    missing = [word for word in words if word not in error.value.message]
    assert not missing, f"{missing} not in: {error.value.message}"


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: No such file"):
        load_config(tmp_path / "nope.yaml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "binary.yaml", {})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MIDSTREAM_PROT", "1", ("MIDSTREAM_PROT", "environment", "did you mean MIDSTREAM_PORT?")),
        ("MIDSTREAM_PORT", "high", ("port", "'high'", "integer")),
        ("MIDSTREAM_LOG_JSON", "perhaps", ("log_json", "'perhaps'")),
    ],
)
def test_a_bad_variable_says_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        load_config(None, {})
    assert not [word for word in words if word not in error.value.message], error.value.message


def test_a_key_is_not_shown_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, "api_keys: {sk-secret: 1}"), {})
    assert "sk-secret" not in error.value.message


def test_a_list_may_be_written_as_a_list_or_with_commas(tmp_path: Path) -> None:
    for text in ("tools: [a, b]", "tools: a, b", "tools: 'a,,b,'", "tools:\n  - a\n  - b"):
        assert load_config(write(tmp_path, text), {}).tools == ("a", "b")
