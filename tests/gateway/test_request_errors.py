"""Every kind of bad request: whose fault, what, the limit and the remedy; and the next good one works."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest

from midstream.gateway.fields import NEUTRAL
from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import (
    ALARM,
    BYE,
    CHAT,
    COMPLETE,
    HELLO,
    MODEL,
    WEATHER,
    Serving,
    chat_body,
    completion_body,
    serving,
)

MAX_MODEL_LEN = 512
MAX_BODY_BYTES = 1 << 20
LIMIT_MS = 200


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, max_model_len=MAX_MODEL_LEN, max_body_bytes=MAX_BODY_BYTES) as served:
        yield served


class Bad(NamedTuple):
    """One bad body: what its error must say."""

    body: Any
    param: str | None
    words: tuple[str, ...]
    status: int = 400
    code: str | None = None
    path: str = CHAT


NAMED_WEATHER = {"type": "function", "function": {"name": "get_weather"}}


def chat(param: str | None, *words: str, status: int = 400, code: str | None = None, **fields: Any) -> Bad:
    return Bad(chat_body(**fields), param, words, status, code)


def completion(param: str | None, *words: str, code: str | None = None, **fields: Any) -> Bad:
    return Bad(completion_body(**fields), param, words, code=code, path=COMPLETE)


def raw(body: bytes, *words: str) -> Bad:
    return Bad(body, None, words, code="invalid_json")


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in chat_body().items() if name != field}


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "[script hello]"} | fields]


def tool(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def schema(parameters: Any) -> list[dict[str, Any]]:
    return [tool(parameters=parameters)]


def properties(**fields: Any) -> list[dict[str, Any]]:
    return schema({"type": "object", "properties": fields})


DEEP = b'{"model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
SHALLOWER = b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}"
PARAMETERS = "tools.0.function.parameters"

NOT_JSON = {
    "empty": raw(b"", "not JSON", "empty"),
    "blank": raw(b"  \n", "not JSON"),
    "malformed": raw(b'{"model": x}', "not JSON", "line 1"),
    "truncated": raw(b'{"model": "smollm2-135m", "messages": [{"ro', "not JSON", "end of data"),
    "two objects": raw(b"{} {}", "not JSON"),
    "single quotes": raw(b"{'model': 'x'}", "not JSON"),
    "trailing comma": raw(b'{"model": "x",}', "not JSON"),
    "form": raw(b"model=x&messages=y", "not JSON"),
    "array": raw(b"[]", "an array", "object"),
    "string": raw(b'"x"', "a string", "object"),
    "number": raw(b"17", "a number", "object"),
    "boolean": raw(b"true", "a boolean", "object"),
    "null": raw(b"null", "null", "object"),
    "NaN": raw(b'{"temperature": NaN}', "NaN"),
    "Infinity": raw(b'{"temperature": Infinity}', "Infinity"),
    "-Infinity": raw(b'{"temperature": -Infinity}', "Infinity"),
    "1e400": raw(b'{"temperature": 1e400}', "infinity"),
    "a number of 5,000 digits": raw(b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
    "10,000 levels": raw(DEEP, "depth"),
    "100 levels": raw(SHALLOWER, "64", "flatten"),
    "invalid UTF-8": raw(b'{"model": "\xff\xfe"}', "UTF-8"),
    "overlong UTF-8": raw(b'{"model": "\xc0\xaf"}', "UTF-8"),
    "UTF-16": raw('{"model": "x"}'.encode("utf-16"), "UTF-8"),
    "lone surrogate in the model": raw(rb'{"model": "\ud800", "messages": []}', "surrogate"),
    "lone surrogate in content": raw(rb'{"messages": [{"role": "user", "content": "a\udc00b"}]}', "surrogate"),
    "lone surrogate in a tool's name": raw(rb'{"tools": [{"function": {"name": "\ud83d"}}]}', "surrogate"),
    "lone surrogate in a stop": raw(rb'{"stop": ["\udfff"]}', "surrogate"),
    "lone surrogate in a field's name": raw(rb'{"\ud800": 1}', "surrogate"),
}

WRONG_VALUES: dict[str, Any] = {
    "model": 5,
    "messages": "hello",
    "stream": "yes",
    "stream_options": True,
    "n": "2",
    "max_tokens": "16",
    "max_completion_tokens": 1.5,
    "min_tokens": [],
    "temperature": "hot",
    "top_p": {},
    "top_k": 1.5,
    "min_p": "0",
    "seed": "abc",
    "stop": 5,
    "stop_token_ids": 5,
    "ignore_eos": 1,
    "include_stop_str_in_output": "no",
    "tools": {},
    "tool_choice": 5,
    "parallel_tool_calls": "yes",
    "server_tools": 5,
    "chat_template_kwargs": [],
}
WRONG_TYPES = {name: chat(name, name, "should be", **{name: value}) for name, value in WRONG_VALUES.items()}

SAMPLING = {
    "max_tokens 0": chat("max_tokens", "max_tokens is 0", "greater than or equal to 1", max_tokens=0),
    "max_tokens -1": chat("max_tokens", "max_tokens is -1", max_tokens=-1),
    "max_completion_tokens 0": chat("max_completion_tokens", "is 0", max_completion_tokens=0),
    "max_tokens 1e30": chat("max_tokens", "should be", max_tokens=10**30),
    "max_tokens over the context": chat(
        "max_tokens", "5000", str(MAX_MODEL_LEN), "lower max_tokens to", code="context_length_exceeded", max_tokens=5000
    ),
    "max_completion_tokens over the context": chat(
        "max_completion_tokens",
        "18446744073709551615",
        "lower max_completion_tokens to",
        code="context_length_exceeded",
        max_completion_tokens=2**64 - 1,
    ),
    "min_tokens over max_tokens": chat("min_tokens", "9", "8", "lower", min_tokens=9, max_tokens=8),
    "min_tokens -1": chat("min_tokens", "-1", min_tokens=-1),
    "temperature -0.1": chat("temperature", "-0.1", "greater than or equal to 0", temperature=-0.1),
    "temperature 2.1": chat("temperature", "2.1", "less than or equal to 2", temperature=2.1),
    "top_p 0": chat("top_p", "greater than 0", top_p=0),
    "top_p 1.1": chat("top_p", "less than or equal to 1", top_p=1.1),
    "top_k -2": chat("top_k", "-2", top_k=-2),
    "min_p 1.1": chat("min_p", "1.1", min_p=1.1),
    "seed 2**63": chat("seed", str(2**63), seed=2**63),
    "n 0": chat("n", "n is 0", "greater than or equal to 1", n=0),
    "n 17": chat("n", "n is 17", "less than or equal to 16", n=17),
    "n true": chat("n", "n is true", n=True),
    "17 stops": chat("stop", "at most 16", stop=["x"] * 17),
    "an empty stop": chat("stop", "empty", stop=["x", ""]),
    "a stop that is a number": chat("stop.1", "stop.1 is 7", stop=["x", 7]),
    "100,000 bad stop tokens": chat("stop_token_ids.0", '"x"', stop_token_ids=["x"] * 100_000),
    "a negative stop token": chat("stop_token_ids.0", "-1", stop_token_ids=[-1]),
    "stream_options without a stream": chat("stream_options", "stream: true", stream_options={"include_usage": True}),
    "include_usage of a wrong type": chat(
        "stream_options.include_usage", '"yes"', stream=True, stream_options={"include_usage": "yes"}
    ),
}

MESSAGES = {
    "no model": Bad(without("model"), "model", ("model is missing",), code="missing_required_parameter"),
    "no messages": Bad(without("messages"), "messages", ("messages is missing",), code="missing_required_parameter"),
    "null messages": chat("messages", "missing", messages=None),
    "empty object": Bad({}, "model", ("missing",), code="missing_required_parameter"),
    "unknown model": chat("model", "'gpt-4'", MODEL, status=404, code="model_not_found", model="gpt-4"),
    "empty messages": chat("messages", "at least 1", messages=[]),
    "a message that is a string": chat("messages.0", "messages.0", "object", messages=["hello"]),
    "a message that is null": chat("messages.0", "object", messages=[None]),
    "100,000 bad messages": chat("messages.0", "object", messages=[1] * 100_000),
    "no role": chat("messages.0.role", "missing", messages=[{"content": "x"}]),
    "a bad role": chat("messages.0.role", '"wizard"', "'user'", messages=message(role="wizard")),
    "a role of a wrong type": chat("messages.0.role", "5", messages=message(role=5)),
    "the second message's role": chat("messages.1.role", '"x"', messages=message() + message(role="x")),
    "no content": chat("messages.0", "content", messages=[{"role": "user"}]),
    "null content of a user": chat("messages.0", "content", messages=message(content=None)),
    "null content of a tool": chat("messages.1", "content", messages=[*message(), {"role": "tool", "content": None}]),
    "content of a wrong type": chat("messages.0.content", "5", messages=message(content=5)),
    "a part that is no object": chat("messages.0.content.0", "object", messages=message(content=["x"])),
    "an image": chat(
        "messages", "image_url", "text", messages=message(content=[{"type": "image_url", "image_url": {"url": "x"}}])
    ),
    "an audio part": chat("messages", "input_audio", messages=message(content=[{"type": "input_audio"}])),
    "a text part whose text is a number": chat(
        "messages", "text", messages=message(content=[{"type": "text", "text": 5}])
    ),
    "such a part in an old answer": chat(
        "messages",
        "text",
        messages=[*message(), {"role": "assistant", "content": [{"type": "text", "text": 5}]}, *message()],
    ),
    "a part without a type": chat("messages", "text", messages=message(content=[{"text": "x"}])),
    "calls of a user": chat("messages.0", "assistant", messages=message(tool_calls=[tool() | {"id": "1"}])),
    "a call without a function": chat(
        "messages.1.tool_calls.0.function",
        "missing",
        messages=[*message(), {"role": "assistant", "tool_calls": [{"id": "1"}]}],
    ),
    "a call whose arguments are an object": chat(
        "messages.1.tool_calls.0.function.arguments",
        "string",
        messages=[*message(), {"role": "assistant", "tool_calls": [tool(arguments={})]}],
    ),
    "template kwargs that are ours": chat("chat_template_kwargs", "messages", chat_template_kwargs={"messages": []}),
    "template kwargs that end the prompt": chat(
        "chat_template_kwargs", "add_generation_prompt", chat_template_kwargs={"add_generation_prompt": False}
    ),
    "a prompt over the context": chat(
        "messages",
        "tokens; the limit is 511",
        "shorten",
        "--max-model-len",
        code="context_length_exceeded",
        messages=message(content="word " * 600),
    ),
    "a prompt far over the context": chat(
        "messages",
        "the limit is 511",
        "shorten",
        code="context_length_exceeded",
        messages=message(content="word " * 200_000),
    ),
}

TOOLS = {
    "a tool without a function": chat("tools.0.function", "missing", tools=[{"type": "function"}]),
    "a tool of another type": chat("tools.0.type", "'function'", tools=[tool() | {"type": "web_search"}]),
    "a tool that is a string": chat("tools.0", "object", tools=["get_weather"]),
    "a tool without a name": chat("tools.0.function.name", "missing", tools=[{"type": "function", "function": {}}]),
    "an empty name": chat("tools.0.function.name", "name", tools=[tool("")]),
    "a name with a blank": chat("tools.0.function.name", "get weather", tools=[tool("get weather")]),
    "a name of 65 characters": chat("tools.0.function.name", "name", tools=[tool("x" * 65)]),
    "a name with a line end": chat("tools.0.function.name", "name", tools=[tool("x\n")]),
    "a description of a wrong type": chat("tools.0.function.description", "string", tools=[tool(description=5)]),
    "strict of a wrong type": chat("tools.0.function.strict", "true or false", tools=[tool(strict="yes")]),
    "parameters that are a list": chat(PARAMETERS, "object", tools=schema([])),
    "parameters that are a string": chat(PARAMETERS, "object", tools=schema("x")),
    "type array": chat(PARAMETERS, "'f'", "'array'", "'object'", tools=schema({"type": "array"})),
    "a list of types": chat(PARAMETERS, "'object'", tools=schema({"type": ["object", "null"]})),
    "properties that are a list": chat(PARAMETERS, "'f'", "properties", tools=schema({"properties": []})),
    "required that is a string": chat(PARAMETERS, "required", tools=schema({"required": "a"})),
    "required that holds numbers": chat(PARAMETERS, "required", tools=schema({"required": [1]})),
    "an unknown type": chat(PARAMETERS, "'f'", "nope", tools=properties(a={"type": "nope"})),
    "a property that is a number": chat(PARAMETERS, "'f'", tools=properties(a=5)),
    "a type that is a number": chat(PARAMETERS, "'f'", tools=properties(a={"type": 5})),
    "a reference to nothing": chat(PARAMETERS, "'f'", "/nope", tools=properties(a={"$ref": "#/nope"})),
    "a reference to elsewhere": chat(PARAMETERS, "'f'", tools=properties(a={"$ref": "http://example.com/x"})),
    "a long chain of references": chat(
        PARAMETERS,
        "'f'",
        "904 levels deep",
        "limit is 512",
        "fewer definitions",
        tools=schema(
            {
                "properties": {"a": {"$ref": "#/$defs/0"}},
                "$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(450)},
            }
        ),
    ),
    "a pattern that is none": chat(PARAMETERS, "'f'", tools=properties(a={"type": "string", "pattern": "("})),
    "a minimum that is a string": chat(PARAMETERS, "'f'", tools=properties(a={"type": "integer", "minimum": "x"})),
    "a required property that nothing satisfies": chat(
        PARAMETERS, "'f'", tools=schema({"properties": {"a": {"enum": []}}, "required": ["a"]})
    ),
    "the second tool's schema": chat("tools.1.function.parameters", "'f'", tools=[WEATHER, *schema({"type": "array"})]),
    "two tools of one name": chat("tools", "get_weather", "rename", tools=[WEATHER, ALARM, WEATHER]),
    "a client's tool named as a server's": chat("tools", "'now'", "rename", tools=[tool("now")], server_tools=["now"]),
    "an unknown server tool": chat(
        "server_tools", "'weather'", "calculate", "on_time_rate", code="unknown_tool", server_tools=["weather"]
    ),
    "a misspelt server tool": chat("server_tools", "did you mean 'flight_status'?", server_tools=["flight_statis"]),
    "a server tool that is a number": chat("server_tools.0", "string", server_tools=[5]),
    "server_tools of another word": chat("server_tools", '"some"', "all", server_tools="some"),
    "tool_choice of another word": chat("tool_choice", '"maybe"', "'auto'", tools=[WEATHER], tool_choice="maybe"),
    "tool_choice required without tools": chat("tool_choice", "required", "no tools", tool_choice="required"),
    "tool_choice that names no tool": chat(
        "tool_choice",
        "did you mean 'get_weather'?",
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_wether"}},
    ),
    "tool_choice that lists no tool": chat("tool_choice", "at least 1", tools=[WEATHER], tool_choice=[]),
    "tool_choice that lists what is no tool": chat(
        "tool_choice",
        "get_wether",
        "get_weather",
        tools=[WEATHER],
        tool_choice=[NAMED_WEATHER, {"type": "function", "function": {"name": "get_wether"}}],
    ),
    "tool_choice that lists too many": chat(
        "tool_choice", "at most 16", tools=[WEATHER], tool_choice=[NAMED_WEATHER] * 17
    ),
    "tool_choice that lists calls which may not be parallel": chat(
        "tool_choice", "2 calls", tools=[WEATHER], tool_choice=[NAMED_WEATHER] * 2, parallel_tool_calls=False
    ),
    "tool_choice without a function": chat(
        "tool_choice.function", "missing", tools=[WEATHER], tool_choice={"type": "function"}
    ),
    "tool_choice without a name": chat(
        "tool_choice.function.name", "missing", tools=[WEATHER], tool_choice={"type": "function", "function": {}}
    ),
    "tool_choice of another type": chat(
        "tool_choice.type", "'function'", tools=[WEATHER], tool_choice={"type": "x", "function": {"name": "f"}}
    ),
    "tool_choice as a list": chat("tool_choice.0", "should be", tools=[WEATHER], tool_choice=["auto"]),
}

UNKNOWN = {
    "an unknown field": chat("wibble", "unknown field 'wibble'", code="unknown_parameter", wibble=1),
    "a misspelt field": chat(
        "temprature", "did you mean 'temperature'?", code="unknown_parameter", **{"temprature": 1}
    ),
    "a field with a very long name": chat(
        "x" * 79 + "…", "unknown field", code="unknown_parameter", **{"x" * 99_999: 1}
    ),
}

UNSUPPORTED_VALUES: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "length_penalty": 2,
    "logprobs": True,
    "top_logprobs": 5,
    "prompt_logprobs": 1,
    "logit_bias": {"50": 10},
    "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"],
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "best_of": 2,
    "echo": True,
    "suffix": "end",
    "use_beam_search": True,
    "bad_words": ["x"],
}

UNSUPPORTED = {
    name: chat(
        name,
        f"{name} is not supported yet",
        "leave it out",
        code="unsupported_parameter",
        **{name: UNSUPPORTED_VALUES.get(name, {"any": "value"})},
    )
    for name in NEUTRAL
}

COMPLETIONS = {
    "no prompt": Bad({"model": MODEL}, "prompt", ("missing",), code="missing_required_parameter", path=COMPLETE),
    "an empty prompt": completion("prompt", "empty", prompt=""),
    "no prompts": completion("prompt", "0 prompts", "64", prompt=[]),
    "an empty list of tokens": completion("prompt", "empty", prompt=[[]]),
    "a prompt of a wrong type": completion("prompt", "5", prompt=5),
    "a prompt that is an object": completion("prompt", "prompt", prompt={}),
    "a token that is a float": completion("prompt.1", "1.5", prompt=[1, 1.5]),
    "a negative token": completion("prompt.0", "-1", prompt=[-1]),
    "a token beyond the vocabulary": completion("prompt", "10000000", "vocabulary", prompt=[10_000_000]),
    "65 prompts": completion("prompt", "65 prompts", "64", prompt=["x"] * 65),
    "5 prompts 16 times": completion("prompt", "5 prompts", "n = 16", "64", prompt=["x"] * 5, n=16),
    "messages": completion("messages", "unknown field 'messages'", messages=message()),
    "tools": completion("tools", "unknown field 'tools'", tools=[WEATHER]),
    "a long prompt": completion("prompt", "the limit is 511", code="context_length_exceeded", prompt="word " * 600),
    "a long prompt of tokens": completion(
        "prompt", "600 tokens", "511", code="context_length_exceeded", prompt=[9] * 600
    ),
    "logprobs": completion("logprobs", "not supported", code="unsupported_parameter", logprobs=1),
}

ALL = {
    f"{kind}: {name}": bad
    for kind, table in {
        "not JSON": NOT_JSON,
        "type": WRONG_TYPES,
        "sampling": SAMPLING,
        "messages": MESSAGES,
        "tools": TOOLS,
        "unknown": UNKNOWN,
        "unsupported": UNSUPPORTED,
        "completions": COMPLETIONS,
    }.items()
    for name, bad in table.items()
}


@pytest.mark.parametrize("bad", ALL.values(), ids=ALL.keys())
def test_a_bad_request_says_what_is_wrong_at_once_and_the_next_one_works(served: Serving, bad: Bad) -> None:
    response = quick(served, bad)
    error = openai_error(response, bad.status)
    assert error["param"] == bad.param, error
    assert error["code"] == (bad.code or error["code"])
    missing = [word for word in bad.words if word not in error["message"]]
    assert not missing, f"{missing} not in: {error['message']}"
    assert served.chat("bye").json()["choices"][0]["message"]["content"] == BYE


def quick(served: Serving, bad: Bad) -> httpx2.Response:
    """The answer, which has to come within the limit; a busy machine gets three tries."""
    body = bad.body if isinstance(bad.body, bytes) else json.dumps(bad.body).encode()
    for _ in range(3):
        start = time.perf_counter()
        response = served.http.post(bad.path, content=body, headers={"content-type": "application/json"})
        took_ms = (time.perf_counter() - start) * 1000
        if took_ms < LIMIT_MS:
            return response
    raise AssertionError(f"the answer took {took_ms:.0f} ms")


def openai_error(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error object, whose shape is OpenAI's."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 600, "an error is no place for megabytes"
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    return error


# --- bodies over the limit ---


def test_a_body_over_the_limit_is_refused_by_its_declared_length(served: Serving) -> None:
    # Nothing of the body is sent: the answer comes from the header alone.
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\nconnection: close\r\n\r\n"
    answer = send_raw(served, head.encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "body_too_large"
    assert f"{MAX_BODY_BYTES + 1} bytes" in error["message"]
    assert f"the limit is {MAX_BODY_BYTES}" in error["message"]
    assert served.chat().status_code == 200


def test_a_chunked_body_over_the_limit_is_refused_before_its_end(served: Serving) -> None:
    num_sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal num_sent
        for _ in range(64):
            num_sent += 1
            yield b"x" * 65_536

    error = openai_error(served.http.post(CHAT, content=chunks()), 413)
    assert str(MAX_BODY_BYTES) in error["message"]
    assert served.chat().status_code == 200


def test_a_body_just_under_the_limit_is_read(served: Serving) -> None:
    body = chat_body(metadata={"x": ""})
    padding = MAX_BODY_BYTES - len(json.dumps(body))
    response = served.http.post(CHAT, content=json.dumps(body | {"metadata": {"x": "y" * padding}}))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 40])
def test_a_content_length_that_is_none_is_the_clients_fault(served: Serving, length: str) -> None:
    answer = send_raw(served, f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{{}}".encode())
    assert answer.startswith(b"HTTP/1.1 4")
    assert served.chat().status_code == 200


# --- what is accepted ---


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values])
def test_a_field_that_is_not_supported_passes_with_the_value_that_changes_nothing(
    served: Serving, name: str, value: Any
) -> None:
    response = served.chat(**{name: value})
    assert response.status_code == 200, response.text


def test_null_stands_for_every_optional_field(served: Serving) -> None:
    nulls: dict[str, Any] = dict.fromkeys(
        [
            *(name for name in WRONG_TYPES if name not in ("model", "messages")),
            *NEUTRAL,
            "user",
            "metadata",
            "store",
        ]
    )
    assert served.chat(**nulls).json()["choices"][0]["message"]["content"] == HELLO
    response = served.post(COMPLETE, completion_body(stream=None, n=None, stop=None, suffix=None, logprobs=None))
    assert response.json()["choices"][0]["text"] == HELLO


def test_null_stands_for_optional_fields_of_the_parts_too(served: Serving) -> None:
    messages = [
        message(name=None, tool_calls=None, tool_call_id=None)[0],
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": None, "type": None, "function": {"name": "get_weather", "arguments": None}},
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": None},
    ]
    tools = [tool(description=None, parameters=None, strict=None)]
    options = {"include_usage": None}
    response = served.chat(messages=messages, tools=tools, stream=True, stream_options=options)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "field",
    [
        {"user": "somebody"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"service_tier": "auto"},
        {"continuous_usage_stats": True},
        {"repetition_detection": {"x": 1}},
        {"skip_special_tokens": True},
        {"prompt_cache_key": "k"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_common_clients_send_besides_is_ignored(served: Serving, field: dict[str, Any]) -> None:
    assert served.chat(**field).json()["choices"][0]["message"]["content"] == HELLO


def test_stream_options_may_hold_more_than_we_know(served: Serving) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert served.stream(stream_options=options).usage is not None


@pytest.mark.parametrize(
    "extremes",
    [
        {"temperature": 5e-324},
        {"temperature": 1, "top_p": 5e-324},
        {"temperature": 2, "top_p": 1e-30, "min_p": 1.0, "top_k": 1},
        {"temperature": 1, "top_k": 2**64 - 1},
        {"temperature": 1, "top_k": -1, "seed": -(2**63)},
        {"temperature": 1, "seed": 2**63 - 1},
        {"stop_token_ids": [2**64 - 1]},
        {"min_tokens": 5, "stop_token_ids": [2**64 - 1]},
    ],
    ids=str,
)
def test_extreme_but_allowed_sampling_values_hurt_nobody(served: Serving, extremes: dict[str, Any]) -> None:
    response = served.chat(**extremes)
    assert response.json()["choices"][0]["message"]["content"] == HELLO, response.text


HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Really."}]},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}],
        "name": "ann",
    },
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [
            {
                "id": "call_1",
                "index": 0,
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain"},
    {"role": "assistant", "content": "Rain.", "reasoning_content": "Look it up.", "server_calls": []},
    {"role": "user", "content": "Thanks. [script hello]"},
]


def test_a_history_with_calls_and_results_is_taken_as_clients_send_it(served: Serving) -> None:
    assert served.chat(messages=HISTORY, tools=[WEATHER]).json()["choices"][0]["message"]["content"] == HELLO


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "not json",
        "[]",
        r'{"a": "\ud800"}',
        '{"a": ' * 40 + "1" + "}" * 40,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": NaN, "b": 1e400}',
    ],
    ids=["empty", "no JSON", "array", "lone surrogate", "deep", "huge number", "NaN"],
)
def test_strange_arguments_in_a_history_are_no_fault_of_ours(served: Serving, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [*message(), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}, *message()]
    response = served.chat(messages=messages, max_tokens=4)
    assert response.status_code in (200, 400), response.text
    assert served.chat().status_code == 200


@pytest.mark.parametrize("name", ["tokenizer", "self", "template", "before", "after", "tools_", "kwargs"])
def test_template_kwargs_of_any_name_reach_the_template_alone(served: Serving, name: str) -> None:
    messages = [*message(), {"role": "assistant", "content": HELLO}, *message()]
    served.chat()
    response = served.chat(messages=messages, chat_template_kwargs={name: 1})
    assert response.status_code in (200, 400), response.text


# --- methods, paths, headers ---


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", COMPLETE),
        ("OPTIONS", CHAT),
        ("PATCH", "/v1/models"),
        ("POST", "/health"),
        ("HEAD", CHAT),
        ("GET", "/tokenize"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_right_ones(served: Serving, method: str, path: str) -> None:
    response = served.http.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] in ("POST", "GET")
    if method != "HEAD":
        assert openai_error(response, 405)["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat/completions/", "/v2/models", "/v1/embeddings", "/%ff", "/v1/x\u00e9"]
)
def test_an_unknown_path_is_a_404(served: Serving, path: str) -> None:
    error = openai_error(served.http.get(path), 404)
    assert error["code"] == "not_found"


@pytest.mark.parametrize("host", ["[", "a b", "x" * 5000, ""])
def test_a_strange_host_header_changes_nothing(served: Serving, host: str) -> None:
    assert openai_error(served.http.get("/nope", headers={"host": host}), 404)
    assert served.http.get("/version", headers={"host": host}).status_code == 200


def test_the_body_counts_not_its_declared_type(served: Serving) -> None:
    response = served.http.post(CHAT, content=json.dumps(chat_body()), headers={"content-type": "text/plain"})
    assert response.json()["choices"][0]["message"]["content"] == HELLO


def test_a_bad_request_leaves_its_connection_usable(served: Serving) -> None:
    with httpx2.Client(base_url=served.server.base_url, limits=httpx2.Limits(max_connections=1)) as http:
        ports = set()
        for body in (b"{", b"[]", json.dumps(chat_body(n=0)).encode(), json.dumps(chat_body()).encode()):
            with http.stream("POST", CHAT, content=body) as response:
                response.read()
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        assert response.status_code == 200
        assert len(ports) == 1


def send_raw(served: Serving, data: bytes) -> bytes:
    """What the server answers to bytes that no client library would send."""
    host, port = served.server.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(data)
        answer = b""
        while data := sock.recv(65_536):
            answer += data
    return answer
