"""Owns the SQLite file of departures: builds it once in the cache folder, then only reads it."""

import os
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from midstream.errors import ConfigError
from midstream.folders import cache_folder
from midstream.tools.demo.departures import AIRPORTS, departures

ROWS_DIGEST = "9abc87d873c15bac4a6bb9a6dd6d03bdd56a24d585c88e43120cc1898b3e2db4"
"""SHA-256 of the rows, `repr` of each as a tuple, one a line. In the file's name: new rows get a new file."""
_LAYOUT = 1
"""Part of the file's name too: raise it with `_SCHEMA`."""

# Without a rowid the table is its own index: a day of an airport is one run of pages.
_SCHEMA = """
CREATE TABLE airports (code TEXT PRIMARY KEY, city TEXT NOT NULL, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE departures (
    origin TEXT NOT NULL REFERENCES airports,
    date TEXT NOT NULL,
    scheduled TEXT NOT NULL,
    flight TEXT NOT NULL,
    airline TEXT NOT NULL,
    destination TEXT NOT NULL REFERENCES airports,
    status TEXT NOT NULL CHECK (status IN ('on time', 'delayed', 'cancelled')),
    delay_minutes INTEGER,
    gate TEXT NOT NULL,
    PRIMARY KEY (origin, date, scheduled, flight)
) WITHOUT ROWID;
"""


def database_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the file is or will be."""
    return cache_folder(environ) / f"departures-{_LAYOUT}-{ROWS_DIGEST[:12]}.sqlite3"


def ensure_database() -> Path:
    """Path of the finished database. The first call on a machine builds it: one to three seconds, 15 MB.

    Several processes and threads may call it at once. Raises ConfigError where the folder cannot be written.
    """
    path = database_path()
    if not path.exists():
        build(path)
    return path


def build(path: Path) -> None:
    """Write the database beside `path` and rename it: whoever looks sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise ConfigError(
            f"the departures database cannot be written to {path.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        _fill(temporary)
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
    """All rows of a query with named parameters. Cannot write: the file is opened read-only and immutable."""
    with closing(sqlite3.connect(f"{ensure_database().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(sql, parameters).fetchall()


def _fill(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # A build that does not finish is thrown away, so it needs no journal.
        connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_SCHEMA} BEGIN;")
        airports = ((airport.code, airport.city, airport.name) for airport in AIRPORTS)
        connection.executemany("INSERT INTO airports VALUES (?, ?, ?)", airports)
        connection.executemany("INSERT INTO departures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", departures())
        connection.execute("COMMIT")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
