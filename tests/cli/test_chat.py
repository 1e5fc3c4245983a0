"""Owns the tests of `midstream chat` against a canned server on loopback. Loads no model."""

import io
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from midstream.cli.chat import run_chat
from midstream.errors import ConfigError
from tests.cli.canned import Canned, Parts, canned, chunk, frame, status, text_answer

DONE = b"data: [DONE]\n\n"
STOP = chunk({}, "stop")


class Screen(io.StringIO):
    """A terminal, as far as `isatty` tells; `event` is set once `awaited` has been written."""

    def __init__(self, awaited: str = "\0") -> None:
        super().__init__()
        self.event = threading.Event()
        self._awaited = awaited

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._awaited in self.getvalue():
            self.event.set()
        return count


def plain(text: str) -> str:
    """Without colours, and without the spaces that a terminal's line ends in."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def chat(url: str, typed: str, *, interactive: bool = True, screen: bool = False, **options: Any) -> Any:
    out, err = (Screen(), Screen()) if screen else (io.StringIO(), io.StringIO())
    ticks: Iterator[float] = iter(float(i) for i in range(99))
    code = run_chat(
        url,
        stream_in=io.StringIO(typed),
        stream_out=out,
        stream_err=err,
        interactive=interactive,
        clock=lambda: next(ticks),
        **options,
    )
    return code, out.getvalue(), plain(err.getvalue())


def once(server: Canned, **options: Any) -> Any:
    return chat(server.url, "hi\n", interactive=False, **options)


def test_piped_message_gives_the_text_alone() -> None:
    with canned(text_answer("Hel", "lo é😀")) as server:
        assert chat(server.url, "two\nlines\n", interactive=False) == (0, "Hello é😀\n", "")
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "two\nlines"}]
    assert server.bodies[0]["model"] == "tiny"
    assert server.bodies[0]["stream"] is True


def test_cut_anywhere_the_text_is_the_same() -> None:
    raw = b": ping\n\n" + b"".join(part for part in text_answer("é", "😀")[1] if isinstance(part, bytes))
    with canned((200, [raw[i : i + 1] for i in range(len(raw))])) as server:
        assert once(server)[1] == "é😀\n"


def test_request_carries_what_was_asked_for() -> None:
    with canned(text_answer("x"), text_answer("x")) as server:
        once(
            server,
            model="m",
            api_key="sk-1",
            system="Be brief.",
            server_tools=["a", "b"],
            tool_choice="a",
            options={"temperature": 0},
        )
        once(server, server_tools="all", tool_choice="required")
    first, second = server.bodies
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (first["model"], first["temperature"], first["server_tools"]) == ("m", 0, ["a", "b"])
    assert first["tool_choice"] == {"type": "function", "function": {"name": "a"}}
    assert (second["server_tools"], second["tool_choice"]) == ("all", "required")
    assert server.headers[0]["Authorization"] == "Bearer sk-1"
    assert "Authorization" not in server.headers[1]


def test_history_grows_and_new_clears_it() -> None:
    with canned(text_answer("one"), text_answer("two"), text_answer("three")) as server:
        code, out, err = chat(server.url, "a\n\nb\n/new\nc\n/quit\nnever\n", system="S")
    assert (code, out) == (0, "one\ntwo\nthree\n")
    contents = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert contents == [["S", "a"], ["S", "a", "one", "b"], ["S", "c"]]
    assert "(a new conversation)" in err


def test_end_of_input_leaves() -> None:
    with canned() as server:
        assert chat(server.url, "")[0] == 0


def test_unknown_command_is_not_sent() -> None:
    with canned() as server:
        assert "there is no /exit; Ctrl-C stops an answer" in chat(server.url, "/exit\n")[2]


def test_server_calls_are_shown_as_they_go() -> None:
    parts = [
        chunk({"content": "Let me see"}),
        status("routed"),
        status("ready", arguments='{"flight": "PV204"}'),
        status("running", arguments='{"flight": "PV204"}'),
        status("progress"),
        status("done", result={"gate": "B7"}),
        status("injected"),
        chunk({"content": "It is B7."}),
        STOP,
        DONE,
    ]
    with canned((200, [*parts]), (200, [*parts])) as server:
        code, out, err = once(server)
        assert (code, out) == (0, "Let me seeIt is B7.\n")
        assert err.splitlines() == [
            "◌ flight_status  routed",
            '▸ flight_status({"flight": "PV204"})  running',
            "… flight_status  progress",
            '✓ flight_status  3.00 s  {"gate": "B7"}',
        ]
        assert once(server, screen=True)[1] == "Let me see\nIt is B7.\n"


@pytest.mark.parametrize(
    ("state", "line"),
    [("FAILED", "no such flight"), ("TIMED_OUT", "timed out"), ("CANCELLED", "cancelled")],
)
def test_call_that_fails(state: str, line: str) -> None:
    error = {"error": "no such flight"} if state == "FAILED" else {}
    with canned((200, [status("routed"), status(state, **error), STOP, DONE])) as server:
        assert once(server)[2].splitlines()[-1].endswith(line)


def test_client_calls_of_other_servers_are_shown() -> None:
    def delta(**entry: Any) -> bytes:
        return chunk({"tool_calls": [entry]})

    parts = [
        delta(index=0, id="c1", type="function", function={"name": "add", "arguments": ""}),
        delta(index=0, function={"arguments": '{"a": '}),
        delta(index=0, function={"arguments": "1}"}),
        chunk({}, "tool_calls"),
        DONE,
    ]
    with canned((200, [*parts])) as server:
        assert once(server)[2].splitlines() == [
            "◌ add  routed",
            '▸ add({"a": 1})  left to the client: nothing runs it here',
        ]


def test_json_writes_a_line_for_each_event() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    parts = [chunk({"reasoning_content": "hm"}), status("routed"), chunk({"content": "x"}), STOP]
    with canned((200, [*parts, frame({"choices": [], "usage": usage}), DONE])) as server:
        lines = [json.loads(line) for line in once(server, as_json=True)[1].splitlines()]
    assert lines == [
        {"type": "reasoning", "text": "hm"},
        {
            "type": "tool",
            "call_id": "s1",
            "name": "flight_status",
            "state": "routed",
            "description": "routed",
        },
        {"type": "text", "text": "x"},
        {"type": "finished", "finish_reason": "stop", "usage": usage},
    ]


# --- faults ---


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((404, [b'{"error": {"message": "no model x", "code": "m"}}']), "error: HTTP 404: no model x"),
        ((400, [b'{"object": "error", "message": "too long"}']), "error: HTTP 400: too long"),
        ((422, [b'{"detail": [1]}']), 'error: HTTP 422: {"detail": [1]}'),
        ((502, [b"<html>\nBad</html>"]), "error: HTTP 502: <html> Bad</html>"),
        ((500, [b""]), "error: HTTP 500: Internal Server Error"),
        ((200, [frame({"error": {"message": "the engine died"}}), DONE]), "error: the engine died"),
        ((200, [frame({"error": "overloaded"}), DONE]), "error: overloaded"),
        ((200, [chunk({"content": "a"})]), "error: the stream ended in the middle of the answer"),
        ((200, [b"data: {\n\n"]), "error: the server sent a chunk that is not JSON: '{'"),
        ((200, [b"data: 1\n\n"]), "error: the server sent a chunk that is no object: '1'"),
    ],
)
def test_fault_is_one_line_and_the_chat_goes_on(answer: Any, line: str) -> None:
    with canned(answer, answer, text_answer("fine")) as server:
        code, _, err = once(server)
        assert (code, err.splitlines()) == (1, [line])
        code, out, err = chat(server.url, "bad\ngood\n")
    assert (code, out.splitlines()[-1]) == (0, "fine")
    assert line in err
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["good"]


def test_no_server_says_how_to_start_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, out, err = chat(url, "hi\nhi\n")
        assert (code, out) == (0, "")
        assert err.count("start one with `midstream serve`") == 2
        assert chat(url, "hi", interactive=False, model="m")[0] == 1


def test_no_model_is_a_fault() -> None:
    with canned() as server:
        server.models = []
        assert "lists no model; name one with --model" in once(server)[2]


def test_empty_input_is_a_fault() -> None:
    with canned() as server:
        assert chat(server.url, " \n", interactive=False) == (1, "", "nothing to ask: the input is empty\n")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:y", ""])
def test_bad_address_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        chat(url, "hi")


def test_path_of_the_address_is_kept() -> None:
    with canned(text_answer("x")) as server:
        assert chat(server.url + "/v1/", "hi", interactive=False)[1] == "x\n"
        assert "HTTP 404" in chat(server.url + "/other", "hi", interactive=False)[2]


def test_cut_at_the_token_limit_is_said() -> None:
    with canned((200, [chunk({"content": "a"}), chunk({}, "length"), DONE])) as server:
        assert "reached its token limit" in once(server)[2]


def test_control_characters_do_not_reach_a_terminal() -> None:
    evil = "a\x1b]0;title\x07\x9b2J\tb"
    with canned(text_answer(evil), (200, [status("done", result=evil), STOP, DONE]), text_answer(evil)) as server:
        assert once(server, screen=True)[1] == "a]0;title2J\tb\n"
        assert "a]0;title2J b" in once(server, screen=True)[2]
        assert once(server)[1] == evil + "\n"  # a file gets what the model wrote


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    out, err, main = Screen("Hel"), io.StringIO(), threading.main_thread()
    hung_up = threading.Event()

    def interrupt() -> None:
        out.event.wait()
        assert main.ident is not None
        # Python sees a signal that comes just before it waits for bytes only when some have come.
        time.sleep(0.2)
        signal.pthread_kill(main.ident, signal.SIGINT)
        hung_up.wait()

    parts: Parts = [chunk({"content": "Hel"}), interrupt, chunk({"content": "lo"})]
    with canned((200, [*parts]), text_answer("two")) as server:
        typed = io.StringIO("a\nb\n")
        try:
            code = run_chat(server.url, stream_in=typed, stream_out=out, stream_err=err, interactive=True)
        finally:
            hung_up.set()
    assert (code, out.getvalue()) == (0, "Hel\ntwo\n")
    assert "(stopped)" in err.getvalue()
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["a", "Hel", "b"]
