"""Text completions on the wire: streams, several prompts, prompts of tokens."""

from collections.abc import Iterator
from typing import Any

import pytest

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import BYE, COMPLETE, HELLO, MODEL, Serving, completion_body, serving, wait_for
from tests.support.wire import Transcript, check_completion_stream


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer) as served:
        yield served
        wait_for(served.is_at_rest)


def complete(served: Serving, **fields: Any) -> dict[str, Any]:
    response = served.post(COMPLETE, completion_body(**fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def stream(served: Serving, num_choices: int = 1, **fields: Any) -> Transcript:
    response = served.post(COMPLETE, completion_body(stream=True, **fields))
    assert response.status_code == 200, response.text
    asked = bool((fields.get("stream_options") or {}).get("include_usage"))
    return check_completion_stream(response.content, n=num_choices, include_usage=asked)


def test_a_whole_completion(served: Serving, tokenizer: Tokenizer) -> None:
    body = complete(served)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == MODEL
    assert body["choices"] == [{"index": 0, "text": HELLO, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == len(tokenizer.encode("[script hello]"))


def test_a_stream_gives_the_same_text(served: Serving) -> None:
    transcript = stream(served)
    assert transcript.content == HELLO
    assert transcript.finish_reason == "stop"
    assert transcript.usage is None


def test_usage_is_sent_last_when_it_is_asked_for(served: Serving) -> None:
    transcript = stream(served, stream_options={"include_usage": True})
    assert transcript.usage is not None
    whole = complete(served)["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert transcript.usage[name] == whole[name]


def test_several_prompts_have_their_choices_in_order(served: Serving, tokenizer: Tokenizer) -> None:
    prompts = ["[script hello]", "and [script bye]"]
    body = complete(served, prompt=prompts, n=2)
    assert [choice["text"] for choice in body["choices"]] == [HELLO, HELLO, BYE, BYE]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    usage = body["usage"]
    assert usage["prompt_tokens"] == sum(len(tokenizer.encode(prompt)) for prompt in prompts), "each prompt counts once"
    alone = [complete(served, prompt=prompt)["usage"]["completion_tokens"] for prompt in prompts]
    assert usage["completion_tokens"] == 2 * sum(alone)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_several_prompts_in_one_stream(served: Serving) -> None:
    transcript = stream(served, 4, prompt=["[script hello]", "and [script bye]"], n=2)
    assert [choice.content for choice in transcript.choices] == [HELLO, HELLO, BYE, BYE]
    assert {choice.finish_reason for choice in transcript.choices} == {"stop"}


def test_a_prompt_may_be_tokens(served: Serving, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("[script hello]")
    assert complete(served, prompt=token_ids)["choices"][0]["text"] == HELLO
    assert complete(served, prompt=token_ids)["usage"]["prompt_tokens"] == len(token_ids)
    body = complete(served, prompt=[token_ids, tokenizer.encode("[script bye]")])
    assert [choice["text"] for choice in body["choices"]] == [HELLO, BYE]


def test_max_tokens_ends_it_with_length(served: Serving) -> None:
    [choice] = complete(served, script="long", max_tokens=3)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["text"] == "word word word"
    transcript = stream(served, script="long", max_tokens=3)
    assert transcript.finish_reason == "length"
    assert transcript.content == choice["text"]


def test_a_stop_string_ends_it(served: Serving) -> None:
    assert complete(served, stop=["there"])["choices"][0]["text"] == "Hello "
    assert stream(served, stop=["there"]).content == "Hello "


def test_a_prompts_special_tokens_count_as_such(served: Serving, tokenizer: Tokenizer) -> None:
    usage = complete(served, prompt="<|im_start|>user\n[script hello]")["usage"]
    assert usage["prompt_tokens"] == len(tokenizer.encode_frames("<|im_start|>user\n[script hello]"))
