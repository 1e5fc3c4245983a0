"""The block pool: who holds a block, what is found again, and what is forgotten when."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from midstream.engine.batch import Row
from midstream.engine.blocks import BlockCopy, BlockPool
from midstream.engine.sequence import Sequence
from tests.engine.tiny import Slots, make_sequence

B = 4


def compute(pool: BlockPool, seq: Sequence, num_tokens: int | None = None) -> None:
    """Pretend that the KV of the next `num_tokens` (all but those that have it) was computed."""
    num_new = seq.num_pending if num_tokens is None else num_tokens
    assert pool.allocate(seq, num_new)
    seq.num_computed_tokens += num_new
    pool.record(seq)


def computed(pool: BlockPool, token_ids: range | list[int], *, salt: bytes = b"") -> Sequence:
    seq = make_sequence(token_ids, salt=salt)
    pool.adopt_prefix(seq)
    compute(pool, seq)
    return seq


def finished(pool: BlockPool, token_ids: range | list[int], *, salt: bytes = b"") -> list[int]:
    """Compute a sequence and give its blocks back; returns the blocks that it had."""
    seq = computed(pool, token_ids, salt=salt)
    table = seq.block_table
    pool.release(seq)
    return table


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8, B)


def test_whole_blocks_of_a_finished_sequence_are_taken_back(pool: BlockPool) -> None:
    table = finished(pool, range(10))
    later = make_sequence([*range(8), 90, 91, 92])
    assert pool.adopt_prefix(later) is None
    assert later.block_table == table[:2]
    assert later.num_computed_tokens == 8
    pool.check([later])


def test_whole_blocks_of_a_running_sequence_are_shared_and_outlive_it(pool: BlockPool) -> None:
    first = computed(pool, range(9))
    second = make_sequence([*range(8), 90])
    pool.adopt_prefix(second)
    assert second.block_table == first.block_table[:2]
    pool.check([first, second])
    pool.release(first)
    pool.check([second])
    assert pool.num_free == 8 - 2


def test_the_matching_part_of_a_block_that_was_not_full_is_copied(pool: BlockPool) -> None:
    table = finished(pool, range(7))
    later = make_sequence([*range(6), 90, 91])
    copy = pool.adopt_prefix(later)
    assert copy == BlockCopy(table[1], later.block_table[1], 2)
    assert later.block_table[0] == table[0]
    assert later.num_computed_tokens == 6


def test_the_matching_part_of_a_full_block_is_copied_where_sequences_diverge_inside_it(pool: BlockPool) -> None:
    first = computed(pool, range(8))
    later = make_sequence([0, 1, 2, 3, 4, 90, 91, 92])
    copy = pool.adopt_prefix(later)
    assert copy == BlockCopy(first.block_table[1], later.block_table[1], 1)
    assert later.block_table[1] != first.block_table[1]
    assert later.num_computed_tokens == 5


def test_of_several_partly_matching_blocks_the_best_one_is_copied(pool: BlockPool) -> None:
    finished(pool, [0, 80, 81, 82])
    best = finished(pool, [0, 1, 2, 83])
    finished(pool, [0, 1, 84, 85])
    later = make_sequence([0, 1, 2, 3, 4])
    copy = pool.adopt_prefix(later)
    assert copy is not None
    assert (copy.source, copy.num_slots) == (best[0], 3)


@pytest.mark.parametrize("num_tokens", range(1, 14))
def test_the_last_token_is_always_computed_again(pool: BlockPool, num_tokens: int) -> None:
    finished(pool, range(num_tokens))
    again = make_sequence(range(num_tokens))
    pool.adopt_prefix(again)
    assert again.num_computed_tokens == num_tokens - 1


def test_nothing_is_found_across_salts(pool: BlockPool) -> None:
    finished(pool, range(11), salt=b"alice")
    for salt in (b"", b"bob", b"alice\0"):
        other = make_sequence(range(11), salt=salt)
        assert pool.adopt_prefix(other) is None
        assert (other.num_computed_tokens, other.block_table) == (0, [])
    alice = make_sequence(range(11), salt=b"alice")
    pool.adopt_prefix(alice)
    assert alice.num_computed_tokens == 10


def test_equal_blocks_after_different_heads_are_not_mixed_up(pool: BlockPool) -> None:
    finished(pool, [1, 1, 1, 1, 5, 6, 7, 8, 9])
    later = make_sequence([2, 2, 2, 2, 5, 6, 7, 8, 9])
    pool.adopt_prefix(later)
    assert later.num_computed_tokens == 0


def test_a_block_that_is_handed_out_again_is_forgotten(pool: BlockPool) -> None:
    finished(pool, range(9))
    others = computed(pool, [90 + i for i in range(8 * B)])
    assert pool.num_free == 0
    pool.release(others)
    again = make_sequence(range(9))
    pool.adopt_prefix(again)
    assert again.num_computed_tokens == 0


def test_the_blocks_freed_longest_ago_are_handed_out_first_and_the_head_of_a_sequence_last() -> None:
    pool = BlockPool(6, B)
    old, new = finished(pool, range(12)), finished(pool, range(50, 62))
    taker = make_sequence(range(80, 80 + 6 * B))
    assert pool.allocate(taker, 6 * B)
    assert taker.block_table == [*reversed(old), *reversed(new)]


def test_a_hit_makes_a_prefix_young_again() -> None:
    pool = BlockPool(4, B)
    first, second = finished(pool, range(8)), finished(pool, range(50, 58))
    hit = make_sequence(range(9))
    pool.adopt_prefix(hit)
    pool.release(hit)
    taker = make_sequence(range(80, 88))
    assert pool.allocate(taker, 8)
    assert taker.block_table == [*reversed(second)]
    assert not set(taker.block_table) & set(first)


def test_a_block_without_content_is_handed_out_before_any_that_could_be_found() -> None:
    pool = BlockPool(3, B)
    finished(pool, range(8))
    unused = make_sequence([90])
    assert pool.allocate(unused, 1)
    [block_id] = unused.block_table
    pool.release(unused)
    taker = make_sequence([91])
    assert pool.allocate(taker, 1)
    assert taker.block_table == [block_id]


def test_an_allocation_that_does_not_fit_changes_nothing(pool: BlockPool) -> None:
    holder = computed(pool, range(5 * B))
    seq = computed(pool, range(100, 105))
    before = list(seq.block_table)
    assert not pool.allocate(seq, 3 * B)
    assert seq.block_table == before
    assert pool.num_free == 1
    pool.check([holder, seq])


def test_two_sequences_that_compute_the_same_keep_blocks_of_their_own(pool: BlockPool) -> None:
    first, second = make_sequence(range(8)), make_sequence(range(8))
    compute(pool, first)
    compute(pool, second)
    assert not set(first.block_table) & set(second.block_table)
    pool.check([first, second])
    pool.release(first)
    pool.check([second])
    third = make_sequence(range(9))
    pool.adopt_prefix(third)
    assert third.num_computed_tokens == 8


def test_what_others_hold_is_not_counted_as_needed(pool: BlockPool) -> None:
    holder = computed(pool, range(4 * B))
    sharer = make_sequence([*range(4 * B), 90, 91])
    assert pool.num_needed(sharer) == 1
    pool.release(holder)
    assert pool.num_needed(sharer) == 5, "free blocks are needed, found or not"


def test_a_copy_into_the_last_free_block_may_take_its_own_source() -> None:
    pool = BlockPool(1, B)
    slots = Slots(1, B)
    first = make_sequence([1, 2, 3])
    compute(pool, first)
    slots.write(Row(first, 0, 3))
    pool.release(first)
    later = make_sequence([1, 2, 9])
    copy = pool.adopt_prefix(later)
    assert copy is not None
    slots.copy([copy])
    assert later.num_computed_tokens == 2
    slots.check(later, 2)
    pool.check([later])


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class PoolMachine(RuleBasedStateMachine):
    """Sequences with shared heads and several owners come, compute, lose their blocks, and go.

    Copies and writes wait for `run`, as in a step of the engine: everything between is scheduling.
    """

    @initialize(num_blocks=st.integers(1, 8), block_size=st.integers(1, 4))
    def begin(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.slots = Slots(num_blocks, block_size)
        self.ids = count(1)
        self.live: list[Sequence] = []
        self.seen: list[list[int]] = [[]]
        self.copies: list[BlockCopy] = []
        self.reserved: dict[int, int] = {}

    @rule(data=st.data(), tail=TOKENS, salt=st.sampled_from([b"", b"a", b"b"]))
    def add(self, data: st.DataObject, tail: list[int], salt: bytes) -> None:
        head = data.draw(st.sampled_from(self.seen))
        token_ids = head[: data.draw(st.integers(0, len(head)))] + tail
        self.live.append(make_sequence(token_ids, salt=salt, request_id=next(self.ids)))
        self.seen.append(token_ids)

    @precondition(lambda self: any(not seq.block_table for seq in self.live))
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.live if not seq.block_table]))
        num_needed, num_free = self.pool.num_needed(seq), self.pool.num_free
        copy = self.pool.adopt_prefix(seq)
        assert seq.num_computed_tokens < seq.num_tokens, "the last token has to be computed"
        still_missing = self.pool.num_missing(seq, seq.num_tokens)
        assert num_needed == num_free - self.pool.num_free + still_missing
        self.copies += [copy] if copy else []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.live))
        num_new = data.draw(st.integers(1, seq.num_pending)) if seq.num_pending else 0
        table, num_free = list(seq.block_table), self.pool.num_free
        fits = self.pool.num_missing(seq, seq.num_computed_tokens + num_new) <= num_free
        assert self.pool.allocate(seq, num_new) == fits
        if fits:
            self.reserved[seq.request_id] = num_new
        else:
            assert (seq.block_table, self.pool.num_free) == (table, num_free)

    @rule(token_id=st.integers(0, 2))
    def run(self, token_id: int) -> None:
        self.slots.copy(self.copies)
        scheduled = [seq for seq in self.live if seq.request_id in self.reserved]
        for seq in scheduled:
            self.slots.write(Row(seq, seq.num_computed_tokens, self.reserved[seq.request_id]))
        for seq in scheduled:
            seq.num_computed_tokens += self.reserved[seq.request_id]
            self.pool.record(seq)
            if seq.num_pending == 0:
                seq.append_generated(token_id)
        self.copies, self.reserved = [], {}
        for seq in self.live:
            self.slots.check(seq, seq.num_computed_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_finished=st.booleans())
    def release(self, data: st.DataObject, is_finished: bool) -> None:
        """Preempt a sequence, or let it finish."""
        seq = data.draw(st.sampled_from(self.live))
        self.pool.release(seq)
        self.reserved.pop(seq.request_id, None)
        assert (seq.block_table, seq.num_computed_tokens) == ([], 0)
        if is_finished:
            self.live.remove(seq)

    @invariant()
    def free_and_used_are_all(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check(self.live)
        used = {block_id for seq in self.live for block_id in seq.block_table}
        assert self.pool.num_free + len(used) == self.pool.num_blocks


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
