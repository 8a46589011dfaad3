"""Calls from a callable to decoupled models, which send any number of responses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.calling_models import STREAMS, UNBATCHED, Ask, Fails, Serve
from support.models.stream_client import Streaming
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

import pytriton
from pytriton.exceptions import CallError


class Counts:
    """Streams 0, 1, … x-1; if x is negative, fails after two responses. Creates a file if it is closed early."""

    def __init__(self, note: str) -> None:
        self._note = note

    def __call__(self, requests: Any) -> Iterator[Any]:
        wanted = int(requests[0]["x"].item())
        done = False
        try:
            for number in range(abs(wanted)):
                if wanted < 0 and number == 2:
                    raise ValueError("that is enough")
                yield [{"y": np.array([number], np.float32)}]
            done = True
        finally:
            if not done:
                open(self._note, "w").close()


def _numbers(x: float, **options: Any) -> Iterator[float]:
    for answer in pytriton.stream("counts", x=np.array([x], np.float32), **options):
        yield float(answer["y"].item())


def _sums(requests: Any) -> Any:
    return [{"y": np.array([sum(_numbers(requests[0]["x"].item()))], np.float32)}]


async def _sums_async(requests: Any) -> Any:
    async def total() -> float:
        answers = pytriton.async_stream("counts", x=requests[0]["x"])
        return sum([float(answer["y"].item()) async for answer in answers])

    return [{"y": np.array(await asyncio.gather(total(), total()), np.float32)}]


def _relays(requests: Any) -> Iterator[Any]:
    for number in _numbers(requests[0]["x"].item()):
        yield [{"y": np.array([10 * number], np.float32)}]


async def _relays_async(requests: Any) -> Any:
    async for answer in pytriton.async_stream("counts", x=requests[0]["x"]):
        yield [{"y": 100 * answer["y"]}]


def _takes_three(requests: Any) -> Any:
    """Read three of a million responses, and end the call as requested."""
    way = requests[0]["x"].item()
    answers = pytriton.stream("counts", x=np.array([1e6], np.float32))
    taken = [float(next(answers)["y"].item()) for _ in range(3)]
    if way == 0:
        answers.cancel()
        taken += [float(len(list(answers)))]
    elif way == 1:
        del answers
    else:
        os._exit(9)
    return [{"y": np.array(taken, np.float32)}]


@pytest.fixture(scope="module")
def counts(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    note: Path = tmp_path_factory.mktemp("counts") / "closed"
    register = partial(daemon.client.register, inputs=X, outputs=Y, progress=False)
    register(Counts(str(note)), "counts", config=STREAMS)
    return note


def test_all_responses_of_a_stream_arrive_in_order(serve: Serve, ask: Ask, counts: Path) -> None:
    serve(_sums, "sums", config=UNBATCHED)
    serve(_sums_async, "sums-async", config=UNBATCHED)
    for n in (0, 1, 100):
        x = {"x": np.array([n], np.float32)}
        assert ask("sums", x)["y"].tolist() == [sum(range(n))]
        assert ask("sums-async", x)["y"].tolist() == [sum(range(n))] * 2
    with pytest.raises(Exception, match="call to model counts: ValueError: that is enough"):
        ask("sums", {"x": np.array([-5], np.float32)})


def test_a_stream_relays_another(daemon: RunningDaemon, serve: Serve, counts: Path) -> None:
    for infer, name, factor in ((_relays, "relays", 10), (_relays_async, "relays-async", 100)):
        serve(infer, name, config=STREAMS)
        with Streaming(daemon.grpc, name, {"x": np.array([4], np.float32)}) as stream:
            assert [int(answer["y"].item()) for answer in stream] == [
                factor * number for number in range(4)
            ]


def test_infer_refuses_a_decoupled_model_and_stream_accepts_any(
    serve: Serve, ask: Ask, counts: Path
) -> None:
    def infers(requests: Any) -> Any:
        with pytest.raises(CallError, match=r"pytriton\.stream") as refused:
            pytriton.infer("counts", x=requests[0]["x"])
        assert refused.value.code == "UNSUPPORTED"
        answers = list(pytriton.stream("single", x=requests[0]["x"]))
        return [{"y": np.concatenate([answer["y"] for answer in answers])}]

    serve(Fails(), "single", config=UNBATCHED)
    serve(infers, "infers", config=UNBATCHED)
    assert ask("infers", {"x": np.ones(1, np.float32)})["y"].tolist() == [2]


@pytest.mark.parametrize("way", [0, 1, 2], ids=["cancelled", "let-go", "caller-dies"])
def test_an_abandoned_stream_is_closed(serve: Serve, ask: Ask, counts: Path, way: int) -> None:
    counts.unlink(missing_ok=True)
    serve(_takes_three, f"takes-three-{way}", config=UNBATCHED, on_crash="fail")
    x = {"x": np.array([way], np.float32)}
    if way == 2:
        with pytest.raises(InferenceServerException, match="code 9"):
            ask("takes-three-2", x)
    else:
        assert ask(f"takes-three-{way}", x)["y"].tolist() == [0, 1, 2, 0][: 4 - way]
    eventually(counts.exists, "the generator is closed")
