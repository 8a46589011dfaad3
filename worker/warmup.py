"""Warm-up: requests that the callable answers while its worker loads, before it says that it is ready.

In the worker rather than by Triton's own `model_warmup`: Triton warms its instances once, which here
are proxies. A worker that takes another's place, a spare or an added instance would serve its first
client cold. And Triton only logs what fails; here it is the registration that fails, with the
traceback.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Sequence

from pytriton.ipc import messages
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import RequestRef, TensorRef
from pytriton.ipc.lanes.tensors import Array
from pytriton.model_config import ModelWarmup, WarmupInput
from pytriton.proxy.types import Request
from pytriton.worker.callable_errors import callable_errors
from pytriton.worker.fault_reports import note, told
from pytriton.worker.model import Model


class WarmupError(Exception):
    """The callable did not answer a warm-up request as it has to; the text says which, and why."""


def warm_up(model: Model, warmups: Sequence[messages.Warmup]) -> None:
    """Have the callable answer the warm-up requests, each time with arrays of its own.

    Answers are checked and laid down as if they went to a client.

    Raises:
        WarmupError: it raised an exception, or its answers are not as declared.
    """
    if not warmups:
        return
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lanes = [Lane(end, peer_trusted=True) for end in ends]
    try:
        for message in warmups:
            _run(model, message, lanes[0])
    finally:
        for lane in lanes:
            lane.close()


def _run(model: Model, message: messages.Warmup, lane: Lane) -> None:
    warmup = ModelWarmup(
        message.name,
        message.batch_size,
        {tensor.name: _source(tensor) for tensor in message.inputs},
        message.count,
    )
    started = time.monotonic()
    try:
        for _ in range(warmup.count):
            _answer(model, warmup.arrays(batching=model.batching), lane)
    except callable_errors() as error:
        raise WarmupError(
            f"model {model.name}: its warm-up {warmup.name!r} failed: {told(error)}"
        ) from error
    took = time.monotonic() - started
    note(f"warm-up {warmup.name!r}: {warmup.count} requests in {took:.3f} s")


def _answer(model: Model, arrays: dict[str, Array], lane: Lane) -> None:
    # The references point to no memory: only the batch axis of the answer is compared with them.
    refs = [TensorRef(name, "", list(array.shape), 0, 0, 0) for name, array in arrays.items()]
    request = RequestRef(refs, "", [])
    for results in model.rehearse([Request(arrays)]):
        for result in model.results.checked(results, 1):
            lane.arena.reset()
            if result is not None or not model.decoupled:
                model.results.write([result], [request], lane)


def _source(tensor: messages.WarmupTensor) -> WarmupInput:
    return WarmupInput(
        tensor.datatype,
        tuple(tensor.shape),
        zero_data=tensor.source == "zero",
        random_data=tensor.source == "random",
        input_data_file=io.BytesIO(tensor.npy) if tensor.source == "file" else None,
    )
