"""Owns KV block ownership: who holds a block, and which tokens a block's KV belongs to. Never touches tensors.

A block is free (nobody holds it) or used (one or more sequences do). A free block keeps its content until it is
handed out again, so a later sequence with the same tokens can take it back:

    free, oldest first  [ no content | content of a finished turn ... | content freed last ]
                          ^ handed out first                            ^ forgotten last

Content is named by a chain of SHA-256 hashes: hash(block) = sha256(hash(block before) + its tokens), salted with
the owner of the request. Source: PagedAttention, arXiv:2309.06180, section 4; the hash chain is vLLM's.
"""

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from midstream.engine.sequence import Sequence


@dataclass(frozen=True)
class BlockCopy:
    """Copy the first `num_slots` slots of block `source` to block `target`, in every layer."""

    source: int
    target: int
    num_slots: int


@dataclass(frozen=True)
class PrefixMatch:
    """KV found for the head of a sequence: whole blocks to share, then a part of one block to copy."""

    block_ids: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    partial_block_id: int | None = None
    num_partial_tokens: int = 0


@dataclass
class _Content:
    """Which tokens a block's KV belongs to."""

    parent: bytes
    token_ids: tuple[int, ...]
    hash: bytes | None
    """None: the block is not full, so it has no name of its own."""


def _chain_hash(parent: bytes, token_ids: tuple[int, ...]) -> bytes:
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


def _num_common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


