"""The dialects whose arguments are literals, but not JSON's.

pythonic       [x(a="b", c=1), …], or between <|python_start|> and <|python_end|>   Llama 3.2 and 4
smollm3        <code>x(a="b")</code>                                            SmolLM3 with python_tools
functiongemma  <start_function_call>call:x{a:<escape>b<escape>,c:1}<end_function_call>
gemma4         <|tool_call>call:x{a:<|"|>b<|"|>,c:1}<tool_call|>
"""

from functools import partial

from midstream.routing.watching.braced_call import BracedCall
from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.literal_rules import PYTHON, braced, literal_rules
from midstream.routing.watching.python_call import PythonCall

PYTHONIC = Dialect(
    name="pythonic",
    calls=CallForm(PythonCall, openings=("<|python_start|>",), starts=("[",), begin="[", separator=",", end="]"),
    fits=lambda template: template.has("<|python_start|>") or template.has("func_name1(params_name1"),
    before_name="",
    before_arguments="(",
    after_arguments=")",
    before_first_call="[",
    between_calls=", ",
    after_last_call="]",
    arguments=literal_rules(PYTHON),
    silent=("<|python_end|>",),
)

SMOLLM3 = Dialect(
    name="smollm3",
    calls=CallForm(PythonCall, openings=("<code>",), end="</code>", repeats=True),
    fits=lambda template: template.has("<code>", "python_tools") and "xml_tools" not in template.text,
    opening="<code>",
    before_name="",
    before_arguments="(",
    after_arguments=")",
    between_calls="\n",
    after_last_call="</code>",
    arguments=literal_rules(PYTHON),
)

FUNCTIONGEMMA = Dialect(
    name="functiongemma",
    calls=CallForm(
        partial(BracedCall, "<escape>"),
        openings=("<start_function_call>",),
        call_open="call:",
        call_close="<end_function_call>",
    ),
    fits=lambda template: template.has("<start_function_call>"),
    opening="<start_function_call>",
    before_name="call:",
    before_arguments="{",
    after_arguments="}<end_function_call>",
    between_calls="<start_function_call>",
    arguments=literal_rules(braced("<escape>")),
    marks=("<escape>",),
    result_frames=("<start_function_response>", "<end_function_response>"),
)

GEMMA4 = Dialect(
    name="gemma4",
    calls=CallForm(
        partial(BracedCall, '<|"|>'),
        openings=("<|tool_call>",),
        call_open="call:",
        call_close="<tool_call|>",
    ),
    fits=lambda template: template.has("<|tool_call>"),
    opening="<|tool_call>",
    before_name="call:",
    before_arguments="{",
    after_arguments="}<tool_call|>",
    between_calls="<|tool_call>",
    arguments=literal_rules(braced('<|"|>')),
    marks=('<|"|>',),
    result_frames=("<|tool_response>", "<tool_response|>"),
    reasoning=("<|channel>thought\n", "<channel|>"),
)
