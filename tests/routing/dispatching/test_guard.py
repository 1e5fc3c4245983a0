"""What the calls of one tool share: places, further attempts and the pause of a tool that does not answer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from midstream.errors import (
    ToolArgumentsInvalid,
    ToolCancelled,
    ToolError,
    ToolFailed,
    ToolHostDied,
    ToolTimedOut,
    ToolUnavailable,
)
from midstream.messages import ToolAnnotations
from midstream.routing.dispatching.guard import MAX_ATTEMPTS, MAX_FAILURES, PAUSE_S, Guard, GuardedCall
from tests.routing.dispatching.fakes import FakeCall, FakeTransport, Stream, play, settle, tool

IDEMPOTENT = ToolAnnotations(idempotent=True)
READ_ONLY = ToolAnnotations(read_only=True)


class Stand:
    """A guard on a fake transport and clock, without waits."""

    def __init__(self, annotations: ToolAnnotations) -> None:
        self.transport = FakeTransport()
        self.now_s = 100.0
        self.waits: list[float] = []
        self.num_retries = 0
        self.guard = Guard(
            tool(annotations=annotations),
            self.transport,
            timeout_s=1.0,
            now_s=lambda: self.now_s,
            sleep=self._sleep,
            jitter=lambda longest_s: longest_s,
            on_retry=self._on_retry,
        )

    @property
    def runs(self) -> list[FakeCall]:
        return self.transport.calls

    @property
    def started(self) -> list[FakeCall]:
        return [run for run in self.runs if run.frames]

    def call(self) -> tuple[GuardedCall, asyncio.Task[str]]:
        call = self.guard.open(1000, lambda percent, text: None)
        call.start(b"frame")
        return call, asyncio.create_task(self._outcome(call))

    async def fail(self, error: Exception) -> str:
        """A whole call that ends with `error`, a second after the last."""
        self.now_s += 1
        _, outcome = self.call()
        self.runs[-1].fail(error)
        return await outcome

    async def _outcome(self, call: GuardedCall) -> str:
        try:
            return (await call.result()).content.decode()
        except ToolError as error:
            return type(error).__name__

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def _on_retry(self) -> None:
        self.num_retries += 1


def guarded(scene: Callable[[Stand], Awaitable[None]], annotations: ToolAnnotations) -> Stand:
    async def main() -> Stand:
        stand = Stand(annotations)
        await scene(stand)
        return stand

    return asyncio.run(main())


def test_more_calls_than_places_wait_their_turn() -> None:
    async def scene(stand: Stand) -> None:
        outcomes = [stand.call()[1] for _ in range(3)]
        await settle()
        assert [bool(run.frames) for run in stand.runs] == [True, False, False]
        for number in range(3):
            assert len(stand.started) == number + 1
            stand.started[number].give(str(number))
            await settle()
        assert [await outcome for outcome in outcomes] == ["0", "1", "2"]

    guarded(scene, ToolAnnotations(max_concurrency=1))


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_call_that_is_cancelled_gives_its_place_to_the_next(is_awaited: bool) -> None:
    async def scene(stand: Stand) -> None:
        first, first_outcome = stand.call()
        _, second_outcome = stand.call()
        if is_awaited:
            await settle()
        first.cancel()
        first_outcome.cancel()
        await settle()
        assert len(stand.started) == 2
        stand.started[1].give("second")
        assert await second_outcome == "second"
        assert stand.guard.slots.take(), "a place was lost"

    guarded(scene, ToolAnnotations(max_concurrency=1))


def test_one_that_leaves_the_queue_takes_no_place() -> None:
    async def scene(stand: Stand) -> None:
        _, first = stand.call()
        await settle()
        waiting, outcome = stand.call()
        await settle()
        outcome.cancel()
        waiting.cancel()
        await settle()
        stand.runs[0].give("first")
        assert await first == "first"
        assert stand.guard.slots.take()
        assert not stand.runs[1].frames

    guarded(scene, ToolAnnotations(max_concurrency=1))


@pytest.mark.parametrize("error", [ToolFailed("no"), ToolHostDied("gone")])
def test_an_idempotent_tool_is_tried_again(error: Exception) -> None:
    async def scene(stand: Stand) -> None:
        _, outcome = stand.call()
        await settle()
        stand.runs[0].fail(error)
        await settle()
        stand.runs[1].give("ok")
        assert await outcome == "ok"
        assert [run.frames for run in stand.runs] == [[b"frame"], [b"frame"]]

    stand = guarded(scene, IDEMPOTENT)
    assert stand.num_retries == 1
    assert stand.waits == [0.1]


def test_attempts_end() -> None:
    async def scene(stand: Stand) -> None:
        _, outcome = stand.call()
        for number in range(MAX_ATTEMPTS):
            await settle()
            stand.runs[number].fail(ToolFailed("no"))
        assert await outcome == "ToolFailed"
        assert len(stand.runs) == MAX_ATTEMPTS

    stand = guarded(scene, IDEMPOTENT)
    assert stand.waits == [0.1, 0.2]


@pytest.mark.parametrize(
    ("annotations", "error"),
    [
        (ToolAnnotations(), ToolFailed("no")),
        (READ_ONLY, ToolHostDied("gone")),
        (IDEMPOTENT, ToolArgumentsInvalid("a is no integer")),
        (IDEMPOTENT, ToolTimedOut("late")),
        (IDEMPOTENT, ToolCancelled("cancelled")),
    ],
)
def test_what_is_not_tried_again(annotations: ToolAnnotations, error: ToolError) -> None:
    async def scene(stand: Stand) -> None:
        assert await stand.fail(error) == type(error).__name__
        assert len(stand.runs) == 1

    guarded(scene, annotations)


def test_a_call_that_was_cancelled_while_it_waits_to_be_tried_again_is_not() -> None:
    async def scene(stand: Stand) -> None:
        call, outcome = stand.call()
        await settle()

        async def leave(seconds: float) -> None:
            call.cancel()

        stand.guard.sleep = leave
        stand.runs[0].fail(ToolFailed("no"))
        assert await outcome == "ToolCancelled"
        assert len(stand.runs) == 1

    guarded(scene, IDEMPOTENT)


@pytest.mark.parametrize("error", [ToolTimedOut("late"), ToolHostDied("gone")])
def test_a_tool_that_does_not_answer_is_left_alone_for_a_while(error: Exception) -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(MAX_FAILURES):
            await stand.fail(error)
        _, refused = stand.call()
        assert await refused == "ToolUnavailable"
        assert len(stand.started) == MAX_FAILURES
        assert stand.runs[-1].num_cancels == 1
        stand.now_s += PAUSE_S
        _, trial = stand.call()
        _, beside = stand.call()
        assert await beside == "ToolUnavailable", "one finds out, not all"
        stand.runs[-2].give("back")
        assert await trial == "back"
        _, after = stand.call()
        stand.runs[-1].give("again")
        assert await after == "again"

    guarded(scene, ToolAnnotations())


def test_calls_that_a_host_takes_down_together_count_once() -> None:
    async def scene(stand: Stand) -> None:
        calls = [stand.call()[1] for _ in range(2 * MAX_FAILURES)]
        await settle()
        for run in stand.runs:
            run.fail(ToolHostDied("gone"))
        assert {await outcome for outcome in calls} == {"ToolHostDied"}
        assert stand.guard.refusal() is None

    guarded(scene, ToolAnnotations())


@pytest.mark.parametrize("answer", [ToolArgumentsInvalid("a is no integer"), ToolFailed("no")])
def test_an_error_that_the_host_answers_with_is_an_answer(answer: ToolError) -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(MAX_FAILURES):
            await stand.fail(ToolTimedOut("late"))
        stand.now_s += PAUSE_S
        await stand.fail(answer)
        assert stand.guard.refusal() is None

    guarded(scene, ToolAnnotations())


def test_waiting_for_a_place_counts_as_the_calls_own_time() -> None:
    async def scene(stand: Stand) -> None:
        stand.call()
        call = stand.guard.open(20, lambda percent, text: None)
        call.start(b"frame")
        with pytest.raises(ToolTimedOut, match="no place was free"):
            await call.result()
        stand.runs[0].give("first")
        await settle()
        assert stand.guard.slots.take()

    guarded(scene, ToolAnnotations(max_concurrency=1))


def test_a_run_that_had_to_wait_has_what_is_left_of_the_time() -> None:
    async def scene(stand: Stand) -> None:
        stand.call()
        _, outcome = stand.call()
        await settle()
        stand.now_s += 0.6
        stand.runs[0].give("first")
        await settle()
        assert stand.runs[1].num_cancels == 1, "it was opened with more"
        assert stand.started[1].deadline_ms == 400
        stand.started[1].give("second")
        assert await outcome == "second"

    guarded(scene, ToolAnnotations(max_concurrency=1))


def test_a_tool_that_failed_the_others_is_not_called_by_those_who_waited() -> None:
    async def scene(stand: Stand) -> None:
        _, first = stand.call()
        _, second = stand.call()
        await settle()
        for _ in range(MAX_FAILURES):
            stand.guard.note(ToolTimedOut("late"))
        stand.runs[0].fail(ToolTimedOut("late"))
        assert await first == "ToolTimedOut"
        assert await second == "ToolUnavailable"
        assert len(stand.started) == 1
        assert stand.guard.slots.take(), "a place was lost"

    guarded(scene, ToolAnnotations(max_concurrency=1))


def test_a_run_with_less_than_the_tools_own_time_says_nothing_of_the_tool() -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(2 * MAX_FAILURES):
            call = stand.guard.open(999, lambda percent, text: None)
            call.start(b"frame")
            stand.runs[-1].fail(ToolTimedOut("late"))
            with pytest.raises(ToolTimedOut):
                await call.result()
        assert stand.guard.is_well

    guarded(scene, ToolAnnotations())


def test_a_call_counts_once_however_often_it_was_tried() -> None:
    async def scene(stand: Stand) -> None:
        for number in range(1, MAX_FAILURES + 1):
            assert stand.guard.is_well
            _, outcome = stand.call()
            for _ in range(MAX_ATTEMPTS):
                await settle()
                stand.now_s += 0.1
                stand.runs[-1].fail(ToolHostDied("gone"))
            assert await outcome == "ToolHostDied"
            assert len(stand.started) == number * MAX_ATTEMPTS
        assert not stand.guard.is_well

    guarded(scene, IDEMPOTENT)


def test_further_attempts_have_what_is_left_of_the_time() -> None:
    async def scene(stand: Stand) -> None:
        _, outcome = stand.call()
        await settle()
        stand.now_s += 0.6
        stand.runs[0].fail(ToolFailed("no"))
        await settle()
        assert stand.runs[1].deadline_ms == 400
        stand.now_s += 0.5
        stand.runs[1].fail(ToolFailed("no"))
        assert await outcome == "ToolFailed"
        assert len(stand.runs) == 2

    guarded(scene, IDEMPOTENT)


def test_a_tool_that_answers_with_errors_works() -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(3 * MAX_FAILURES):
            assert await stand.fail(ToolFailed("no such airport")) == "ToolFailed"
        for _ in range(3):
            for _ in range(MAX_FAILURES - 1):
                await stand.fail(ToolTimedOut("late"))
            await stand.fail(ToolFailed("no"))
        _, outcome = stand.call()
        stand.runs[-1].give("ok")
        assert await outcome == "ok"

    guarded(scene, ToolAnnotations())


def test_the_refusal_says_what_and_for_how_long() -> None:
    async def scene(stand: Stand) -> None:
        for _ in range(MAX_FAILURES):
            await stand.fail(ToolTimedOut("late"))
        refusal = stand.guard.refusal()
        assert isinstance(refusal, ToolUnavailable)
        assert refusal.message == "x did not answer 5 times in a row; it is called again in 10 s"

    guarded(scene, ToolAnnotations())


# --- equal calls of one turn ---


def test_equal_read_only_calls_of_a_turn_run_once() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.call(index=1)
        stream.call('{"a": 2}', index=2)
        await settle()
        assert [len(run.frames) for run in stream.runs] == [1, 0, 1]
        assert stream.runs[1].num_cancels == 1, "what was got ready is put back"
        stream.runs[0].give("one")
        stream.runs[2].give("two")
        assert [result.text for result in await stream.calls.results()] == ["one", "one", "two"]

    stream = play(scene, tool(annotations=READ_ONLY))
    assert stream.metric("tool_calls_dispatched_total", tool="x") == 2
    assert stream.metric("tool_calls_shared_total", tool="x") == 1
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="done") == 3


def test_calls_that_may_change_something_all_run() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.call(index=1)
        await settle()
        assert [len(run.frames) for run in stream.runs] == [1, 1]
        for number, run in enumerate(stream.runs):
            run.give(str(number))
        assert [result.text for result in await stream.calls.results()] == ["0", "1"]

    play(scene)


def test_a_later_turn_asks_anew() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.runs[0].give("old")
        stream.calls.end_turn()
        await stream.calls.results()
        stream.call(index=1)
        assert len(stream.runs[1].frames) == 1
        stream.runs[1].give("new")
        assert [result.text for result in await stream.calls.results()] == ["new"]

    play(scene, tool(annotations=READ_ONLY))


def test_after_an_interleaved_result_the_model_may_ask_the_same_again() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.runs[0].give("running")
        await stream.calls.results()
        stream.calls.begin_turn()
        stream.call(index=1)
        stream.runs[1].give("ready")
        assert [result.text for result in await stream.calls.results()] == ["ready"]

    play(scene, tool(annotations=READ_ONLY))


def test_a_run_that_failed_is_not_shared() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.runs[0].fail(ToolFailed("no"))
        await settle()
        stream.call(index=1)
        stream.runs[1].give("yes")
        assert [result.text for result in await stream.calls.results()] == ["error: no", "yes"]

    play(scene, tool(annotations=READ_ONLY))


def test_a_shared_run_goes_on_while_one_waits_for_it() -> None:
    async def scene(stream: Stream) -> None:
        eager = '{"a": 1}'
        stream.route(index=0)
        stream.ready(eager, index=0)
        stream.call(eager, index=1)
        await settle()
        stream.ready('{"a": 2}', index=0, is_closed=True)
        stream.close(0)
        await settle()
        first, _, third = stream.runs
        assert first.num_cancels == 0
        assert not first.was_interrupted
        first.give("one")
        third.give("two")
        assert [result.text for result in await stream.calls.results()] == ["one", "two"]

    play(scene, tool(annotations=READ_ONLY))


# --- the request's time for tools ---


def test_the_tools_of_a_request_share_its_time() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        assert stream.runs[0].deadline_ms == 5000
        stream.now_ns += 4_000_000_000
        stream.runs[0].give("late")
        await stream.calls.results()
        stream.call(index=1)
        assert stream.runs[1].deadline_ms == 2000
        stream.now_ns += 3_000_000_000
        stream.call(index=2)
        assert len(stream.runs) == 2, "nothing is left: it is not even opened"
        stream.runs[1].give("later")
        results = await stream.calls.results()
        assert [result.text for result in results] == [
            "later",
            "error: not called: the request's time for tools is spent",
        ]

    stream = play(scene, timeout_s=5.0, budget_s=6.0)
    assert stream.states[-1] == "failed"


def test_what_was_read_before_a_change_is_read_again() -> None:
    async def scene(stream: Stream) -> None:
        for index, name in enumerate(["read", "write", "read"]):
            stream.call(name=name, index=index)
        await settle()
        assert [len(run.frames) for run in stream.runs] == [1, 1, 1]
        for run, text in zip(stream.runs, ["old", "done", "new"], strict=True):
            run.give(text)
        assert [result.text for result in await stream.calls.results()] == ["old", "done", "new"]

    play(scene, tool("read", annotations=READ_ONLY), tool("write"))
