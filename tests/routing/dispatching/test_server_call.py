"""A server call from its name to its one outcome, on a transport and a clock that the test holds."""

import orjson
import pytest

from midstream.errors import (
    ToolArgumentsInvalid,
    ToolCancelled,
    ToolError,
    ToolFailed,
    ToolHostDied,
    ToolOverLimit,
    ToolTimedOut,
)
from midstream.messages import (
    ArgumentsDelta,
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallRouted,
    RunsOn,
    ToolAnnotations,
)
from midstream.routing.dispatching.status import CallStatus
from tests.routing.dispatching.fakes import MS, Stream, play, settle, tool

ABANDONED = CallAbandoned(0, "it was none")


def test_a_call_goes_through_its_states_in_order() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        assert len(stream.runs) == 1, "the transport gets ready when the name is known"
        assert stream.runs[0].frames == []
        stream.ready()
        await settle()
        assert len(stream.runs[0].frames) == 1
        stream.close()
        stream.runs[0].give("22 °C")
        await settle()

    stream = play(scene)
    assert stream.states == ["routed", "running", "done"]
    routed, running, done = stream.told
    assert {status.call_id for status in stream.told} == {"call_1"}
    assert (routed.arguments, running.arguments, done.arguments) == (None, {"a": 1}, {"a": 1})
    assert (done.result, done.error) == ("22 °C", None)


def test_a_call_is_told_when_its_name_is_complete() -> None:
    async def scene(stream: Stream) -> None:
        stream.feed(CallRouted(0, "x", RunsOn.SERVER, stream.mark()))
        assert len(stream.runs) == 1
        assert stream.told == []
        stream.feed(CallNamed(0, "x"))
        assert stream.states == ["routed"]

    play(scene)


def test_a_name_that_was_no_tools_after_all_is_never_told() -> None:
    async def scene(stream: Stream) -> None:
        stream.feed(CallRouted(0, "x", RunsOn.SERVER, stream.mark()), ABANDONED)

    stream = play(scene)
    assert stream.told == []
    assert stream.runs[0].num_cancels == 1
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="abandoned") == 1


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (ToolFailed("ValueError: no such room"), "failed", "error: ValueError: no such room"),
        (ToolTimedOut("whatever the host says"), "timed_out", "error: timed out after 5 s"),
        (ToolOverLimit("the result is 10485760 bytes"), "failed", "error: the result is 10485760 bytes"),
        (ToolHostDied("the tool host died"), "failed", "error: the tool host died"),
        (ToolArgumentsInvalid("a is 'x'"), "failed", "error: a is 'x'"),
        (ToolCancelled("cancelled"), "cancelled", "error: cancelled"),
    ],
)
def test_a_tools_failure_is_text_for_the_model_and_an_event(error: ToolError, state: str, text: str) -> None:
    async def scene(stream: Stream) -> None:
        stream.call()
        stream.runs[0].fail(error)
        [result] = await stream.calls.results()
        assert result.text == text

    stream = play(scene, timeout_s=5)
    assert stream.states == ["routed", "running", state]
    assert stream.told[-1].error == text.removeprefix("error: ")
    assert stream.told[-1].result is None


def test_bytes_that_are_no_text_come_out_replaced() -> None:
    async def scene(stream: Stream) -> None:
        stream.call()
        stream.runs[0].give(b"ok \xff\xfe \xf0\x9f\x98\x80")
        [result] = await stream.calls.results()
        assert result.text == "ok �� 😀"

    play(scene)


@pytest.mark.parametrize(("own_s", "deadline_ms"), [(None, 30_000), (0.5, 500), (600.0, 600_000)])
def test_a_tools_own_time_limit_wins(own_s: float | None, deadline_ms: int) -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        assert stream.runs[0].deadline_ms == deadline_ms

    play(scene, tool(annotations=ToolAnnotations(timeout_s=own_s)))


# --- runs that start before their call has closed ---


def test_another_frame_cancels_the_first_run_and_only_the_second_counts() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready('{"a": 1}')
        await settle()
        stream.ready('{"a": 2}')
        await settle()
        first, second = stream.runs
        assert first.was_interrupted
        assert first.num_cancels == 1
        assert first.frames != second.frames
        stream.close()
        second.give("second")
        [result] = await stream.calls.results()
        assert (result.arguments, result.text) == ({"a": 2}, "second")

    stream = play(scene)
    assert stream.states == ["routed", "running", "running", "done"]
    assert [status.arguments for status in stream.told[1:]] == [{"a": 1}, {"a": 2}, {"a": 2}]


