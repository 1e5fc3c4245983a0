import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from midstream.errors import (
    ToolArgumentsInvalid,
    ToolCancelled,
    ToolFailed,
    ToolHostDied,
    ToolOverLimit,
    ToolTimedOut,
)
from midstream.protocol import btif
from midstream.tools.python import PythonCall, PythonTransport
from midstream.tools.transport import CallHandle, ToolResult, Transport
from tests.tools.hosted import REGISTRY

COMMAND = (sys.executable, "-m", "tests.tools.hosted")
LONG_MS = 30_000


class Client:
    """A transport and the shortest way to call a tool by name over it."""

    def __init__(self, **settings: Any) -> None:
        self.transport = PythonTransport(COMMAND, **settings)

    def open(self, name: str, deadline_ms: int = LONG_MS, **more: Any) -> PythonCall:
        return self.transport.open(REGISTRY.by_name[name].spec.tool_id, deadline_ms, **more)

    async def call(self, name: str, /, deadline_ms: int = LONG_MS, **arguments: Any) -> ToolResult:
        return await run(self.open(name, deadline_ms), frame_of(name, **arguments))

    async def pid(self) -> int:
        return int((await self.call("pid")).content)


async def run(call: CallHandle, frame: bytes) -> ToolResult:
    call.start(frame)
    return await call.result()


def frame_of(name: str, /, **arguments: Any) -> bytes:
    spec = REGISTRY.by_name[name].spec
    return btif.encode(spec.tool_id, btif.Layout.of(spec.parameters), json.dumps(arguments))


def with_client(
    **settings: Any,
) -> Callable[[Callable[[Client], Awaitable[None]]], Callable[[], None]]:
    """Run a test against a started client; at its end no child, task or descriptor may be left."""

    def decorate(test: Callable[[Client], Awaitable[None]]) -> Callable[[], None]:
        async def main() -> None:
            await asyncio.create_subprocess_exec("true")  # asyncio keeps a descriptor or two for its children
            fds = open_fds()
            client = Client(**settings)
            await client.transport.start()
            try:
                await test(client)
            finally:
                await client.transport.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert open_fds() == fds

        def run() -> None:
            asyncio.run(main())

        run.__name__ = test.__name__
        run.__module__ = test.__module__
        return run

    return decorate


def open_fds() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue  # that of listdir itself
    return found


def as_protocols(transport: PythonTransport) -> tuple[Transport, CallHandle]:
    """Never called: mypy checks here that the classes are what they claim to be."""
    return transport, transport.open(1, 1)


@with_client()
async def test_an_async_tool_gives_text(client: Client) -> None:
    assert await client.call("greet", name="上海") == ToolResult("text/plain", "hello 上海".encode())


@with_client()
async def test_a_sync_tool_gives_json_and_keeps_its_defaults(client: Client) -> None:
    assert await client.call("add", a=41) == ToolResult("application/json", b"42")


@with_client()
async def test_dates_decimals_and_big_integers_go_in_and_out(client: Client) -> None:
    result = await client.call("describe", day="2024-06-20")
    assert result.content == b'{"day":"2024-06-20","price":12.50,"big":1000000000000000000000000000000}'


@pytest.mark.parametrize("name", ["meet", "meet_on_threads"])
def test_two_calls_run_at_the_same_time(name: str) -> None:
    @with_client()
    async def both(client: Client) -> None:
        results = await asyncio.gather(client.call(name), client.call(name))
        assert [result.content for result in results] == [b"met", b"met"]

    both()


@with_client()
async def test_many_calls_share_one_connection(client: Client) -> None:
    results = await asyncio.gather(*(client.call("add", a=i) for i in range(200)))
    assert [int(result.content) for result in results] == list(range(1, 201))


@with_client()
async def test_an_exception_is_its_name_and_message(client: Client) -> None:
    with pytest.raises(ToolFailed, match=r"^LookupError: no such flight$"):
        await client.call("fail", message="no such flight")


