"""Outputs too large for the memory: an error of their request. Over gRPC, they used to crash tritonserver."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.calling_models import STREAMS, UNBATCHED
from support.models.inference import PROTOCOLS, Inference
from support.models.tensors import X
from support.real_daemon import RunningDaemon
from tritonclient.utils import InferenceServerException

import pytriton
from pytriton.exceptions import CallError
from pytriton.model_config import Tensor

_HUGE = 1 << 40
_BYTES = [Tensor(name="y", dtype=np.int8, shape=(-1,))]


def _array(nbytes: int) -> Any:
    """Return an array of zeros that occupies no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags, prot=mmap.PROT_READ), np.int8)


def _answers(requests: Any) -> Any:
    return [{"y": _array(int(2 ** request["x"][0]))} for request in requests]


def _streams(requests: Any) -> Iterator[Any]:
    yield _answers(requests)


def _calls(requests: Any) -> Any:
    """Call the models of this module; return the error of a huge output, and whether they still serve a small one."""
    said = []
    for call in (_call, _call_stream):
        with pytest.raises(CallError) as refused:
            call(np.array([40], np.float32))
        said.append(str(refused.value))
        assert call(np.array([3], np.float32)).nbytes == 8
    return [{"y": np.array([" ".join(said)], object)}]


def _call(x: Any) -> Any:
    return pytriton.infer("answers", x=x)["y"]


def _call_stream(x: Any) -> Any:
    return next(pytriton.stream("streams", x=x))["y"]


@pytest.fixture(scope="module", params=["native", "python"])
def huge(daemon_pool: DaemonPool, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon with models whose output size is 2 to the power of their input."""
    with daemon_pool.lend(proxy=request.param) as daemon:
        register = daemon.client.register
        register(_answers, "answers", X, _BYTES, UNBATCHED, progress=False)
        register(_streams, "streams", X, _BYTES, STREAMS, progress=False)
        said = [Tensor(name="y", dtype=object, shape=(-1,))]
        register(_calls, "calls", X, said, UNBATCHED, progress=False)
        server = daemon.client.status().server.pid
        yield daemon
        assert daemon.client.status().server.pid == server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_huge_output_fails_only_its_request(huge: RunningDaemon, protocol: str) -> None:
    with closing(Inference(protocol, getattr(huge, protocol))) as client:
        for _ in range(2):
            assert client.infer("answers", {"x": np.array([3], np.float32)})["y"].nbytes == 8
            with pytest.raises(InferenceServerException, match=f"{_HUGE} bytes .* available"):
                client.infer("answers", {"x": np.array([40], np.float32)})


def test_a_huge_output_of_a_called_model_fails_only_the_call(huge: RunningDaemon) -> None:
    with closing(Inference("grpc", huge.grpc)) as client:
        (said,) = client.infer("calls", {"x": np.ones(1, np.float32)})["y"]
    assert said.decode().count("available") == 2
