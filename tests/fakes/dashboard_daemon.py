"""A fake daemon behind the dashboard: the test chooses its metrics, status, logs and requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.models.figures import model, snapshot, work

from pytriton._protocol.messages.client import (
    Event,
    Explanation,
    InstanceInfo,
    ModelInfo,
    RequestEntry,
    Requests,
    ServerInfo,
    Status,
)
from pytriton._protocol.messages.metrics import MetricsSnapshot
from pytriton.dispatcher.telemetry.dashboard.routes import Page, Sources

HOSTILE = "<script>alert(1)</script>"
CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ],
    "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": [1]}],
}
STREAM: dict[str, Any] = {
    "input": [{"name": "prompt", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [],
    "model_transaction_policy": {"decoupled": True},
}
LOG = [
    json.dumps({"event": "worker started", "level": "info", "timestamp": "1"}),
    json.dumps({"event": HOSTILE, "level": "error", "exception": "Traceback", "timestamp": "2"}),
    "not a record",
]


def info(name: str, config: dict[str, Any] = CONFIG) -> ModelInfo:
    instance = InstanceInfo(0, "ready", 1, restarts=2, last_exit="signal 11")
    return ModelInfo(name, 1, "ready", [instance], config=config)


def status(*models: ModelInfo, http_url: str = "http://127.0.0.1:8000") -> Status:
    server = ServerInfo("ready", 2, http_url=http_url)
    return Status("1.0", 1, "python", "run", "ready", 1000.0, server, list(models))


class Daemon:
    """The daemon that a dashboard talks to; the test chooses all of its answers."""

    def __init__(self) -> None:
        self.status = status(info("digits"), info(HOSTILE))
        self.figures = snapshot(1010, model("digits", work(50)), model(HOSTILE, work(1)))
        self.taken = 0
        self.lines = LOG
        self.explanation: Explanation | None = None
        self.events = [
            Event(1, 5.0, "registered", "digits", who="user ann, process 7 (python a.py)"),
            Event(2, 6.0, "crashed", "digits", instance=0, reason=HOSTILE, numbers={"pid": 8}),
        ]
        self.sources = Sources(
            self.take, self.report, self.log, self.requests, self.explain, self.newest, self.is_owner,
            self.headers,
        )  # fmt: skip
        self.page = Page(self.sources)

    async def take(self) -> MetricsSnapshot:
        self.taken += 1
        return self.figures

    async def report(self) -> Status:
        return self.status

    def log(self, name: str, lines: int) -> list[str]:
        return self.lines[-lines:]

    async def requests(self, name: str) -> Requests | None:
        slow = RequestEntry(1.0, HOSTILE, name, 1, 0, "ok", None, 48_200_000, 1, 3, 4, None)
        failed = msgspec.structs.replace(slow, id="order-18", status="callable")
        return None if name == "digits" else Requests(name, False, "", 0, 0, [slow], [failed])

    async def explain(self, name: str) -> Explanation | None:
        return self.explanation

    async def newest(self, asked: bool) -> list[Event]:
        return [one for one in self.events if one.who or not asked]

    def is_owner(self, authorization: str) -> bool:
        return authorization == "Bearer right"

    def headers(self) -> dict[str, str]:
        return {"triton-access-token": "right"}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        app = web.Application()
        app.add_routes(self.page.routes())
        server = TestServer(app)
        await server.start_server(auto_decompress=False)  # as in the management server
        async with server:
            url = str(server.make_url("/"))
            # No TLS: reading the machine's certificates takes 20 ms.
            async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
                yield client

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **more)

        return asyncio.run(run())
