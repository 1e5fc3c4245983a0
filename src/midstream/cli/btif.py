"""Owns `midstream btif`: frames made and read by hand. The codec is the protocol room's."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from midstream.errors import BtifError

app = typer.Typer(help="Make and read BTIF frames.", no_args_is_help=True)


@app.command()
def encode(
    arguments: Annotated[str, typer.Argument(help="`-`: the arguments' JSON comes from standard input.")],
    schema: Annotated[Path, typer.Option(help="The tool's parameters as a JSON Schema file.")],
    tool_id: Annotated[int, typer.Option(min=0, max=0xFFFFFFFF, help="The tool's id.")],
) -> None:
    """Print the frame of a call in hex."""
    from midstream.protocol.btif import Layout
    from midstream.protocol.btif import encode as encode_frame

    text = _read_stdin() if arguments == "-" else arguments
    try:
        frame = encode_frame(tool_id, Layout.of(_read_schema(schema)), text)
    except BtifError as error:
        _fail(error.args[0])
    typer.echo(frame.hex())


@app.command()
def dump(
    frame: Annotated[str, typer.Argument(metavar="HEX", help="The frame in hex.")],
    schema: Annotated[Path | None, typer.Option(help="The tool's parameters as a JSON Schema file.")] = None,
) -> None:
    """Print a frame readable, or the error in it with its offset."""
    from midstream.protocol.btif import Layout
    from midstream.protocol.btif import dump as dump_frame

    try:
        data = bytes.fromhex(frame)
    except ValueError as error:
        _fail(f"not hex: {error}")
    try:
        typer.echo(dump_frame(data, Layout.of(_read_schema(schema)) if schema is not None else None))
    except BtifError as error:
        _fail(error.args[0])


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        _fail(f"the arguments are not UTF-8 (byte {error.start})")


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _fail(f"cannot read the schema {path}: {error}")
    if not isinstance(schema, dict):
        _fail(f"the schema {path} is no JSON object")
    return schema


def _fail(message: str) -> NoReturn:
    typer.echo(f"midstream btif: {message}", err=True)
    raise typer.Exit(1)
