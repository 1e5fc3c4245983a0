"""Owns the dialect of a model that has none of its own: the whole turn is a JSON array of calls.

[{"name": "flight_status", "parameters": {"airport": "PVG"}}]
"""

from midstream.routing.watching.array_parser import ArrayParser
from midstream.routing.watching.dialects.dialect import Dialect

REQUIRED_JSON = Dialect(
    name="required_json",
    make_parser=ArrayParser,
    call_open=None,
    call_close="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between_calls=", ",
    item_separator=", ",
    key_separator=": ",
    before_first_call="[",
    after_last_call="]",
)
