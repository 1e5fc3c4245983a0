r"""The dialects whose arguments stand between tags, without types: the schema says what they are.

qwen3_coder  <tool_call>\n<function=x>\n<parameter=a>\nVALUE\n</parameter>\n</function>\n</tool_call>
glm45        <tool_call>x\n<arg_key>a</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>
glm47        <tool_call>x<arg_key>a</arg_key><arg_value>VALUE</arg_value></tool_call>
minimax_m2   in a section, <invoke name="x">\n<parameter name="a">VALUE</parameter>\n</invoke>\n
"""

from dataclasses import replace
from functools import partial

from midstream.routing.watching.argument_rules import tagged_rules
from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.tagged_call import TaggedCall, Tags

QWEN3_CODER = Dialect(
    name="qwen3_coder",
    calls=CallForm(
        partial(
            TaggedCall,
            Tags(
                name_end=">",
                argument_open="<parameter=",
                key_end=(">",),
                value_end="</parameter>",
                call_end="</function>",
                has_newlines=True,
                may_lack_value_end=True,
            ),
        ),
        openings=("<tool_call>",),
        call_open="<function=",
        end="</tool_call>",
    ),
    fits=lambda template: template.has("<function=", "<parameter="),
    opening="<tool_call>",
    before_name="\n<function=",
    before_arguments=">\n",
    after_arguments="</function>\n</tool_call>",
    between_calls="\n<tool_call>",
    arguments=tagged_rules("<parameter=", ">\n", "\n</parameter>\n"),
    result_frames=("<tool_response>", "</tool_response>"),
)

_GLM = Tags(
    name_end="",
    argument_open="<arg_key>",
    key_end=("</arg_key>", "<arg_value>"),
    value_end="</arg_value>",
    call_end="</tool_call>",
)

GLM45 = Dialect(
    name="glm45",
    calls=CallForm(partial(TaggedCall, _GLM), openings=("<tool_call>",)),
    fits=lambda template: template.has("<arg_key>", "<arg_value>"),
    opening="<tool_call>",
    before_name="",
    before_arguments="\n",
    after_arguments="</tool_call>",
    between_calls="\n<tool_call>",
    arguments=tagged_rules("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    result_frames=("<tool_response>", "</tool_response>"),
)

GLM47 = replace(
    GLM45,
    name="glm47",
    fits=lambda template: template.has("</arg_key><arg_value>"),
    before_arguments="",
    between_calls="<tool_call>",
    arguments=tagged_rules("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
)

MINIMAX_M2 = Dialect(
    name="minimax_m2",
    calls=CallForm(
        partial(
            TaggedCall,
            Tags(
                name_end='">',
                argument_open='<parameter name="',
                key_end=('">',),
                value_end="</parameter>",
                call_end="</invoke>",
            ),
        ),
        openings=("<minimax:tool_call>",),
        call_open='<invoke name="',
        end="</minimax:tool_call>",
    ),
    fits=lambda template: template.has("<minimax:tool_call>"),
    opening="<minimax:tool_call>",
    before_first_call="\n",
    before_name='<invoke name="',
    before_arguments='">\n',
    after_arguments="</invoke>\n",
    after_last_call="</minimax:tool_call>",
    arguments=tagged_rules('<parameter name="', '">', "</parameter>\n"),
)
