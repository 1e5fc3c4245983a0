"""Owns the Hermes dialect (Hermes 2 Pro, Qwen 2.5 and 3, and the embedded model's shipped template).

<tool_call>
{"name": "flight_status", "arguments": {"airport": "PVG"}}
</tool_call>
"""

from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.parser import CallParser

HERMES = Dialect(
    name="hermes",
    make_parser=CallParser,
    call_open="<tool_call>",
    call_close="</tool_call>",
    before_name='\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between_calls="\n",
    item_separator=", ",
    key_separator=": ",
    result_frames=("<tool_response>", "</tool_response>"),
)
