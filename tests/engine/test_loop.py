"""The engine's step: when an answer ends and what of it is shown, whoever else is served."""

import pytest

from midstream.messages import ChoiceMode, EngineStats, Finished, FinishReason, StepOutput
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.talk import PING_CALL, Talk, plan
from tests.engine.tiny import TinyEngine, greedy
from tests.support.ports import ListPort

TEXT = "one two three four."
SCRIPTS = {"count": [[TEXT]], "endless": [["word " * 400]], "call": [[PING_CALL], ["Pong it is."]]}
STOP = FinishReason.STOP


@pytest.fixture
def talk(tokenizer: Tokenizer) -> Talk:
    return Talk(tokenizer, SCRIPTS)


def small(tokenizer: Tokenizer, **limits: int) -> Talk:
    return Talk(tokenizer, SCRIPTS, **limits)


# --- what ends it ---


def test_the_end_token_is_counted_and_shows_no_text(talk: Talk) -> None:
    talk.ask(1, "count")
    talk.run_until_idle()
    assert talk.text(1) == TEXT
    assert talk.token_ids(1)[-1] in talk.tokenizer.eos_token_ids
    counts = talk.outputs(1)[-1].counts
    assert counts.generated == len(talk.token_ids(1))
    assert counts.computed == len(talk.prompt("count")) + counts.generated - 1
    assert counts.passes == counts.generated


def test_a_stop_token_is_counted_and_not_shown(talk: Talk) -> None:
    [three] = talk.tokenizer.encode(" three")
    talk.ask(1, "count", stop_token_ids=(three,))
    talk.run_until_idle()
    assert talk.text(1) == "one two"
    assert talk.token_ids(1)[-1] == three


def test_max_tokens_is_exact(talk: Talk) -> None:
    for max_tokens in (1, 2, 3):
        talk.ask(max_tokens, "endless", max_tokens=max_tokens)
    talk.run_until_idle()
    assert [len(talk.token_ids(request_id)) for request_id in (1, 2, 3)] == [1, 2, 3]


def test_the_end_token_within_max_tokens_is_a_stop_and_not_a_cut(talk: Talk) -> None:
    talk.ask(1, "count")
    talk.run_until_idle()
    num_tokens = len(talk.token_ids(1))
    talk.ask(2, "count", max_tokens=num_tokens)
    talk.ask(3, "count", max_tokens=num_tokens - 1)
    talk.run_until_idle()
    assert [talk.ends(request_id)[0].reason for request_id in (2, 3)] == [STOP, FinishReason.LENGTH]
    assert talk.text(2) == talk.text(3) == TEXT


def test_the_context_is_filled_to_its_last_token(tokenizer: Tokenizer) -> None:
    talk = small(tokenizer, max_model_len=32, num_blocks=2)
    talk.ask(1, "endless")
    talk.run_until_idle()
    assert len(talk.prompt("endless")) + len(talk.token_ids(1)) == 32


def test_max_tokens_counts_forced_tokens(talk: Talk) -> None:
    talk.ask(1, "call", plan(ChoiceMode.NAMED), max_tokens=12)
    talk.run_until_idle()
    assert len(talk.token_ids(1)) == 12
    assert talk.ends(1) == [Finished(FinishReason.LENGTH)]
    assert talk.runner.steps == [], "nothing had to be computed"


def test_nothing_ends_before_min_tokens(talk: Talk) -> None:
    [two] = talk.tokenizer.encode(" two")
    talk.ask(1, "count", min_tokens=9)
    talk.ask(2, "endless", min_tokens=4, stop=("word",))
    talk.ask(3, "count", min_tokens=2, stop_token_ids=(two,))
    talk.run_until_idle()
    ends = set(talk.tokenizer.eos_token_ids)
    assert not ends & set(talk.token_ids(1)[:9])
    assert talk.token_ids(1)[9] in ends
    assert len(talk.token_ids(2)) == 5
    assert talk.ends(2) == [Finished(STOP, "word")]
    assert two not in talk.token_ids(3)[:2]


def test_an_ignored_end_token_is_like_any_other(talk: Talk) -> None:
    talk.ask(1, "count", ignore_eos=True, max_tokens=20)
    talk.run_until_idle()
    assert talk.text(1) == TEXT
    assert len(talk.token_ids(1)) == 20
    assert talk.ends(1) == [Finished(FinishReason.LENGTH)]


def test_a_stop_token_stops_where_the_end_token_is_ignored(talk: Talk) -> None:
    eos = talk.tokenizer.eos_token_ids[0]
    talk.ask(1, "count", ignore_eos=True, stop_token_ids=(eos,))
    talk.run_until_idle()
    assert talk.ends(1) == [Finished(STOP, eos)]


# --- stop strings ---


@pytest.mark.parametrize(
    ("stops", "include", "text", "matched"),
    [
        (("STOP",), False, "alpha ", "STOP"),
        (("STOP",), True, "alpha STOP", "STOP"),
        (("omega", "STO", "TOP"), False, "alpha ", "STO"),
        (("a STOP o", "gamma"), False, "alph", "a STOP o"),
        ((" ",), True, "alpha ", " "),
        (("alpha",), False, "", "alpha"),
        (("STOOP", "omegas"), False, "alpha STOP omega", None),
    ],
)
def test_a_stop_string_is_never_shown_in_part_however_its_tokens_fall(
    tokenizer: Tokenizer, stops: tuple[str, ...], include: bool, text: str, matched: str | None
) -> None:
    whole = "alpha STOP omega"
    scripts = {f"cut {i}": [[whole[:i], whole[i:]]] for i in range(1, len(whole))} | {"single": [list(whole)]}
    talk = Talk(tokenizer, scripts)
    for request_id, script in enumerate(scripts):
        talk.ask(request_id, script, stop=stops, include_stop=include)
    while talk.engine.sequences or talk.port.commands:
        talk.step()
        for request_id in range(len(scripts)):
            assert text.startswith(talk.text(request_id)), "part of a stop string was shown"
    for request_id in range(len(scripts)):
        assert talk.text(request_id) == text
        assert talk.ends(request_id) == [Finished(STOP, matched)]


