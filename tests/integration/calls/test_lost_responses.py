"""Responses that a worker believes it has sent: execution_timeout_s still applies to their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.calling_models import STREAMS, UNBATCHED
from support.models.inference import Inference
from support.models.stream_client import Streaming
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import BatchDone, LaneMessage

_LIMIT_S = 1.0
_RIGHT = {"x": np.zeros(1, np.float32)}
_LOST = {"x": np.ones(1, np.float32)}


def _lose_next_answer() -> None:
    send = Lane.send

    def lose(lane: Lane, message: LaneMessage) -> None:
        if isinstance(message, BatchDone):
            Lane.send = send  # type: ignore[method-assign]
        else:
            send(lane, message)

    Lane.send = lose  # type: ignore[method-assign, assignment]


def _answers(requests: Any) -> Any:
    if requests[0]["x"][0]:
        _lose_next_answer()
    return [{"y": request["x"]} for request in requests]


def _streams(requests: Any) -> Iterator[Any]:
    yield _answers(requests)


async def _streams_async(requests: Any) -> Any:
    yield _answers(requests)


@pytest.fixture(scope="module", params=["native", "python"])
def losing(daemon_pool: DaemonPool, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon with models that lose their response to 1."""
    models = {
        "answers": (_answers, UNBATCHED),
        "streams": (_streams, STREAMS),
        "streams-async": (_streams_async, STREAMS),
    }
    with daemon_pool.lend(proxy=request.param) as daemon:
        for name, (infer, config) in models.items():
            options: dict[str, Any] = {"execution_timeout_s": _LIMIT_S, "on_crash": "fail"}
            daemon.client.register(infer, name, X, Y, config, progress=False, **options)
        yield daemon


def _answers_in_time(ask: Callable[[], Any]) -> bool:
    """Return whether `ask` succeeds, and not whether its worker stood still for longer than the limit."""
    try:
        ask()
    except InferenceServerException as error:
        if "execution_timeout_s" not in str(error):
            raise
        return False
    return True


def _loses(ask: Callable[[], Any]) -> bool:
    """Return whether the response of `ask` is lost; its worker may have stood still before it answered."""
    lost = "its response never arrived"
    with pytest.raises(InferenceServerException, match=f"{lost}|execution_timeout_s") as failure:
        ask()
    return lost in str(failure.value)


def test_a_lost_response_fails_after_the_execution_timeout(losing: RunningDaemon) -> None:
    with closing(Inference("grpc", losing.grpc)) as client:

        def right() -> None:
            assert client.infer("answers", _RIGHT)["y"].tolist() == [0]

        for _ in range(2):
            eventually(lambda: _answers_in_time(right), "it answers")
            eventually(lambda: _loses(lambda: client.infer("answers", _LOST)), "it loses one")


@pytest.mark.parametrize("name", ["streams", "streams-async"])
def test_a_lost_end_of_a_stream_fails_after_the_execution_timeout(
    losing: RunningDaemon, name: str
) -> None:
    def lost() -> None:
        with Streaming(losing.grpc, name, _LOST) as stream:
            list(stream)

    def right() -> None:
        with Streaming(losing.grpc, name, _RIGHT) as stream:
            assert [answer["y"].tolist() for answer in stream] == [[0]]

    eventually(lambda: _loses(lost), "it loses the end")
    eventually(lambda: _answers_in_time(right), "it answers")
