"""Owns an engine without a model, for tests: its KV is the prefix itself, so a slot that holds a wrong one fails.

Tokens are the numbers below `VOCAB_SIZE`; the end is token 0; the next token is a hash of all tokens before it.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate, cycle

from midstream.engine.batch import Batch, Row
from midstream.engine.blocks import BlockCopy, BlockPool
from midstream.engine.detokenizer import Detokenizer
from midstream.engine.loop import Engine
from midstream.engine.scheduler import Scheduler
from midstream.engine.sequence import Drafter, Sequence
from midstream.engine.watch import PlainWatch, TokenWatch
from midstream.messages import (
    Abort,
    AddRequest,
    Finished,
    Resume,
    SamplingParams,
    SequenceOutput,
    ToolPlan,
)
from tests.support.ports import ListPort

VOCAB_SIZE = 64
EOS = 0
TOKEN_BYTES = [b"", *(bytes([0x40 + token_id]) for token_id in range(1, VOCAB_SIZE))]

PARKS = ToolPlan("parks", ())
"""The plan of a turn that ends with a call: its sequence parks."""


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **fields)  # type: ignore[arg-type]


def make_sequence(token_ids: Iterable[int], *, salt: bytes = b"", request_id: int = 1) -> Sequence:
    request = AddRequest(request_id, list(token_ids), greedy(1000), salt=salt)
    return Sequence(request, PlainWatch(), Detokenizer(TOKEN_BYTES))


def next_token(salt: bytes, token_ids: list[int]) -> int:
    """What the engine without a model says after `token_ids`."""
    return prefix_names(salt, token_ids)[-1] % VOCAB_SIZE


def prefix_names(salt: bytes, token_ids: list[int]) -> list[int]:
    """For every position a number that stands for the owner and all tokens up to there."""
    start = int.from_bytes(salt, "big") + 17
    names = accumulate(
        token_ids, lambda name, token_id: (name * 1_000_003 + token_id + 1) % ((1 << 61) - 1), initial=start
    )
    return list(names)[1:]


class Slots:
    """The KV cache of no model: the name of a prefix in each slot."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._names: list[int | None] = [None] * (num_blocks * block_size)

    def copy(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            source, target = copy.source * self._block_size, copy.target * self._block_size
            self._names[target : target + copy.num_slots] = self._names[source : source + copy.num_slots]

    def write(self, row: Row) -> None:
        """The KV of the row's tokens, of its drafts too."""
        seq = row.seq
        names = prefix_names(seq.salt, [*seq.token_ids[: row.end], *row.drafts])
        for position in range(row.start, len(names)):
            self._names[self._slot(seq, position)] = names[position]

    def check(self, seq: Sequence, end: int) -> None:
        """Assert that positions [0, end) of `seq` hold the KV of its own tokens."""
        found = [self._names[self._slot(seq, position)] for position in range(end)]
        assert found == prefix_names(seq.salt, seq.token_ids)[:end], (
            f"sequence {seq.request_id} would read another's KV"
        )

    def _slot(self, seq: Sequence, position: int) -> int:
        return seq.block_table[position // self._block_size] * self._block_size + position % self._block_size


class PrefixRunner:
    """Keeps, for each step, the (request id, tokens computed) of its rows."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.steps: list[list[tuple[int, int]]] = []
        self.num_computed: list[int] = []
        """Tokens of each step, drafts included."""

    def execute(self, batch: Batch) -> "PrefixRunner":
        self.steps.append([(row.seq.request_id, row.num_new) for row in batch.rows])
        self.num_computed.append(sum(len(row.token_ids) for row in batch.rows))
        self._slots.copy(batch.copies)
        for row in batch.rows:
            self._slots.write(row)
        for row in batch.rows:
            self._slots.check(row.seq, row.end)
        return self

    def sample(self, index: int, seq: Sequence) -> int:
        return next_token(seq.salt, seq.token_ids)


class Oracle:
    """A drafter that guesses the next tokens, right up to a place that changes from guess to guess."""

    def __init__(self, num_right: list[int]) -> None:
        self._num_right = cycle(num_right)
        self.observed: list[tuple[int, int]] = []

    def propose(self, seq: Sequence, num_rows: int) -> tuple[int, ...]:
        token_ids, num_prompt = list(seq.token_ids), seq.num_tokens
        for _ in range(next(self._num_right)):
            token_ids.append(next_token(seq.salt, token_ids))
        wrong = (next_token(seq.salt, token_ids) + 1) % VOCAB_SIZE
        return (*token_ids[num_prompt:], wrong)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        self.observed.append((num_proposed, num_accepted))


class ParkingWatch(PlainWatch):
    server_calls = ("tool",)


def make_tiny_watch(plan: ToolPlan | None, num_earlier_calls: int) -> TokenWatch:
    return ParkingWatch() if plan is PARKS else PlainWatch()


class TinyEngine:
    """Steps the real loop, scheduler and pool; every step their invariants are checked."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int | None = None,
        make_watch: Callable[[ToolPlan | None, int], TokenWatch] = make_tiny_watch,
        make_drafter: Callable[[], Drafter] | None = None,
    ) -> None:
        self.port = ListPort()
        self.blocks = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(
            self.blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.runner = PrefixRunner(Slots(num_blocks, block_size))
        self.engine = Engine(
            self.port,
            self.scheduler,
            self.runner,
            make_watch=make_watch,
            token_bytes=TOKEN_BYTES,
            eos_token_ids=(EOS,),
            max_model_len=max_model_len or num_blocks * block_size,
            make_drafter=make_drafter,
        )

    def add(
        self,
        request_id: int,
        token_ids: Iterable[int],
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        plan: ToolPlan | None = None,
    ) -> None:
        self.port.commands.append(AddRequest(request_id, list(token_ids), sampling, salt, plan))

    def resume(self, request_id: int, token_ids: Iterable[int], plan: ToolPlan | None = None) -> None:
        self.port.commands.append(Resume(request_id, list(token_ids), plan))

    def abort(self, request_id: int) -> None:
        self.port.commands.append(Abort(request_id))

    def step(self) -> list[tuple[int, int]]:
        """Run one step and return its rows as (request id, tokens computed); [] where nothing was computed."""
        num_steps = len(self.runner.steps)
        self.engine.step()
        self.blocks.check(list(self.engine.sequences.values()))
        rows = self.runner.steps[-1] if len(self.runner.steps) > num_steps else []
        assert all(num <= self.scheduler.max_num_batched_tokens for num in self.runner.num_computed[num_steps:])
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs
        return rows

    def run_until_idle(self, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if not self.step() and not self.port.commands:
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def outputs(self, request_id: int) -> list[SequenceOutput]:
        return [output for output in self.port.outputs if output.request_id == request_id]

    def token_ids(self, request_id: int) -> list[int]:
        """Every completion token of the request so far."""
        return [token_id for output in self.outputs(request_id) for token_id in output.token_ids]

    def ends(self, request_id: int) -> list[Finished]:
        return [output.finished for output in self.outputs(request_id) if output.finished is not None]

    @property
    def is_empty(self) -> bool:
        scheduler = self.scheduler
        return not (self.engine.sequences or scheduler.waiting or scheduler.running or scheduler.parked)

    @property
    def num_held_blocks(self) -> int:
        return self.blocks.num_blocks - self.blocks.num_free
