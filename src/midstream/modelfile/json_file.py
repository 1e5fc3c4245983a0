"""Owns reading a JSON object from a model's folder. Knows no key of it."""

import json
from pathlib import Path
from typing import Any

from midstream.errors import ModelFileError

MAX_JSON_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in `path`. Raises ModelFileError when it is missing, too long, or no object."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_JSON_BYTES:
            raise ModelFileError(f"{path} has {num_bytes} bytes; the limit is {MAX_JSON_BYTES}; fetch it again")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds a {type(value).__name__}, not an object; fetch it again")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
