"""The `midstream` command and its processes: instant help, clear failures, and nobody loads what is another's."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from midstream import __version__
from midstream.cli.main import app
from midstream.config import Config

HEAVY = {"torch", "fastapi", "starlette", "uvicorn", "transformers", "tokenizers", "llguidance", "numpy", "httpx2"}


def loaded_after(program: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after `program`."""
    listing = "\nimport sys\nprint('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    done = run([sys.executable, "-c", program + listing])
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES ")[2].split())


def run(command: list[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment | variables)


def midstream(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run([sys.executable, "-m", "midstream.cli.main", *arguments], **variables)


# --- help ---


def test_import_midstream_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_after("import midstream")


def test_help_loads_nothing_heavy() -> None:
    program = """
import contextlib, io
from midstream.cli.main import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["--help"])
"""
    assert not HEAVY & loaded_after(program)


def test_help_is_instant() -> None:
    def took_s() -> float:
        start = time.monotonic()
        assert midstream("--help").returncode == 0
        return time.monotonic() - start

    assert min(took_s() for _ in range(3)) < 1


def test_help_lists_the_commands() -> None:
    shown = midstream("--help").stdout
    for command in ("serve", "chat", "btif", "version"):
        assert command in shown


def test_serve_help_lists_every_option_with_its_default() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    shown = re.sub(r"[│\s]+", " ", result.stdout)
    assert "--config" in shown
    for name, field in Config.model_fields.items():
        assert "--" + name.replace("_", "-") in shown, name
        assert str(field.description) in shown, name
        default = "none" if field.default in (None, ()) else str(field.default)
        assert f"{field.description} (default: {default})" in shown, name


def test_version_prints_the_version() -> None:
    assert midstream("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize("arguments", [["sreve"], ["serve", "--prot", "1"], ["serve", "--port", "high"], ["btif", "x"]])
def test_a_misspelt_command_is_a_usage_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


# --- failures to start ---


def assert_fails(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert_says(done.stderr, *words)


def assert_says(stderr: str, *words: str) -> None:
    """The last line says why, and how to mend it."""
    assert "Traceback" not in stderr
    line = stderr.splitlines()[-1]
    assert line.startswith("midstream: ")
    missing = [word for word in words if word not in line]
    assert not missing, f"{missing} not in: {line}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "nope.yaml"], ["nope.yaml", "No such file"]),
        (["--dtype", "int8"], ["dtype", "'int8'", "'float32'"]),
        (["--max-waiting", "-1"], ["max_waiting", "-1"]),
    ],
    ids=lambda value: value[0],
)
def test_serve_says_which_option_is_wrong(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert_says(result.stderr, *words)
    assert result.exit_code == 1


def test_serve_says_so_when_its_environment_is_misspelt() -> None:
    result = CliRunner().invoke(app, ["serve"], env={"MIDSTREAM_PROT": "1"})
    assert_says(result.stderr, "MIDSTREAM_PROT", "did you mean MIDSTREAM_PORT?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nope"], ["/nope", "smollm2-135m"]),
        (["--tools", "nope:f"], ["nope:f", "demo"]),
        (["--tool-dialect", "hermse"], ["hermse", "hermes"]),
        (["--chat-template", "/nope.jinja"], ["/nope.jinja"]),
    ],
    ids=lambda value: value[0],
)
def test_serve_says_what_keeps_it_from_starting(arguments: list[str], words: list[str]) -> None:
    assert_fails(midstream("serve", "--port", "0", *arguments), *words)


def test_serve_says_so_when_its_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_fails(midstream("serve", "--port", str(port)), f"127.0.0.1:{port}", "--port")


@pytest.mark.model
def test_serve_says_what_the_engine_lacks() -> None:
    done = midstream("serve", "--port", "0", "--kv-cache-bytes", "1048576", "--max-model-len", "2048")
    assert_fails(done, "kv_cache_bytes of 1048576", "max_model_len is 2048", "raise kv_cache_bytes to")


# --- who loads what ---

GATEWAY = """
import asyncio
from midstream.cli.compose import build_gateway, launch_engine, tool_host_command
from midstream.config import load_config
from midstream.gateway.app import create_app
from midstream.gateway.server import Server
from midstream.telemetry.metrics import Metrics
from midstream.tools.python import PythonTransport

async def main():
    config = load_config(None, {"tools": ("demo",)})
    tools = PythonTransport(tool_host_command(config.tools))
    gateway = build_gateway(config, launch_engine, tools, Metrics())
    Server(create_app(gateway), gateway)
    gateway.conversations._template.encode_chat(gateway.tokenizer, [{"role": "user", "content": "hi"}])

asyncio.run(main())
"""

ENGINE = """
import socket
import threading
from midstream.cli.compose import engine_main, engine_options
from midstream.config import load_config
from midstream.engine import build, runner

# All but the weights, which take seconds and import nothing.
build.build_runner = lambda *options: (runner.TorchRunner, build.KVBudget(num_blocks=4, max_model_len=64))
ours, theirs = socket.socketpair()
options = engine_options(load_config(None, {}))

def gateway():
    assert theirs.recv(1 << 16)  # the Hello
    theirs.close()

thread = threading.Thread(target=gateway)
thread.start()
engine_main(ours, options)
thread.join()
"""

TOOL_HOST = """
from midstream.tools.host import run_host
from midstream.tools.registry import Registry
assert Registry.load(["demo"]).tools
"""


def test_the_gateway_loads_no_torch() -> None:
    loaded = loaded_after(GATEWAY)
    assert {"fastapi", "uvicorn", "tokenizers"} <= loaded
    assert not {"torch", "transformers"} & loaded


def test_the_engine_loads_no_fastapi() -> None:
    loaded = loaded_after(ENGINE)
    assert "torch" in loaded
    assert not {"fastapi", "starlette", "uvicorn", "httpx2"} & loaded


def test_the_tool_host_loads_neither() -> None:
    assert not {"torch", "transformers", "fastapi", "starlette", "uvicorn", "tokenizers"} & loaded_after(TOOL_HOST)


def test_a_child_process_is_told_how_it_is_started() -> None:
    done = run([sys.executable, "-m", "midstream.cli.compose", "dance"])
    assert done.returncode == 1
    assert "usage" in done.stderr


def test_an_operators_own_tools_may_lie_where_the_server_is_started(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text("1 / 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "midstream.cli.main", "serve", "--port", "0", "--tools", "my_tools"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "my_tools" in done.stderr
    assert "division by zero" in done.stderr, "it was found and run"
