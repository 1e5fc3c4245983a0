"""Bearer keys and origins: who may call, and what two callers never share."""

import hmac
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from midstream.errors import Unauthorized
from midstream.gateway.owner import Keys
from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import CHAT, HELLO, Serving, chat_body, serving

ANN, BOB = "sk-ann", "sk-böb"
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, api_keys=(ANN, BOB), cors_origins=(ORIGIN,)) as served:
        yield served


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


ROUTES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/smollm2-135m"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nope"),
    ("OPTIONS", CHAT),
    ("GET", "/health/"),
    ("GET", "//health"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_but_health_answers_without_a_key(served: Serving, method: str, path: str) -> None:
    response = served.http.request(method, f"{served.server.base_url}{path}")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_health_needs_no_key(served: Serving) -> None:
    assert served.http.get("/health").status_code == 200


WRONG = [
    b"Bearer sk-wrong",
    b"Bearer",
    b"Bearer \xa0",
    b"",
    b"sk-ann",
    b"Basic sk-ann",
    b"Bearer sk-ann,sk-ann",
    b"Bearer SK-ANN",
    b"Bearer \xff\xfe",
    b"Bearer sk-an",
    b"Bearer sk-annn",
    b"Bearer " + b"x" * 5000,
]


@pytest.mark.parametrize("header", WRONG, ids=lambda header: repr(header[:24]))
def test_a_wrong_key_is_refused(served: Serving, header: bytes) -> None:
    response = served.post(CHAT, chat_body(), headers={b"authorization": header})
    assert response.status_code == 401
    assert "Authorization: Bearer" in response.json()["error"]["message"]


@pytest.mark.parametrize("key", [ANN, BOB])
def test_each_of_several_keys_may_call(served: Serving, key: str) -> None:
    assert served.http.get("/v1/models", headers=bearer(key)).status_code == 200
    answer = served.post(CHAT, chat_body(), headers=bearer(key))
    assert answer.json()["choices"][0]["message"]["content"] == HELLO


def test_the_scheme_is_read_in_any_case(served: Serving) -> None:
    assert served.http.get("/version", headers={"authorization": "bearer sk-ann"}).status_code == 200


def test_a_wrong_key_is_refused_before_the_body_is_read(served: Serving) -> None:
    response = served.http.post(CHAT, content=b"{" * 100, headers=bearer("sk-wrong"))
    assert response.status_code == 401


def test_keys_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys(("a", "b", "c"))
    assert keys.check("Bearer a") != keys.check("Bearer b")
    assert len(compared) == 6, "the comparison stopped at the key that fits"
    with pytest.raises(Unauthorized):
        keys.check("Bearer d")


def test_without_keys_everybody_is_one_owner() -> None:
    assert Keys(()).check("") == Keys(()).check("Bearer anything") == b""


# --- what is shared ---


def turn(served: Serving, key: str, **fields: Any) -> dict[str, Any]:
    response = served.post(CHAT, chat_body(**fields), headers=bearer(key))
    usage: dict[str, Any] = response.json()["usage"]
    return usage


def test_two_keys_do_not_share_prefix_blocks(served: Serving) -> None:
    messages = [{"role": "user", "content": "only of this test " * 20 + "[script hello]"}]
    first = turn(served, ANN, messages=messages)
    assert first["prompt_tokens_details"]["cached_tokens"] < first["prompt_tokens"] // 4
    again = turn(served, ANN, messages=messages)
    assert again["prompt_tokens_details"]["cached_tokens"] > again["prompt_tokens"] // 2, "its own prefix is reused"
    other = turn(served, BOB, messages=messages)
    assert other["prompt_tokens_details"]["cached_tokens"] < other["prompt_tokens"] // 4, "another's prefix is reused"


def test_two_keys_do_not_share_transcripts(served: Serving) -> None:
    asked = [{"role": "user", "content": "a transcript of this test [script hello]"}]
    turn(served, ANN, messages=asked)
    history = [*asked, {"role": "assistant", "content": HELLO}, {"role": "user", "content": "[script hello]"}]
    hits, misses = served.metric("transcript_hits_total"), served.metric("transcript_misses_total")
    turn(served, BOB, messages=history)
    assert served.metric("transcript_hits_total") == hits
    assert served.metric("transcript_misses_total") == misses + 1
    turn(served, ANN, messages=history)
    assert served.metric("transcript_hits_total") == hits + 1


# --- origins ---


def preflight(http: httpx2.Client, origin: str) -> httpx2.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return http.options(CHAT, headers=headers)


def test_a_configured_origin_may_call_from_a_browser(served: Serving) -> None:
    allowed = preflight(served.http, ORIGIN)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    headers = {**bearer(ANN), b"origin": ORIGIN.encode()}
    for body in (chat_body(), chat_body(stream=True), chat_body(n=0)):
        response = served.post(CHAT, body, headers=headers)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in response.headers["access-control-expose-headers"]


def test_a_browser_can_read_that_its_key_is_wrong(served: Serving) -> None:
    response = served.post(CHAT, chat_body(), headers={"origin": ORIGIN})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == ORIGIN


def test_another_origin_gets_no_leave(served: Serving) -> None:
    assert preflight(served.http, "https://evil.example").status_code == 400
    headers = {**bearer(ANN), b"origin": b"https://evil.example"}
    assert "access-control-allow-origin" not in served.post(CHAT, chat_body(), headers=headers).headers


def test_without_configured_origins_there_are_no_such_headers(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as served:
        assert preflight(served.http, ORIGIN).status_code == 405
        response = served.post(CHAT, chat_body(), headers={"origin": ORIGIN})
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("access-control")]
