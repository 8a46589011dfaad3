"""`ApiClient`, `AsyncApiClient` and `pytriton-daemon call` with typed functions of a real daemon."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
from support.forks.prefork import command
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton import HTTPError, MediaType, UploadFile
from pytriton._protocol.exit_codes import ExitCode
from pytriton.client import ApiClient, ApiError, AsyncApiClient

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")


@dataclass
class Customer:
    age: int
    city: str = "None"


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    def echo(
        text: str,
        number: int = 1,
        ratio: float = 0.5,
        flag: bool = False,
        tags: list[str] = [],  # noqa: B006
        style: Literal["plain", "bold"] = "plain",
        either: Union[int, str] = 0,
    ) -> list[Any]:
        if text == "missing":
            raise HTTPError(404, "no such text")
        return [text, number, ratio, flag, tags, style, either]

    def customer(customer: Customer) -> str:
        return f"{customer.age} {customer.city}"

    def upload(image: UploadFile, more: list[UploadFile] = [], note: str = "") -> str:  # noqa: B006
        return f"{image.filename} {len(image.data)} {[len(one.data) for one in more]} {note}"

    def reverse(data: bytes) -> bytes:
        return data[::-1]

    def picture(size: int) -> Annotated[bytes, MediaType("image/png")]:
        return b"\x89PNG" * size

    def count(until: int, pause_s: float = 0.0, gate: str = "/") -> Iterator[int]:
        """Count; continue after the first number once the file `gate` exists."""
        for number in range(until):
            while number and not os.path.exists(gate):
                time.sleep(0.01)
            if number == 7:
                raise HTTPError(409, "unlucky")
            yield number
            time.sleep(pause_s)

    for function in (customer, upload, reverse, picture, count):
        daemon.client.register(function)
    daemon.client.register(echo, route="/text/echo")


def url(daemon: RunningDaemon) -> str:
    return f"http://{daemon.http}"


# ── clients ─────────────────────────────────────────────────────────────────────────────────────


def test_a_call_returns_what_the_function_returns(daemon: RunningDaemon) -> None:
    with ApiClient(url(daemon), "/text/echo") as echo:
        assert echo(text="é", tags=["a"], flag=True) == ["é", 1, 0.5, True, ["a"], "plain", 0]
        with pytest.raises(ApiError) as refused:
            echo(text="missing")
        assert (refused.value.status, refused.value.problem["detail"]) == (404, "no such text")
        with pytest.raises(ApiError, match="#/number"):
            echo(text="x", number="y")
    with ApiClient(url(daemon), "customer") as customer:
        assert customer(age=3) == customer(Customer(3)) == "3 None"
    with ApiClient(url(daemon), "reverse") as reverse:
        assert reverse(b"\x00\x01") == reverse(data=b"\x00\x01") == b"\x01\x00"
    with ApiClient(url(daemon), "absent") as absent, pytest.raises(ApiError) as refused:
        absent()
    assert refused.value.status == 404


def test_files_are_uploaded(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x" * 1000)
    with ApiClient(url(daemon), "upload") as upload, open(tmp_path / "a.bin", "rb") as file:
        assert upload(image=file, more=[b"1", b"22"], note="1") == "a.bin 1000 [1, 2] 1"


def test_a_stream_arrives_item_by_item_and_can_be_cancelled(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    def busy() -> bool:
        info = daemon.client.model_info("count")
        return any(one.state == "busy" for one in info.instances)

    with ApiClient(url(daemon), "count") as count:
        assert [*count.stream(until=3)] == [0, 1, 2]
        items = count.stream(until=5, gate=str(tmp_path / "gate"))
        assert next(items) == 0
        items.close()
        (tmp_path / "gate").touch()
        eventually(lambda: [*count.stream(until=1)] == [0], "it serves again")
        with pytest.raises(ApiError) as failed:
            [*count.stream(until=9)]
        assert failed.value.status == 409

    async def stream() -> list[Any]:
        async with AsyncApiClient(url(daemon), "count") as count:
            found = [one async for one in count.stream(until=3)]
            task = asyncio.ensure_future(count(until=5, pause_s=2.0))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return found

    assert asyncio.run(stream()) == [0, 1, 2]
    assert not busy()


def test_many_threads_and_tasks(daemon: RunningDaemon) -> None:
    with ApiClient(url(daemon), "reverse") as reverse, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(reverse, [b"ab"] * 160))
    assert results == [b"ba"] * 160

    async def call() -> list[Any]:
        async with AsyncApiClient(url(daemon), "/text/echo") as echo:
            return await asyncio.gather(*(echo(text=str(number)) for number in range(50)))

    assert [one[0] for one in asyncio.run(call())] == [str(number) for number in range(50)]


# ── call ────────────────────────────────────────────────────────────────────────────────────────


def call(daemon: RunningDaemon, *words: str) -> subprocess.CompletedProcess[str]:
    return command("call", *words, env=environment(daemon))


def call_with(daemon: RunningDaemon, given: bytes, *words: str) -> bytes:
    """Return the output of `call` for an input."""
    done = subprocess.run(
        [sys.executable, "-m", "pytriton._cli", "call", *words],
        input=given, capture_output=True, check=False, timeout=120, env=environment(daemon),
    )  # fmt: skip
    return done.stdout


def environment(daemon: RunningDaemon) -> dict[str, str]:
    return {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["echo", "text=1"], ["1", 1, 0.5, False, [], "plain", 0]),
        (["/text/echo", "text=true", "flag=true"], ["true", 1, 0.5, True, [], "plain", 0]),
        (["echo", "text=@@a", "tags=a", "tags=b"], ["@a", 1, 0.5, False, ["a", "b"], "plain", 0]),
        (["echo", "text==", 'tags=["1"]'], ["=", 1, 0.5, False, ["1"], "plain", 0]),
        (["echo", "text=", "either=7", "ratio=2"], ["", 1, 2.0, False, [], "plain", 7]),
        (
            ["echo", "text=x", "either=seven", "style=bold"],
            ["x", 1, 0.5, False, [], "bold", "seven"],
        ),
        (["customer", "age=3", "city=null"], "3 null"),
        (["count", "until=3"], None),
    ],
)
def test_call_types_arguments_by_the_schema(
    daemon: RunningDaemon, words: list[str], expected: Any
) -> None:
    done = call(daemon, *words)
    assert (done.returncode, done.stderr) == (0, "")
    if expected is None:
        assert done.stdout == "0\n1\n2\n"
    else:
        assert json.loads(done.stdout) == expected


def test_call_sends_and_writes_files(daemon: RunningDaemon, tmp_path: Path) -> None:
    file = tmp_path / "cat.jpg"
    file.write_bytes(b"x" * 10)
    done = call(daemon, "upload", f"image=@{file}", f"more=@{file}", "note=7")
    assert json.loads(done.stdout) == "cat.jpg 10 [10] 7"
    (tmp_path / "text.txt").write_text("from a file")
    assert '"from a file"' in call(daemon, "echo", f"text=@{tmp_path}/text.txt").stdout
    assert call_with(daemon, b'{"age": 4}', "customer", "-") == b'"4 None"\n'
    assert call_with(daemon, b"ab", "reverse", "-") == b"ba"
    assert call(daemon, "reverse", f"@{tmp_path}/text.txt").stdout == "elif a morf"
    assert call(daemon, "picture", "size=2", "-o", str(tmp_path / "a.png")).stdout == ""
    assert (tmp_path / "a.png").read_bytes() == b"\x89PNG" * 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["echo", "text=x", "number=y"], ExitCode.USAGE, "number: 'y' is not a whole number"),
        (["echo", "text=x", "flag=1"], ExitCode.USAGE, "flag: '1' is not true or false"),
        (["echo", "number=1"], ExitCode.USAGE, "text"),
        (["echo", "txt=x"], ExitCode.USAGE, "no parameter txt; the parameters are: text, number"),
        (["echo", "text=a", "text=b"], ExitCode.USAGE, "text is given more than once"),
        (["echo", "text=missing"], ExitCode.USAGE, "404 no such text"),
        (["echo", "text"], ExitCode.USAGE, "'text' is not NAME=VALUE"),
        (["echo", "text=x", "style=thin"], ExitCode.USAGE, "style: "),
        (["upload", "image=@/no/such"], ExitCode.USAGE, "image: /no/such: No such file"),
        (["absent", "x=1"], ExitCode.USAGE, "no typed function 'absent'; it has: "),
        (["count", "until=9"], ExitCode.USAGE, "409 unlucky"),
        (["echo", "text=x", "--url", "127.0.0.1:1"], ExitCode.NO_DAEMON, "Is a daemon running?"),
    ],
)
def test_call_explains_what_is_wrong(
    daemon: RunningDaemon, words: list[str], code: ExitCode, said: str
) -> None:
    done = call(daemon, *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
