"""A worker's calls to other models: the test plays the proxies that make them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.real_daemon import eventually

from pytriton._protocol.calls import call_connection
from pytriton._protocol.calls.call_connection import CallConnection, Slots, socket_path
from pytriton._protocol.calls.call_messages import (
    MOVED,
    Answer,
    AnswerRead,
    Call,
    CallCancelled,
    CallDropped,
    Link,
    Retiring,
    encode_chain,
)
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import LaneClosed, LaneSilent
from pytriton._protocol.lanes.lane_messages import RequestRef
from pytriton._protocol.parameters import CHAIN_PARAMETER
from pytriton.calls import ModelCall, Pending, infer
from pytriton.exceptions import CallError
from pytriton.worker import calls
from pytriton.worker.calls import WorkerCaller
from pytriton.worker.request_log import serving


class Worker:
    """A calling worker, and proxies that connect to it."""

    def __init__(self, folder: str) -> None:
        model: Any = SimpleNamespace(name="m", current_parts=())
        self.model = model
        self.path = f"{folder}/w.sock"
        self.caller = WorkerCaller("w1", model, self.path)
        self.proxies: list[CallConnection] = []

    def proxy(self) -> CallConnection:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(socket_path(self.path))
        self.proxies.append(CallConnection(connection, peer_trusted=False))
        return self.proxies[-1]

    def begin(self, **more: Any) -> Pending:
        return self.caller.begin(ModelCall("other", more.pop("inputs", {}), **more))


@pytest.fixture
def worker() -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as folder:
        made = Worker(folder)
        yield made
        made.caller.close()
        for proxy in made.proxies:
            proxy.close()


def received(proxy: CallConnection) -> Call:
    call = proxy.receive()
    assert isinstance(call, Call)
    return call


def test_a_call_sends_its_inputs_and_returns_outputs(worker: Worker) -> None:
    proxy = worker.proxy()
    inputs = {"x": np.array([[1.5]], np.float32), "s": np.array(["ä", b"b"], object)}
    pending = worker.begin(inputs=inputs, outputs=["y"], parameters={"k": 1}, request_id="7")
    call = received(proxy)
    assert (call.model, call.outputs, call.request_id) == ("other", ["y"], "7")
    assert json.loads(call.parameters) == {"k": 1}
    x, s = call.inputs
    assert tensors.read(proxy, x, np.dtype(np.float32)).tolist() == [[1.5]]
    assert tensors.decode_bytes(tensors.read_raw(proxy, s), s.shape).tolist() == [
        "ä".encode(), b"b",
    ]  # fmt: skip
    slot = Slots(proxy).take()
    y = slot.reference(tensors.write(slot, "y", "INT8", np.array([4], np.int8), np.dtype(np.int8)))
    proxy.send(Answer(call.id, [y], True, parameters="{}"))
    delivery = pending.wait(60)
    assert delivery is not None
    assert delivery.outputs["y"].tolist() == [4]
    assert delivery.final
    assert proxy.receive() == AnswerRead(call.id)


def test_memory_of_many_calls_is_released_when_idle(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call follows the last of them."""
    monkeypatch.setattr(call_connection, "_MAX_KEPT", 8 << 20)
    monkeypatch.setattr(call_connection, "KEPT_S", 0.05)
    monkeypatch.setattr(calls, "KEPT_S", 0.05)
    proxy = worker.proxy()
    inputs = {"x": np.zeros((1, 1 << 18), np.float64)}
    pending = [worker.begin(inputs=inputs) for _ in range(10)]
    for number in [received(proxy).id for _ in pending]:
        proxy.send(Answer(number, [], True))
    for one in pending:
        assert one.wait(60) is not None
    proxy.set_receive_timeout(0.05)

    def forgotten() -> bool:
        with contextlib.suppress(LaneSilent):
            proxy.receive()
        return len(proxy._memories) <= 4

    assert len(proxy._memories) == 10
    eventually(forgotten, "some are left")
    assert proxy._memories


def test_a_task_waits_without_blocking_its_loop(worker: Worker) -> None:
    proxy = worker.proxy()

    async def ask() -> str | None:
        pending = worker.begin()
        waits = asyncio.ensure_future(pending.wait_async())
        await asyncio.sleep(0)
        call = received(proxy)
        proxy.send(Answer(call.id, [], True, "no such row", "NOT_FOUND"))
        return (await waits).error

    assert asyncio.run(ask()) == "no such row"


def test_an_overdue_answer_is_none(worker: Worker) -> None:
    worker.proxy()
    assert worker.begin().wait(0.01) is None


def test_a_cancelled_call_continues_to_its_end(worker: Worker) -> None:
    proxy = worker.proxy()
    pending = worker.begin(stream=True)
    call = received(proxy)
    pending.request_cancel()
    assert proxy.receive() == CallCancelled(call.id)
    for final in (False, True):
        proxy.send(Answer(call.id, [], final))
        delivery = pending.wait(60)
        assert delivery is not None
        assert delivery.final == final
        assert proxy.receive() == AnswerRead(call.id)
    pending.request_cancel()  # it has ended
    worker.begin(stream=True)
    assert isinstance(proxy.receive(), Call)


