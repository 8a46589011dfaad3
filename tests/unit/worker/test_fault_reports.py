"""A worker's report of an exception, with the requests that it failed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.serving_worker import python_model_worker, spec_of, worker_of
from support.real_daemon import eventually

from pytriton import pb_utils
from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestDetails,
    RequestRef,
)
from pytriton._protocol.log_lines import MAX_LINE_LENGTH, decoded
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.worker.callables import awaited, load_object
from pytriton.worker.fault_reports import (
    callable_errors,
    is_cancellation,
    reason,
    report_error,
    report_threads,
    traceback_of,
)

TRACE = json.dumps({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})


def test_requests_and_traces_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    requests = [RequestRef([], "", [], "seven"), RequestRef([], "", [])]
    traced = Batch(1, requests, BatchTrace(0, [TRACE, ""]))
    of_python_model = Batch(2, [RequestRef([], "", [], "8", RequestDetails(0, 0, 0, "no JSON"))])
    report_error(ValueError("no"), batches=[traced, of_python_model])
    line, rest = capfd.readouterr().err.split("\n")
    assert rest == ""
    record = decoded(line.encode())
    assert record is not None
    assert record.event == "the callable failed: ValueError: no"
    named, given, of_python_model_too = record.request_ids
    assert (named, of_python_model_too) == ("seven", "8")
    assert given.endswith("-1-1")  # the second request of batch 1
    assert record.trace_ids == ["4bf92f3577b34da6a3ce929d0e0e4736"]


def test_all_of_a_long_text_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"{number} " for number in range(MAX_LINE_LENGTH))
    report_error(ValueError(text))
    first, *rest = capfd.readouterr().err.split("\n")
    assert decoded(first.encode()) is not None
    assert text in "".join(rest)  # in lines that the log does not truncate


_CLOSED = """
import os, sys
from pytriton.worker.fault_reports import note, report, report_error
{close}
report_error(ValueError("no"))
report_error(ValueError("x" * (1 << 20)))  # in several lines
report("that")
note("this")
os._exit(7)
"""


@pytest.mark.parametrize(
    "close",
    [
        "os.close(1); os.close(2)",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = object()",
    ],
)
def test_an_output_closed_by_the_callable_does_not_end_the_worker(close: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED.format(close=close)], capture_output=True, check=False
    )
    assert done.returncode == 7


def test_an_exception_in_a_thread_is_reported(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # is put back
    report_threads()

    def work() -> None:
        raise ValueError("not here")

    thread = threading.Thread(target=work, name="helper")
    thread.start()
    thread.join()
    record = decoded(capfd.readouterr().err.rstrip("\n").encode())
    assert record is not None
    assert record.event == "thread helper of the callable failed: ValueError: not here"


# ── where a traceback begins ─────────────────────────────────────────────────────────────────────


def _files(error: BaseException) -> list[str]:
    return [Path(name).name for name in re.findall(r'^  File "(.*?)"', traceback_of(error), re.M)]


def test_a_traceback_starts_at_the_users_frame() -> None:
    """Our frames and decorators do not interest the callable's owner; nor do those of the cause."""

    @batch
    async def infer(x: Any) -> Any:
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise ValueError("no") from error

    with pytest.raises(ValueError, match="no") as caught:
        asyncio.run(awaited(infer([{"x": np.ones(1)}])))
    own = caught.value
    assert own.__traceback__ is not None
    from_worker = own.with_traceback(own.__traceback__.tb_next)  # without this test's own frame
    assert _files(from_worker) == ["test_fault_reports.py", "test_fault_reports.py"]
    assert "direct cause" in traceback_of(from_worker)


