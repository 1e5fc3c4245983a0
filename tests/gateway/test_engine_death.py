"""The engine dies under load: every open request ends cleanly, and the next one works."""

from collections.abc import Iterator

import pytest

from midstream.gateway.engine_client import EngineState
from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import (
    CHAT,
    COMPLETE,
    HELLO,
    Listener,
    Serving,
    chat_body,
    completion_body,
    serving,
    wait_for,
)
from tests.support.wire import check_chat_stream, check_completion_stream


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer) as served:
        yield served


@pytest.fixture(autouse=True)
def _recovers(served: Serving) -> Iterator[None]:
    yield
    served.model.open()
    served.tools.open()
    wait_for(lambda: served.http.get("/health").status_code == 200)
    assert served.chat().json()["choices"][0]["message"]["content"] == HELLO
    wait_for(served.is_at_rest)


def kill(served: Serving) -> None:
    """Make the engine's thread end in the middle of a step, as a process does that is killed."""
    served.model.open_with(RuntimeError("killed by the test"))


def assert_ended_by_death(error: dict[str, object] | None) -> None:
    assert error is not None
    assert error["code"] == "engine_died"
    assert error["type"] == "engine_error"
    assert "died" in str(error["message"])


def test_every_open_stream_ends_with_an_error_object(served: Serving) -> None:
    chats = [served.listen("long") for _ in range(3)]
    several = served.listen("long", n=3)
    text = Listener(served.http, COMPLETE, completion_body("long", stream=True))
    for listener in (*chats, several, text):
        listener.wait_for(b"word")
    served.model.shut()
    kill(served)
    for listener in chats:
        assert_ended_by_death(check_chat_stream(listener.join()).error)
    assert_ended_by_death(check_chat_stream(several.join(), n=3).error)
    assert_ended_by_death(check_completion_stream(text.join()).error)
    assert served.num_open == 0


def test_a_whole_answer_becomes_a_503(served: Serving) -> None:
    served.model.shut()
    listeners = [
        Listener(served.http, CHAT, chat_body("long")),
        Listener(served.http, COMPLETE, completion_body("long")),
        Listener(served.http, CHAT, chat_body("long", stream=True)),
    ]
    wait_for(lambda: served.num_open == 3)
    kill(served)
    for listener in listeners:
        body = listener.join()
        assert listener.status == 503
        assert b"engine_died" in body
        assert int(listener.headers["retry-after"]) >= 1


def test_a_tool_that_runs_is_cancelled_with_the_engine(served: Serving) -> None:
    served.tools.shut()
    listener = served.listen("server", server_tools="all")
    wait_for(lambda: served.server.engine.scheduler.parked)
    kill(served)
    other = served.listen()
    assert_ended_by_death(check_chat_stream(listener.join()).error)
    other.join()
    wait_for(lambda: served.tools.num_held == 0)


def test_while_it_is_started_again_health_and_requests_are_503(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = served.server.gateway.services.engine
    monkeypatch.setattr("midstream.gateway.engine_client._MIN_BACKOFF_S", 1.0)
    restarts = served.metric("engine_restarts_total")
    served.model.shut()
    listener = served.listen("long")
    wait_for(lambda: served.model.num_held)
    kill(served)
    listener.join()
    wait_for(lambda: engine.state is EngineState.DEAD)
    health = served.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    refused = served.chat()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert served.metric("num_requests_running") == 0
    wait_for(lambda: served.http.get("/health").status_code == 200)
    assert served.metric("engine_restarts_total") == restarts + 1


def test_information_is_given_while_the_engine_is_down(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served.server.gateway.services.engine
    monkeypatch.setattr(engine, "state", EngineState.LOADING)
    assert served.http.get("/health").json() == {"status": "loading"}
    assert served.chat().json()["error"]["code"] == "engine_loading"
    for path in ("/version", "/v1/models", "/metrics"):
        assert served.http.get(path).status_code == 200
    assert served.post("/tokenize", {"prompt": "x"}).status_code == 200