@with_client()
async def test_a_long_exception_is_cut(client: Client) -> None:
    with pytest.raises(ToolFailed) as failure:
        await client.call("fail", message="x" * 100_000)
    assert len(failure.value.message) == 1000


@with_client()
async def test_a_tool_cannot_end_the_host(client: Client) -> None:
    before = await client.pid()
    with pytest.raises(ToolFailed, match="SystemExit: 3"):
        await client.call("leave")
    with pytest.raises(ToolFailed, match="KeyboardInterrupt"):
        await client.call("leave_from_a_thread")
    assert await client.pid() == before


@with_client()
async def test_a_result_over_the_limit_names_both_sizes(client: Client) -> None:
    with pytest.raises(ToolOverLimit, match="the result is 10000000 bytes; the limit is 1048576"):
        await client.call("flood", num_bytes=10_000_000)
    assert len((await client.call("flood", num_bytes=1_048_576)).content) == 1_048_576


@with_client()
async def test_a_result_that_is_not_json_is_a_failure(client: Client) -> None:
    with pytest.raises(ToolFailed, match="nan is no JSON number"):
        await client.call("not_a_number")
    with pytest.raises(ToolFailed, match="a object has no JSON form"):
        await client.call("not_json")


@with_client()
async def test_invalid_arguments_are_the_models_to_mend(client: Client) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="a is missing"):
        await client.call("add")
    with pytest.raises(ToolArgumentsInvalid, match='a is "one"'):
        await client.call("add", a="one")


@with_client()
async def test_a_bad_frame_is_refused_with_its_offset(client: Client) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="at byte 0"):
        await run(client.open("add"), b"\x00")
    with pytest.raises(ToolArgumentsInvalid, match="another tool's"):
        await run(client.open("add"), frame_of("pid"))


@with_client()
async def test_an_unknown_tool_is_named_by_its_id(client: Client) -> None:
    with pytest.raises(ToolFailed, match="no tool has id 0x00000007"):
        await run(client.transport.open(7, LONG_MS), bytes.fromhex("000000070000"))


@with_client()
async def test_a_frame_over_the_message_limit_is_refused_here(client: Client) -> None:
    with pytest.raises(ToolOverLimit, match="the limit is 16777216"):
        await run(client.open("greet"), bytes(17_000_000))
    assert await client.pid()


@pytest.mark.parametrize("name", ["hang", "hang_stubbornly", "hang_on_a_thread"])
def test_a_tool_that_never_returns_times_out_in_the_host(name: str) -> None:
    @with_client()
    async def times_out(client: Client) -> None:
        before = await client.pid()
        with pytest.raises(ToolTimedOut, match=r"timed out after 0.1 s"):
            await client.call(name, deadline_ms=100)
        assert await client.pid() == before

    times_out()


@pytest.mark.parametrize("name", ["hang_stubbornly", "hang_on_a_thread"])
def test_a_host_worn_out_by_abandoned_runs_is_replaced(name: str) -> None:
    @with_client()
    async def is_replaced(client: Client) -> None:
        before = await client.pid()
        opened_early = client.open("pid")
        for _ in range(2):
            with pytest.raises(ToolTimedOut):
                await client.call(name, deadline_ms=10)
        while await client.pid() == before:
            continue  # still within the host's own grace
        assert int((await run(opened_early, frame_of("pid"))).content) == await client.pid()

    is_replaced()


@with_client(grace_s=0.2)
async def test_a_frozen_host_is_a_timeout_and_is_replaced(client: Client) -> None:
    other = asyncio.create_task(client.call("hang"))
    with pytest.raises(ToolTimedOut):
        await client.call("freeze", deadline_ms=100)
    with pytest.raises(ToolHostDied, match="frozen"):
        await other
    assert await client.call("add", a=1)


@with_client(grace_s=0.2)
async def test_a_stopped_host_is_a_timeout_and_is_replaced(client: Client) -> None:
    before = await client.pid()
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(ToolTimedOut):
        await client.call("add", deadline_ms=100, a=1)
    assert await client.pid() != before


