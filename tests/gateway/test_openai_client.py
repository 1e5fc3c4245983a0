"""The real `openai` package against the real server: what our users run."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import HELLO, MODEL, WEATHER, Serving, serving


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, api_keys=("sk-test",)) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.server.base_url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


def messages(script: str) -> list[Any]:
    return [{"role": "user", "content": f"[script {script}]"}]


def test_it_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "midstream"


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=messages("hello"), temperature=0)
    assert answer.choices[0].message.content == HELLO
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=messages("hello"), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == HELLO
    assert chunks[-1].usage is not None
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]


def test_its_stream_helper_puts_calls_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=messages("client text"),
        temperature=0,
        tools=[WEATHER],  # type: ignore[list-item]
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= kinds
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_the_whole_round_of_a_clients_tool(client: openai.OpenAI) -> None:
    asked = messages("client")
    answer = client.chat.completions.create(
        model=MODEL,
        messages=asked,
        temperature=0,
        tools=[WEATHER],  # type: ignore[list-item]
    )
    said = answer.choices[0].message
    assert said.tool_calls is not None
    history = [
        *asked,
        said.model_dump(),
        {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "rain"},
        {"role": "user", "content": "[script hello]"},
    ]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=history,
        temperature=0,
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert answer.choices[0].message.content == HELLO


def test_server_tools_go_by_unseen_by_a_client_that_knows_none(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=messages("server"), temperature=0, stream=True, extra_body={"server_tools": "all"}
    )
    states, text = [], ""
    for chunk in stream:
        event = (chunk.model_extra or {}).get("event")
        if event is not None:
            states.append(event["data"]["call"]["state"])
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert states == ["routed", "running", "done", "injected"]
    assert text == "Let me see. It had 54 departures."


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="[script hello]", temperature=0)
    assert whole.choices[0].text == HELLO
    stream = client.completions.create(model=MODEL, prompt="[script hello]", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == HELLO


def test_errors_are_its_own_exceptions(served: Serving, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0") as bad:
        client.chat.completions.create(model=MODEL, messages=messages("hello"), max_tokens=0)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=messages("hello"))
    stranger = openai.OpenAI(base_url=f"{served.server.base_url}/v1", api_key="sk-wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_an_error_in_a_stream_is_raised_by_the_stream(served: Serving, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=messages("long"), temperature=0, stream=True)
    next(iter(stream))
    served.server.loop.call_soon_threadsafe(served.server.gateway.services.engine.end_all, "a test ended it")
    with pytest.raises(openai.APIError, match="a test ended it"):
        list(stream)
