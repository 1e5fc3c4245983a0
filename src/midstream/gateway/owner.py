"""Owns the identity of a caller: its key's hash. Never keeps a key."""

import hashlib
import hmac

from starlette.requests import Request

from midstream.errors import Unauthorized


def owner_of(request: Request) -> bytes:
    """Whom prefix blocks and transcripts belong to; callers without a key share one owner."""
    owner: bytes = getattr(request.state, "owner", b"")
    return owner


class Keys:
    """The bearer keys that may call. Compares every key, in constant time."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, authorization: str) -> bytes:
        """The caller's owner, b"" where no keys are configured. Raises Unauthorized."""
        if not self._digests:
            return b""
        scheme, _, key = authorization.partition(" ")
        # Headers are bytes, read as Latin-1: this gives back those that the client sent.
        given = hashlib.sha256(key.strip().encode("latin-1")).digest()
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized("a valid key is needed: send the header `Authorization: Bearer <key>`")
        return given
