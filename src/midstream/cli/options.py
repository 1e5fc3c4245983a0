"""Owns the command-line options of `midstream serve`: made from the configuration, so that none is missing."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from midstream.config import Config


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(config_file, overrides)` one option for each field of `Config`."""

    def run(config: Path | None, **overrides: Any) -> None:
        command(config, overrides)

    file_option = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None, typer.Option("--config", help="A YAML file with the same keys as these options.")
        ],
    )
    options = [_option(name, field) for name, field in Config.model_fields.items()]
    run.__signature__ = inspect.Signature([file_option, *options])  # type: ignore[attr-defined]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    return run


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    shown = "none" if field.default in (None, ()) else str(field.default)
    text = f"{field.description} (default: {shown})"
    if field.annotation is bool:
        flag += f"/--no-{name.replace('_', '-')}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_command_line_type(field), typer.Option(flag, help=text, show_default=False)],
    )


def _command_line_type(field: FieldInfo) -> Any:
    """What typer parses; ranges and choices are checked by `Config`, with the same words for every source."""
    kind: Any = field.annotation
    candidates = [kind, *get_args(kind)]
    for known in (bool, int, float, Path):
        if known in candidates:
            return known | None
    if get_origin(kind) is Literal:
        return str | None
    return str | None
