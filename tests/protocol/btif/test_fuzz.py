"""A million frames that were damaged: each decodes or is refused with its offset, and none costs more than its size."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from midstream.errors import BtifError
from midstream.protocol import btif
from midstream.protocol.btif import Layout
from tests.protocol.btif.support import ANY, FLIGHT

NUM_FRAMES = 1_000_000
TEXTS = (
    '{"airport": "PVG", "date": "2024-06-20"}',
    '{"airport": "%s"}' % ("x" * 40),
)
ANY_TEXTS = (
    '{"a": [1, 2.5, true, null, "x"], "b": {"c": [[], {}]}, "d": 123456789012345678901234567890}',
    '{"long": "%s"}' % ("é" * 150),
    '{"n": [1e400, -0.0, 9007199254740993, -1]}',
    '{"deep": ' + "[" * 60 + "1" + "]" * 60 + "}",
)
# Bytes that lie near the borders of what tags, lengths and varints may be.
TELLING = bytes([0, 1, 2, 5, 6, 8, 9, 10, 11, 12, 13, 0x7F, 0x80, 0xFF])


def frames() -> list[tuple[bytes, Layout]]:
    made = [(btif.encode(3, FLIGHT, text), FLIGHT) for text in TEXTS]
    return made + [(btif.encode(7, ANY, text), ANY) for text in ANY_TEXTS]


def mutants(seed: int) -> Iterator[tuple[bytes, Layout]]:
    dice = random.Random(seed)
    corpus = frames()
    while True:
        frame, layout = dice.choice(corpus)
        mutant = bytearray(frame)
        for _ in range(dice.randrange(1, 4)):
            place = int(dice.random() * len(mutant))
            kind = dice.random()
            if kind < 0.5:
                mutant[place] = int(dice.random() * 256)
            elif kind < 0.75:
                mutant[place] = dice.choice(TELLING)
            elif kind < 0.85:
                del mutant[place:]
            elif kind < 0.95:
                mutant[place:place] = dice.choice(TELLING).to_bytes(1, "big") * 3
            else:
                mutant += mutant[place:]
            if not mutant:
                break
        yield bytes(mutant), layout


def refusal(frame: bytes, layout: Layout | None) -> BtifError | None:
    """What the decoder says of it; any other exception is a fault of ours."""
    try:
        btif.decode(frame, layout)
    except BtifError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_frame_is_decoded_or_refused_with_its_offset(seed: int) -> None:
    damaged = mutants(seed)
    num_refused = 0
    for _ in range(NUM_FRAMES // 4):
        frame, layout = next(damaged)
        error = refusal(frame, layout)
        if error is not None:
            num_refused += 1
            assert 0 <= error.offset <= len(frame), frame.hex()
    assert NUM_FRAMES // 8 < num_refused < NUM_FRAMES // 4, "the damage is too great, or none"


def test_no_frame_makes_the_decoder_allocate_more_than_its_size_allows() -> None:
    damaged = mutants(99)
    huge = (2**40).to_bytes(6, "little")
    made = [next(damaged)[0] for _ in range(3000)]
    # Counts and lengths that promise far more than the frame holds.
    for tag in (0x0A, 0x0B, 0x08, 0x0C):
        made += [bytes([0, 0, 0, 3, 0, 1, tag, *([0xFF] * 4), 0x0F]), bytes([0, 0, 0, 3, 0, 1, tag]) + huge]
    made.append(bytes([0, 0, 0, 3, 0xFF, 0xFF, 1, 1, 65]))
    tracemalloc.start()
    try:
        for frame in made:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            refusal(frame, None)
            _, peak = tracemalloc.get_traced_memory()
            # 64 levels of calls and the error's way through them; and a byte is a value of its own at most.
            assert peak - before < 131_072 + 256 * len(frame), frame.hex()
    finally:
        tracemalloc.stop()
