"""Owns when a turn's grammar is in force. Knows the parser's state, not what is in the call."""

import numpy as np
import numpy.typing as npt

from midstream.messages import ChoiceMode, ToolPlan
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.grammar import Grammars, GrammarState, plain_openings
from midstream.routing.watching.parser import CallParser
from midstream.routing.watching.unread import UnreadTokens


class TurnGrammar:
    """The grammar of one turn.

    Required and named: in force from the first token to the last; reasoning that the prompt has opened comes first.
    Auto: from the token in which a marker may begin until its section has ended; a token that spans the marker's end is
    then held to what may follow it. A marker with special tokens cannot be spanned, and is waited for; a section that
    begins without a marker is free, for it may as well be an answer in JSON.
    """

    def __init__(
        self,
        grammars: Grammars | None,
        dialect: Dialect,
        plan: ToolPlan,
        token_bytes: list[bytes],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        mode = plan.choice.mode
        is_held = mode is not ChoiceMode.NONE and plan.tools and (dialect.calls.openings or mode is not ChoiceMode.AUTO)
        self._grammars = grammars if is_held else None
        self._dialect = dialect
        self._special_ids = grammars.special_ids if grammars else {}
        self._has_plain_opening = bool(plain_openings(dialect, self._special_ids))
        self._plan = plan
        self._eos_token_ids = eos_token_ids
        self._end_token_ids = [eos_token_ids[0] if plan.end_token_id is None else plan.end_token_id]
        self._is_auto = mode is ChoiceMode.AUTO
        self._goes_on = plan.is_interleaved
        self._num_sections = 0
        self._unread = UnreadTokens(token_bytes)
        self._beginnings: dict[str | None, GrammarState] = {}
        self._begun_with: str | None = None
        self._state: GrammarState | None = None
        if self._grammars is not None and not self._is_auto:
            self._state = self._grammars.matcher(dialect, plan)

    def advance(self, token_id: int, text: str, parser: CallParser) -> None:
        """Take a token after the parser has read `text`, which may lag behind the tokens."""
        if self._grammars is None:
            return
        if self._is_auto:
            self._advance_auto(self._grammars, token_id, text, parser)
        else:
            self._consume([token_id])

    def forced_tokens(self, parser: CallParser) -> list[int]:
        if self._is_auto and parser.num_calls and not parser.is_in_section and not self._plan.parallel:
            return self._end_token_ids
        state = self._state
        if state is None or state.is_broken or (self._is_auto and not parser.is_in_section):
            return []
        if state.is_over:
            return [] if self._goes_on else self._end_token_ids
        return state.forced_tokens()

    def expected_text(self, parser: CallParser) -> str:
        """A marker that has begun is likely to go on, and then a name follows it.

        Once the grammar holds, what it forces beyond the tokens that are sure: a value's opening quote, mostly.
        """
        state = self._state
        if state is None or state.is_broken or (self._is_auto and not parser.is_in_section):
            rest = parser.rest_of_marker if self._is_auto and self._grammars is not None else ""
            return rest + self._dialect.before_name if rest else ""
        return state.forced_text()

    def num_allowed(self, token_ids: list[int]) -> int:
        state = self._state
        return len(token_ids) if state is None or state.is_broken else state.num_allowed(token_ids)

    def fill_mask(self, bitmask: npt.NDArray[np.int32], parser: CallParser) -> bool:
        if self._state is None or self._state.is_broken or (self._goes_on and self._state.is_over):
            return False
        self._state.fill(bitmask)
        if self._is_auto and not parser.is_in_section:
            # The marker has only perhaps begun: the turn may as well end here.
            for token_id in self._eos_token_ids:
                bitmask[token_id // 32] |= np.int32(np.uint32(1 << (token_id % 32)).view(np.int32))
        return True

    def _advance_auto(self, grammars: Grammars, token_id: int, text: str, parser: CallParser) -> None:
        self._unread.add(token_id, text)
        if not parser.is_in_section:
            self._unread.keep_last(parser.num_unread)
        if parser.num_sections > self._num_sections:
            # The token that ends a section may begin the next one's marker (`><`): that is a grammar of its own.
            self._num_sections = parser.num_sections
            self._state = None
        opening = parser.opening
        begins_with = opening if opening and self._is_special(opening) else None
        may_begin = opening is None and self._has_plain_opening and parser.may_begin_call
        if not (opening or may_begin):
            self._state = None
        elif self._state is not None and self._begun_with == begins_with:
            self._consume([token_id])
        else:
            self._begin(grammars, begins_with)

    def _begin(self, grammars: Grammars, opening: str | None) -> None:
        """Begin a section's grammar, and show it the tokens that its beginning came in."""
        if opening not in self._beginnings:
            self._beginnings[opening] = grammars.matcher(self._dialect, self._plan, opening)
        self._begun_with = opening
        self._state = self._beginnings[opening].fresh()
        special_ids = [token_id for text, token_id in self._special_ids.items() if text in (opening or "")]
        self._consume(self._unread.after_last(frozenset(special_ids)))

    def _is_special(self, opening: str) -> bool:
        return any(text in opening for text in self._special_ids)

    def _consume(self, token_ids: list[int]) -> None:
        if self._state is not None and not self._state.is_broken:
            self._state.consume(token_ids)
