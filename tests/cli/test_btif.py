"""`midstream btif` as a program: frames in hex, errors with their offset, exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from midstream.cli.main import app
from tests.protocol.btif.support import VECTORS, titled

FLIGHT = {
    "type": "object",
    "properties": {"airport": {"type": "string"}, "date": {"type": "string", "format": "date"}},
}
FRAME = "0000000300020103505647024db6"


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    return write_schema(tmp_path, FLIGHT)


def write_schema(tmp_path: Path, schema: Any) -> Path:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    return file


def btif(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["btif", *arguments], input=stdin)


@titled("valid")
def test_encode_prints_the_vectors_frame(vector: dict[str, Any], tmp_path: Path) -> None:
    schema = write_schema(tmp_path, vector["schema"])
    tool_id = str(vector["tool_id"])
    result = btif("encode", "--schema", str(schema), "--tool-id", tool_id, "-", stdin=vector["arguments_json"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == vector["frame_hex"] + "\n"


@titled("valid")
def test_dump_reads_every_valid_frame_with_and_without_its_schema(vector: dict[str, Any], tmp_path: Path) -> None:
    schema = write_schema(tmp_path, vector["schema"])
    for options in ([], ["--schema", str(schema)]):
        result = btif("dump", vector["frame_hex"], *options)
        assert result.exit_code == 0, result.stderr
        assert f"{vector['tool_id']:08x}" in result.stdout


@titled("invalid")
def test_dump_refuses_every_invalid_frame_with_its_offset(vector: dict[str, Any], tmp_path: Path) -> None:
    options = ["--schema", str(write_schema(tmp_path, vector["schema"]))] if "schema" in vector else []
    result = btif("dump", vector["frame_hex"], *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "(at byte " in result.stderr
    assert "Traceback" not in result.stderr


@titled("refused_json")
def test_encode_refuses_json_that_has_no_frame(vector: dict[str, Any], tmp_path: Path) -> None:
    schema = write_schema(tmp_path, vector.get("schema", {}))
    result = btif("encode", "--schema", str(schema), "--tool-id", "1", "-", stdin=vector["arguments_json"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("midstream btif: ")


def test_dump_names_fields_by_the_schema(schema_file: Path) -> None:
    shown = btif("dump", FRAME, "--schema", str(schema_file)).stdout
    for word in ("airport", "PVG", "date", "2024-06-20"):
        assert word in shown
    bare = btif("dump", FRAME).stdout
    assert "PVG" in bare
    assert "airport" not in bare


def test_dump_takes_hex_in_either_case_and_with_blanks(schema_file: Path) -> None:
    plain = btif("dump", FRAME).stdout
    assert btif("dump", FRAME.upper()).stdout == plain
    assert btif("dump", " ".join(FRAME[i : i + 2] for i in range(0, len(FRAME), 2))).stdout == plain


def test_the_offset_points_at_the_fault() -> None:
    # 4 bytes of id, 2 of count, tag and length of the first field, then its text, then a tag that there is not.
    result = btif("dump", FRAME[:22] + "7f" + FRAME[24:])
    assert result.exit_code == 1
    assert "(at byte 11)" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zz", "hex"),
        ("000", "hex"),
        ("", "(at byte 0)"),
        ("0x0000000300020103505647024db6", "hex"),
    ],
)
def test_what_is_no_hex_is_no_frame(text: str, words: str) -> None:
    result = btif("dump", text)
    assert result.exit_code == 1
    assert words in result.stderr


@pytest.mark.parametrize("stdin", ["", "{", "[]", '"x"', "null", '{"a": NaN}', '{"airport": "x"} {}', "[" * 100_000])
def test_encode_refuses_what_is_no_json_object(schema_file: Path, stdin: str) -> None:
    result = btif("encode", "--schema", str(schema_file), "--tool-id", "3", "-", stdin=stdin)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("midstream btif: ")
    assert len(result.stderr.splitlines()) == 1


def test_encode_refuses_bytes_that_are_no_text(schema_file: Path) -> None:
    result = btif("encode", "--schema", str(schema_file), "--tool-id", "3", "-", stdin=b'{"airport": "\xff"}')
    assert result.exit_code == 1
    assert result.stderr.startswith("midstream btif: ")


@pytest.mark.parametrize("schema", ["[]", "{", "5", "\xff"])
def test_a_schema_that_is_none_is_said_to_be_none(tmp_path: Path, schema: str) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(schema.encode("latin-1"))
    for arguments in (["encode", "--tool-id", "3", "-"], ["dump", FRAME]):
        result = btif(*arguments, "--schema", str(file), stdin="{}")
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("midstream btif: ")


def test_a_schema_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = btif("dump", FRAME, "--schema", str(tmp_path / "nope.json"))
    assert result.exit_code == 1
    assert "nope.json" in result.stderr


@pytest.mark.parametrize("tool_id", ["-1", "4294967296", "x"])
def test_a_tool_id_is_an_unsigned_32_bit_number(schema_file: Path, tool_id: str) -> None:
    result = btif("encode", "--schema", str(schema_file), f"--tool-id={tool_id}", "-", stdin="{}")
    assert result.exit_code == 2


def test_as_a_program_data_is_on_stdout_and_errors_are_on_stderr(schema_file: Path) -> None:
    program = [sys.executable, "-m", "midstream.cli.main", "btif"]
    encode = [*program, "encode", "--schema", str(schema_file), "--tool-id", "3", "-"]
    done = run(encode, stdin='{"airport":"PVG","date":"2024-06-20"}')
    assert (done.returncode, done.stdout, done.stderr) == (0, FRAME + "\n", "")
    done = run([*program, "dump", FRAME[:20]])
    assert (done.returncode, done.stdout) == (1, "")
    assert "(at byte " in done.stderr


def run(command: list[str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=False, input=stdin, capture_output=True, text=True)


def test_there_are_vectors_to_speak_of() -> None:
    assert len(VECTORS["valid"]) > 30
    assert len(VECTORS["invalid"]) > 15
