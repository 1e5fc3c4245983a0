"""Owns how much of a JSON string that is still being written can be read already. Scans nothing else."""

import json
import re

_WHOLE = re.compile(
    r"""(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"""
    r"""|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*"""
)


class StringParts:
    """Tells a string value piece by piece. An escape that has not come whole waits, half of a pair for ever."""

    def __init__(self, start: int) -> None:
        """`start`: the offset behind the opening quote."""
        self._num_told = start

    def next(self, raw: str, end: int) -> str:
        """The text between what was told and `end`, decoded. O(new text)."""
        whole = _WHOLE.match(raw, self._num_told, end)
        assert whole is not None
        self._num_told = whole.end()
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text
