"""What a worker says of an exception, with the requests that failed by it."""

from __future__ import annotations

import json
import threading

import pytest

from pytriton.ipc.lane_messages import Batch, BatchTrace, RequestDetails, RequestRef
from pytriton.ipc.records import LONGEST_LINE, decoded
from pytriton.worker.reports import report_error, report_threads

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
    assert record.request_ids == ["seven", "8"]
    assert record.trace_ids == ["4bf92f3577b34da6a3ce929d0e0e4736"]


def test_all_of_a_long_text_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"{number} " for number in range(LONGEST_LINE))
    report_error(ValueError(text))
    first, *rest = capfd.readouterr().err.split("\n")
    assert decoded(first.encode()) is not None
    assert text in "".join(rest)  # in lines that the log does not cut


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
    assert record.event == "thread helper of it failed: ValueError: not here"
