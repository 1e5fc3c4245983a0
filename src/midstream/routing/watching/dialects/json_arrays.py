"""The dialects whose calls stand in one JSON array.

mistral_v3     [TOOL_CALLS] [{"name": "x", "arguments": {…}}, …]   Mistral's tokenizers before version 11
granite        <|tool_call|>[{…}, …]                              Granite 3.0
granite31      <tool_call>[{…}, …]                                Granite 3.1 and later
xlam           [{"name": "x", "arguments": {…}}, …]               xLAM
required_json  [{"name": "x", "parameters": {…}}, …]              models without a syntax of their own
"""

import hashlib
from dataclasses import replace

from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.call_object import CallObject
from midstream.routing.watching.dialects.dialect import Dialect, Template

_BARE = CallForm(CallObject, starts=("[",), begin="[", separator=",", end="]")
_ALPHANUMERIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def mistral_call_id(unique: str, name: str, number: int) -> str:
    """Nine letters and digits: Mistral's templates refuse any other id."""
    digest = hashlib.sha256(unique.encode()).digest()
    return "".join(_ALPHANUMERIC[byte % len(_ALPHANUMERIC)] for byte in digest[:9])


def _has_no_closing(template: Template) -> bool:
    """Granite 4 closes its calls, each in a block of its own: that is Hermes."""
    return "</tool_call>" not in template.text


XLAM = Dialect(
    name="xlam",
    calls=_BARE,
    fits=lambda template: template.has("xlam"),
    before_first_call="[",
    between_calls=", ",
    after_last_call="]",
)

REQUIRED_JSON = replace(XLAM, name="required_json", fits=lambda template: False, before_arguments='", "parameters": ')

MISTRAL_V3 = replace(
    XLAM,
    name="mistral_v3",
    calls=replace(_BARE, openings=("[TOOL_CALLS]",), starts=()),
    fits=lambda template: template.has("[TOOL_CALLS]"),
    opening="[TOOL_CALLS]",
    before_first_call=" [",
    result_frames=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    call_id=mistral_call_id,
)

GRANITE = replace(
    XLAM,
    name="granite",
    calls=replace(_BARE, openings=("<|tool_call|>", "<tool_call>"), starts=()),
    fits=lambda template: template.has("<|tool_call|>", "<|start_of_role|>") and _has_no_closing(template),
    opening="<|tool_call|>",
)

GRANITE31 = replace(
    GRANITE,
    name="granite31",
    calls=replace(_BARE, openings=("<tool_call>", "<|tool_call|>"), starts=()),
    fits=lambda template: template.has("<tool_call>", "<|start_of_role|>") and _has_no_closing(template),
    opening="<tool_call>",
)
