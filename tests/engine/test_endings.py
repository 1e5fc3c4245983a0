"""Every way in which a request can end: it ends exactly once, and frees all that it held."""

from collections.abc import Callable

import pytest

from midstream.messages import Finished, FinishReason
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.talk import PING_CALL, Talk, plan

SCRIPTS = {"count": [["one two three four."]], "endless": [["word " * 400]], "call": [[PING_CALL], ["Pong it is."]]}
STOP = FinishReason.STOP


def small(tokenizer: Tokenizer, **limits: int) -> Talk:
    return Talk(tokenizer, SCRIPTS, **limits)


def by_the_end_token(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "count")
    return talk, Finished(STOP)


def by_a_stop_token(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    [three] = tokenizer.encode(" three")
    talk = small(tokenizer)
    talk.ask(1, "count", stop_token_ids=(three,))
    return talk, Finished(STOP, three)


def by_a_stop_string(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "count", stop=("nothing", "thr"))
    return talk, Finished(STOP, "thr")


def by_max_tokens(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "count", max_tokens=2)
    return talk, Finished(FinishReason.LENGTH)


def by_a_full_context(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer, max_model_len=32, num_blocks=2)
    talk.ask(1, "endless")
    return talk, Finished(FinishReason.LENGTH)


def by_a_prompt_that_fills_the_context(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.engine.max_model_len = len(talk.prompt("count"))
    talk.ask(1, "count")
    return talk, Finished(FinishReason.LENGTH)


def by_an_abort_while_waiting(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer, max_num_seqs=1)
    talk.ask(2, "count")
    talk.ask(1, "count")
    talk.step()
    talk.abort(1)
    return talk, Finished(FinishReason.ABORT)


def by_an_abort_while_running(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "endless")
    talk.step()
    talk.abort(1)
    return talk, Finished(FinishReason.ABORT)


def by_an_abort_in_the_step_in_which_it_came(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "endless")
    talk.abort(1)
    return talk, Finished(FinishReason.ABORT)


def by_two_aborts_at_once(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk, finished = by_an_abort_while_running(tokenizer)
    talk.abort(1)
    return talk, finished


def by_an_abort_while_parked(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "call", plan())
    talk.run_until_idle()
    assert talk.is_parked(1)
    talk.abort(1)
    return talk, Finished(FinishReason.ABORT)


def by_a_resume_that_does_not_fit_the_context(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer, max_model_len=64, num_blocks=4)
    talk.ask(1, "call", plan())
    talk.run_until_idle()
    assert talk.is_parked(1)
    talk.resume(1, "result " * 60, plan())
    return talk, Finished(FinishReason.LENGTH)


def by_a_resume_after_the_last_token(tokenizer: Tokenizer) -> tuple[Talk, Finished]:
    talk = small(tokenizer)
    talk.ask(1, "call", plan())
    talk.run_until_idle()
    num_tokens = len(talk.token_ids(1))
    talk = small(tokenizer)
    talk.ask(1, "call", plan(), max_tokens=num_tokens)
    talk.run_until_idle()
    assert talk.is_parked(1), "its last token ended the turn"
    talk.resume(1, "result", plan())
    return talk, Finished(FinishReason.LENGTH)


ENDINGS: list[Callable[[Tokenizer], tuple[Talk, Finished]]] = [
    by_the_end_token,
    by_a_stop_token,
    by_a_stop_string,
    by_max_tokens,
    by_a_full_context,
    by_a_prompt_that_fills_the_context,
    by_an_abort_while_waiting,
    by_an_abort_while_running,
    by_an_abort_in_the_step_in_which_it_came,
    by_two_aborts_at_once,
    by_an_abort_while_parked,
    by_a_resume_that_does_not_fit_the_context,
    by_a_resume_after_the_last_token,
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_every_request_ends_exactly_once(
    tokenizer: Tokenizer, ending: Callable[[Tokenizer], tuple[Talk, Finished]]
) -> None:
    talk, expected = ending(tokenizer)
    talk.run_until_idle()
    assert talk.ends(1) == [expected]
    assert talk.outputs(1)[-1].finished is not None, "something came after the end"
    assert not talk.engine.sequences
    assert talk.blocks.num_free == talk.blocks.num_blocks
