"""Which dialect a model writes is seen in its chat template and its special tokens."""

import pytest

from midstream.errors import ConfigError
from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects import DIALECTS, dialect_named, dialect_of_template, marker_ids

# What tells the families apart, as their templates and tokenizers have it.
TEMPLATES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Qwen 2.5 and 3": ("hermes", '<tool_call>\n{"name": …}\n</tool_call>', ("<tool_call>", "</tool_call>")),
    "Granite 4": ("hermes", "<|start_of_role|> <tool_call> … </tool_call>", ("<|start_of_role|>", "<|tool_call|>")),
    "Granite 3.0": ("granite", "<|start_of_role|> … <|tool_call|>", ("<|start_of_role|>", "<|tool_call|>")),
    "Granite 3.1": ("granite31", "<|start_of_role|> … <tool_call>[", ("<|start_of_role|>",)),
    "Llama 3.1": ("llama3_json", '{"name": function name, "parameters": …}', ("<|python_tag|>",)),
    "Llama 4": ("pythonic", "[func_name1(params_name1=…)]", ("<|python_start|>", "<|python_end|>")),
    "SmolLM3": ("hermes", "xml_tools <tool_call> </tool_call> python_tools <code>", ()),
    "Mistral v3": ("mistral_v3", "[TOOL_CALLS] [", ("[TOOL_CALLS]", "[TOOL_RESULTS]")),
    "Mistral v7": ("mistral_v3", "[TOOL_CALLS] [", ("[TOOL_CALLS]", "[TOOL_CONTENT]")),
    "Mistral v13": ("mistral_v11", "[TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]")),
    "DeepSeek V3": ("deepseek_v3", "<｜tool▁calls▁begin｜> … ```json", ("<｜tool▁calls▁begin｜>",)),
    "DeepSeek V3.1": ("deepseek_v31", "<｜tool▁calls▁begin｜>", ("<｜tool▁calls▁begin｜>",)),
    "Kimi K2": ("kimi_k2", "<|tool_calls_section_begin|>", ("<|tool_call_begin|>",)),
    "gpt-oss": ("harmony", "<|start|>assistant<|channel|>…<|message|>", ("<|channel|>", "<|message|>")),
    "Qwen3-Coder": ("qwen3_coder", "<tool_call>\n<function=x>\n<parameter=a> </tool_call>", ("<tool_call>",)),
    "GLM 4.5": ("glm45", "<tool_call> <arg_key>k</arg_key>\n<arg_value>v</arg_value> </tool_call>", ("<tool_call>",)),
    "GLM 4.7": ("glm47", "<tool_call> <arg_key>k</arg_key><arg_value>v</arg_value> </tool_call>", ("<tool_call>",)),
    "MiniMax M2": ("minimax_m2", '<minimax:tool_call>\n<invoke name="x">', ("<minimax:tool_call>",)),
    "FunctionGemma": ("functiongemma", "<start_function_call>call:x{a:<escape>b<escape>}", ("<escape>",)),
    "Gemma 4": ("gemma4", "<|tool_call>call:x{}<tool_call|>", ("<|tool_call>", "<tool_call|>")),
    "GigaChat 3": ("gigachat3", "<|function_call|>", ("<|function_call|>",)),
    "no tools at all": ("required_json", "{% for message in messages %}{{ message.content }}{% endfor %}", ()),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_family_is_recognised(family: str) -> None:
    expected, template, tokens = TEMPLATES[family]
    assert dialect_of_template(template, dict.fromkeys(tokens, 0)).name == expected


@pytest.mark.model
def test_the_embedded_models_shipped_template_speaks_hermes(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.load(resolve(), tokenizer)
    assert template is not None
    assert dialect_of_template(template.source_text, tokenizer.added_tokens).name == "hermes"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no tool dialect 'hermse'; known: deepseek_v3, "):
        dialect_named("hermse")


def test_the_tokens_that_a_dialect_reads_are_shown_and_no_others() -> None:
    special = {"<|channel|>": 1, "<|message|>": 2, "<|im_start|>": 3, "<|return|>": 4}
    assert marker_ids(DIALECTS["harmony"], special) == {1, 2, 4}
    assert marker_ids(DIALECTS["hermes"], special) == set()
