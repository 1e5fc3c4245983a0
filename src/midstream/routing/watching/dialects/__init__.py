"""The syntaxes in which models write calls. A dialect is data: adding one is a file here and a line in the table."""

from midstream.errors import ConfigError
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.dialects.hermes import HERMES
from midstream.routing.watching.dialects.required_json import REQUIRED_JSON

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (HERMES, REQUIRED_JSON)}


def dialect_named(name: str) -> Dialect:
    """Raises ConfigError that lists the known dialects."""
    if name not in DIALECTS:
        raise ConfigError(f"no tool dialect {name!r}; known: {', '.join(sorted(DIALECTS))}")
    return DIALECTS[name]
