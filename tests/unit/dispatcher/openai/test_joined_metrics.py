"""The OpenAI frontend's metrics within the daemon's: requested over their socket, and exported in all formats."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.openai import supervisor
from pytriton.dispatcher.openai.meters import Meters
from pytriton.dispatcher.openai.state import (
    METRICS,
    READY,
    ApiSettings,
    ApiState,
    MetricData,
    Upstream,
)
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.telemetry.metrics.user_metrics import (
    MergedFamily,
    MergedUserMetrics,
    add_frontend,
)

FAMILY = MetricData("gen_ai_x", "gauge", "Something.", [([("a", "b")], [("", "", 5.0)])])


class FakeChild:
    """A process that exits when the test says so."""

    pid = 1

    def __init__(self) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def stop(self, grace_s: float) -> int:
        return 0


class Process:
    """The daemon's handle of the frontend, and the frontend's end of their socket, played by the test."""

    def __init__(self) -> None:
        anything: Any = None
        state = ApiState(ApiSettings(), Upstream("http://x"))
        self.frontend = supervisor.OpenAISupervisor(
            DaemonConfig(), anything, anything, describe=lambda: state, changes=()
        )

    async def begin(self) -> None:
        ours, theirs = socket.socketpair()
        self.child = FakeChild()
        self.living = asyncio.ensure_future(
            self.frontend._run_process(cast(Child, self.child), ours)
        )
        self.reader, self.writer = await asyncio.open_connection(sock=theirs)
        assert b"upstream" in await self.reader.readline()
        self.writer.write(READY)
        while self.frontend._writer is None:
            await asyncio.sleep(0)

    def report(self, *metrics: MetricData) -> None:
        self.writer.write(msgspec.json.encode(metrics) + b"\n")

    async def end(self) -> None:
        if not self.child.exited.done():
            self.child.exited.set_result(0)
        await self.living
        self.writer.close()


def run(test: Callable[[Process], Awaitable[None]]) -> None:
    async def around() -> None:
        process = Process()
        assert await process.frontend.metrics() == []  # there is no frontend yet
        await process.begin()
        try:
            await test(process)
        finally:
            await process.end()
        assert await process.frontend.metrics() == []

    asyncio.run(around())


def test_concurrent_requests_share_one_response() -> None:
    async def test(process: Process) -> None:
        for _ in range(2):
            asked = [asyncio.ensure_future(process.frontend.metrics()) for _ in range(2)]
            assert await process.reader.readline() == METRICS
            process.report(FAMILY)
            assert await asyncio.gather(*asked) == [[FAMILY], [FAMILY]]

    run(test)


def test_the_first_line_to_a_process_is_its_state() -> None:
    """However early a scrape comes: any other line would make it exit."""

    async def around() -> None:
        process = Process()

        async def scrape() -> None:
            while True:
                await process.frontend.metrics()
                await asyncio.sleep(0)

        scraping = asyncio.ensure_future(scrape())
        await process.begin()  # which looks at the first line
        assert await process.reader.readline() == METRICS
        scraping.cancel()
        await process.end()

    asyncio.run(around())


def test_a_silent_frontend_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_METRICS_S", 0.01)

    async def test(process: Process) -> None:
        assert await process.frontend.metrics() == []
        assert await process.frontend.metrics() == []
        assert await process.reader.readline() == METRICS  # asked once: the second waited, too
        monkeypatch.setattr(supervisor, "_METRICS_S", 60.0)
        asked = asyncio.ensure_future(process.frontend.metrics())
        await asyncio.sleep(0)  # it waits, too
        process.report(FAMILY)
        assert await asked == [FAMILY]

    run(test)


@pytest.mark.parametrize("end", ["nonsense", "its end"])
def test_a_frontend_with_invalid_answers_or_an_exited_one_has_no_metrics(end: str) -> None:
    async def test(process: Process) -> None:
        asked = asyncio.ensure_future(process.frontend.metrics())
        assert await process.reader.readline() == METRICS
        if end == "nonsense":
            process.writer.write(b'"}]\n')
        else:
            process.child.exited.set_result(1)
        assert await asked == []

    run(test)


def test_a_partially_written_line_prevents_the_handover() -> None:
    """The next version of the dispatcher would continue in the middle of it."""
    line = bytes(4 << 20)  # more than a socket buffer holds

    async def test(process: Process) -> None:
        frontend: Any = process.frontend
        with socket.socket() as frontend._listener:
            assert frontend.is_quiescent
            frontend._writer.write(line)
            assert not frontend.is_quiescent
            await process.reader.readexactly(len(line))
            while not frontend.is_quiescent:
                await asyncio.sleep(0)

    run(test)


def test_they_appear_among_the_metrics_of_callables() -> None:
    meters = Meters(lambda: 1234.5)
    meters.answered("m", "chat", 0.5, first_s=0.1, prompt_tokens=3, completion_tokens=5)
    meters.refuse("overloaded")
    users = MergedUserMetrics(
        {"gen_ai_client_token_usage": MergedFamily("gen_ai_client_token_usage", "gauge", "Own.")}
    )
    add_frontend(
        users, msgspec.json.decode(msgspec.json.encode(meters.collect()), type=list[MetricData])
    )
    first = users.families["gen_ai_server_time_to_first_token_seconds"]
    labels = (("gen_ai_operation_name", "chat"), ("gen_ai_request_model", "m"))
    values = first.series[labels]
    assert (first.kind, values["_count", ""], values["_sum", ""]) == ("histogram", 1, 0.1)
    assert {one.since for name, one in users.families.items() if "usage" not in name} == {1234.5}
    assert (values["_bucket", "0.08"], values["_bucket", "0.1"], values["_bucket", "+Inf"]) == (
        0,
        1,
        1,
    )
    refused = users.families["pytriton_openai_refused_requests"]
    assert refused.series == {(("code", "overloaded"),): {("_total", ""): 1}}
    assert users.families["gen_ai_client_token_usage"].help == "Own."
