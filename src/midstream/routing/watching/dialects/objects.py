r"""The dialects whose calls are JSON objects with a name and arguments, each behind a marker or alone.

hermes       <tool_call>\n{"name": "x", "arguments": {…}}\n</tool_call>       Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3
llama3_json  {"name": "x", "parameters": {…}}; {…}, or after <|python_tag|>    Llama 3.1 to 3.3
gigachat3    <|function_call|>{"name": "x", "arguments": {…}}                  GigaChat 3
"""

from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.call_object import CallObject
from midstream.routing.watching.dialects.dialect import Dialect

HERMES = Dialect(
    name="hermes",
    calls=CallForm(CallObject, openings=("<tool_call>",), call_close="</tool_call>"),
    fits=lambda template: template.has("<tool_call>", "</tool_call>"),
    opening="<tool_call>",
    before_name='\n{"name": "',
    after_arguments="}\n</tool_call>",
    between_calls="\n<tool_call>",
    result_frames=("<tool_response>", "</tool_response>"),
)

LLAMA3_JSON = Dialect(
    name="llama3_json",
    calls=CallForm(CallObject, openings=("<|python_tag|>",), starts=("{",), separator=";"),
    fits=lambda template: template.has("<|python_tag|>", '"parameters"'),
    before_arguments='", "parameters": ',
    between_calls="; ",
)

GIGACHAT3 = Dialect(
    name="gigachat3",
    calls=CallForm(CallObject, openings=("<|function_call|>",)),
    fits=lambda template: template.has("<|function_call|>"),
    opening="<|function_call|>",
    between_calls="<|function_call|>",
    silent=("</s>",),
)
