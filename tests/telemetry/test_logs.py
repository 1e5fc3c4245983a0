"""Logs: events on stderr, one a line, and nothing in them that is a client's own."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import Serving, serving, wait_for

PROGRAM = """
import structlog
from midstream.telemetry.logs import configure_logs
configure_logs({level!r}, as_json={as_json})
log = structlog.get_logger()
log.debug("a_detail", n=0)
log.info("request_finished", request_id=7, ttft_ms=41)
try:
    1 / 0
except ZeroDivisionError:
    log.error("unexpected_error", exc_info=True)
"""


def run(level: str, *, as_json: bool) -> list[str]:
    program = PROGRAM.format(level=level, as_json=as_json)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "", "stdout is for data"
    return done.stderr.splitlines()


def test_json_logs_are_one_object_a_line() -> None:
    first, second = (json.loads(line) for line in run("info", as_json=True))
    assert first["event"] == "request_finished"
    assert (first["level"], first["request_id"], first["ttft_ms"]) == ("info", 7, 41)
    assert first["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in second["exception"]


def test_text_logs_hold_the_same() -> None:
    lines = run("info", as_json=False)
    assert "request_finished" in lines[0]
    assert "request_id=7" in lines[0]
    assert any("ZeroDivisionError" in line for line in lines)


@pytest.mark.parametrize(("level", "num_lines"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 1)])
def test_a_level_hides_what_is_below_it(level: str, num_lines: int) -> None:
    assert len(run(level, as_json=True)) == num_lines


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, api_keys=("sk-secret",)) as served:
        yield served


def test_a_request_is_one_event_without_anything_of_its_own(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"authorization": "Bearer sk-secret"}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "classified [script server]"}],
        "server_tools": "all",
    }
    with capture_logs() as events:
        served.http.headers.update(headers)
        served.chat(**body, user="somebody")
        served.http.headers["authorization"] = "Bearer sk-wrong"
        served.chat(**body)
        wait_for(lambda: any(event["event"] == "request_finished" for event in events))
    assert [event["event"] for event in events] == ["tool_call_finished", "request_finished"]
    assert events[1]["num_tokens"] > 0
    written = repr(events) + "".join(record.getMessage() for record in caplog.records if "httpcore" not in record.name)
    for private in ("classified", "sk-secret", "sk-wrong", "departures", "PVG", "somebody"):
        assert private not in written
