"""Results that join while the model goes on writing: where they are put in, and that none is lost."""

from typing import Any

import msgspec
import pytest

from midstream.messages import ChoiceMode, FinishReason, Inject, RunsOn, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.talk import PING, PING_CALL, Talk, plan

AFTER = "After the result."
PONG_CALL = PING_CALL.replace("ping", "pong")
PONG = msgspec.structs.replace(PING, name="pong", tool_id=1, runs_on=RunsOn.CLIENT)
SCRIPTS: dict[str, list[list[Any]]] = {
    "lines": [[f"{PING_CALL}First line\nSecond line\nThird line"], [AFTER]],
    "sentences": [[f"{PING_CALL} It takes a while. Let me go on, e.g. here"], [AFTER]],
    "code": [[f"{PING_CALL}Like this:\n```\na = 1\nb = 2\n```\nSo it is\n"], [AFTER]],
    "call": [[f"{PING_CALL}\n{PING_CALL}\nand text\n"], [AFTER], [AFTER]],
    "short": [[PING_CALL], [AFTER]],
    "mixed": [[f"{PING_CALL}Let me ask you, too\n{PONG_CALL}"], [AFTER]],
    "emoji": [[PING_CALL, "Done!", *(bytes([byte]) for byte in "😀".encode()), " So\n"], [AFTER]],
    "two": [[f"{PING_CALL}{PING_CALL}"], [AFTER], [AFTER]],
    "again": [[PING_CALL], [f"{PING_CALL}More\n"], [AFTER]],
}


def interleaved(mode: ChoiceMode = ChoiceMode.AUTO) -> ToolPlan:
    return msgspec.structs.replace(plan(mode), is_interleaved=True)


class Interleaving(Talk):
    def begin(self, script: str, mode: ChoiceMode = ChoiceMode.AUTO, **sampling: object) -> None:
        self.ask(1, script, interleaved(mode), **sampling)
        self.step()

    def inject(self, text: str = "[result]") -> list[int]:
        token_ids = self.tokenizer.encode(text)
        self.port.commands.append(Inject(1, token_ids, interleaved()))
        return token_ids

    def step_to(self, text: str) -> None:
        """Until the model has written `text`."""
        while text not in self.written:
            self.step()

    @property
    def written(self) -> str:
        """The whole sequence behind the prompt, special tokens spelled out."""
        ids: list[int] = []
        for output in self.outputs(1):
            ids += [*output.token_ids, *output.injected_token_ids]
        return self.tokenizer.decode(ids, skip_special=False)

    @property
    def num_injects(self) -> int:
        return sum(output.num_injects for output in self.outputs(1))


@pytest.fixture
def talk(tokenizer: Tokenizer) -> Interleaving:
    return Interleaving(tokenizer, SCRIPTS)


@pytest.mark.parametrize(
    ("script", "seen", "before"),
    [
        ("lines", "First", "First line\n"),
        ("lines", "Second", "First line\nSecond line\n"),
        ("sentences", "It", " It takes a while."),
        ("sentences", "Let me", " It takes a while. Let me go on, e.g. here"),
        ("code", "Like", "Like this:\n"),
        ("code", "a =", "Like this:\n```\na = 1\nb = 2\n```\n"),
    ],
)
def test_a_result_joins_at_the_first_clean_boundary(talk: Interleaving, script: str, seen: str, before: str) -> None:
    talk.begin(script)
    talk.step_to(seen)
    talk.inject()
    talk.run_until_idle()
    assert talk.written == f"{PING_CALL}{before}<|im_end|>[result]{AFTER}<|im_end|>"
    assert talk.text(1) == before + AFTER
    assert talk.num_injects == 1
    assert [finished.reason for finished in talk.ends(1)] == [FinishReason.STOP]


def test_a_result_that_comes_inside_a_call_waits_for_its_end(talk: Interleaving) -> None:
    talk.begin("call")
    talk.step_to(f'{PING_CALL}\n<tool_call>\n{{"name"')
    talk.inject()
    talk.run_until_idle()
    assert talk.written.startswith(f"{PING_CALL}\n{PING_CALL}\nand text\n<|im_end|>[result]")
    assert talk.is_parked(1), "the second call's result is awaited"
    talk.inject("[second]")
    talk.run_until_idle()
    assert talk.written.endswith(f"[result]{AFTER}<|im_end|>[second]{AFTER}<|im_end|>")
    assert talk.num_injects == 2


def test_a_parked_turn_goes_on_at_its_first_result(talk: Interleaving) -> None:
    talk.begin("two")
    talk.run_until_idle()
    assert talk.is_parked(1)
    talk.inject("[one]")
    talk.step()
    assert not talk.is_parked(1)
    talk.inject("[two]")
    talk.run_until_idle()
    assert talk.num_injects == 2
    assert talk.ends(1)[0].reason is FinishReason.STOP


