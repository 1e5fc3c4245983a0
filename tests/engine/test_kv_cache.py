"""The KV tensors: one slot a token, and copies of the head of a block."""

from typing import Any

import torch

from midstream.engine.blocks import BlockCopy
from midstream.engine.kv_cache import KVCache, KVShape

SIZES: dict[str, Any] = {"num_layers": 2, "block_size": 4, "num_kv_heads": 3, "head_dim": 8}


def make_cache(num_blocks: int = 5) -> KVCache:
    cache = KVCache(**SIZES, num_blocks=num_blocks, dtype=torch.float32)
    for layer in range(2):
        for kind, slots in enumerate((cache.keys(layer), cache.values(layer))):
            names = torch.arange(slots.shape[0]) + 100 * layer + 1000 * kind
            slots.copy_(names.view(-1, 1, 1).expand_as(slots))
    return cache


def test_keys_and_values_have_a_slot_for_every_token() -> None:
    cache = make_cache()
    assert cache.keys(1).shape == cache.values(0).shape == (20, 3, 8)
    assert cache.keys(0).is_contiguous()


def test_a_copy_takes_the_first_slots_of_a_block_in_every_layer_and_no_more() -> None:
    cache, before = make_cache(), make_cache()
    cache.copy([BlockCopy(source=1, target=3, num_slots=2)])
    for layer in range(2):
        for now, then in ((cache.keys(layer), before.keys(layer)), (cache.values(layer), before.values(layer))):
            assert torch.equal(now[12:14], then[4:6])
            unchanged = [*range(12), *range(14, 20)]
            assert torch.equal(now[unchanged], then[unchanged])


def test_copies_run_in_their_order() -> None:
    cache, before = make_cache(), make_cache()
    cache.copy([BlockCopy(0, 1, 3), BlockCopy(2, 0, 4), BlockCopy(1, 4, 3)])
    assert torch.equal(cache.keys(0)[16:19], before.keys(0)[0:3])
    assert torch.equal(cache.keys(0)[0:4], before.keys(0)[8:12])


def test_a_copy_onto_itself_changes_nothing() -> None:
    cache, before = make_cache(), make_cache()
    cache.copy([BlockCopy(2, 2, 3)])
    assert torch.equal(cache.values(1), before.values(1))


def test_the_bytes_of_a_block_are_those_of_its_tensors() -> None:
    cache = KVCache(**SIZES, num_blocks=1, dtype=torch.bfloat16)
    num_bytes = sum(t.nbytes for layer in range(2) for t in (cache.keys(layer), cache.values(layer)))
    shape = KVShape(SIZES["num_layers"], SIZES["num_kv_heads"], SIZES["head_dim"], max_positions=1)
    assert SIZES["block_size"] * shape.num_values * torch.bfloat16.itemsize == num_bytes