class BlockPool:
    """All KV blocks of one engine. A method costs O(blocks of the sequence) or less, where it does not say more."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._contents: dict[int, _Content] = {}
        self._by_hash: dict[bytes, int] = {}
        self._children: dict[bytes, set[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_missing(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks that `seq` lacks to hold the KV of `num_tokens` tokens in all."""
        return max(0, -(-num_tokens // self.block_size) - len(seq.block_table))

    def num_needed(self, seq: Sequence) -> int:
        """Free blocks that it takes to hold all of `seq`, which shares the whole blocks that others hold already."""
        num_missing = self.num_missing(seq, seq.num_tokens)
        if seq.block_table or num_missing <= 1:
            return num_missing
        return num_missing - sum(self._ref_counts[block_id] > 0 for block_id in self._match(seq).block_ids)

    def allocate(self, seq: Sequence, num_new_tokens: int) -> bool:
        """Reserve blocks for the next `num_new_tokens` tokens of `seq`.

        Returns False, changing nothing, when the pool is too small.
        """
        num_missing = self.num_missing(seq, seq.num_computed_tokens + num_new_tokens)
        if num_missing > len(self._free):
            return False
        for _ in range(num_missing):
            seq.block_table.append(self._take_oldest())
        return True

    def adopt_prefix(self, seq: Sequence) -> BlockCopy | None:
        """Give a sequence without blocks the KV that exists for its head; its last token is always computed.

        Sets `num_computed_tokens`. Returns the copy to run before the next forward pass, if a part of a block fits.
        Also O(blocks that follow the last whole one that fits, in any sequence).
        """
        assert not seq.block_table and seq.num_computed_tokens == 0
        match = self._match(seq)
        for block_id in match.block_ids:
            self._hold(block_id)
        seq.block_table = list(match.block_ids)
        seq.block_hashes = list(match.hashes)
        seq.num_computed_tokens = len(match.block_ids) * self.block_size
        if match.partial_block_id is None or not self._free:
            return None
        target = self._take_oldest()
        seq.block_table.append(target)
        seq.num_computed_tokens += match.num_partial_tokens
        return BlockCopy(match.partial_block_id, target, match.num_partial_tokens)

    def record(self, seq: Sequence) -> None:
        """Name the blocks that `seq` has filled with KV since the last call, so that others can share them."""
        for index in range(len(seq.block_hashes), seq.num_computed_tokens // self.block_size):
            parent = seq.block_hashes[-1] if seq.block_hashes else self._root(seq)
            tokens = self._tokens_of(seq, index)
            name = _chain_hash(parent, tokens)
            seq.block_hashes.append(name)
            if name not in self._by_hash:
                self._by_hash[name] = seq.block_table[index]
                self._remember(seq.block_table[index], _Content(parent, tokens, name))

    def release(self, seq: Sequence) -> None:
        """Take all blocks from `seq`. Their content stays findable until the blocks are handed out again."""
        self._record_partial(seq)
        # Tail first: the head of a conversation is the part that others share, so it is forgotten last.
        for block_id in reversed(seq.block_table):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free[block_id] = None
                if block_id not in self._contents:
                    self._free.move_to_end(block_id, last=False)
        seq.block_table = []
        seq.block_hashes = []
        seq.num_computed_tokens = 0

    def check(self, sequences: list[Sequence]) -> None:
        """Assert every invariant of the pool, given all sequences that may hold blocks."""
        held = [block_id for seq in sequences for block_id in seq.block_table]
        for block_id in range(self.num_blocks):
            count = held.count(block_id)
            assert self._ref_counts[block_id] == count, f"block {block_id}: {self._ref_counts[block_id]} != {count}"
            assert (block_id in self._free) == (count == 0), f"block {block_id} is lost or free while held"
        named = {content.hash: block_id for block_id, content in self._contents.items() if content.hash is not None}
        assert self._by_hash == named, "a name without its block, or a block without its name"
        children: dict[bytes, set[int]] = {}
        for block_id, content in self._contents.items():
            children.setdefault(content.parent, set()).add(block_id)
        assert self._children == children, "a block is not found where its parent ends"
        for seq in sequences:
            assert len(set(seq.block_table)) == len(seq.block_table), "a block stands twice in one table"
            assert len(seq.block_table) * self.block_size >= seq.num_computed_tokens
            assert len(seq.block_hashes) * self.block_size <= seq.num_computed_tokens

    def _match(self, seq: Sequence) -> PrefixMatch:
        usable = seq.num_tokens - 1
        block_ids: list[int] = []
        hashes: list[bytes] = []
        parent = self._root(seq)
        while (len(block_ids) + 1) * self.block_size <= usable:
            name = _chain_hash(parent, self._tokens_of(seq, len(block_ids)))
            found = self._by_hash.get(name)
            if found is None:
                break
            block_ids.append(found)
            hashes.append(name)
            parent = name
        rest = tuple(seq.token_ids[len(block_ids) * self.block_size : usable])
        best, num_best = None, 0
        for block_id in self._children.get(parent, ()):
            num_common = _num_common(self._contents[block_id].token_ids, rest)
            if num_common > num_best:
                best, num_best = block_id, num_common
        return PrefixMatch(block_ids, hashes, best, num_best)

    def _record_partial(self, seq: Sequence) -> None:
        index, num_left = divmod(seq.num_computed_tokens, self.block_size)
        assert len(seq.block_hashes) == index, "`record` was not called after the last tokens were computed"
        if num_left == 0:
            return
        block_id = seq.block_table[index]
        if self._ref_counts[block_id] > 1 or block_id in self._contents:
            return
        parent = seq.block_hashes[-1] if seq.block_hashes else self._root(seq)
        self._remember(block_id, _Content(parent, self._tokens_of(seq, index)[:num_left], None))

    def _tokens_of(self, seq: Sequence, index: int) -> tuple[int, ...]:
        return tuple(seq.token_ids[index * self.block_size : (index + 1) * self.block_size])

    def _root(self, seq: Sequence) -> bytes:
        return hashlib.sha256(seq.salt).digest()

    def _remember(self, block_id: int, content: _Content) -> None:
        self._contents[block_id] = content
        self._children.setdefault(content.parent, set()).add(block_id)

    def _forget(self, block_id: int) -> None:
        content = self._contents.pop(block_id, None)
        if content is None:
            return
        if content.hash is not None:
            del self._by_hash[content.hash]
        siblings = self._children[content.parent]
        siblings.discard(block_id)
        if not siblings:
            del self._children[content.parent]

    def _hold(self, block_id: int) -> None:
        if self._ref_counts[block_id] == 0:
            del self._free[block_id]
        self._ref_counts[block_id] += 1

    def _take_oldest(self) -> int:
        block_id, _ = self._free.popitem(last=False)
        self._forget(block_id)
        self._ref_counts[block_id] = 1
        return block_id
