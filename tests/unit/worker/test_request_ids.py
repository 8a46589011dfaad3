"""The id of a request: its client's, that of its trace, or ours; the same for everyone."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytriton import request_ids
from pytriton._protocol import messages
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchTrace,
    RequestDetails,
    RequestRef,
)
from pytriton._protocol.lanes.request_records import ids_of
from pytriton.decorators import TritonContext
from pytriton.decorators.inputs import fill_optionals
from pytriton.proxy.types import Request
from pytriton.request_ids import RequestIds, add_request_id, bound, request_id
from pytriton.worker.inputs import read_requests
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import CallLog, Part, serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
X = {"name": "x", "data_type": "TYPE_FP64", "dims": [1], "optional": True}
CONFIG: dict[str, Any] = {"name": "m", "input": [X], "output": []}
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def headers(**named: Any) -> str:
    return json.dumps({name.replace("_", "-"): value for name, value in named.items()})


@pytest.mark.parametrize(
    ("ref", "shown"),
    [
        (RequestRef([], headers(x_request_id="no"), [], "seven"), "seven"),
        (RequestRef([], headers(X_Request_Id="h-1", traceparent=PARENT), []), "h-1"),
        (RequestRef([], headers(Traceparent=PARENT), []), TRACE),
        (RequestRef([], headers(x_request_id=7, traceparent=PARENT), []), TRACE),
        (RequestRef([], "", [], "", RequestDetails(trace=headers(traceparent=PARENT))), TRACE),
        (RequestRef([], "", [], "two\nlines\udc80"), "two?lines\\udc80"),
        (RequestRef([], "", [], "x" * 300), "x" * 200),
    ],
)
def test_a_client_names_its_request(ref: RequestRef, shown: str) -> None:
    assert ids_of(Batch(1, [ref])) == [shown]


def test_requests_without_an_id_get_that_of_the_batchs_trace() -> None:
    batch = Batch(1, [RequestRef([], "", []), RequestRef([], "", [])])
    traced = Batch(1, batch.requests, BatchTrace(0, ["no JSON", headers(traceparent=PARENT)]))
    given, of_trace = ids_of(traced)
    assert of_trace == TRACE
    assert given == ids_of(batch)[0]


def test_other_requests_get_a_new_id() -> None:
    refs = [RequestRef([], headers(traceparent="broken"), []), RequestRef([], "", [])]
    batches = [Batch(1, refs, taken_ns=5), Batch(1, refs, taken_ns=6), Batch(2, refs, taken_ns=6)]
    ids = [one for batch in batches for one in ids_of(batch)]
    assert len(set(ids)) == 6
    assert ids == [one for batch in batches for one in ids_of(batch)]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerModel]:
    monkeypatch.setattr(request_ids, "_of_process", None)
    spec = messages.ModelSpec("m", 1, CONFIG, messages.WorkerEnvironment("python"))
    served = WorkerModel(spec, lambda requests: [], CallLog())
    yield served
    served.close()


def parts_of(*names: str) -> list[Part]:
    refs = [RequestRef([], "", [], name) for name in names]
    return [Part(None, Batch(1, refs))]  # type: ignore[arg-type]


def test_requests_know_their_ids(model: WorkerModel) -> None:
    parts = parts_of("a", "")
    model.current_parts = parts
    first, second = read_requests(parts, batching=False)
    assert first.request_id == "a"
    assert second.request_id == ids_of(parts[0].batch)[1] != ""
    model.current_parts = ()
    assert second.request_id == ids_of(parts[0].batch)[1]  # requested before, so already known
    assert Request({}).request_id == ""


def test_a_filled_request_keeps_its_id(model: WorkerModel) -> None:
    seen = []

    @fill_optionals(x=np.zeros(1))
    def infer(requests: list[Request]) -> None:
        seen.extend([request.request_id for request in requests])

    model.current_parts = parts_of("a")
    infer(read_requests(model.current_parts, batching=False))
    assert seen == ["a"]


def test_log_records_and_events_have_the_current_calls_ids(model: WorkerModel) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "text", (), None)
    assert request_id() == ""
    assert add_request_id(None, "info", {}) == {}
    model.current_parts = parts_of("a", "b")
    assert RequestIds().filter(record)
    assert (record.request_id, request_id()) == ("a,b", "a,b")  # type: ignore[attr-defined]
    assert add_request_id(None, "info", {}) == {"request_id": "a,b"}
    assert add_request_id(None, "info", {"request_id": "own"}) == {"request_id": "own"}
    context = TritonContext()
    assert (context.request_id, context.request_ids) == ("a,b", ["a", "b"])
    with bound(read_requests(model.current_parts, batching=False)[1]), bound("c"):
        assert (request_id(), context.request_ids) == ("c", ["c"])
    assert request_id() == "a,b"
    model.current_parts = parts_of(*"0123456789")
    assert request_id() == "0,1,2,3,4,5,6,7,… 2 more"


def test_concurrent_tasks_have_separate_ids(model: WorkerModel) -> None:
    async def serve(name: str) -> str:
        serving.set(parts_of(name))
        await asyncio.sleep(0)
        return await asyncio.to_thread(request_id)

    async def both() -> list[str]:
        return list(await asyncio.gather(serve("a"), serve("b")))

    assert asyncio.run(both()) == ["a", "b"]


def test_a_serving_thread_has_separate_ids(model: WorkerModel) -> None:
    model.current_parts = parts_of("of the process")
    seen = []

    def serve() -> None:
        spec = messages.ModelSpec("t", 1, CONFIG, messages.WorkerEnvironment("python"))
        other = WorkerModel(spec, lambda requests: [], CallLog(), own_process=False)
        other.current_parts = parts_of("of the thread")
        seen.append(request_id())
        other.close()

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert [*seen, request_id()] == ["of the thread", "of the process"]
