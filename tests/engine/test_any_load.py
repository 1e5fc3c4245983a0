"""Random loads on tiny pools: each comes to its end, leaks nothing, and disturbs nobody."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.sequence import SequenceStatus
from midstream.messages import FinishReason, SamplingParams
from tests.engine.tiny import PARKS, Oracle, TinyEngine, greedy


@dataclass(frozen=True)
class Request:
    """One request of a random load. Its turns end at a random stop token; `results` are injected one by one."""

    start_step: int
    token_ids: list[int]
    sampling: SamplingParams
    salt: bytes
    results: list[list[int]]
    wait_steps: int
    """Steps that it stays parked."""
    abort_step: int | None


@dataclass
class Load:
    """Plays requests into an engine as the gateway would."""

    engine: TinyEngine
    requests: list[Request]
    num_resumed: dict[int, int] = field(default_factory=dict)
    parked_since: dict[int, int] = field(default_factory=dict)

    def play(self, max_steps: int = 1500) -> None:
        for step in range(max_steps):
            self._send(step)
            oldest = self.engine.scheduler.running[:1]
            rows = self.engine.step()
            if oldest and oldest[0].status is not SequenceStatus.FINISHED and rows:
                served = {request_id for request_id, _ in rows}
                first = self.engine.scheduler.running[:1]
                assert first != oldest or oldest[0].request_id in served, "the oldest stood still"
            is_over = all(request.start_step <= step for request in self.requests)
            if is_over and not self.engine.engine.sequences and not self.engine.port.commands:
                return
        raise AssertionError("the load never ends")

    def _send(self, step: int) -> None:
        for request_id, request in enumerate(self.requests):
            if request.start_step == step:
                plan = PARKS if request.results else None
                self.engine.add(request_id, request.token_ids, request.sampling, salt=request.salt, plan=plan)
            if request.abort_step == step:
                self.engine.abort(request_id)
            self._resume(request_id, request, step)

    def _resume(self, request_id: int, request: Request, step: int) -> None:
        seq = self.engine.engine.sequences.get(request_id)
        if seq is None or seq.status is not SequenceStatus.PARKED:
            self.parked_since.pop(request_id, None)
        elif step - self.parked_since.setdefault(request_id, step) == request.wait_steps:
            del self.parked_since[request_id]
            number = self.num_resumed.get(request_id, 0)
            self.num_resumed[request_id] = number + 1
            plan = PARKS if number + 1 < len(request.results) else None
            self.engine.resume(request_id, request.results[number], plan)


HEAD = list(range(1, 13))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    token = st.integers(1, 63)
    head = HEAD[: draw(st.integers(0, len(HEAD)))]
    stops = draw(st.lists(token, max_size=20, unique=True))
    return Request(
        start_step=draw(st.integers(0, 12)),
        token_ids=head + draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=10)),
        sampling=greedy(draw(st.integers(1, 24)), stop_token_ids=tuple(stops)),
        salt=draw(st.sampled_from([b"", b"a"])),
        results=draw(st.lists(st.lists(token, max_size=6), max_size=2)),
        wait_steps=draw(st.integers(0, 5)),
        abort_step=draw(st.none() | st.integers(0, 25)),
    )


drafters = st.lists(st.integers(0, 6), min_size=1, max_size=5).map(lambda num_right: lambda: Oracle(num_right))


@st.composite
def tiny_engines(draw: st.DrawFn) -> TinyEngine:
    block_size = draw(st.integers(1, 5))
    num_tokens = draw(st.integers(24, 60))
    return TinyEngine(
        num_blocks=-(-num_tokens // block_size),
        block_size=block_size,
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.sampled_from([1, 2, 7, 40])),
        max_model_len=num_tokens,
        make_drafter=draw(st.none() | drafters),
    )


def tokens_alone(request: Request, max_model_len: int) -> list[int]:
    """What the request gives when it has a large engine to itself and nobody aborts it."""
    engine = TinyEngine(num_blocks=256, max_model_len=max_model_len)
    undisturbed = Request(0, request.token_ids, request.sampling, request.salt, request.results, 0, None)
    Load(engine, [undisturbed]).play()
    return engine.token_ids(0)


@settings(max_examples=300, deadline=None)
@given(tiny_engines(), st.lists(requests(), min_size=1, max_size=7))
def test_any_load_on_a_tiny_pool_ends_leaks_nothing_and_gives_what_each_request_gives_alone(
    engine: TinyEngine, load: list[Request]
) -> None:
    Load(engine, load).play()
    assert engine.num_held_blocks == 0
    assert engine.is_empty
    for request_id, request in enumerate(load):
        was_aborted = request.abort_step is not None and request.abort_step < request.start_step
        assert len(engine.ends(request_id)) == 1 or was_aborted
        expected = tokens_alone(request, engine.engine.max_model_len)
        got = engine.token_ids(request_id)
        is_cut = [end.reason for end in engine.ends(request_id)] == [FinishReason.ABORT]
        assert got == (expected[: len(got)] if is_cut else expected)
