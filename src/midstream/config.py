"""Owns the server's configuration: one frozen record, from defaults, a YAML file, the environment, the command line.

Later ones win. The names are the same everywhere: `max_num_seqs` in the file, `MIDSTREAM_MAX_NUM_SEQS` in the
environment, `--max-num-seqs` on the command line.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from midstream.errors import ConfigError

ENV_PREFIX = "MIDSTREAM_"

GIB = 1 << 30

Texts = Annotated[tuple[str, ...], NoDecode]


class Config(BaseSettings):
    """Everything that can be set. Frozen: what is found out later is handed on, never written back."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )

    # --- HTTP ---
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    served_model_name: str | None = Field(None, description="Name that clients use; the model's own by default.")
    api_keys: Texts = Field((), description="Bearer keys; none means that every client may call.")
    cors_origins: Texts = Field((), description="Origins that browsers may call from; none by default.")
    max_body_bytes: int = Field(8 << 20, ge=1024, description="Largest request body.")
    max_waiting: int = Field(256, ge=0, description="Requests that may wait beyond those that run; more get a 429.")
    request_timeout_s: float = Field(600, gt=0, description="Longest time that a request may take.")
    keep_alive_s: float = Field(15, ge=0, description="Silence after which a stream gets a comment; 0 is never.")
    drain_s: float = Field(30, ge=0, description="Time that open streams get to finish after SIGTERM.")

    # --- model and engine ---
    model: str = Field(
        "smollm2-135m", description="An alias, a .gguf file, a Hugging Face folder, or a hub's id (org/name)."
    )
    chat_template: Path | None = Field(None, description="A Jinja file that replaces the model's template.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU where there is one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Of weights and KV in torch: float32 on a CPU, bfloat16 on a GPU by default."
    )
    max_model_len: int | None = Field(None, ge=16, description="Longest context in tokens; the model's by default.")
    kv_cache_bytes: int = Field(1 * GIB, ge=1 << 20, description="Memory for the KV cache, taken at start.")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens in one KV block.")
    max_num_seqs: int = Field(64, ge=1, description="Sequences that are computed together.")
    max_num_batched_tokens: int = Field(256, ge=1, description="Tokens in one step: the size of a prefill chunk.")
    kernels: bool = Field(True, description="Compiled CPU kernels where they serve the model; off takes torch.")
    prompt_lookup: bool = Field(True, description="Guess tokens from the prompt, check several in a pass.")
    quantize: Literal["q8", "q4"] | None = Field(None, description="Round float weights to 8 or 4 bits at load.")
    num_threads: int | None = Field(None, ge=1, description="Threads of the engine; all cores by default.")

    # --- tools ---
    tools: Texts = Field((), description="Server tools: entry points, module:function or module.")
    tool_dialect: str | None = Field(
        None, description="Syntax in which the model writes its calls; found in its chat template by default."
    )
    tool_timeout_s: float = Field(30, gt=0, le=86400, description="Longest run of a tool that sets no limit itself.")
    tool_budget_s: float = Field(120, gt=0, description="Time that the tools of one request may take, all together.")
    max_tool_rounds: int = Field(4, ge=1, description="Turns with server calls in one request.")
    max_result_tokens: int = Field(1024, ge=16, description="Tokens of one result that the model is shown.")
    transcript_tokens: int = Field(4 << 20, ge=0, description="Tokens of finished turns kept for the next ones.")

    # --- logs ---
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level to log.")
    log_json: bool = Field(False, description="One JSON object a line instead of text.")

    @field_validator("api_keys", "cors_origins", "tools", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """A list may be written `a,b` where only text can be written."""
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not all(key.strip() for key in keys):
            raise ValueError("an empty key would let everybody in; give a real one or none at all")
        return keys


def load_config(file: Path | None, overrides: Mapping[str, Any]) -> Config:
    """Build the configuration. Raises ConfigError that names the key, its value and the remedy.

    `overrides` are the command line's values; a None in it counts as not given.
    """
    from_file = _read(file) if file is not None else {}
    _check_keys(from_file, f"{file}")
    # In any case of letters, as pydantic reads them: its values beat defaults, and init's beat its.
    in_env = {
        name.upper().removeprefix(ENV_PREFIX).lower() for name in os.environ if name.upper().startswith(ENV_PREFIX)
    }
    _check_keys(sorted(in_env), "the environment", ENV_PREFIX)
    given = {key: value for key, value in overrides.items() if value is not None}
    merged = {key: value for key, value in from_file.items() if key not in in_env} | given
    try:
        return Config(**merged)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is not YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"the configuration {file} holds a {type(values).__name__}; it needs `key: value` lines")
    return {str(key): value for key, value in values.items()}


def _check_keys(keys: Any, where: str, prefix: str = "") -> None:
    for key in keys:
        if key not in Config.model_fields:
            near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
            shown = f"{prefix}{key.upper()}" if prefix else key
            hint = f"; did you mean {prefix}{near[0].upper() if prefix else near[0]}?" if near else ""
            raise ConfigError(f"unknown key {shown} in {where}{hint}")


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    shown = "" if key.startswith("api_keys") else f" is {first['input']!r}"
    return f"{key}{shown}: {reason[:1].lower()}{reason[1:]}"