def test_frames_of_pickled_decorators_are_hidden() -> None:
    @batch
    def infer(x: Any) -> Any:
        raise ValueError("no")

    wrapper: Any = infer
    elsewhere = "/venv/lib/python3.9/site-packages/pytriton/decorators/wrapping.py"
    wrapper.__code__ = wrapper.__code__.replace(co_filename=elsewhere)
    with pytest.raises(ValueError, match="no") as caught:
        infer([{"x": np.ones(1)}])
    own = caught.value
    assert own.__traceback__ is not None
    assert _files(own.with_traceback(own.__traceback__.tb_next)) == ["test_fault_reports.py"]


def test_an_internal_error_keeps_its_frames() -> None:
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    with pytest.raises(ValueError, match="payload") as caught:
        load_object(b"none", spec)
    own = caught.value
    assert own.__traceback__ is not None
    files = _files(own.with_traceback(own.__traceback__.tb_next))
    assert files[0] == "callables.py"
    assert files[-1] == "payload.py"


# ── Callables that raise what this project has a meaning of its own for: clients get an error, the worker lives ──

ANSWER = [{"y": np.ones(1, np.float32)}]
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class BaseExceptionGroup(Exception):
    """A stand-in for Python's own since 3.11, and for its backport."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = exceptions


WRONG, GONE = ValueError("no"), PyTritonUnrecoverableError("the device is gone")
SEVERAL = BaseExceptionGroup(WRONG, KeyError())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (WRONG, WRONG),
        (BaseExceptionGroup(WRONG), WRONG),
        (SEVERAL, SEVERAL),
        (BaseExceptionGroup(WRONG, BaseExceptionGroup(GONE)), GONE),
    ],
)
def test_failures_of_a_callable(error: BaseException, why: BaseException) -> None:
    assert reason(error) is why


@pytest.mark.parametrize("decoupled", [False, True])
def test_an_exception_group_with_an_unrecoverable_error_is_unrecoverable(
    dispatcher: FakeDispatcher, decoupled: bool
) -> None:
    def infer(requests: Any) -> Any:
        raise BaseExceptionGroup(WRONG, GONE)

    served = worker_of(infer, spec_of(decoupled=decoupled), dispatcher)
    with served as worker, contextlib.closing(worker.proxy(streams=decoupled)) as lane:
        lane.send(Batch(1, [RequestRef([], "", [])]))
        eventually(lambda: not worker.is_alive(), "it ends")
    eventually(
        lambda: any(isinstance(one, messages.WorkerUnrecoverable) for one in dispatcher.heard),
        "it is reported",
    )


@pytest.mark.parametrize(
    ("error", "is_clients", "is_cancelled"),
    [
        (ValueError(), True, False),
        (asyncio.CancelledError(), True, True),
        (asyncio.TimeoutError(), True, False),
        (SystemExit(3), False, False),
        (KeyboardInterrupt(), False, False),
        (GeneratorExit(), False, False),
    ],
)
def test_errors_that_count_as_the_callables(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, is_clients: bool, is_cancelled: bool
) -> None:
    assert isinstance(error, callable_errors()) is is_clients
    assert is_cancellation(error) is is_cancelled
    monkeypatch.delitem(sys.modules, "asyncio.exceptions")  # a worker whose callable awaits nothing
    assert callable_errors() == (Exception,)
    assert not is_cancellation(error)
    assert "asyncio.exceptions" not in sys.modules  # its import takes 30 ms


async def cancelled() -> None:
    """Await a task that gets cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


class Calls:
    """Distinguishes the first call, which is cancelled, from the next."""

    def __init__(self) -> None:
        self._first = True

    def is_first(self) -> bool:
        first, self._first = self._first, False
        return first


def function(calls: Calls) -> Any:
    def infer(requests: Any) -> Any:
        if calls.is_first():
            asyncio.run(cancelled())
        return ANSWER

    return infer


def coroutine(calls: Calls) -> Any:
    async def infer(requests: Any) -> Any:
        if calls.is_first():
            await cancelled()
        return ANSWER

    return infer