def test_a_turn_that_ends_while_a_result_waits_does_not_park(talk: Interleaving) -> None:
    talk.begin("sentences")
    talk.step_to("e.g.")
    talk.inject()
    talk.run_until_idle()
    assert not any(output.is_parked for output in talk.outputs(1))
    assert talk.written == f"{SCRIPTS['sentences'][0][0]}<|im_end|>[result]{AFTER}<|im_end|>"


def test_results_that_come_together_join_together(talk: Interleaving) -> None:
    talk.begin("two")
    talk.run_until_idle()
    talk.inject("[one]")
    talk.inject("[two]")
    talk.run_until_idle()
    assert "<|im_end|>[one]<|im_end|>[two]" in talk.written
    assert talk.num_injects == 2


def test_later_turns_call_again(talk: Interleaving) -> None:
    talk.begin("again")
    talk.run_until_idle()
    talk.inject("[one]")
    talk.step_to("More")
    talk.inject("[two]")
    talk.run_until_idle()
    assert talk.written == f"{PING_CALL}<|im_end|>[one]{PING_CALL}More\n<|im_end|>[two]{AFTER}<|im_end|>"


@pytest.mark.parametrize("mode", [ChoiceMode.REQUIRED, ChoiceMode.NAMED])
def test_calls_that_must_be_made_do_not_end_the_turn(talk: Interleaving, mode: ChoiceMode) -> None:
    talk.begin("lines", mode)
    talk.step_to("First")
    talk.inject()
    talk.run_until_idle()
    assert talk.text(1) == f"First line\n{AFTER}"
    assert talk.runner.refused == []


def test_no_more_calls_are_made_than_were_asked_for_by_name(talk: Interleaving) -> None:
    talk.begin("two", ChoiceMode.NAMED)
    talk.run_until_idle()
    assert talk.is_parked(1)
    talk.inject()
    talk.run_until_idle()
    assert talk.text(1) == PING_CALL + AFTER, "the second one is text"
    assert talk.num_injects == 1


def test_a_result_that_leaves_no_room_ends_the_answer(tokenizer: Tokenizer) -> None:
    talk = Interleaving(tokenizer, SCRIPTS, max_model_len=96, num_blocks=8)
    talk.begin("short")
    talk.run_until_idle()
    assert talk.is_parked(1)
    talk.inject("result " * 80)
    talk.run_until_idle()
    assert talk.ends(1)[0].reason is FinishReason.LENGTH
    assert not talk.engine.sequences


def test_a_result_for_a_sequence_that_is_gone_is_ignored(talk: Interleaving) -> None:
    talk.begin("lines", max_tokens=20)
    talk.run_until_idle()
    talk.inject()
    talk.run_until_idle()
    assert talk.num_injects == 0
    assert len(talk.ends(1)) == 1


def test_injected_tokens_do_not_count_towards_the_limit(talk: Interleaving) -> None:
    talk.begin("lines")
    talk.step_to("First")
    talk.inject("[a long result " * 20)
    talk.run_until_idle()
    num_generated = talk.outputs(1)[-1].counts.generated
    other = Interleaving(talk.tokenizer, SCRIPTS)
    other.begin("lines", max_tokens=num_generated)
    other.step_to("First")
    other.inject("[a long result " * 20)
    other.run_until_idle()
    assert other.written == talk.written


def test_nothing_joins_a_turn_that_the_client_has_to_answer(tokenizer: Tokenizer) -> None:
    talk = Interleaving(tokenizer, SCRIPTS)
    both = msgspec.structs.replace(interleaved(), tools=(PING, PONG))
    talk.ask(1, "mixed", both)
    talk.step()
    talk.step_to('{"name": "pong"')
    talk.inject()
    talk.run_until_idle()
    assert talk.num_injects == 0
    assert talk.is_parked(1), "the server's result goes with the client's"
    talk.inject()
    talk.run_until_idle()
    assert [output.is_parked for output in talk.outputs(1)].count(True) == 1, "it parks once"
    talk.abort(1)
    talk.run_until_idle()
    assert not talk.engine.sequences


def test_nothing_joins_in_the_middle_of_a_character(talk: Interleaving) -> None:
    talk.begin("emoji")
    talk.step_to("Done!")
    talk.step()
    talk.inject()
    talk.run_until_idle()
    assert talk.text(1) == f"Done!😀 So\n{AFTER}"


def test_nothing_joins_where_a_stop_string_may_have_begun(talk: Interleaving) -> None:
    talk.begin("sentences", stop=(" Let me stay",))
    talk.step_to("Let me")
    talk.inject()
    talk.run_until_idle()
    assert talk.text(1) == SCRIPTS["sentences"][0][0].removeprefix(PING_CALL) + AFTER