def test_a_first_run_that_had_ended_is_not_heard_of_again() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready('{"a": 1}')
        await settle()
        stream.runs[0].give("first")
        await settle()
        stream.ready('{"a": 2}')
        stream.close()
        await settle()
        assert stream.states == ["routed", "running", "running"], "the first run's end was told"
        stream.runs[1].give("second")
        [result] = await stream.calls.results()
        assert result.text == "second"

    stream = play(scene)
    assert [status.result for status in stream.told if status.result] == ["second"]
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="done") == 1


def test_a_run_that_ends_before_its_call_has_closed_waits_for_that() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready()
        await settle()
        stream.runs[0].give("early")
        await settle()
        assert stream.states == ["routed", "running"]
        stream.close()
        await settle()
        assert stream.states == ["routed", "running", "done"]

    play(scene)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_cut_call_is_cancelled_and_its_result_never_told(has_ended: bool) -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready()
        await settle()
        if has_ended:
            stream.runs[0].give("secret")
            await settle()
        stream.feed(CallAbandoned(0, "the answer was cut", is_cut=True))
        await settle()
        assert stream.runs[0].num_cancels == 1
        assert stream.runs[0].was_interrupted != has_ended
        assert not stream.calls.has_pending
        assert await stream.calls.results() == []

    stream = play(scene)
    assert stream.states == ["routed", "running", "abandoned"]
    assert stream.told[-1].error == "the answer was cut"
    assert "secret" not in repr(stream.told)


# --- one outcome ---


def test_after_its_outcome_a_call_says_nothing_more() -> None:
    async def scene(stream: Stream) -> None:
        stream.call()
        stream.runs[0].give("done")
        await settle()
        stream.runs[0].progress(99, "late")
        stream.feed(ABANDONED)
        stream.calls.cancel()
        stream.calls.cancel()

    stream = play(scene)
    assert stream.states == ["routed", "running", "done"]
    outcomes = ("done", "failed", "timed_out", "cancelled", "abandoned")
    assert sum(stream.metric("tool_calls_finished_total", tool="x", outcome=outcome) for outcome in outcomes) == 1


@pytest.mark.parametrize("is_running", [False, True])
def test_cancelling_twice_is_cancelling_once(is_running: bool) -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        if is_running:
            stream.ready()
            await settle()
        stream.calls.cancel()
        stream.calls.cancel()
        await settle()
        assert stream.runs[0].was_interrupted is is_running

    stream = play(scene)
    assert stream.states == (["routed", "running", "cancelled"] if is_running else ["routed", "cancelled"])
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="cancelled") == 1


# --- what is told on the way ---


def test_progress_is_told_while_the_tool_runs() -> None:
    async def scene(stream: Stream) -> None:
        stream.call()
        await settle()
        stream.runs[0].progress(40, "reading")
        stream.runs[0].progress(None, "still reading")
        stream.runs[0].progress(80, "")

    stream = play(scene)
    assert stream.states[2:] == ["progress"] * 3
    assert [status.description for status in stream.told[2:]] == [
        "reading (40 %)",
        "still reading",
        "x is running (80 %)",
    ]


def test_progress_of_a_run_that_was_replaced_is_not_told() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready('{"a": 1}')
        stream.ready('{"a": 2}')
        stream.runs[0].progress(40, "old")
        stream.runs[1].progress(10, "new")

    stream = play(scene)
    assert [status.description for status in stream.told if status.state == "progress"] == ["new (10 %)"]


@pytest.mark.parametrize(
    ("literal", "shown"),
    [
        ("9223372036854775807", 9223372036854775807),
        ("9223372036854775808", "9223372036854775808"),
        ("-" + "9" * 100, "-" + "9" * 100),
        ("1e400", "1e400"),
        ("1e99999999999999999999", "1e99999999999999999999"),
        ("2.5", 2.5),
        ("5.0", 5.0),
    ],
)
def test_numbers_of_any_size_can_be_shown(literal: str, shown: object) -> None:
    async def scene(stream: Stream) -> None:
        stream.call(f'{{"a": {literal}}}')
        stream.runs[0].give("ok")
        [result] = await stream.calls.results()
        assert result.arguments == {"a": shown}

    stream = play(scene)
    assert type(_arguments(stream.told[1])["a"]) is type(shown)
    assert orjson.dumps(stream.told[-1].arguments)