def itself(calls: Calls) -> Any:
    async def infer(requests: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if calls.is_first():
            task.cancel()  # without an await behind it
        return ANSWER

    return infer


def generator(calls: Calls) -> Any:
    def infer(requests: Any) -> Iterator[Any]:
        yield ANSWER
        if calls.is_first():
            asyncio.run(cancelled())

    return infer


def async_generator(calls: Calls) -> Any:
    async def infer(requests: Any) -> AsyncIterator[Any]:
        yield ANSWER
        if calls.is_first():
            await cancelled()

    return infer


def ask(lane: Lane, number: int) -> BatchDone | BatchFailed:
    """Send a batch; return how it ends."""
    lane.send(Batch(number, [RequestRef([], "", [])]))
    while True:
        message = lane.receive()
        if isinstance(message, (BatchDone, BatchFailed)):
            assert message.id == number
            return message


def check(lane: Lane) -> None:
    """Check that the first batch fails with a clear error, and that the second is answered."""
    with contextlib.closing(lane):
        failed = ask(lane, 1)
        assert isinstance(failed, BatchFailed)
        assert "CancelledError" in failed.text
        assert isinstance(ask(lane, 2), BatchDone)


@pytest.mark.parametrize("kind", [function, coroutine, itself])
def test_cancellation_in_a_callable_that_answers_once(
    dispatcher: FakeDispatcher, kind: Any
) -> None:
    with worker_of(kind(Calls()), spec_of(decoupled=False), dispatcher) as worker:
        check(worker.proxy(streams=False))
        assert worker.is_alive()


@pytest.mark.parametrize("limit_s", [None, 60.0])
@pytest.mark.parametrize("kind", [generator, async_generator, coroutine, itself])
def test_cancellation_in_a_stream(
    dispatcher: FakeDispatcher, kind: Any, limit_s: float | None
) -> None:
    """Half a stream must not look like a whole one."""
    spec = spec_of(decoupled=True, execution_timeout_s=limit_s)
    with worker_of(kind(Calls()), spec, dispatcher) as worker:
        check(worker.proxy(streams=True))
        assert worker.is_alive()


@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_a_timeout_raised_by_the_callable(
    dispatcher: FakeDispatcher, limit_s: float | None
) -> None:
    """It is unrelated to `execution_timeout_s`, which this model may not even have."""

    async def infer(requests: Any) -> Any:
        raise asyncio.TimeoutError("the other server")

    spec = spec_of(decoupled=True, execution_timeout_s=limit_s)
    with worker_of(infer, spec, dispatcher) as worker:
        with contextlib.closing(worker.proxy(streams=True)) as lane:
            failed = ask(lane, 1)
        assert isinstance(failed, BatchFailed)
        assert failed.text == "TimeoutError: the other server"


class Once:
    """A Triton Python model that returns its answers."""

    def __init__(self) -> None:
        self.calls = Calls()

    def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            asyncio.run(cancelled())
        return [answer() for _ in requests]


class OnceLater(Once):
    """The same with a coroutine."""

    async def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            await cancelled()
        return [answer() for _ in requests]


class Streams(Once):
    """A decoupled Triton Python model."""

    def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            asyncio.run(cancelled())
        for request in requests:
            request.get_response_sender().send(answer(), FINAL)


class StreamsLater(Once):
    """The same with a coroutine."""

    async def execute(self, requests: Any) -> Any:
        if self.calls.is_first():
            await cancelled()
        for request in requests:
            request.get_response_sender().send(answer(), FINAL)


def answer() -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(1, np.float32))])


@pytest.mark.parametrize(
    ("made", "streams", "decoupled"),
    [
        (Once, False, False),
        (OnceLater, False, False),
        (Once, True, False),
        (OnceLater, True, False),
        (Streams, True, True),
        (StreamsLater, True, True),
    ],
)
def test_cancellation_in_a_triton_python_model(
    dispatcher: FakeDispatcher, made: Any, streams: bool, decoupled: bool
) -> None:
    with python_model_worker(made(), dispatcher, streams=streams, decoupled=decoupled) as worker:
        check(worker.proxy(streams=streams))
        assert worker.is_alive()