def test_text_held_for_a_stop_string_comes_out_when_the_answer_is_cut(talk: Talk) -> None:
    talk.ask(1, "count", stop=(" two three four five",), max_tokens=3)
    talk.run_until_idle()
    assert talk.text(1) == "one two three"
    assert talk.ends(1) == [Finished(FinishReason.LENGTH)]


def test_text_held_for_a_stop_string_comes_out_when_the_request_is_aborted(talk: Talk) -> None:
    talk.ask(1, "count", stop=(" two three four five",))
    while len(talk.token_ids(1)) < 2:
        talk.step()
    assert talk.text(1) == "one"
    talk.abort(1)
    talk.step()
    assert talk.text(1) == "one two"


def test_no_text_comes_after_a_stop_string_in_the_same_token(tokenizer: Tokenizer) -> None:
    talk = Talk(tokenizer, {"word": [[" three"]]})
    talk.ask(1, "word", stop=("hr",), include_stop=True)
    talk.run_until_idle()
    assert len(talk.token_ids(1)) == 1
    assert talk.text(1) == " thr"


# --- company ---


def test_requests_served_together_give_what_each_gives_alone(tokenizer: Tokenizer) -> None:
    scripts = {f"{i}": [[f"{word} and " * (3 + i)]] for i, word in enumerate(["red", "blue", "café", "日本", "dot."])}
    together = Talk(tokenizer, scripts, max_num_seqs=3, num_blocks=16, max_num_batched_tokens=9, max_model_len=256)
    for request_id, script in enumerate(scripts):
        together.ask(request_id, script, stop=("zebra",))
    together.run_until_idle()
    for request_id, script in enumerate(scripts):
        alone = Talk(tokenizer, scripts)
        alone.ask(0, script, stop=("zebra",))
        alone.run_until_idle()
        assert together.token_ids(request_id) == alone.token_ids(0)
        assert together.text(request_id) == alone.text(0) == scripts[script][0][0]


# --- commands that are nobody's ---


def test_an_abort_of_an_unknown_request_is_ignored(talk: Talk) -> None:
    talk.ask(1, "count")
    talk.abort(7)
    talk.run_until_idle()
    talk.abort(1)
    talk.run_until_idle()
    assert {output.request_id for output in talk.port.outputs} == {1}
    assert talk.ends(1) == [Finished(STOP)]


@pytest.mark.parametrize("state", ["waiting", "running", "finished", "unknown"])
def test_a_resume_of_a_sequence_that_is_not_parked_is_ignored(tokenizer: Tokenizer, state: str) -> None:
    talk = small(tokenizer, max_num_seqs=1)
    if state == "waiting":
        talk.ask(2, "count")
    if state != "unknown":
        talk.ask(1, "count")
        talk.step()
    if state == "finished":
        talk.run_until_idle()
    talk.resume(1, " and more")
    talk.run_until_idle()
    assert talk.text(1) == ("" if state == "unknown" else TEXT)
    assert all(output.counts.injected == 0 for output in talk.port.outputs)


# --- messages ---


class CountingPort(ListPort):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[StepOutput] = []

    def send(self, output: StepOutput) -> None:
        super().send(output)
        self.messages.append(output)


@pytest.fixture
def tiny() -> TinyEngine:
    tiny = TinyEngine(num_blocks=16, max_num_seqs=2)
    tiny.port = tiny.engine.port = CountingPort()
    return tiny


def messages(tiny: TinyEngine) -> list[StepOutput]:
    assert isinstance(tiny.port, CountingPort)
    return tiny.port.messages


def test_a_step_is_one_message_whatever_happened_in_it(tiny: TinyEngine) -> None:
    for request_id in (1, 2, 3):
        tiny.add(request_id, [request_id, 5, 6], greedy(10, ignore_eos=True))
    tiny.step()
    tiny.abort(3)
    tiny.step()
    assert [[output.request_id for output in message.outputs] for message in messages(tiny)] == [[1, 2], [3, 1, 2]]


def test_an_abort_is_told_when_nothing_is_left_to_compute(tiny: TinyEngine) -> None:
    tiny.add(1, [1, 2], greedy(10, ignore_eos=True))
    tiny.step()
    tiny.abort(1)
    tiny.step()
    assert tiny.port.num_waits == 1
    assert [end.reason for end in tiny.ends(1)] == [FinishReason.ABORT]


def test_a_step_without_news_sends_nothing() -> None:
    tiny = TinyEngine(max_num_batched_tokens=4)
    tiny.port = tiny.engine.port = CountingPort()
    tiny.add(1, range(1, 12), greedy(1, ignore_eos=True))
    for num_messages in (0, 0, 1, 1):
        tiny.step()
        assert len(messages(tiny)) == num_messages


def test_the_stats_say_how_full_the_engine_is(tiny: TinyEngine) -> None:
    for request_id in (1, 2, 3):
        tiny.add(request_id, [request_id, 5, 6], greedy(10, ignore_eos=True))
    tiny.step()
    stats = messages(tiny)[-1].stats
    assert stats == EngineStats(
        num_running=2,
        num_waiting=1,
        num_parked=0,
        num_blocks=16,
        num_free_blocks=14,
        prefix_queries=6,
        prefix_hits=0,
        preemptions=0,
        drafted=0,
        drafts_accepted=0,
    )
