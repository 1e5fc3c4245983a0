"""Which parked sequences keep their blocks: the lesser waste, within a share of the pool."""

import pytest

from midstream.engine.detokenizer import Detokenizer
from midstream.engine.parking import MAX_SHARE, Parking
from midstream.engine.sequence import Sequence
from midstream.engine.watch import PlainWatch
from midstream.messages import AddRequest, SamplingParams

TOKEN_S = 0.001


class CalledWatch(PlainWatch):
    def __init__(self, *names: str) -> None:
        self.server_calls = names


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parking(clock: Clock) -> Parking:
    return Parking(100, clock)


def sequence(request_id: int, *tools: str, num_tokens: int = 160) -> Sequence:
    request = AddRequest(request_id, [1] * num_tokens, SamplingParams(max_tokens=8))
    seq = Sequence(request, CalledWatch(*tools), Detokenizer([]))
    seq.block_table = list(range(num_tokens // 16))
    return seq


def learn(parking: Parking, clock: Clock, tool: str, took_s: float) -> None:
    """A sequence has waited for the tool."""
    seq = sequence(999, tool)
    parking.begin(seq)
    clock.now_s += took_s
    parking.end(seq)


def gives_back(parking: Parking, seq: Sequence, num_running_blocks: int = 0, token_s: float = TOKEN_S) -> bool:
    parking.begin(seq)
    return parking.gives_back(seq, num_running_blocks=num_running_blocks, token_s=token_s)


def test_for_a_tool_that_nobody_knows_the_blocks_are_kept(parking: Parking) -> None:
    assert not gives_back(parking, sequence(1, "new"))


@pytest.mark.parametrize(("took_s", "expected"), [(0.05, False), (0.15, False), (0.2, True), (30.0, True)])
def test_blocks_are_kept_for_as_long_as_it_takes_to_compute_them_again(
    parking: Parking, clock: Clock, took_s: float, expected: bool
) -> None:
    learn(parking, clock, "tool", took_s)
    assert gives_back(parking, sequence(1, "tool")) is expected  # 160 tokens take 160 ms


def test_the_more_others_wait_the_longer_blocks_are_kept(parking: Parking, clock: Clock) -> None:
    learn(parking, clock, "tool", 0.2)
    assert gives_back(parking, sequence(1, "tool"), num_running_blocks=0)
    assert not gives_back(parking, sequence(2, "tool"), num_running_blocks=10)


def test_where_computing_is_slow_blocks_are_kept(parking: Parking, clock: Clock) -> None:
    learn(parking, clock, "tool", 1.0)
    assert not gives_back(parking, sequence(1, "tool"), token_s=0.01)


def test_a_turn_waits_for_its_slowest_tool(parking: Parking, clock: Clock) -> None:
    learn(parking, clock, "quick", 0.01)
    learn(parking, clock, "slow", 5.0)
    assert not gives_back(parking, sequence(1, "quick"))
    assert gives_back(parking, sequence(2, "quick", "slow"))


def test_what_is_expected_follows_the_tool(parking: Parking, clock: Clock) -> None:
    learn(parking, clock, "tool", 5.0)
    for _ in range(15):
        learn(parking, clock, "tool", 0.01)
    assert not gives_back(parking, sequence(1, "tool"))


def test_beyond_their_share_those_with_the_greatest_waste_give_back(parking: Parking, clock: Clock) -> None:
    learn(parking, clock, "slow", 0.15)
    learn(parking, clock, "quick", 0.01)
    parked = [sequence(i, "slow" if i == 3 else "quick", num_tokens=320) for i in range(4)]
    for seq in parked:
        parking.begin(seq)
    assert parking.max_blocks == int(MAX_SHARE * 100)
    victims = parking.victims(parked, num_running_blocks=0, token_s=TOKEN_S)
    assert [seq.request_id for seq in victims][:1] == [3]
    assert sum(len(seq.block_table) for seq in parked if seq not in victims) <= parking.max_blocks
    assert len(victims) == 2


def test_nothing_is_kept_of_those_that_have_gone(parking: Parking) -> None:
    for number in range(10):
        seq = sequence(number, "tool")
        parking.begin(seq)
        parking.forget(seq)
    assert parking._since_s == {}
