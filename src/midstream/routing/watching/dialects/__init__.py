"""The syntaxes in which models write calls. A dialect is data: adding one is a declaration and a line here."""

from collections.abc import Mapping

from midstream.errors import ConfigError
from midstream.routing.watching.dialects.dialect import Dialect, Template
from midstream.routing.watching.dialects.json_arrays import GRANITE, GRANITE31, MISTRAL_V3, REQUIRED_JSON, XLAM
from midstream.routing.watching.dialects.literal import FUNCTIONGEMMA, GEMMA4, PYTHONIC, SMOLLM3
from midstream.routing.watching.dialects.named import DEEPSEEK_V3, DEEPSEEK_V31, HARMONY, KIMI_K2, MISTRAL_V11
from midstream.routing.watching.dialects.objects import GIGACHAT3, HERMES, LLAMA3_JSON
from midstream.routing.watching.dialects.tagged import GLM45, GLM47, MINIMAX_M2, QWEN3_CODER

# In the order in which a template is tried: where one dialect's marks are part of another's, the closer fit is first.
_ALL = (
    HARMONY,
    KIMI_K2,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    MINIMAX_M2,
    GIGACHAT3,
    GLM47,
    GLM45,
    QWEN3_CODER,
    GRANITE,
    GRANITE31,
    FUNCTIONGEMMA,
    GEMMA4,
    MISTRAL_V11,
    MISTRAL_V3,
    SMOLLM3,
    HERMES,
    PYTHONIC,
    LLAMA3_JSON,
    XLAM,
    REQUIRED_JSON,
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in _ALL}


def dialect_named(name: str) -> Dialect:
    """Raises ConfigError that lists the known dialects."""
    if name not in DIALECTS:
        raise ConfigError(f"no tool dialect {name!r}; known: {', '.join(sorted(DIALECTS))}")
    return DIALECTS[name]


def dialect_of_template(template: str, added_tokens: Mapping[str, int]) -> Dialect:
    """The dialect that a model with this chat template and these tokens writes.

    A template that shows none of them asks for no syntax: such a model is held to a JSON array.
    """
    seen = Template(template, added_tokens.keys())
    return next((dialect for dialect in _ALL if dialect.fits(seen)), REQUIRED_JSON)


def marker_ids(dialect: Dialect, special_tokens: Mapping[str, int]) -> frozenset[int]:
    """The special tokens that the dialect reads: they count as text where all others are silent."""
    return frozenset(
        token_id for token, token_id in special_tokens.items() if any(token in text for text in dialect.texts)
    )
