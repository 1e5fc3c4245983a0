"""A sequence's turns: what is shown, what parks, and how the next turn begins."""

import pytest

from midstream.messages import (
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallReady,
    CallRouted,
    ChoiceMode,
    Finished,
    FinishReason,
)
from midstream.modelfile.tokenizer import Tokenizer
from midstream.tools.registry import Registry
from tests.engine.talk import CLIENT_PING, PING_CALL, Talk, plan
from tests.support.scripted import Turn

SCRIPTS: dict[str, list[Turn]] = {
    "call": [[PING_CALL], ["Pong it is."]],
    "two calls": [[PING_CALL], [PING_CALL]],
    "call and talk": [[f"{PING_CALL}Wait for it STOP and then."], ["Pong it is."]],
    "held": [[f"{PING_CALL}held ST"], ["OP and on."]],
    "broken": [[PING_CALL, b"caf\xc3"], ["\u00e9clair."]],
    "cut characters": [[b"caf\xc3", b"\xa9 \xf0\x9f", b"\x98", b"\x80."]],
    "after forced": [["Pong it is."]],  # a turn without a pass is none of the runner's
}
STOP = FinishReason.STOP


@pytest.fixture
def talk(tokenizer: Tokenizer) -> Talk:
    return Talk(tokenizer, SCRIPTS)


def kinds(talk: Talk) -> list[type]:
    return [type(event) for event in talk.calls(1)]


# --- parking ---


def test_a_turn_of_forced_tokens_alone_parks_without_a_pass_and_resumes_right(talk: Talk) -> None:
    talk.ask(1, "after forced", plan(ChoiceMode.NAMED))
    talk.run_until_idle()
    assert talk.runner.steps == []
    assert talk.is_parked(1)
    assert kinds(talk) == [CallRouted, CallNamed, CallReady, CallClosed]
    forced = talk.token_ids(1)
    injected = talk.resume(1, "\nresult: pong\n", plan())
    talk.run_until_idle()
    assert talk.text(1) == "Pong it is."
    assert talk.ends(1) == [Finished(STOP)]
    counts = talk.outputs(1)[-1].counts
    assert talk.runner.steps[0] == [(1, counts.prompt + len(forced) + len(injected))], "one pass computes it all"
    assert counts.computed == counts.prompt + counts.generated + counts.injected - 1
    assert counts.injected == len(injected)


def test_forced_tokens_that_were_found_are_no_cached_prompt(talk: Talk) -> None:
    for request_id in (1, 2):
        talk.ask(request_id, "after forced", plan(ChoiceMode.NAMED))
        talk.run_until_idle()
        talk.resume(request_id, "\nresult: pong\n", plan())
        talk.run_until_idle()
    counts = talk.outputs(2)[-1].counts
    assert counts.computed < 10, "nearly all of it was found"
    assert counts.cached == counts.prompt


def test_a_turn_that_the_model_ends_with_a_servers_call_parks_and_its_sequence_goes_on(talk: Talk) -> None:
    talk.ask(1, "call and talk", plan())
    talk.run_until_idle()
    assert talk.is_parked(1)
    assert talk.ends(1) == []
    talk.resume(1, "\nresult: pong\n", plan())
    talk.run_until_idle()
    assert talk.text(1) == "Wait for it STOP and then.Pong it is."
    assert talk.ends(1) == [Finished(STOP)]


def test_a_turn_with_a_clients_call_does_not_park(talk: Talk) -> None:
    talk.ask(1, "call", plan(tool=CLIENT_PING))
    talk.run_until_idle()
    assert talk.ends(1) == [Finished(STOP)]
    assert not talk.is_parked(1)


@pytest.mark.parametrize(
    ("sampling", "finished", "text"),
    [
        ({"stop": ("STOP",)}, Finished(STOP, "STOP"), "Wait for it "),
        ({"max_tokens": 29}, Finished(FinishReason.LENGTH), None),
    ],
)
def test_a_turn_that_is_cut_does_not_park(
    talk: Talk, sampling: dict[str, object], finished: Finished, text: str | None
) -> None:
    talk.ask(1, "call and talk", plan(), **sampling)
    talk.run_until_idle()
    assert kinds(talk) == [CallRouted, CallNamed, CallReady, CallClosed]
    assert talk.ends(1) == [finished]
    assert not any(output.is_parked for output in talk.outputs(1))
    assert text is None or talk.text(1) == text


@pytest.mark.parametrize(
    ("sampling", "finished"),
    [
        ({"max_tokens": 12}, Finished(FinishReason.LENGTH)),
        ({"stop": ('"arg',)}, Finished(STOP, '"arg')),
    ],
)
def test_a_call_that_is_cut_open_is_abandoned_and_not_shown(
    talk: Talk, sampling: dict[str, object], finished: Finished
) -> None:
    talk.ask(1, "call", plan(), **sampling)
    talk.run_until_idle()
    abandoned = talk.calls(1)[-1]
    assert isinstance(abandoned, CallAbandoned)
    assert abandoned.is_cut
    assert talk.text(1) == ""
    assert talk.ends(1) == [finished]


