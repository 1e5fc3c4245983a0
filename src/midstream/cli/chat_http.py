"""Owns the chat client's HTTP: one request, its events, and faults in words. Never keeps a conversation."""

import json
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import httpx2

from midstream.cli.chat_answer import AnswerReader, Event, Failed, read_error
from midstream.errors import ConfigError, ProtocolError

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_TIMEOUT = httpx2.Timeout(10.0, read=600.0)  # seconds; a long prompt or a slow tool may keep a stream silent


class ChatHttp:
    """A connection to one server. Every fault of the network or the server becomes a `Failed` event."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        url = _parse_url(base_url)
        if url.path in ("", "/"):
            url = url.copy_with(path="/v1")
        self.base_url = str(url).rstrip("/")
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=_TIMEOUT,
            trust_env=url.host not in _LOOPBACK,  # no proxy reaches our own loopback
        )

    def close(self) -> None:
        self._client.close()

    def first_model(self) -> str | Failed:
        """Return the id of the first model that the server lists."""
        try:
            response = self._client.get(f"{self.base_url}/models")
            if response.is_error:
                return _http_failure(response)
            return str(response.json()["data"][0]["id"])
        except httpx2.HTTPError as error:
            return self._network_failure(error)
        except (ValueError, LookupError, TypeError):
            return Failed(f"{self.base_url}/models lists no model; name one with --model")

    def answer(self, body: dict[str, Any]) -> Generator[Event, None, None]:
        """Send `body` and yield the answer as it comes. Closing the iterator hangs up."""
        reader = AnswerReader()
        try:
            with self._client.stream("POST", f"{self.base_url}/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    yield _http_failure(response)
                    return
                for data in response.iter_bytes():
                    yield from reader.feed(data)
            yield from reader.finish()
        except httpx2.HTTPError as error:
            yield self._network_failure(error)
        except ProtocolError as error:
            yield Failed(error.message, error.code)

    def _network_failure(self, error: httpx2.HTTPError) -> Failed:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            remedy = "start one with `midstream serve`, or name another with --base-url"
            return Failed(f"no server answers at {self.base_url} ({error}); {remedy}", "connection_refused")
        if isinstance(error, httpx2.TimeoutException):
            return Failed(f"nothing came from {self.base_url} for {_TIMEOUT.read:.0f} s", "timed_out")
        return Failed(f"the connection to {self.base_url} broke: {error}", "connection_broken")


def _parse_url(base_url: str) -> httpx2.URL:
    with suppress(httpx2.InvalidURL):
        url = httpx2.URL(base_url)
        if url.scheme in ("http", "https") and url.host:
            return url
    raise ConfigError(f"{base_url!r} is no address of a server; write it like http://127.0.0.1:8000")


def _http_failure(response: httpx2.Response) -> Failed:
    try:
        said = read_error(json.loads(response.content))
    except ValueError:
        said = Failed(response.text.strip()[:200] or response.reason_phrase)
    return Failed(f"HTTP {response.status_code}: {said.message}", said.code)