def _arguments(status: CallStatus) -> dict[str, object]:
    assert status.arguments is not None
    return status.arguments


# --- several calls ---


def test_results_come_in_the_order_of_the_calls() -> None:
    async def scene(stream: Stream) -> None:
        for index, name in enumerate(("x", "y", "x")):
            stream.call(name=name, index=index)
        assert stream.calls.has_pending
        for run in reversed(stream.runs):
            run.give(f"result of {stream.runs.index(run)}")
            await settle()
        results = await stream.calls.results()
        assert [result.name for result in results] == ["x", "y", "x"]
        assert [result.text for result in results] == ["result of 0", "result of 1", "result of 2"]
        assert [result.call_id for result in results] == ["call_1", "call_2", "call_3"]

    play(scene, tool("x"), tool("y"))


def test_a_result_is_handed_over_once() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.runs[0].give("first")
        assert len(await stream.calls.results()) == 1
        assert not stream.calls.has_pending
        stream.call(index=1)
        stream.runs[1].give("second")
        assert [result.text for result in await stream.calls.results()] == ["second"]

    play(scene)


def test_a_failed_call_leaves_the_others_alone() -> None:
    async def scene(stream: Stream) -> None:
        stream.call(index=0)
        stream.call(index=1)
        stream.runs[0].fail(ToolFailed("no"))
        stream.runs[1].give("yes")
        assert [result.text for result in await stream.calls.results()] == ["error: no", "yes"]

    play(scene)


def test_events_of_a_clients_calls_are_nobodys_here() -> None:
    async def scene(stream: Stream) -> None:
        stream.feed(
            CallRouted(0, "theirs", RunsOn.CLIENT, stream.mark()),
            CallNamed(0, "theirs"),
            ArgumentsDelta(0, "{}"),
            CallClosed(0, stream.mark()),
        )
        assert not stream.calls.has_pending

    stream = play(scene)
    assert stream.told == []
    assert stream.runs == []


# --- what is counted ---


def test_what_a_call_counts() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready()
        await settle()
        stream.close()
        stream.now_ns += 50 * MS
        stream.calls.end_turn()
        stream.now_ns += 30 * MS
        stream.runs[0].give("done")
        await stream.calls.results()

    stream = play(scene)
    for name in ("routed", "ready", "dispatched"):
        assert stream.metric(f"tool_calls_{name}_total", tool="x") == 1
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="done") == 1
    assert stream.metric("tool_passes_to_route_sum") == 3
    assert stream.metric("tool_passes_to_dispatch_sum") == 7
    assert stream.metric("tool_dispatch_overhead_seconds_sum") == pytest.approx(0.001)
    assert stream.metric("tool_overlap_seconds_sum") == pytest.approx(0.050)
    assert stream.metric("tool_time_to_result_seconds_sum", tool="x") == pytest.approx(0.080)


def test_a_run_that_ends_while_decoding_goes_on_overlaps_with_all_of_itself() -> None:
    async def scene(stream: Stream) -> None:
        stream.call()
        await settle()
        stream.now_ns += 20 * MS
        stream.runs[0].give("done")
        await settle()
        stream.now_ns += 100 * MS
        stream.calls.end_turn()
        await stream.calls.results()

    stream = play(scene)
    assert stream.metric("tool_overlap_seconds_sum") == pytest.approx(0.020)
    assert stream.metric("tool_time_to_result_seconds_sum", tool="x") == pytest.approx(0.020)


def test_the_time_to_a_result_is_not_the_time_to_the_calls_end() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready()
        await settle()
        stream.now_ns += 20 * MS
        stream.runs[0].give("done")
        await settle()
        stream.now_ns += 100 * MS
        stream.close()

    stream = play(scene)
    assert stream.metric("tool_time_to_result_seconds_sum", tool="x") == pytest.approx(0.020)


def test_a_replaced_run_is_two_runs_of_one_call() -> None:
    async def scene(stream: Stream) -> None:
        stream.route()
        stream.ready('{"a": 1}')
        stream.ready('{"a": 2}')
        stream.close()
        await settle()
        stream.runs[1].give("done")

    stream = play(scene)
    assert stream.metric("tool_calls_ready_total", tool="x") == 1
    assert stream.metric("tool_calls_dispatched_total", tool="x") == 2
    assert stream.metric("tool_calls_finished_total", tool="x", outcome="done") == 1
