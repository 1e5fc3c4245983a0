"""Owns how a tool's id follows from its name. Knows no registry."""

import hashlib


def tool_id(qualified_name: str) -> int:
    """First four bytes of SHA-256 of the name in UTF-8, as a u32."""
    return int.from_bytes(hashlib.sha256(qualified_name.encode()).digest()[:4], "big")