def test_aborting_a_parked_sequence_tells_nothing_twice(talk: Talk) -> None:
    talk.ask(1, "call and talk", plan())
    talk.run_until_idle()
    events = talk.port.events(1)
    talk.abort(1)
    talk.run_until_idle()
    assert talk.port.events(1) == events
    assert talk.ends(1) == [Finished(FinishReason.ABORT)]


def test_a_sequence_can_park_again_and_again_and_its_calls_are_counted_on(tokenizer: Tokenizer) -> None:
    talk = Talk(tokenizer, {"thrice": [[PING_CALL], [PING_CALL], [PING_CALL], ["Done."]]})
    talk.ask(1, "thrice", plan())
    for _ in range(3):
        talk.run_until_idle()
        assert talk.is_parked(1)
        talk.resume(1, "\npong\n", plan())
    talk.run_until_idle()
    assert [event.index for event in talk.calls(1) if isinstance(event, CallClosed)] == [0, 1, 2]
    assert talk.text(1) == "Done."
    assert talk.ends(1) == [Finished(STOP)]
    counts = talk.outputs(1)[-1].counts
    assert counts.computed == counts.prompt + counts.generated + counts.injected - 1


def test_an_end_that_the_grammar_forces_is_one_also_where_the_end_token_is_ignored(talk: Talk) -> None:
    talk.ask(1, "call", plan(ChoiceMode.NAMED), ignore_eos=True)
    talk.run_until_idle()
    assert talk.is_parked(1)
    assert talk.token_ids(1).count(talk.tokenizer.eos_token_ids[0]) == 1


# --- what a new turn begins with ---


def test_a_new_turn_counts_its_passes_and_tokens_from_the_beginning(talk: Talk) -> None:
    talk.ask(1, "two calls", plan())
    talk.run_until_idle()
    talk.resume(1, "\npong\n", plan())
    talk.run_until_idle()
    first, second = [event.mark for event in talk.calls(1) if isinstance(event, CallClosed)]
    assert first.pass_number > 0
    assert (first.pass_number, first.token_index) == (second.pass_number, second.token_index)
    assert second.time_ns > first.time_ns


def test_a_mark_counts_the_pass_and_the_token_that_gave_its_event(talk: Talk) -> None:
    talk.ask(1, "call", plan())
    talk.run_until_idle()
    for event in talk.calls(1):
        if isinstance(event, CallRouted | CallReady | CallClosed):
            until = next(i for i, output in enumerate(talk.outputs(1), 1) if event in output.events)
            assert event.mark.pass_number == until
            num_tokens = [sum(len(output.token_ids) for output in talk.outputs(1)[:n]) for n in (until - 1, until)]
            assert num_tokens[0] < event.mark.token_index <= num_tokens[1]


def test_text_held_for_a_stop_string_does_not_wait_for_the_next_turn(talk: Talk) -> None:
    talk.ask(1, "held", plan(), stop=("STOP",))
    talk.run_until_idle()
    assert talk.is_parked(1)
    assert talk.text(1) == "held ST"
    talk.resume(1, "OP\n", plan())
    talk.run_until_idle()
    assert talk.text(1) == "held STOP and on."
    assert talk.ends(1) == [Finished(STOP)]


def test_stop_strings_do_not_see_injected_tokens(talk: Talk) -> None:
    talk.ask(1, "call", plan(), stop=("result", "tPon", "."))
    talk.run_until_idle()
    talk.resume(1, "\nresult. result", plan())
    talk.run_until_idle()
    assert talk.text(1) == "Pong it is"
    assert talk.ends(1) == [Finished(STOP, ".")]


def test_a_character_that_a_turn_leaves_broken_is_told_once_and_does_not_reach_into_the_next(talk: Talk) -> None:
    talk.ask(1, "broken", plan())
    talk.run_until_idle()
    assert talk.text(1) == "caf\ufffd"
    talk.resume(1, "\npong\n", plan())
    talk.run_until_idle()
    assert talk.text(1) == "caf\ufffd\u00e9clair."


def test_a_character_that_is_cut_between_tokens_comes_whole(talk: Talk) -> None:
    talk.ask(1, "cut characters")
    talk.run_until_idle()
    assert talk.text(1) == "café 😀."
    assert not any("\ufffd" in text for text in talk.texts(1))


def test_a_call_that_can_start_is_told_before_the_tokens_that_close_it_and_before_other_sequences(
    tokenizer: Tokenizer,
) -> None:
    call = ['<tool_call>\n{"name": "on_time_rate", "arguments": {"airport": "PVG"', "}}\n</tool_call>"]
    talk = Talk(tokenizer, {"call": [call], "text": [["one two three four five six seven"]]})
    [rate] = Registry.load(("on_time_rate",)).specs()
    talk.ask(1, "text")
    talk.ask(2, "call", plan(ChoiceMode.NAMED, rate))
    talk.run_until_idle()
    outputs = talk.outputs(2)
    ready = next(i for i, output in enumerate(outputs) if any(isinstance(e, CallReady) for e in output.events))
    assert not any(isinstance(event, CallClosed) for event in outputs[ready].events)
    assert any(isinstance(event, CallClosed) for output in outputs[ready + 1 :] for event in output.events)
    assert talk.token_ids(2) == [token_id for output in outputs for token_id in output.token_ids]
    assert len([output for output in outputs if output.is_parked]) == 1
