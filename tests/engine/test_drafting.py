"""Guesses at the next tokens: what is found, when it pays, and that the answers are the same with and without."""

import pytest

from midstream.engine.detokenizer import Detokenizer
from midstream.engine.drafting import MAX_DRAFTS, PromptLookup, Worth
from midstream.engine.sequence import Sequence
from midstream.engine.watch import PlainWatch
from midstream.messages import AddRequest, SamplingParams
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.tiny import Oracle, TinyEngine, greedy

pytestmark = pytest.mark.model


class CallingWatch(PlainWatch):
    is_in_call = False
    expected = ""
    num_most = 1000

    def expected_text(self) -> str:
        return self.expected

    def num_allowed(self, token_ids: list[int]) -> int:
        return min(self.num_most, len(token_ids))


def sequence(tokenizer: Tokenizer, prompt: str, max_tokens: int = 100, watch: CallingWatch | None = None) -> Sequence:
    request = AddRequest(1, tokenizer.encode(prompt), SamplingParams(max_tokens=max_tokens))
    return Sequence(request, watch or CallingWatch(), Detokenizer(tokenizer.all_token_bytes()))


def lookup(tokenizer: Tokenizer, max_model_len: int = 4096) -> PromptLookup:
    return PromptLookup(tokenizer.all_token_bytes(), lambda text: tokenizer.encode(text, at_start=False), max_model_len)


def say(tokenizer: Tokenizer, seq: Sequence, text: str) -> None:
    for token_id in tokenizer.encode(text, at_start=False):
        seq.append_generated(token_id)


def argument(tokenizer: Tokenizer, question: str, begun: str) -> str:
    """What is guessed to follow `begun` in a call's arguments."""
    seq, drafter = sequence(tokenizer, question), lookup(tokenizer)
    seq.watch.is_in_call = True  # type: ignore[misc]
    drafter.propose(seq, 1)
    say(tokenizer, seq, '{"airport": "')
    say(tokenizer, seq, begun)
    return tokenizer.decode(drafter.propose(seq, 1))


@pytest.mark.parametrize(
    ("question", "begun", "rest"),
    [
        ("Is the flight from PVG on 2026-11-30 late?", "P", "VG"),
        ("Is the flight from PVG on 2026-11-30 late?", "2", "026-11-30"),
        ("Is the flight from PVG on 2026-11-30 late?", "2026-", "11-30"),
        ("From (JFK), please.", "JF", "K"),
        ("Departures of Wednesday?", "Wed", "nesday"),
        ("A stop at PVG. Then PEK!", "P", "EK"),
        ("Flüge ab München?", "Mün", "chen"),
    ],
)
def test_a_word_that_an_argument_has_begun_is_finished_as_the_question_has_it(
    tokenizer: Tokenizer, question: str, begun: str, rest: str
) -> None:
    assert argument(tokenizer, question, begun) == rest


@pytest.mark.parametrize("begun", ["Q", "VG", "late", "2026-11-30"])
def test_nothing_is_guessed_of_a_word_that_is_not_there_or_has_ended(tokenizer: Tokenizer, begun: str) -> None:
    assert argument(tokenizer, "Is the flight from PVG on 2026-11-30 late?", begun) == ""


def test_a_marker_that_has_begun_is_guessed_to_go_on(tokenizer: Tokenizer) -> None:
    watch = CallingWatch()
    seq, drafter = sequence(tokenizer, "Is it late? <", watch=watch), lookup(tokenizer)
    assert drafter.propose(seq, 1) == ()
    watch.expected = "tool_call>"
    assert tokenizer.decode(drafter.propose(seq, 1)) == "tool_call>"
    for _ in range(20):
        drafter.observe(3, 0)
    assert drafter.propose(seq, 1) == (), "a model that never means it is not asked again"
    watch.expected = ""
    watch.is_in_call = True
    say(tokenizer, seq, '"l')
    assert tokenizer.decode(drafter.propose(seq, 1)) == "ate", "other guesses are judged by themselves"


def test_a_guess_ends_before_what_the_grammar_does_not_allow(tokenizer: Tokenizer) -> None:
    watch = CallingWatch()
    watch.num_most = 2
    text = "Say: one two three four five six. Again: one two three"
    seq, drafter = sequence(tokenizer, text, watch=watch), lookup(tokenizer)
    for _ in range(20):
        drafter.observe(4, 4)
    assert tokenizer.decode(drafter.propose(seq, 1)) == " four five"
    watch.num_most = 0
    assert drafter.propose(seq, 1) == ()


def test_text_that_stood_before_is_guessed_to_go_on_as_it_did(tokenizer: Tokenizer) -> None:
    seq, drafter = (
        sequence(tokenizer, "Say: one two three four five six seven. Again: one two three"),
        lookup(tokenizer),
    )
    for _ in range(20):
        drafter.observe(4, 4)
    drafts = drafter.propose(seq, 1)
    assert tokenizer.decode(drafts).startswith(" four five six seven.")
    assert len(drafts) <= MAX_DRAFTS