@pytest.mark.parametrize("name", ["hang", "hang_on_a_thread"])
def test_a_running_call_can_be_cancelled(name: str) -> None:
    @with_client()
    async def is_cancelled(client: Client) -> None:
        call = client.open(name)
        call.start(frame_of(name))
        await client.pid()  # the host has seen everything sent before
        call.cancel()
        call.cancel()
        with pytest.raises(ToolCancelled):
            await call.result()

    is_cancelled()


@with_client()
async def test_a_call_cancelled_before_its_run_never_runs(client: Client) -> None:
    call = client.open("greet")
    call.cancel()
    with pytest.raises(ToolCancelled):
        await run(call, frame_of("greet", name="x"))


@with_client()
async def test_giving_up_the_wait_cancels_the_call(client: Client) -> None:
    hanging = asyncio.create_task(client.call("hang"))
    await client.pid()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await client.call("add", a=1)


@with_client()
async def test_killing_the_host_fails_its_calls_and_the_next_one_works(client: Client) -> None:
    before = await client.pid()
    runs = [asyncio.create_task(client.call(name)) for name in ("hang", "hang_on_a_thread", "hang")]
    opened = client.open("add")
    assert await client.pid() == before
    os.kill(before, signal.SIGKILL)
    for outcome in await asyncio.gather(*runs, return_exceptions=True):
        assert isinstance(outcome, ToolHostDied)
    assert (await run(opened, frame_of("add", a=1))).content == b"2"
    assert await client.pid() != before


@with_client()
async def test_a_call_whose_frame_was_sent_to_a_host_that_died_is_not_run_again(client: Client) -> None:
    call = client.open("pid")
    os.kill(await client.pid(), signal.SIGSTOP)
    call.start(frame_of("pid"))
    host = client.transport.ready_host()
    assert host is not None
    await host.kill("killed")
    with pytest.raises(ToolHostDied, match="killed"):
        await call.result()


@with_client()
async def test_what_a_tool_prints_does_no_harm(client: Client) -> None:
    assert (await client.call("say")).content == b"said"


@with_client()
async def test_partials_of_a_tool_that_wants_none_do_no_harm(client: Client) -> None:
    call = client.open("greet")
    call.partial(0, "Sha")
    call.partial(0, "nghai")
    assert (await run(call, frame_of("greet", name="Shanghai"))).content == b"hello Shanghai"


@with_client()
async def test_progress_arrives_before_the_result_and_its_last_report_is_kept(client: Client) -> None:
    reports: list[tuple[int | None, str]] = []
    call = client.open("work", on_progress=lambda percent, text: reports.append((percent, text)))
    assert (await run(call, frame_of("work"))).content == b"worked"
    assert reports[-1] == (100, "all")
    assert len(reports) < 10_000


@with_client()
async def test_a_progress_listener_that_raises_ends_nothing(client: Client) -> None:
    def listen(percent: int | None, text: str) -> None:
        raise ValueError(text)

    assert (await run(client.open("work", on_progress=listen), frame_of("work"))).content == b"worked"


@with_client()
async def test_closing_fails_the_open_calls(client: Client) -> None:
    hanging = asyncio.create_task(client.call("hang"))
    await client.pid()
    await client.transport.close()
    with pytest.raises(ToolHostDied, match="closed"):
        await hanging
    with pytest.raises(ToolHostDied, match="closed"):
        await client.call("add", a=1)


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "raise SystemExit(4)")])
def test_a_host_that_cannot_start_is_an_error_of_each_call(command: tuple[str, ...]) -> None:
    async def main() -> None:
        transport = PythonTransport(command, backoff_s=0.01)
        for _ in range(2):
            with pytest.raises(ToolHostDied):
                await run(transport.open(1, LONG_MS), bytes(6))
        with pytest.raises(ToolHostDied):
            await transport.start()
        await transport.close()

    asyncio.run(main())


def test_closing_while_the_host_starts_leaves_nothing() -> None:
    async def main() -> None:
        transport = PythonTransport(COMMAND)
        running = asyncio.create_task(run(transport.open(1, LONG_MS), bytes(6)))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(ToolHostDied):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
