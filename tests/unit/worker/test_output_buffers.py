"""Output buffers: sent without a copy, and plain arrays where that is impossible."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.models.descriptors import leaves_open
from support.output_client import (
    COLUMNS,
    ROW_BYTES,
    Serve,
    expect,
    filled,
)

import pytriton
from pytriton._protocol.lanes.lane_messages import BatchDone
from pytriton._protocol.lanes.tensors import Array
from pytriton.decorators import batch

# ── in place ─────────────────────────────────────────────────────────────────────────────────────


def test_slices_by_batch_are_sent_without_a_copy(serve: Serve) -> None:
    client = serve(batch(lambda x: {"y": filled(x)}))
    client.ask((2, 1.0), (1, 2.0), (3, 3.0))
    expect(client, (2, 1.0), (1, 2.0), (3, 3.0))
    assert client.worker.arena.size == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[:],
        lambda y: y.reshape(-1).reshape(y.shape)[0:],
        lambda y: y.view(np.uint8).view(np.float32),
        lambda y: np.asarray(y)[:, :][:],
        lambda y: np.ndarray(y.shape, y.dtype, y),
    ],
)
def test_any_contiguous_view_is_recognized(serve: Serve, view: Callable[[Array], Array]) -> None:
    client = serve(batch(lambda x: {"y": view(filled(x))}))
    client.ask((2, 7.0))
    expect(client, (2, 7.0))


def test_one_buffer_may_be_several_outputs(serve: Serve) -> None:
    def infer(requests: Any) -> Any:
        y = filled(requests[0]["x"])
        return [{"y": y}, {"y": y[:1]}]

    client = serve(infer)
    client.ask((2, 7.0), (1, 8.0))
    expect(client, (2, 7.0), (1, 7.0))


async def _coroutine(requests: Any) -> Any:
    return [{"y": filled(request["x"])} for request in requests]


def _generator(requests: Any) -> Any:
    yield [{"y": filled(request["x"])} for request in requests]


@pytest.mark.parametrize("infer", [_coroutine, _generator])
def test_coroutines_and_generators(serve: Serve, infer: Any) -> None:
    client = serve(infer)
    for number in range(3):
        client.ask((1, number), (2, -number))
        expect(client, (1, number), (2, -number))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_retried_batch_has_its_outputs_copied_each_before_the_next_call(
    serve: Serve, asynchronous: bool
) -> None:
    kept: list[Array] = []

    def infer(requests: Any) -> Any:
        if not kept:
            kept.append(pytriton.empty_output((1, COLUMNS), np.float32))
        if len(requests) > 1:
            raise MemoryError("too many at once")
        kept[0][:] = requests[0]["x"][0, 0]  # the same buffer for each answer
        return [{"y": kept[0]}]

    async def infer_async(requests: Any) -> Any:
        return infer(requests)

    client = serve(infer_async if asynchronous else infer)
    for number in range(2):
        client.ask((1, 1 + number), (1, 2 + number), (1, 3 + number))
        expect(client, (1, 1 + number), (1, 2 + number), (1, 3 + number), in_place=False)


def test_threads_of_the_callable_allocate_concurrently(serve: Serve) -> None:
    def infer(requests: Any) -> Any:
        answers: dict[int, dict[str, Array]] = {}

        def answer(index: int) -> None:
            answers[index] = {"y": filled(requests[index]["x"])}

        threads = [threading.Thread(target=answer, args=(k,)) for k in range(len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers[index] for index in range(len(requests))]

    client = serve(infer)
    for number in range(20):
        rows = [(1 + k % 3, float(k + number)) for k in range(8)]
        client.ask(*rows)
        expect(client, *rows)


def test_memory_is_reused_without_further_allocations(serve: Serve) -> None:
    addresses = set()

    def infer(x: Array) -> Any:
        y = filled(x)
        addresses.add(y.ctypes.data)
        return {"y": y}

    client = serve(batch(infer))
    client.ask((4, 0.0))
    expect(client, (4, 0.0))  # maps the memory
    with leaves_open():
        for number in range(50):
            client.ask((4, number))
            expect(client, (4, number))
    assert len(addresses) == 1


def test_freed_memory_is_reused_within_a_call(serve: Serve) -> None:
    def infer(x: Array) -> Any:
        for _ in range(100):
            y = filled(x)
        return {"y": y}

    client = serve(batch(infer))
    client.ask((1, 1.0))
    expect(client, (1, 1.0))
    assert client.proxy.memory(1, 1).size() < 10 * ROW_BYTES


def test_arrays_stay_valid_when_memory_grows(serve: Serve) -> None:
    """Earlier arrays are in an older mapping of the same pages."""

    def infer(requests: Any) -> Any:
        arrays = [
            pytriton.empty_output((1 << k, COLUMNS), np.float32) for k in range(len(requests))
        ]
        for array, request in zip(arrays, requests):
            array[:] = request["x"]
        return [{"y": array} for array in arrays]

    client = serve(infer)
    for count in (1, 3, 5):
        rows = [(1 << k, k + count / 8) for k in range(count)]
        client.ask(*rows)
        expect(client, *rows)


# ── where it is an array like any other ──────────────────────────────────────────────────────────


def test_outside_of_a_call_buffers_are_plain_arrays(serve: Serve) -> None:
    before = pytriton.empty_output((1, COLUMNS), np.float32)
    client = serve(batch(lambda x: {"y": filled(x)}))
    client.ask((1, 1.0))
    after = pytriton.empty_output((1, COLUMNS), np.float32)
    assert before.flags.owndata
    assert after.flags.owndata


@pytest.mark.parametrize(
    ("shape", "dtype"), [((COLUMNS, 1), object), (10, np.float32), ((0, COLUMNS), np.float32)]
)
def test_strings_and_small_arrays_are_plain_arrays(serve: Serve, shape: Any, dtype: Any) -> None:
    def infer(x: Array) -> Any:
        array = pytriton.empty_output(shape, dtype)
        assert array.flags.owndata
        assert array.dtype == dtype
        assert array.shape == ((shape,) if isinstance(shape, int) else shape)
        return {"y": x}

    client = serve(batch(infer))
    client.ask((1, 5.0))
    assert client.read()[0].tolist() == [[5.0]]


@pytest.mark.parametrize(
    ("shape", "error", "said"),
    [
        ((-1, -COLUMNS), ValueError, None),
        ((-1, COLUMNS), ValueError, None),
        ((1.5, COLUMNS), TypeError, None),
        ("ab", TypeError, None),
        (None, TypeError, None),
        ((1 << 50,), MemoryError, "more are available"),
    ],
)
def test_impossible_shapes_are_refused(
    serve: Serve, shape: Any, error: type[Exception], said: str | None
) -> None:
    def infer(x: Array) -> Any:
        with pytest.raises(error, match=said):
            pytriton.empty_output(shape, np.float32)
        return {"y": filled(x)}

    client = serve(batch(infer))
    client.ask((1, 5.0))
    expect(client, (1, 5.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y[:, ::-1],
        lambda y: y.reshape(COLUMNS, -1).T,
        lambda y: y.astype(np.float64),
        lambda y: y * 1,
    ],
    ids=["backwards", "transposed", "cast", "another"],
)
def test_other_arrays_are_copied(serve: Serve, change: Callable[[Array], Array]) -> None:
    client = serve(batch(lambda x: {"y": change(filled(x))}))
    client.ask((2, 7.0))
    expect(client, (2, 7.0), in_place=False)


def test_declarations_are_checked_as_usual(serve: Serve) -> None:
    def infer(requests: Any) -> Any:
        dtype = np.float64 if requests[0]["x"][0, 0] else np.float32
        return [{"y": pytriton.empty_output((2, COLUMNS), dtype)}]

    client = serve(infer, strict=True)
    for sent, text in (((2, 1.0), "invalid type"), ((3, 0.0), "2 rows along the batch axis")):
        (answer,) = client._model.answer([client.part(sent)])
        assert isinstance(answer, BatchDone)
        assert text in (answer.responses[0].error or "")


def _in_a_fork() -> bool:
    return pytriton.empty_output((1, COLUMNS), np.float32).flags.owndata


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_of_the_worker_gets_its_own_memory(serve: Serve) -> None:
    """Otherwise it and the worker would give out the same memory twice."""
    said = []

    def infer(x: Array) -> Any:
        y = filled(x)
        reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=lambda: writer.send(_in_a_fork())
        )
        child.start()
        child.join()
        said.append(reader.recv())
        return {"y": y}

    client = serve(batch(infer))
    client.ask((1, 3.0))
    expect(client, (1, 3.0))
    assert said == [True]
