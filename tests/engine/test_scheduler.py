"""Who is computed when: order, chunks, preemption, parking, aborts."""

import pytest

from midstream.engine.prefill_pacer import PrefillPacer
from midstream.engine.sequence import SequenceStatus
from midstream.messages import FinishReason, SamplingParams
from tests.engine.tiny import PARKS, TinyEngine, greedy

LONG = 10_000
"""More tokens than any test waits for."""


def forever(max_tokens: int = LONG) -> SamplingParams:
    return greedy(max_tokens, ignore_eos=True)


def prompt(request_id: int, num_tokens: int) -> list[int]:
    """A prompt that shares nothing with those of other requests."""
    return [1 + (request_id * 7 + i) % 63 for i in range(num_tokens)]


def alone(token_ids: list[int], sampling: SamplingParams) -> list[int]:
    engine = TinyEngine(num_blocks=512)
    engine.add(1, token_ids, sampling)
    engine.run_until_idle()
    return engine.token_ids(1)


# --- order and chunks ---


def unpaced(engine: TinyEngine) -> TinyEngine:
    """Chunks as large as the step: how small they are beside decoding is the pacer's, and follows the clock."""
    engine.scheduler.pacer = PrefillPacer(engine.scheduler.max_num_batched_tokens)
    engine.scheduler.pacer.limit = lambda num_decoding, num_prefilling: engine.scheduler.max_num_batched_tokens  # type: ignore[method-assign]
    return engine


def test_nothing_to_do_is_no_batch() -> None:
    engine = TinyEngine()
    assert engine.step() == []
    assert engine.port.num_waits == 1


def test_who_decodes_goes_before_who_prefills_and_a_prompt_is_cut_to_what_is_left() -> None:
    engine = unpaced(TinyEngine(num_blocks=128, max_num_batched_tokens=40))
    engine.add(1, prompt(1, 100), forever())
    assert engine.step() == [(1, 40)]
    engine.add(2, prompt(2, 5), forever())
    assert engine.step() == [(2, 5), (1, 35)]
    assert engine.step() == [(1, 25), (2, 1)], "what is left is so little that it counts as a decode"
    assert engine.step() == [(1, 1), (2, 1)]


def test_a_long_prompt_costs_the_others_one_chunk_a_step_and_no_step() -> None:
    engine = unpaced(TinyEngine(num_blocks=256, max_num_batched_tokens=50))
    for request_id in (1, 2, 3):
        engine.add(request_id, prompt(request_id, 5), forever())
    engine.step()
    engine.add(4, prompt(4, 400), forever())
    steps = [engine.step() for _ in range(12)]
    for rows in steps:
        assert [row for row in rows if row[0] != 4] == [(1, 1), (2, 1), (3, 1)], "a stream stood still"
        assert sum(num_new for _, num_new in rows) <= 50
    assert [num_new for rows in steps for request_id, num_new in rows if request_id == 4][:9] == [47] * 8 + [24]


def test_of_two_long_prompts_the_older_one_is_done_first() -> None:
    engine = TinyEngine(num_blocks=256, max_num_batched_tokens=64)
    engine.add(1, prompt(1, 100), forever())
    engine.add(2, prompt(2, 100), forever())
    assert engine.step() == [(1, 64)]
    assert engine.step() == [(1, 36), (2, 28)]


def test_however_many_decode_the_oldest_gets_a_token_of_every_step() -> None:
    engine = TinyEngine(num_blocks=256, max_num_batched_tokens=4)
    engine.add(1, prompt(1, 60), forever())
    for request_id in (2, 3, 4, 5, 6):
        engine.add(request_id, prompt(request_id, 30), forever())
    for _ in range(20):
        assert (1, 1) in engine.step()


def test_no_more_than_max_num_seqs_run() -> None:
    engine = TinyEngine(max_num_seqs=2)
    for request_id in (1, 2, 3, 4):
        engine.add(request_id, prompt(request_id, 3), forever(2))
    served = [[request_id for request_id, _ in engine.step()] for _ in range(4)]
    assert served == [[1, 2], [1, 2], [3, 4], [3, 4]]


