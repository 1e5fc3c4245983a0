r"""The dialects whose calls are a name, a marker and a JSON object of arguments.

mistral_v11   [TOOL_CALLS]x{…} or [TOOL_CALLS]x[CALL_ID]…[ARGS]{…}, Mistral from version 11
deepseek_v3   in a section, <｜tool▁call▁begin｜>function<｜tool▁sep｜>x\n```json\n{…}\n```<｜tool▁call▁end｜>
deepseek_v31  in a section, <｜tool▁call▁begin｜>x<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
kimi_k2       in a section, <|tool_call_begin|>functions.x:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
harmony       <|channel|>commentary to=functions.x <|constrain|>json<|message|>{…}<|call|>, gpt-oss
"""

import re
from functools import partial

from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.dialects.json_arrays import mistral_call_id
from midstream.routing.watching.named_call import NamedCall

_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_BEGIN, _CALL, _SEP, _CALL_END, _END = _DEEPSEEK
_HARMONY_NAME = r"(?P<name>[^\s<{]+)"


def _kimi_call_id(unique: str, name: str, number: int) -> str:
    return f"functions.{name}:{number}"


MISTRAL_V11 = Dialect(
    name="mistral_v11",
    calls=CallForm(
        partial(
            NamedCall,
            re.compile(r"\s*(?P<name>[^\s{\[]+)\s*(\[CALL_ID\]\s*\w+\s*)?(\[ARGS\])?\s*"),
            name=re.compile(r"[^\s{\[]+"),
        ),
        openings=("[TOOL_CALLS]",),
    ),
    fits=lambda template: template.has("[TOOL_CALLS]", "[ARGS]"),
    opening="[TOOL_CALLS]",
    before_name="",
    before_arguments="",
    may_precede_arguments="[ARGS]",  # written by version 13, not by 11
    after_arguments="",
    between_calls="[TOOL_CALLS]",
    marks=("[CALL_ID]", "[ARGS]"),
    result_frames=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    call_id=mistral_call_id,
)

DEEPSEEK_V3 = Dialect(
    name="deepseek_v3",
    calls=CallForm(
        partial(
            NamedCall,
            re.compile(r"\s*(?P<name>[^\s{<]+)\s*```json\s*"),
            name=re.compile(r"[^\s{<`]+"),
        ),
        openings=(_BEGIN,),
        call_open=f"{_CALL}function{_SEP}",
        call_close=f"```{_CALL_END}",
        end=_END,
    ),
    fits=lambda template: template.has(_BEGIN, "```json"),
    opening=_BEGIN,
    before_name=f"{_CALL}function{_SEP}",
    before_arguments="\n```json\n",
    after_arguments=f"\n```{_CALL_END}",
    between_calls="\n",
    after_last_call=_END,
    result_frames=(
        "<｜tool▁outputs▁begin｜>",
        "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>",
        "<｜tool▁outputs▁end｜>",
    ),
)

DEEPSEEK_V31 = Dialect(
    name="deepseek_v31",
    calls=CallForm(
        partial(
            NamedCall,
            re.compile(rf"\s*(?P<name>[^\s{{<]+)\s*{_SEP}\s*"),
            name=re.compile(r"[^\s{<]+"),
        ),
        openings=(_BEGIN,),
        call_open=_CALL,
        call_close=_CALL_END,
        end=_END,
    ),
    fits=lambda template: template.has(_BEGIN),
    opening=_BEGIN,
    before_name=_CALL,
    before_arguments=_SEP,
    after_arguments=_CALL_END,
    after_last_call=_END,
    result_frames=DEEPSEEK_V3.result_frames,
)

KIMI_K2 = Dialect(
    name="kimi_k2",
    calls=CallForm(
        partial(
            NamedCall,
            re.compile(r"\s*(?P<id>(functions\.)?(?P<name>[^\s{<:]+):[0-9]+)\s*<\|tool_call_argument_begin\|>\s*"),
            name=re.compile(r"[^\s{<:]+"),
            lead="functions.",
        ),
        openings=("<|tool_calls_section_begin|>",),
        call_open="<|tool_call_begin|>",
        call_close="<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
    ),
    fits=lambda template: template.has("<|tool_calls_section_begin|>"),
    opening="<|tool_calls_section_begin|>",
    before_name="<|tool_call_begin|>functions.",
    after_name=":[0-9]+",
    before_arguments="<|tool_call_argument_begin|>",
    after_arguments="<|tool_call_end|>",
    after_last_call="<|tool_calls_section_end|>",
    call_id=_kimi_call_id,
)

HARMONY = Dialect(
    name="harmony",
    calls=CallForm(
        partial(
            NamedCall,
            re.compile(rf"(to=functions\.)?{_HARMONY_NAME}[^{{]*<\|message\|>\s*"),
            name=re.compile(r"[^\s<{]+"),
            lead="to=functions.",
        ),
        openings=("<|channel|>commentary to=functions.", "<|start|>assistant to=functions."),
        starts=("to=functions.",),
        call_close="<|call|>",
    ),
    fits=lambda template: template.has("<|channel|>", "<|message|>"),
    opening="<|channel|>commentary to=functions.",
    before_name="",
    before_arguments=" <|constrain|>json<|message|>",
    after_arguments="",
    is_single=True,
    silent=(
        "<|channel|>final<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>commentary<|message|>",
        "<|start|>assistant",
        "<|end|>",
        "<|return|>",
    ),
    reasoning=("<|channel|>analysis<|message|>", "<|end|>"),
)
