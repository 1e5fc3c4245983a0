"""The routes that generate nothing: models, version, health, tokenize, detokenize."""

import time
from collections.abc import Iterator

import pytest

from midstream import __version__
from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import MODEL, Listener, Serving, chat_body, serving, wait_for


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer) as served:
        yield served


def test_the_model_is_listed_with_what_clients_look_for(served: Serving) -> None:
    listed = served.http.get("/v1/models").json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert set(model) == {"id", "object", "created", "owned_by", "root", "max_model_len"}
    assert model["id"] == MODEL
    assert model["object"] == "model"
    assert model["max_model_len"] == 4096
    assert isinstance(model["created"], int)
    assert served.http.get(f"/v1/models/{MODEL}").json() == model


@pytest.mark.parametrize("name", ["nope", "smollm2-135M", "a/b/c", "%00", "x" * 3000])
def test_another_model_is_a_404(served: Serving, name: str) -> None:
    response = served.http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert MODEL in error["message"]


def test_the_model_may_be_served_under_another_name(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, served_model_name="acme/chat-1") as served:
        [model] = served.http.get("/v1/models").json()["data"]
        assert model["id"] == "acme/chat-1"
        assert model["root"] == MODEL
        assert served.http.get("/v1/models/acme/chat-1").status_code == 200
        assert served.chat(model=MODEL).status_code == 404
        answer = served.chat(model="acme/chat-1")
        assert answer.json()["model"] == "acme/chat-1"
        assert {chunk["model"] for chunk in served.stream(model="acme/chat-1").chunks} == {"acme/chat-1"}


def test_the_version_is_ours(served: Serving) -> None:
    assert served.http.get("/version").json() == {"version": __version__}


def test_health_is_ok_while_requests_are_taken(served: Serving) -> None:
    response = served.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok"}


# --- tokenize and detokenize, as vLLM has them ---

ODD_TEXTS = ["", "hello world", "  two  blanks\n", "Grüße 👋🏽 東京", "<|im_start|>user\nhi<|im_end|>", "\x00\t"]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=repr)
def test_a_text_survives_tokenize_and_detokenize(served: Serving, text: str) -> None:
    answer = served.post("/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False}).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 4096
    assert served.post("/detokenize", {"model": MODEL, "tokens": answer["tokens"]}).json() == {"prompt": text}


def test_tokenize_gives_the_tokenizers_ids(served: Serving, tokenizer: Tokenizer) -> None:
    tokens = served.post("/tokenize", {"model": MODEL, "prompt": "<|im_start|>hello"}).json()["tokens"]
    assert tokens == tokenizer.encode_frames("<|im_start|>hello")


def test_tokenize_shows_the_tokens_texts_when_asked(served: Serving) -> None:
    answer = served.post("/tokenize", {"prompt": "hello world", "return_token_strs": True}).json()
    assert "".join(answer["token_strs"]) == "hello world"
    assert len(answer["token_strs"]) == answer["count"]


def test_tokenize_counts_a_conversation_as_chat_will(served: Serving) -> None:
    messages = chat_body()["messages"]
    count = served.post("/tokenize", {"model": MODEL, "messages": messages}).json()["count"]
    assert count == served.chat().json()["usage"]["prompt_tokens"]


def test_a_text_longer_than_the_context_can_be_counted(served: Serving) -> None:
    assert served.post("/tokenize", {"prompt": "word " * 20_000}).json()["count"] > 20_000


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"model": MODEL}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": chat_body()["messages"]}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"model": "nope", "prompt": "x"}, 404, "model"),
        ("/tokenize", {"prompt": "x", "promt": "y"}, 400, "promt"),
        ("/detokenize", {"model": MODEL}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, "x"]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [10**7]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**64 - 1]}, 400, "tokens"),
        ("/detokenize", {"model": "nope", "tokens": []}, 404, "model"),
    ],
)
def test_a_bad_body_names_its_field(
    served: Serving, path: str, body: dict[str, object], status: int, param: str
) -> None:
    response = served.post(path, body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


def test_detokenize_of_nothing_is_nothing(served: Serving) -> None:
    assert served.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


# --- request ids ---


def test_a_request_id_is_echoed(served: Serving) -> None:
    for path in ("/health", "/nope"):
        assert served.http.get(path, headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    for body in (chat_body(), chat_body(stream=True), chat_body(n=0)):
        response = served.post("/v1/chat/completions", body, headers={"x-request-id": "abc-123"})
        assert response.headers["x-request-id"] == "abc-123"


@pytest.mark.parametrize("given", [None, "", "x" * 129, "sn\xf6"])
def test_without_a_usable_request_id_each_answer_gets_its_own(served: Serving, given: str | None) -> None:
    headers = {} if given is None else {b"x-request-id": given.encode("latin-1")}
    first, second = (served.http.get("/health", headers=headers).headers["x-request-id"] for _ in range(2))
    assert first != second
    assert first
    assert first != given


def test_a_long_text_holds_up_nobody_else(served: Serving) -> None:
    counting = Listener(served.http, "/tokenize", {"prompt": "word " * 400_000})
    wait_for(lambda: served.server.server.server_state.tasks)
    start = time.monotonic()
    assert served.http.get("/health").status_code == 200
    health_s = time.monotonic() - start
    assert b'"count":400001' in counting.join()
    assert health_s < (time.monotonic() - start) / 2, "health waited for the text"
