"""Clients that disconnect within a response leak no generator, slot, task, descriptor or memory.

PYTRITON_CUT_ROUNDS sets the number of rounds (default 2), PYTRITON_CUT_STREAMS the number of streams cancelled in each
(default 40); docs/concepts/reliability.md has the results of ten rounds of 200.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.real_daemon import RunningDaemon, eventually

ROUNDS = int(os.environ.get("PYTRITON_CUT_ROUNDS", "2"))
STREAMS = int(os.environ.get("PYTRITON_CUT_STREAMS", "40"))
#: Rounds after which allocators and pools have settled.
WARM_UP = 1
#: What noise in the resident set is.
GROWTH_BYTES = 24 << 20
#: Begins streams, says so, and waits for its end.
CLIENT = """
import socket, sys
port, count, request = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for one in kept:
    one.sendall(request)
for one in kept:
    answer = one.makefile("rb")
    while not answer.readline().startswith(b"data: "):
        pass
print("begun", flush=True)
sys.stdin.read()
"""


def make_endless(mark: str) -> Callable[..., Any]:
    async def endless(request: Any) -> AsyncIterator[str]:
        import asyncio

        if request.messages[0].text == "tasks":
            yield str(len(asyncio.all_tasks()))
            return
        with open(mark, "a") as file:
            file.write("begun\n")
        try:
            while True:
                yield "more "
                await asyncio.sleep(0.01)
        finally:
            with open(mark, "a") as file:
                file.write("closed\n")

    return endless


def request_of(text: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "endless", "messages": messages, "stream": stream})
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


class Cutting:
    """A daemon with an endless model, and counts of its resources."""

    def __init__(self, daemon: RunningDaemon, mark: Path) -> None:
        self.daemon = daemon
        self.mark = mark
        self.port = int(daemon.client.status().openai_url.split(":")[2].split("/")[0])

    def count(self, word: str) -> int:
        return self.mark.read_text().count(word)

    def open_requests(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("pytriton_openai_active_requests "):
                    return int(line.split()[1])
        raise AssertionError("the frontend does not say how many requests are under way")

    def tasks(self) -> int:
        body = request_of("tasks", stream=False).partition(b"\r\n\r\n")[2]
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", body)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(json.load(answer)["choices"][0]["message"]["content"])

    def processes(self) -> dict[str, psutil.Process]:
        found = {"tritonserver": self.daemon.server}
        for child, command in self.daemon.commands().items():
            if "dispatcher.openai" in command:
                found["frontend"] = child
        worker = self.daemon.client.status().models[0].instances[0]
        found["worker"] = psutil.Process(worker.pid)
        return found

    def left(self) -> dict[str, int]:
        """Return the counts that must not increase."""
        found = {"tasks of the worker": self.tasks(), "requests": self.open_requests()}
        # After a request that was answered: the frontend keeps its connection to tritonserver.
        for name, one in self.processes().items():
            found[f"{name} descriptors"] = one.num_fds()
        return found

    def resident(self) -> dict[str, int]:
        return {name: one.memory_info().rss for name, one in self.processes().items()}

    async def cut(self, count: int, *, stream: bool) -> None:
        """Start requests, and close their connections."""
        before = self.count("begun")

        async def begin() -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request_of("go on", stream=stream))
            return writer

        writers = await asyncio.gather(*(begin() for _ in range(count)))
        while self.count("begun") < before + count:
            await asyncio.sleep(0.02)
        for writer in writers:
            writer.close()

    def kill_a_client(self, count: int) -> None:
        argv = [sys.executable, "-I", "-S", "-c", CLIENT, str(self.port), str(count)]
        argv.append(request_of("go on", stream=True).decode())
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            process.kill()

    def round(self) -> None:
        """Cancel streams, half of them by killing their client, and a tenth as many responses that are not streamed."""
        asyncio.run(self.cut(STREAMS // 2, stream=True))
        self.kill_a_client(STREAMS // 2)
        asyncio.run(self.cut(STREAMS // 10, stream=False))
        eventually(
            lambda: self.count("closed") == self.count("begun"),
            lambda: f"{self.count('begun')} generators begun, {self.count('closed')} closed",
        )


@pytest.fixture
def cutting(daemon: RunningDaemon, tmp_path: Path) -> Cutting:
    mark = tmp_path / "mark"
    mark.touch()
    daemon.client.register(make_endless(str(mark)), "endless", openai="chat", progress=False)
    return Cutting(daemon, mark)


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_cancelled_responses_leak_nothing(cutting: Cutting) -> None:
    for _ in range(WARM_UP):
        cutting.round()
    eventually(lambda: cutting.open_requests() == 0, "all slots are free")
    settled, resident = cutting.left(), cutting.resident()
    for _ in range(ROUNDS):
        cutting.round()
    expected = (WARM_UP + ROUNDS) * (STREAMS // 2 * 2 + STREAMS // 10)
    assert cutting.count("closed") == cutting.count("begun") == expected
    eventually(
        lambda: all(value <= settled[what] for what, value in cutting.left().items()),
        lambda: f"before: {settled}\nnow: {cutting.left()}",
    )
    growth = {what: value - resident[what] for what, value in cutting.resident().items()}
    shown = ", ".join(f"{what} {value / 2**20:.1f} MiB" for what, value in growth.items())
    print(f"{ROUNDS} rounds of {STREAMS} streams: growth {shown}; left {cutting.left()}")
    assert all(value < GROWTH_BYTES for value in growth.values()), shown