def test_a_dropped_call_is_dropped_once(worker: Worker) -> None:
    proxy = worker.proxy()
    pending = worker.begin(stream=True)
    call = received(proxy)
    proxy.send(Answer(call.id, [], False))
    assert pending.wait(60) is not None
    assert proxy.receive() == AnswerRead(call.id)
    pending.cancel()
    pending.cancel()
    assert proxy.receive() == CallDropped(call.id)
    proxy.send(Answer(call.id, [], True))  # it was in transit and is returned unread
    assert proxy.receive() == AnswerRead(call.id)


def test_calls_of_a_retiring_proxy_are_sent_again(worker: Worker) -> None:
    first, second = worker.proxy(), worker.proxy()
    pending = worker.begin()
    call = received(first)
    first.send(Retiring())
    first.send(Answer(call.id, [], True, "elsewhere", MOVED))
    pending_wait = asyncio.run(_answered(pending, second))
    assert pending_wait.error is None
    assert first.receive() == AnswerRead(call.id)
    with pytest.raises(LaneClosed):  # nothing more arrives, so the worker disconnects
        first.receive()


async def _answered(pending: Pending, proxy: CallConnection) -> Any:
    waits = asyncio.ensure_future(pending.wait_async())
    call = await asyncio.to_thread(received, proxy)
    proxy.send(Answer(call.id, [], True))
    return await waits


def test_the_proxy_with_the_fewest_calls_makes_the_next(worker: Worker) -> None:
    proxies = [worker.proxy(), worker.proxy()]
    for _ in range(4):
        worker.begin()
    assert [[received(one).id for _ in range(2)] for one in proxies] == [[1, 3], [2, 4]]


def test_without_a_proxy_nobody_can_make_a_call(worker: Worker) -> None:
    with pytest.raises(CallError, match="no proxy of model m is attached to this worker"):
        worker.begin()
    proxy = worker.proxy()
    pending = worker.begin()
    received(proxy)
    proxy.hang_up()
    delivery = pending.wait(60)
    assert delivery is not None
    assert "the proxy that made the call has exited" in (delivery.error or "")
    assert delivery.code == "UNAVAILABLE"
    with pytest.raises(CallError):
        worker.begin()


def test_a_proxy_that_violates_the_protocol_loses_its_calls(worker: Worker) -> None:
    proxy = worker.proxy()
    pending = worker.begin()
    call = received(proxy)
    proxy.send(Answer(call.id + 1, [], True))
    delivery = pending.wait(60)
    assert delivery is not None
    assert "which is not in flight" in (delivery.error or "")


@pytest.mark.parametrize(
    ("inputs", "parameters", "said"),
    [
        ({"x": np.array([1j])}, {}, "input x has dtype complex128"),
        ({"x": np.array([b"a", 3], object)}, {}, "input x: "),
        ({}, {"p": 1.5}, "request parameter p is float 1.5"),
    ],
)
def test_an_unsendable_value_is_named_and_leaves_no_pending_call(
    worker: Worker, inputs: Any, parameters: Any, said: str
) -> None:
    worker.proxy()
    with pytest.raises(TypeError, match=said):
        worker.begin(inputs=inputs, parameters=parameters)
    assert worker.caller._wires[0].busy == 0


def test_the_chain_names_the_waiting_workers(worker: Worker) -> None:
    proxy = worker.proxy()
    worker.begin()
    assert received(proxy).chain == [Link("m", "")]  # it serves nothing just now
    before = json.dumps({CHAIN_PARAMETER: encode_chain([Link("a", "w0")], b"key")})
    batch = SimpleNamespace(requests=[RequestRef([], before, []), RequestRef([], before, [])])
    worker.model.current_parts = [SimpleNamespace(batch=batch)]
    worker.begin()
    assert received(proxy).chain == [Link("a", "w0"), Link("m", "w1")]
    token = serving.set(worker.model.current_parts)  # a task: its worker continues
    try:
        worker.begin()
    finally:
        serving.reset(token)
    assert received(proxy).chain == [Link("a", "w0"), Link("m", "")]


def test_a_connection_knows_its_pending_calls() -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire = calls.Wire(CallConnection(ends[0], peer_trusted=True))
    assert (wire.busy, wire.usable) == (0, True)
    ends[1].close()
    eventually(lambda: not wire.alive, "its end is seen")
    assert not wire.usable


def test_an_error_in_the_reader_reaches_all_waiting_callers(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads answers after it, so they would hang."""

    def faulty(wire: calls.Wire, answer: Answer) -> None:
        raise MemoryError("8 GiB")

    monkeypatch.setattr(calls.Wire, "_on_answer", faulty)
    proxy = worker.proxy()
    pending = worker.begin()
    proxy.send(Answer(received(proxy).id, [], True))
    delivery = pending.wait(60)
    assert delivery is not None
    assert "MemoryError: 8 GiB" in (delivery.error or "")
    assert delivery.code == "UNAVAILABLE"
    again = worker.proxy()
    worker.begin()  # goes to another proxy
    assert received(again).model == "other"


@pytest.mark.parametrize(
    "value", [np.ma.masked_array([1.0], [True]), [np.ma.masked_array([1.0], [True])]]
)
def test_masked_arrays_are_refused_as_inputs_of_calls(value: Any) -> None:
    with pytest.raises(TypeError, match="call to model other: input x is a masked array"):
        infer("other", x=value)