def test_the_latest_place_counts(tokenizer: Tokenizer) -> None:
    seq, drafter = sequence(tokenizer, "Is a b c d e. Or a b c x y. Or a b c"), lookup(tokenizer)
    assert tokenizer.decode(drafter.propose(seq, 1)).startswith(" x y")
    say(tokenizer, seq, " z z z. Or a b c")
    assert tokenizer.decode(drafter.propose(seq, 1)).startswith(" z z")


def test_no_guess_goes_beyond_what_may_still_come(tokenizer: Tokenizer) -> None:
    text = "Say: one two three four five six seven. Again: one two three"
    seq = sequence(tokenizer, text, max_tokens=3)
    assert len(lookup(tokenizer).propose(seq, 1)) == 2, "the third is sampled"
    whole = sequence(tokenizer, text)
    assert len(lookup(tokenizer, whole.num_tokens + 2).propose(whole, 1)) == 1
    assert lookup(tokenizer, whole.num_tokens + 1).propose(whole, 1) == ()


def test_guesses_that_do_not_come_true_end(tokenizer: Tokenizer) -> None:
    seq, drafter = sequence(tokenizer, "Say: one two three four five. So, one two three"), lookup(tokenizer)
    for _ in range(10):
        if not drafter.propose(seq, 1):
            break
        drafter.observe(8, 0)
    else:
        pytest.fail("it guesses on")
    seq.watch.is_in_call = True  # type: ignore[misc]
    drafter.propose(seq, 1)
    say(tokenizer, seq, ' "fo')
    assert tokenizer.decode(drafter.propose(seq, 1)) == "ur", "a call is another matter"


@pytest.mark.parametrize(
    ("chance", "num_rows", "num_worthwhile"),
    [
        (0.9, 1, 12),
        (0.8, 1, 7),
        (0.5, 1, 2),
        (0.21, 1, 1),
        (0.2, 1, 0),
        (0.999, 4, 4),
        (0.9, 8, 2),
        (0.6, 8, 0),
        (1, 64, 1),
    ],
)
def test_a_guess_is_as_long_as_it_pays_in_the_company_it_is_in(
    chance: float, num_rows: int, num_worthwhile: int
) -> None:
    assert Worth(chance).num_worthwhile(num_rows) == num_worthwhile


def test_outcomes_change_what_a_guess_is_worth() -> None:
    worth = Worth(0.5)
    for _ in range(20):
        worth.observe(4, 4)
    assert worth.num_worthwhile(1) == MAX_DRAFTS
    for _ in range(20):
        worth.observe(4, 0)
    assert worth.num_worthwhile(1) == 0


def test_a_call_like_an_earlier_one_is_guessed_to_have_its_arguments(tokenizer: Tokenizer) -> None:
    call = '{"name": "on_time_rate", "arguments": {"airport": "'
    seq, drafter = sequence(tokenizer, call + 'PVG"}} And again: '), lookup(tokenizer)
    seq.watch.is_in_call = True  # type: ignore[misc]
    drafter.propose(seq, 1)
    say(tokenizer, seq, call)
    assert tokenizer.decode(drafter.propose(seq, 1)).startswith("PVG")


# --- in the loop ---


def test_right_guesses_come_at_once_and_wrong_ones_never() -> None:
    plain, drafted = TinyEngine(), TinyEngine(make_drafter=lambda: Oracle([3, 0, 5]))
    for engine in (plain, drafted):
        engine.add(1, [5, 6, 7], greedy(40, ignore_eos=True))
        engine.run_until_idle()
    assert drafted.token_ids(1) == plain.token_ids(1)
    assert [len(output.token_ids) for output in drafted.outputs(1)[1:4]] == [4, 1, 6], (
        "its own token, and the right ones"
    )
    assert drafted.outputs(1)[-1].counts.computed == plain.outputs(1)[-1].counts.computed
    assert drafted.outputs(1)[-1].counts.passes < plain.outputs(1)[-1].counts.passes


def test_drafters_hear_what_came_of_their_guesses_and_the_stats_count_it() -> None:
    oracle = Oracle([2])
    engine = TinyEngine(make_drafter=lambda: oracle)
    engine.add(1, [5, 6, 7], greedy(10, ignore_eos=True))
    engine.run_until_idle()
    assert oracle.observed[:2] == [(3, 2), (3, 2)]
    stats = engine.engine._stats()
    assert stats.drafted == sum(proposed for proposed, _ in oracle.observed)
    assert stats.drafts_accepted == sum(accepted for _, accepted in oracle.observed)


def test_a_guess_takes_nobodys_blocks() -> None:
    engine = TinyEngine(num_blocks=4, block_size=4, make_drafter=lambda: Oracle([8]), max_model_len=16)
    for request_id in (1, 2):
        engine.add(request_id, [request_id, 5, 6, 7, 8], greedy(3, ignore_eos=True))
    engine.run_until_idle()
    assert engine.scheduler.num_preemptions == 0
    assert [len(engine.token_ids(request_id)) for request_id in (1, 2)] == [3, 3]
