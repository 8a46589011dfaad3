"""What a worker says of an exception, with the requests that failed by it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane_messages import Batch, BatchTrace, RequestDetails, RequestRef
from pytriton._protocol.records import MAX_LINE_LENGTH, decoded
from pytriton.decorators import batch
from pytriton.worker.callables import awaited, load_callable
from pytriton.worker.fault_reports import report_error, report_threads, traceback_of

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
    assert record.event == "its callable failed: ValueError: no"
    named, given, of_python_model_too = record.request_ids
    assert (named, of_python_model_too) == ("seven", "8")
    assert given.endswith("-1-1")  # the second request of batch 1
    assert record.trace_ids == ["4bf92f3577b34da6a3ce929d0e0e4736"]


def test_all_of_a_long_text_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"{number} " for number in range(MAX_LINE_LENGTH))
    report_error(ValueError(text))
    first, *rest = capfd.readouterr().err.split("\n")
    assert decoded(first.encode()) is not None
    assert text in "".join(rest)  # in lines that the log does not cut


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
def test_an_output_that_a_callable_has_closed_ends_nobody(close: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED.format(close=close)], capture_output=True, check=False
    )
    assert done.returncode == 7


def test_the_end_of_a_thread_is_reported(
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


def test_a_traceback_begins_at_the_users_frame() -> None:
    """How the worker comes to call it, decorators too, is not its owner's matter; nor that of what caused it."""

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


def test_a_decorator_that_has_travelled_is_not_in_it() -> None:
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


def test_a_fault_of_ours_keeps_its_frames() -> None:
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    with pytest.raises(ValueError, match="payload") as caught:
        load_callable(b"none", spec)
    own = caught.value
    assert own.__traceback__ is not None
    files = _files(own.with_traceback(own.__traceback__.tb_next))
    assert files[0] == "callables.py"
    assert files[-1] == "payload.py"
