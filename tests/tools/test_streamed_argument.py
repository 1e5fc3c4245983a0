"""A tool that reads its argument while it is written: it begins with the first piece and sees all of the text."""

import asyncio

import pytest

from midstream.errors import ToolArgumentsInvalid, ToolCancelled, ToolTimedOut
from midstream.protocol import btif
from tests.tools.hosted import REGISTRY
from tests.tools.test_python_transport import Client, frame_of, run, with_client


@with_client()
async def test_it_runs_on_each_piece_as_it_comes(client: Client) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    call = client.open("spell", on_progress=lambda percent, text: seen.put_nowait(text))
    for piece in ("SELECT", " *", " FROM"):
        call.partial(0, piece)
        assert await asyncio.wait_for(seen.get(), 10) == piece, "it waits for the call"
    result = await run(call, frame_of("spell", text="SELECT * FROM t"))
    assert result.content == b"SELECT| *| FROM| t"


@with_client()
async def test_without_pieces_it_gets_the_whole(client: Client) -> None:
    assert (await client.call("spell", text="all of it")).content == b"all of it"


@with_client()
async def test_its_time_runs_from_the_call_on(client: Client) -> None:
    call = client.open("spell", 100)
    call.partial(0, "slowly ")
    await asyncio.sleep(0.3)
    assert (await run(call, frame_of("spell", text="slowly written"))).content == b"slowly |written"


@with_client()
async def test_a_call_that_is_none_ends_it(client: Client) -> None:
    call = client.open("spell")
    call.partial(0, "DROP")
    call.cancel()
    with pytest.raises(ToolCancelled):
        await run(call, frame_of("spell", text="DROP TABLE"))
    assert (await client.call("spell", text="next")).content == b"next"


@with_client()
async def test_wrong_arguments_end_it(client: Client) -> None:
    call = client.open("spell")
    call.partial(0, "begun")
    spec = REGISTRY.by_name["spell"].spec
    frame = btif.encode(spec.tool_id, btif.Layout.of(spec.parameters), "{}")
    with pytest.raises(ToolArgumentsInvalid, match="text is missing"):
        await run(call, frame)


@with_client()
async def test_it_may_answer_before_the_text_has_ended(client: Client) -> None:
    call = client.open("first_piece")
    call.partial(0, "enough")
    await asyncio.sleep(0.1)
    result = await run(call, frame_of("first_piece", text="enough said"))
    assert result.content == b"enough"


@with_client()
async def test_pieces_for_a_tool_that_wants_none_are_dropped(client: Client) -> None:
    call = client.open("greet")
    call.partial(0, "Ad")
    assert (await run(call, frame_of("greet", name="Ada"))).content.decode().endswith("Ada")


@with_client()
async def test_one_that_never_ends_times_out(client: Client) -> None:
    call = client.open("hang", 50)
    with pytest.raises(ToolTimedOut):
        await run(call, frame_of("hang"))
