"""Owns engines that tests step by hand: the real loop, scheduler and watch, on a scripted runner."""

from collections.abc import Mapping, Sequence

from midstream.cli.compose import watch_factory
from midstream.engine.blocks import BlockPool
from midstream.engine.loop import Engine
from midstream.engine.scheduler import Scheduler
from midstream.messages import SamplingParams
from midstream.modelfile.tokenizer import Tokenizer
from tests.support.ports import ListPort
from tests.support.scripted import ScriptedRunner, Turn

GREEDY = SamplingParams(max_tokens=256, temperature=0)


class SteppedEngine:
    """`step()` runs one step; every step the pool's invariants are checked."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        scripts: Mapping[str, Sequence[Turn]],
        *,
        num_blocks: int = 256,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 256,
        max_model_len: int = 4096,
    ) -> None:
        self.tokenizer = tokenizer
        self.port = ListPort()
        self.runner = ScriptedRunner(tokenizer, scripts)
        self.blocks = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(
            self.blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.engine = Engine(
            self.port,
            self.scheduler,
            self.runner,
            make_watch=watch_factory(tokenizer),
            token_bytes=tokenizer.all_token_bytes(),
            eos_token_ids=tuple(tokenizer.eos_token_ids),
            max_model_len=max_model_len,
        )

    def step(self) -> None:
        self.engine.step()
        self.blocks.check(list(self.engine.sequences.values()))

    def run_until_idle(self, max_steps: int = 2000) -> None:
        """Step until the engine waits for commands."""
        num_waits = self.port.num_waits
        for _ in range(max_steps):
            self.step()
            if self.port.num_waits > num_waits:
                return
        raise AssertionError(f"still busy after {max_steps} steps")
