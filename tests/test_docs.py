"""What the README shows is what the code does: its example runs, its output is what comes out."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.messages import ToolAnnotations
from midstream.routing.dispatching.status import CallState
from midstream.routing.watching.dialects import DIALECTS
from midstream.tools import tool
from midstream.tools.registry import tool_of
from tests.support.processes import ServerProcess, server_process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--config", str(ROOT / "configs/demo.yaml")) as server:
        yield server


def run_example(name: str, server: ServerProcess, tmp_path: Path) -> str:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert DEFAULT_URL in text
    script = tmp_path / name
    script.write_text(text.replace(DEFAULT_URL, server.base_url), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_the_example_as_it_is() -> None:
    [shown] = re.findall(r"<!-- example: examples/tool_in_stream.py -->\n```python\n(.*?)```", README, re.DOTALL)
    text = (ROOT / "examples/tool_in_stream.py").read_text(encoding="utf-8")
    assert text.endswith("\n\n" + shown)


def test_the_tools_that_the_guide_shows_are_tools() -> None:
    text = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "@tool" in block]
    assert len(blocks) == 3
    stubs = {"tool": tool, "warm_up": lambda text: None, "find": lambda text: [text]}
    made = []
    for block in blocks:
        names: dict[str, Any] = dict(stubs)
        exec(compile(block, "docs/tools.md", "exec"), names)
        made += [found for item in names.values() if (found := tool_of(item)) is not None]
    assert [each.spec.name for each in made] == ["temperature", "search", "scan"]
    assert made[1].streamed == "query"


def test_every_annotation_and_field_of_the_guide_exists() -> None:
    text = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    marks = re.findall(r"^\| `(\w+)=", text, re.MULTILINE)
    assert set(marks) == set(ToolAnnotations.__struct_fields__) - {"accepts_partial"}
    states = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)))
    assert {state.value for state in CallState} - {"ready"} <= set(states)


def test_the_guide_to_dialects_names_every_dialect() -> None:
    text = (ROOT / "docs/dialects.md").read_text(encoding="utf-8")
    table = "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert set(DIALECTS) <= set(re.findall(r"`(\w+)`", table))


@pytest.mark.model
def test_the_readmes_example_prints_what_the_readme_says(server: ServerProcess, tmp_path: Path) -> None:
    [shown] = re.findall(r"    \$ python examples/tool_in_stream.py\n((?:    .*\n)+)", README)
    expected = re.sub(r"^    ", "", shown, flags=re.MULTILINE)
    assert run_example("tool_in_stream.py", server, tmp_path) == expected


@pytest.mark.model
def test_a_clients_own_tool_gets_its_arguments(server: ServerProcess, tmp_path: Path) -> None:
    assert run_example("client_tool.py", server, tmp_path) == "call: get_weather\narguments: {'city': 'Paris'}\n"


@pytest.mark.model
def test_the_readmes_chat_command_shows_the_call_and_answers(server: ServerProcess) -> None:
    command = ["chat", "--tools", "on_time_rate", "--tool-choice", "on_time_rate", "--temperature", "0"]
    assert f"$ midstream {' '.join(command)}\n" in README
    done = subprocess.run(
        [sys.executable, "-m", "midstream.cli.main", *command, "--url", f"{server.base_url}/v1"],
        input="What is the on-time rate of PVG?",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The on-time rate of PVG is 77.0%.\n"
    assert "◌ on_time_rate" in done.stderr
    assert "✓ on_time_rate" in done.stderr


def test_an_own_tool_loads_from_the_folder_where_the_server_starts() -> None:
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from midstream.tools.registry import Registry\n"
        "tool = Registry.load(('own_tool',)).by_name['word_count']\n"
        "print(tool.function(text='a b c'), tool.spec.parameters['required'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "examples", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "{'words': 3} ['text']\n", done.stderr


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("http") or (document.parent / target).exists(), f"{document}: {target}"
