"""How much prefill shares a step with decoding: learnt from the steps themselves."""

import pytest

from midstream.engine.batch import Batch, Row
from midstream.engine.prefill_pacer import LEAST_TOKENS, SHARE, PrefillPacer
from tests.engine.tiny import TinyEngine, greedy, make_sequence


def decoding() -> Row:
    seq = make_sequence(range(9))
    seq.append_generated(5)
    return Row(seq, 9, 1)


DECODING = decoding()


def prefill(num_new: int) -> Row:
    return Row(make_sequence(range(1000)), 0, num_new)


def taught(decode_s: float, token_s: float) -> PrefillPacer:
    pacer = PrefillPacer(256)
    for _ in range(50):
        pacer.observe(Batch([DECODING], []), decode_s)
        pacer.observe(Batch([DECODING, prefill(40)], []), 41 * token_s)
    return pacer


@pytest.mark.parametrize(("decode_s", "token_s"), [(0.01, 0.0005), (0.003, 0.0001), (0.02, 0.001)])
@pytest.mark.parametrize("num_prefilling", [1, 3, 8])
def test_prefill_adds_its_share_to_a_step(decode_s: float, token_s: float, num_prefilling: int) -> None:
    num_tokens = taught(decode_s, token_s).limit(8, num_prefilling)
    share_s = SHARE * decode_s * (1 + num_prefilling / 8)
    assert num_tokens * token_s <= share_s * 1.001
    assert (num_tokens + 1) * token_s > share_s * 0.999


def test_a_batch_that_never_decodes_by_itself_is_judged_by_its_tokens() -> None:
    assert taught(0.004, 0.001).limit(32, 32) == int(SHARE * 2 * 32)


def test_a_prefill_alone_takes_all_there_is() -> None:
    assert taught(0.01, 0.0005).limit(0, 1) == 256


def test_a_slow_prefill_goes_on_all_the_same() -> None:
    assert taught(0.001, 0.01).limit(8, 1) == LEAST_TOKENS


def test_a_prefill_that_costs_nothing_is_cut_by_the_step_alone() -> None:
    assert taught(0.01, 0.0).limit(8, 1) == 256


def test_a_prefill_alone_teaches_what_its_tokens_take() -> None:
    pacer = PrefillPacer(256)
    pacer.observe(Batch([prefill(256)], []), 0.256)
    pacer.observe(Batch([DECODING], []), 0.01)
    assert pacer.limit(1, 1) == int(SHARE * 2 * 0.01 / 0.001)


def test_before_anything_is_known_a_chunk_is_small() -> None:
    assert PrefillPacer(256).limit(1, 1) == 4 * LEAST_TOKENS
    assert PrefillPacer(8).limit(1, 1) == 8


def test_a_long_prompt_beside_a_decoding_sequence_comes_in_small_chunks() -> None:
    engine = TinyEngine(num_blocks=200, max_num_batched_tokens=256)
    engine.add(1, [1, 2, 3], greedy(60, ignore_eos=True))
    engine.step()
    engine.add(2, [index % 60 + 1 for index in range(400)], greedy(5, ignore_eos=True))
    first = dict(engine.step())
    assert first[1] == 1
    assert first[2] == 4 * LEAST_TOKENS
    engine.run_until_idle()
    assert len(engine.token_ids(2)) == 5
