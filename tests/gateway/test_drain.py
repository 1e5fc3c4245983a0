"""After SIGTERM: open streams finish, new requests go elsewhere, then the server stops, at its limit at the latest."""

import signal
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import LONG, Serving, chat_body, serving, wait_for
from tests.support.wire import check_chat_stream


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, drain_s=20) as served:
        yield served


def terminate(served: Serving, sig: int = signal.SIGTERM) -> None:
    served.server.server.handle_exit(sig, None)
    wait_for(lambda: served.server.gateway.is_draining)


def wait_for_stop(served: Serving) -> None:
    host, port = served.server.base_url.removeprefix("http://").split(":")

    def is_gone() -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return True
        return False

    wait_for(is_gone)


def test_open_streams_finish_while_new_requests_are_sent_away(served: Serving) -> None:
    listener = served.listen("long")
    listener.wait_for(b"word")
    served.model.shut()
    terminate(served)
    for body in (chat_body(), chat_body(stream=True)):
        refused = served.post("/v1/chat/completions", body)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "shutting_down"
    health = served.http.get("/health")
    assert health.status_code == 503
    assert health.json() == {"status": "draining"}
    assert served.http.get("/metrics").status_code == 200
    served.model.open()
    transcript = check_chat_stream(listener.join())
    assert transcript.content == LONG
    assert transcript.finish_reason == "stop"
    wait_for_stop(served)


def test_a_tool_that_runs_may_end_and_its_stream_with_it(served: Serving) -> None:
    served.tools.shut()
    listener = served.listen("server", server_tools="all")
    wait_for(lambda: served.server.engine.scheduler.parked)
    terminate(served)
    served.tools.open()
    assert check_chat_stream(listener.join()).content == "Let me see. It had 54 departures."
    wait_for_stop(served)


def test_a_request_is_waited_for_though_the_engine_has_done_its_part(served: Serving) -> None:
    # Cut by `max_tokens` after its call had closed: what is left of it is the tool.
    served.tools.shut()
    listener = served.listen("server talk", server_tools=["flight_status"], max_tokens=80)
    wait_for(lambda: served.tools.num_held and served.num_open == 0)
    terminate(served)
    start = time.monotonic()
    wait_for(lambda: time.monotonic() - start > 0.3)
    assert served.http.get("/version").status_code == 200, "it stopped with a request open"
    served.tools.open()
    transcript = check_chat_stream(listener.join())
    assert transcript.finish_reason == "length"
    assert [data["call"]["state"] for _, data in transcript.events] == ["routed", "running", "done"]
    wait_for_stop(served)


def test_an_idle_server_stops_at_once(served: Serving) -> None:
    assert served.http.get("/health").status_code == 200
    start = time.monotonic()
    terminate(served)
    wait_for_stop(served)
    assert time.monotonic() - start < 3


def test_at_the_limit_open_streams_end_with_an_error_object(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, drain_s=0.2) as served:
        listener = served.listen("long", n=2)
        listener.wait_for(b"word")
        served.model.shut()
        terminate(served)
        transcript = check_chat_stream(listener.join(), n=2)
        assert transcript.error is not None
        assert "shutting down" in transcript.error["message"]
        served.model.open()
        wait_for_stop(served)


def test_a_second_signal_does_not_wait(served: Serving) -> None:
    served.model.shut()
    served.listen("long")
    wait_for(lambda: served.num_open == 1)
    terminate(served)
    assert not served.server.server.should_exit, "the first one drains"
    served.server.server.handle_exit(signal.SIGTERM, None)
    assert served.server.server.should_exit, "while the stream is still open"
    served.model.open()
    wait_for_stop(served)


def test_a_new_connection_is_still_taken_while_draining(served: Serving) -> None:
    served.model.shut()
    listener = served.listen()
    wait_for(lambda: served.num_open == 1)
    terminate(served)
    with httpx2.Client(base_url=served.server.base_url) as another:
        assert another.get("/health").status_code == 503
    served.model.open()
    listener.join()
