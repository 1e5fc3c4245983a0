"""Owns a runner that samples what a script says, through the real sampler and the real grammar masks."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from midstream.engine.batch import Batch
from midstream.engine.sequence import Sequence as Seq
from midstream.engine.step_logits import Sampling, StepLogits
from midstream.modelfile.tokenizer import Tokenizer

Turn = Sequence[str | bytes]
"""What the model writes in one turn, in pieces: no token reaches over the end of a piece."""

MAX_TOKEN_BYTES = 24


class ScriptedRunner:
    """Writes, for a prompt that holds `[script NAME]`, the turns of that script, then the end of the turn.

    Tokens that the grammar forces are counted as written. A token that the mask forbids is noted in `refused`.
    """

    def __init__(self, tokenizer: Tokenizer, scripts: Mapping[str, Sequence[Turn]]) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = tokenizer.all_token_bytes()
        self._ids = {piece: i for i, piece in reversed(list(enumerate(self._token_bytes))) if piece}
        self._scripts = scripts
        self._sampling = Sampling(tokenizer.vocab_size, tuple(tokenizer.eos_token_ids))
        self._turn_starts: dict[int, list[int]] = {}
        self.refused: list[str] = []
        self.steps: list[list[tuple[int, int]]] = []
        """For each step the (request id, tokens computed) of its rows."""
        self.before_step: Callable[[Batch], None] = lambda batch: None

    def execute(self, batch: Batch) -> "ScriptedRunner":
        self.before_step(batch)
        self.steps.append([(row.seq.request_id, row.num_new) for row in batch.rows])
        return self

    def sample(self, index: int, seq: Seq) -> int:
        """What the script goes on with, through the real sampler and the grammar's mask."""
        wanted = self._next_token(seq)
        logits = np.zeros((1, self._tokenizer.vocab_size), np.float32)  # [1, V]
        logits[0, wanted] = 100.0
        got = StepLogits(logits, self._sampling).sample(0, seq)
        if got != wanted:
            self.refused.append(self._text(wanted))
        return got

    def _next_token(self, seq: Seq) -> int:
        start = seq.num_tokens - (seq.num_generated - seq.turn_start_generated)
        starts = self._turn_starts.setdefault(seq.request_id, [])
        if start not in starts:
            starts.append(start)
        prompt = self._tokenizer.decode(seq.token_ids[: starts[0]])
        name = prompt.rpartition("[script ")[2].partition("]")[0]
        turns = self._scripts[name]
        turn = turns[min(len(starts), len(turns)) - 1]
        written = b"".join(self._token_bytes[token_id] for token_id in seq.token_ids[start:])
        return self._continue(turn, written)

    def _continue(self, turn: Turn, written: bytes) -> int:
        pieces = [piece.encode() if isinstance(piece, str) else piece for piece in turn]
        whole = b"".join(pieces)
        assert whole.startswith(written), f"the script is {whole!r} and the turn so far is {written!r}"
        end = 0
        for piece in pieces:
            end += len(piece)
            if end > len(written):
                return self._longest_token(whole[len(written) : end])
        return self._tokenizer.eos_token_ids[0]

    def _longest_token(self, text: bytes) -> int:
        for length in range(min(MAX_TOKEN_BYTES, len(text)), 0, -1):
            token_id = self._ids.get(text[:length])
            if token_id is not None:
                return token_id
        raise AssertionError(f"no token begins {text!r}")

    def num_tokens(self, turn: Turn) -> int:
        """Tokens that the turn is written in where no grammar forces any."""
        pieces = [piece.encode() if isinstance(piece, str) else piece for piece in turn]
        written = b""
        for number in itertools.count():
            if written == b"".join(pieces):
                return number
            written += self._token_bytes[self._continue(pieces, written)]
        raise AssertionError

    def text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def _text(self, token_id: int) -> str:
        return self._token_bytes[token_id].decode("utf-8", "replace")