def test_a_request_waits_until_all_of_it_fits_beside_what_the_others_have_still_to_compute() -> None:
    engine = TinyEngine(num_blocks=10, max_num_batched_tokens=4)
    engine.add(1, prompt(1, 30), forever(4))  # 8 blocks, of which the first step takes one
    engine.add(2, prompt(2, 12), forever(4))
    while not engine.ends(1):
        assert [request_id for request_id, _ in engine.step()] == [1]
    engine.run_until_idle()
    assert engine.scheduler.num_preemptions == 0
    assert len(engine.ends(2)) == 1


def test_a_request_that_shares_its_prompt_needs_room_for_the_rest_only() -> None:
    engine = TinyEngine(num_blocks=8)
    shared = prompt(1, 20)
    engine.add(1, [*shared, 1], forever())
    engine.step()
    engine.add(2, [*shared, 2], forever())
    engine.step()
    assert [seq.request_id for seq in engine.scheduler.running] == [1, 2]
    assert engine.runner.steps[-1] == [(1, 1), (2, 1)]


def test_the_part_of_a_prompt_that_was_found_is_counted() -> None:
    engine = TinyEngine()
    engine.add(1, prompt(1, 10), forever(20))
    engine.run_until_idle()
    engine.add(2, [*prompt(1, 10), *engine.token_ids(1)[:15]], forever(5))
    engine.run_until_idle()
    assert engine.outputs(2)[-1].counts.cached == 24
    assert engine.token_ids(2) == engine.token_ids(1)[15:]


# --- preemption ---


def test_a_preempted_sequence_keeps_its_output_and_goes_on_exactly() -> None:
    engine = TinyEngine(num_blocks=8)
    engine.add(1, prompt(1, 9), forever(20))
    engine.add(2, prompt(2, 9), forever(20))
    while not engine.scheduler.num_preemptions:
        engine.step()
    [preempted] = engine.scheduler.waiting
    assert preempted.request_id == 2, "the youngest goes first"
    assert preempted.block_table == []
    assert preempted.num_generated == len(engine.token_ids(2)) > 0
    engine.run_until_idle()
    for request_id in (1, 2):
        assert engine.token_ids(request_id) == alone(prompt(request_id, 9), forever(20))
        assert len(engine.ends(request_id)) == 1
    counts = engine.outputs(2)[-1].counts
    assert counts.computed > 9 + 20 - 1, "what was computed again is counted"


def test_an_older_prefill_takes_its_blocks_from_a_younger_decode() -> None:
    engine = TinyEngine(num_blocks=52, max_num_batched_tokens=3)
    engine.add(1, prompt(1, 200), forever(3))  # 51 blocks, of which each step needs a half
    engine.add(2, prompt(2, 2), forever(100))
    while not engine.ends(1):
        assert 1 in dict(engine.step()), "the oldest stood still"
    assert engine.scheduler.num_preemptions == 1
    engine.run_until_idle()
    assert engine.token_ids(2) == alone(prompt(2, 2), forever(100))


def test_a_preempted_sequence_is_the_next_to_be_admitted() -> None:
    engine = TinyEngine(num_blocks=8, max_num_seqs=2)
    engine.add(1, prompt(1, 9), forever(20))
    engine.add(2, prompt(2, 9), forever(20))
    engine.add(3, prompt(3, 2), forever(5))
    while not engine.scheduler.num_preemptions:
        engine.step()
    while not engine.ends(1):
        assert engine.step() == [(1, 1)], "request 3 would fit, and still it is not its turn"
    assert list(dict(engine.step())) == [2, 3]


# --- parking ---


def parked(engine: TinyEngine, request_id: int, num_tokens: int = 9) -> None:
    """Add a request and step until it has parked after its first token."""
    engine.add(request_id, prompt(request_id, num_tokens), greedy(LONG, stop_token_ids=tuple(range(64))), plan=PARKS)
    while not (engine.outputs(request_id) and engine.outputs(request_id)[-1].is_parked):
        engine.step()


def test_a_parked_sequence_holds_its_blocks_and_no_slot() -> None:
    engine = TinyEngine(max_num_seqs=1)
    parked(engine, 1)
    [seq] = engine.scheduler.parked
    assert seq.status is SequenceStatus.PARKED
    assert len(seq.block_table) == 3
    engine.add(2, prompt(2, 3), forever(2))
    assert engine.step() == [(2, 3)]


