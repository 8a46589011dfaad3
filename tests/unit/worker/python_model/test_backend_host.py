"""What `pb_utils` needs of a worker: metrics, calls to other models, loading and unloading them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton import calls, pb_utils
from pytriton._protocol import messages
from pytriton._protocol.control import ControlTimeout
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.lane_messages import DELETE, MetricUpdate
from pytriton.calls import Delivery, ModelCall
from pytriton.exceptions import CallError
from pytriton.worker.python_model import backend_host
from pytriton.worker.python_model.backend_host import WorkerHost

ONE = {"y": np.ones(1, np.float32)}


class Pending:
    """A pending call with these answers."""

    def __init__(self, *deliveries: Delivery) -> None:
        self._deliveries = list(deliveries)
        self.cancelled = False
        self.requests = 0  #: to stop

    def wait(self, timeout_s: float | None = None) -> Delivery:
        return self._deliveries.pop(0)

    async def wait_async(self) -> Delivery:
        if not self._deliveries:
            await asyncio.Event().wait()
        return self._deliveries.pop(0)

    def request_cancel(self) -> None:
        self.requests += 1

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def host() -> WorkerHost:
    made = WorkerHost("w1", "m", None, "ipc://x")
    made.is_serving = True
    return made


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Pending, list[ModelCall]]]:
    """Give the next call these answers; return it with its arguments."""

    def answered(*deliveries: Delivery) -> tuple[Pending, list[ModelCall]]:
        pending, asked = Pending(*deliveries), []

        def note(call: ModelCall) -> Pending:
            asked.append(call)
            return pending

        monkeypatch.setattr(calls, "begin", note)
        return pending, asked

    return answered


def request(**more: Any) -> pb_utils.InferenceRequest:
    x = pb_utils.Tensor("x", np.ones(2, np.float32))
    given: dict[str, Any] = {
        "inputs": [x], "requested_output_names": ["y", "a"], "model_name": "other", **more,
    }  # fmt: skip
    return pb_utils.InferenceRequest(**given)


def test_a_request_becomes_a_call(host: WorkerHost, begin: Any) -> None:
    _, asked = begin(Delivery(ONE, True, parameters='{"k": 1}'))
    response = host.infer(
        request(parameters={"a": 1}, correlation_id=7, flags=3, timeout=5, request_id="r"),
        decoupled=False,
    )
    (call,) = asked
    assert (call.model, call.outputs, call.version, call.stream) == ("other", ["a", "y"], -1, False)
    assert (call.parameters, call.correlation_id, call.flags) == ({"a": 1}, 7, 3)
    assert (call.timeout_us, call.request_id) == (5, "r")
    assert call.inputs["x"].tolist() == [1, 1]
    assert response.output_tensors()[0].as_numpy().tolist() == [1]
    assert response.parameters() == '{"k": 1}'


def test_an_error_is_in_the_response(host: WorkerHost, begin: Any) -> None:
    begin(Delivery({}, True, "call it with pytriton.stream(...)", "UNSUPPORTED"))
    error = host.infer(request(), decoupled=False).error()
    assert error.message() == "call it with exec(decoupled=True)"
    assert error.code() == pb_utils.TritonError.UNSUPPORTED


def test_a_failed_call_is_an_error_in_the_response(
    host: WorkerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(call: ModelCall) -> Any:
        raise CallError("no proxy", model_name="other", code="UNAVAILABLE")

    monkeypatch.setattr(calls, "begin", refuse)
    assert host.infer(request(), decoupled=False).error().message() == "no proxy"
    (failed,) = host.infer(request(), decoupled=True)
    assert failed.error().code() == pb_utils.TritonError.UNAVAILABLE
    (failed,) = asyncio.run(host.async_infer(request(), decoupled=True))
    assert failed.has_error()


def test_a_stream_ends_without_an_empty_response(host: WorkerHost, begin: Any) -> None:
    answers = [Delivery(ONE, False), Delivery(ONE, False), Delivery({}, True)]
    _, asked = begin(*answers)
    stream = host.infer(request(), decoupled=True)
    assert [len(one.output_tensors()) for one in stream] == [1, 1]
    assert next(stream, None) is None
    assert asked[0].stream
    begin(Delivery(ONE, False), Delivery(ONE, True))  # the last one has outputs, too
    assert len(list(host.infer(request(), decoupled=True))) == 2


def test_a_stream_awaited_by_a_coroutine_can_be_iterated_plainly(
    host: WorkerHost, begin: Any
) -> None:
    async def ask() -> list[Any]:
        begin(Delivery(ONE, False), Delivery({}, True))
        plain = [one for one in await host.async_infer(request(), decoupled=True)]
        begin(Delivery(ONE, False), Delivery(ONE, True))
        later = [one async for one in await host.async_infer(request(), decoupled=True)]
        begin(Delivery(ONE, True))
        return [len(plain), len(later), await host.async_infer(request(), decoupled=False)]

    plain, later, one = asyncio.run(ask())
    assert (plain, later) == (1, 2)
    assert len(one.output_tensors()) == 1


def test_a_cancelled_stream_yields_what_its_model_still_sends(host: WorkerHost, begin: Any) -> None:
    pending, _ = begin(Delivery(ONE, False), Delivery(ONE, False), Delivery({}, True))
    stream = host.infer(request(), decoupled=True)
    next(stream)
    stream.cancel()
    assert (pending.requests, pending.cancelled) == (1, False)
    assert len(list(stream)) == 1
    del stream
    assert not pending.cancelled  # it has ended by itself


def test_an_unread_cancelled_stream_is_dropped(host: WorkerHost, begin: Any) -> None:
    pending, _ = begin(Delivery(ONE, False))
    stream = host.infer(request(), decoupled=True)
    del stream
    assert not pending.cancelled  # its work is to be done
    stream = host.infer(request(), decoupled=True)
    stream.cancel()
    del stream
    assert pending.cancelled


@pytest.mark.parametrize("decoupled", [False, True])
def test_calls_are_possible_only_between_initialize_and_finalize(decoupled: bool) -> None:
    outside = WorkerHost("w1", "m", None, "ipc://x")
    with pytest.raises(pb_utils.TritonModelException, match="only supported during the 'execute'"):
        outside.infer(request(), decoupled=decoupled)
    with pytest.raises(pb_utils.TritonModelException, match="only supported during the 'execute'"):
        asyncio.run(outside.async_infer(request(), decoupled=decoupled))


def test_a_cancelled_task_cancels_its_call(host: WorkerHost, begin: Any) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(host.async_infer(request(), decoupled=True))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    pending, _ = begin()
    asyncio.run(cancelled())
    assert pending.cancelled


def test_metrics_are_kept_until_they_are_fetched(host: WorkerHost) -> None:
    updates = [MetricUpdate(name, "", "COUNTER", {}) for name in "abc"]
    host.metric(updates[0])
    heard: list[int] = []
    host.on_metric(lambda: heard.append(1), lambda: heard.append(2))
    host.metric(updates[1])
    host.metric(updates[2])
    assert len(heard) == 2
    assert host.take_metrics(2) == updates[:2]
    assert host.take_metrics(2) == updates[2:]
    assert host.take_metrics(2) == []
    gone = MetricUpdate("a", "", "COUNTER", {}, change=DELETE)
    host.metric(updates[0])
    host.delete_metric(gone)
    host.metric(updates[0])
    assert heard == [1, 1, 1, 2, 1]
    # Deletions go to all proxies, other changes to one.
    assert [host.take_metrics(3) for _ in range(3)] == [updates[:1], [gone], updates[:1]]


class Control:
    """The dispatcher on a separate connection."""

    asked: list[Any]
    answer: Any

    def __init__(self, endpoint: str) -> None:
        assert endpoint == "ipc://x"

    def ask(self, question: Any, payloads: Any = (), *, timeout_s: float | None) -> Any:
        Control.asked.append((question, list(payloads), timeout_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None: ...


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> type[Control]:
    monkeypatch.setattr(backend_host, "ControlClient", Control)
    Control.asked = []
    Control.answer = messages.Readiness(True)
    return Control


def test_other_models_are_loaded_and_unloaded_by_the_dispatcher(
    host: WorkerHost, control: type[Control]
) -> None:
    host.control("load", "other", config="{}", files={"1/a": b"x"})
    host.control("unload", "other", unload_dependents=True)
    assert host.control("is_ready", "other", model_version="2")
    load, unload, ready = control.asked
    assert load == (messages.LoadOther("w1", "other", "{}", ["1/a"]), [b"x"], None)
    assert unload[0] == messages.UnloadOther("w1", "other", True)
    assert ready[0] == messages.AskReadiness("other", "2")
    control.answer = messages.Readiness(False)
    assert not host.control("is_ready", "other", model_version="")


@pytest.mark.parametrize(
    "failure", [RemoteFailure(ErrorKind.NOT_FOUND, "no such model"), ControlTimeout("no answer")]
)
def test_refusals_have_tritons_wording(
    host: WorkerHost, control: type[Control], failure: Exception
) -> None:
    control.answer = failure
    for action, said, arguments in (
        ("load", "Failed to load model: no ", {"config": "", "files": {}}),
        ("unload", "Failed to unload model: no ", {"unload_dependents": False}),
        ("is_ready", "Failed to check model readiness: no ", {"model_version": ""}),
    ):
        with pytest.raises(pb_utils.TritonModelException, match=said):
            host.control(action, "other", **arguments)
