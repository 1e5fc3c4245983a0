"""A server tool of your own: `midstream serve --tools own_tool` where this file lies, then name `word_count`."""

from midstream.tools import tool


@tool(read_only=True, idempotent=True)
def word_count(text: str) -> dict[str, int]:
    """Count the words of a text.

    Args:
        text: Any text.
    """
    return {"words": len(text.split())}