def test_parked_sequences_lose_their_blocks_before_anyone_is_preempted() -> None:
    engine = TinyEngine(num_blocks=8)
    engine.add(1, prompt(1, 9), forever(20))
    parked(engine, 2)
    engine.step()
    while engine.engine.sequences[2].block_table:
        engine.step()
        assert len(engine.scheduler.running) == 1
    engine.run_until_idle()
    assert engine.token_ids(1) == alone(prompt(1, 9), forever(20))


def test_parked_blocks_are_lost_back_into_the_prefix_cache() -> None:
    engine = TinyEngine(num_blocks=8)
    parked(engine, 1, num_tokens=12)
    engine.add(2, prompt(2, 22), forever(1))
    engine.step()
    assert not engine.engine.sequences[1].block_table
    engine.resume(1, [5, 6])
    engine.step()
    # 6 of the 8 blocks went to request 2, so the two that hold the head of request 1 are still there.
    assert engine.runner.steps[-1] == [(1, 12 + 1 + 2 - 8)]


def test_a_sequence_that_wakes_goes_to_the_front_and_computes_only_what_is_new() -> None:
    engine = TinyEngine(max_num_seqs=1)
    parked(engine, 1)
    engine.add(2, prompt(2, 3), forever(3))
    engine.add(3, prompt(3, 3), forever(3))
    engine.step()
    engine.resume(1, [5, 6, 7])
    while 2 in engine.engine.sequences:
        engine.step()
    assert engine.step() == [(1, 4)], "the token that ended its turn, and the three that woke it"


def test_a_sequence_that_woke_and_waits_for_a_slot_does_not_keep_the_pool_from_the_one_that_runs() -> None:
    engine = TinyEngine(num_blocks=8, max_num_seqs=1)
    parked(engine, 1)
    engine.add(2, prompt(2, 9), forever(20))
    engine.step()
    engine.resume(1, [5, 6])
    engine.run_until_idle()
    assert len(engine.ends(2)) == 1
    assert engine.token_ids(2) == alone(prompt(2, 9), forever(20))
    assert engine.outputs(1)[-1].finished is not None


def test_a_sequence_that_woke_and_does_not_fit_yet_keeps_its_blocks_as_long_as_it_can() -> None:
    engine = TinyEngine(num_blocks=8)
    parked(engine, 1)
    engine.add(2, prompt(2, 13), forever(15))
    engine.step()
    engine.resume(1, prompt(3, 12))
    engine.step()
    [woken] = engine.scheduler.waiting
    assert len(woken.block_table) == 3
    engine.run_until_idle()
    assert engine.token_ids(2) == alone(prompt(2, 13), forever(15))
    assert len(engine.ends(1)) == 1


# --- aborts ---


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted", "parked", "woken"])
def test_an_abort_frees_everything_within_one_step(state: str) -> None:
    engine = TinyEngine(num_blocks=16, max_num_seqs=1 if state in ("waiting", "woken") else 8, max_num_batched_tokens=8)
    _bring_to(engine, state)
    seq = engine.engine.sequences[1]
    engine.abort(1)
    engine.abort(2)
    engine.step()
    assert seq.status is SequenceStatus.FINISHED
    assert engine.num_held_blocks == 0
    assert engine.is_empty
    assert [end.reason for end in engine.ends(1)] == [FinishReason.ABORT]


def _bring_to(engine: TinyEngine, state: str) -> None:
    """Bring request 1 to `state`; request 2 may be there too."""
    status = SequenceStatus.WAITING
    if state == "waiting":
        engine.add(2, prompt(2, 3), forever())
        engine.add(1, prompt(1, 3), forever())
        engine.step()
    elif state == "preempted":
        engine.add(2, prompt(2, 20), forever())
        engine.add(1, prompt(1, 20), forever())
        while not engine.scheduler.num_preemptions:
            engine.step()
    elif state in ("parked", "woken"):
        parked(engine, 1)
        status = SequenceStatus.PARKED
        if state == "woken":
            engine.add(2, prompt(2, 3), forever())
            engine.step()
            engine.resume(1, [5])
            engine.step()
            status = SequenceStatus.WAITING
    else:
        engine.add(1, prompt(1, 20), forever())
        for _ in range(2 if state == "prefilling" else 4):
            engine.step()
        status = SequenceStatus.RUNNING
    assert engine.engine.sequences[1].status is status
