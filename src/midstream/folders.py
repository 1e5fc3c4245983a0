"""Owns where the project keeps what it can make again. Creates nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

from midstream.errors import ConfigError


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`midstream` in `$XDG_CACHE_HOME`, or in `~/.cache` where that is unset or relative. Source: XDG Base Directory.

    Raises ConfigError where there is no home folder.
    """
    configured = Path(environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else _home() / ".cache") / "midstream"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError("there is no home folder for the cache; set XDG_CACHE_HOME") from None
