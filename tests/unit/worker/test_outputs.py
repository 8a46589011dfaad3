"""Buffers for outputs: sent from where they lie, never another call's memory, however they are used."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import pytriton
from pytriton import buffers
from pytriton.decorators import batch
from pytriton.ipc import datatypes, messages, tensors
from pytriton.ipc.lane import ARENA, Batch, BatchDone, BatchFailed, Lane, RequestRef, TensorRef
from pytriton.ipc.tensors import Array
from pytriton.model_config import ModelConfig, Tensor, to_triton_config
from pytriton.worker import outputs
from pytriton.worker.model import Model, Part

#: Columns of float32 with which a row is large enough to be given out of shared memory.
COLUMNS = 70_000
ROW_BYTES = 4 * COLUMNS


class Client:
    """A proxy's end of a lane of its own: sends batches, and reads answers where the worker says they are."""

    def __init__(self, model: Model) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.proxy = Lane(ends[0], peer_trusted=False)
        self.worker = Lane(ends[1], peer_trusted=True)
        self._model = model
        self._answered: list[list[TensorRef]] = []

    def part(self, *requests: tuple[int, float]) -> Part:
        """Send a batch; each request has a number of rows and what they are filled with."""
        self.proxy.arena.reset()
        refs = []
        for rows, value in requests:
            x = np.full((rows, 1), value, np.float32)
            refs.append(RequestRef([tensors.write(self.proxy, "x", "FP32", x, x.dtype)], "", []))
        self.proxy.send(Batch(1, refs))
        received = self.worker.receive()
        assert isinstance(received, Batch)
        return Part(self.worker, received)

    def take(self, answer: BatchDone | BatchFailed) -> None:
        self.worker.send(answer)
        received = self.proxy.receive()
        assert isinstance(received, BatchDone), received
        self._answered = [response.outputs for response in received.responses]

    def ask(self, *requests: tuple[int, float]) -> None:
        (answer,) = self._model.answer([self.part(*requests)])
        self.take(answer)

    def read(self) -> list[Array]:
        """The last batch's outputs as they are now: the proxy reads them any time before its next batch."""
        return [
            tensors.read(self.proxy, ref, datatypes.NUMERIC[ref.datatype]).copy()
            for refs in self._answered
            for ref in refs
        ]

    def in_place(self) -> list[bool]:
        return [ref.memory != ARENA for refs in self._answered for ref in refs]

    def refs(self) -> list[TensorRef]:
        return [ref for refs in self._answered for ref in refs]

    def close(self) -> None:
        self.proxy.close()
        self.worker.close()


Serve = Callable[..., Client]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Load a callable as a worker does; return a client on a lane, or several on a lane each."""
    monkeypatch.setattr(buffers, "_source", buffers._source)  # put back in the end
    clients: list[Client] = []

    def serve(infer: Any, *, of: Model | None = None, strict: bool = False) -> Client:
        clients.append(Client(of or model_of(infer, strict=strict)))
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


def model_of(infer: Any, *, strict: bool = False, dtype: Any = np.float32) -> Model:
    config = to_triton_config(
        "m",
        [Tensor(name="x", dtype=np.float32, shape=(1,))],
        [Tensor(name="y", dtype=dtype, shape=(-1,))],
        ModelConfig(max_batch_size=16),
        1,
    )
    world = messages.World("", [], "", {})
    return Model(messages.ModelSpec("m", 1, config, world, strict=strict), infer)


def filled(x: Array) -> Array:
    y = pytriton.empty_output((len(x), COLUMNS), np.float32)
    y[:] = x
    return y


def expect(client: Client, *rows: tuple[int, float], in_place: bool = True) -> None:
    """The last answers have so many rows of so much, and were (not) sent from where they lay."""
    for array, (count, value) in zip(client.read(), rows):
        assert array.shape == (count, COLUMNS)
        assert (array == value).all()
    assert client.in_place() == [in_place] * len(rows)


# ── in place ─────────────────────────────────────────────────────────────────────────────────────


def test_an_output_is_sent_from_where_it_was_computed(serve: Serve) -> None:
    client = serve(batch(lambda x: {"y": filled(x)}))
    client.ask((2, 7.0))
    expect(client, (2, 7.0))
    assert client.worker.arena.size == 0  # nothing was copied


def test_pieces_that_batch_cuts_are_sent_from_where_they_lie(serve: Serve) -> None:
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
def test_any_contiguous_view_is_recognised(serve: Serve, view: Callable[[Array], Array]) -> None:
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


def test_threads_of_the_callable_ask_at_once(serve: Serve) -> None:
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


def test_memory_is_used_again_and_nothing_is_got_once_warm(serve: Serve) -> None:
    addresses = set()

    def infer(x: Array) -> Any:
        y = filled(x)
        addresses.add(y.ctypes.data)
        return {"y": y}

    client = serve(batch(infer))
    client.ask((4, 0.0))
    expect(client, (4, 0.0))  # maps the memory
    warm = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        client.ask((4, number))
        expect(client, (4, number))
    assert len(addresses) == 1
    assert len(os.listdir("/proc/self/fd")) == warm


def test_memory_that_is_not_needed_is_used_again_within_a_call(serve: Serve) -> None:
    def infer(x: Array) -> Any:
        for _ in range(100):
            y = filled(x)
        return {"y": y}

    client = serve(batch(infer))
    client.ask((1, 1.0))
    expect(client, (1, 1.0))
    assert client.proxy.memory(1, 1).size() < 10 * ROW_BYTES


def test_arrays_stay_valid_when_memory_grows(serve: Serve) -> None:
    """What was given out before lies in an older mapping of the same pages."""

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


def test_outside_of_a_call_it_is_numpys(serve: Serve) -> None:
    before = pytriton.empty_output((1, COLUMNS), np.float32)
    client = serve(batch(lambda x: {"y": filled(x)}))
    client.ask((1, 1.0))
    after = pytriton.empty_output((1, COLUMNS), np.float32)
    assert before.flags.owndata
    assert after.flags.owndata


@pytest.mark.parametrize(
    ("shape", "dtype"), [((COLUMNS, 1), object), (10, np.float32), ((0, COLUMNS), np.float32)]
)
def test_strings_and_small_arrays_are_numpys(serve: Serve, shape: Any, dtype: Any) -> None:
    def infer(x: Array) -> Any:
        array = pytriton.empty_output(shape, dtype)
        assert array.flags.owndata
        assert array.dtype == dtype
        assert array.shape == ((shape,) if isinstance(shape, int) else shape)
        return {"y": x}

    client = serve(batch(infer))
    client.ask((1, 5.0))
    assert client.read()[0].tolist() == [[5.0]]


@pytest.mark.parametrize("shape", [(-1, -COLUMNS), (-1, COLUMNS), (1.5, COLUMNS), "ab", None])
def test_what_is_no_shape_is_refused(serve: Serve, shape: Any) -> None:
    def infer(x: Array) -> Any:
        with pytest.raises((ValueError, TypeError)):
            pytriton.empty_output(shape, np.float32)
        return {"y": filled(x)}

    client = serve(batch(infer))
    client.ask((1, 5.0))
    expect(client, (1, 5.0))


def test_more_than_the_machine_has_is_a_memory_error(serve: Serve) -> None:
    def infer(x: Array) -> Any:
        with pytest.raises(MemoryError, match="more are available"):
            pytriton.empty_output((1 << 50,), np.float32)
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
def test_what_is_not_the_buffer_is_copied(serve: Serve, change: Callable[[Array], Array]) -> None:
    client = serve(batch(lambda x: {"y": change(filled(x))}))
    client.ask((2, 7.0))
    expect(client, (2, 7.0), in_place=False)


def test_declarations_are_checked_as_ever(serve: Serve) -> None:
    def infer(requests: Any) -> Any:
        dtype = np.float64 if requests[0]["x"][0, 0] else np.float32
        return [{"y": pytriton.empty_output((2, COLUMNS), dtype)}]

    client = serve(infer, strict=True)
    (answer,) = client._model.answer([client.part((2, 1.0))])
    assert isinstance(answer, BatchFailed)
    assert "invalid type" in answer.text
    (answer,) = client._model.answer([client.part((3, 0.0))])
    assert isinstance(answer, BatchFailed)
    assert "2 rows along the batch axis" in answer.text


def _in_a_fork() -> bool:
    return pytriton.empty_output((1, COLUMNS), np.float32).flags.owndata


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_of_the_worker_gets_memory_of_its_own(serve: Serve) -> None:
    """It and the worker would otherwise hand out the same memory twice."""
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


# ── kept, changed afterwards, returned later ─────────────────────────────────────────────────────


def _keep_array(kept: list[Any], answers: list[dict[str, Array]]) -> None:
    kept.append(answers[0]["y"])


def _keep_view(kept: list[Any], answers: list[dict[str, Array]]) -> None:
    kept.append(answers[0]["y"][:1, :1])


def _keep_answers(kept: list[Any], answers: list[dict[str, Array]]) -> None:
    kept.append(answers)


def _keep_memoryview(kept: list[Any], answers: list[dict[str, Array]]) -> None:
    kept.append(answers[0]["y"].data)


def _keep_in_a_cycle(kept: list[Any], answers: list[dict[str, Array]]) -> None:
    cycle: list[Any] = [answers[0]["y"]]
    cycle.append(cycle)


KEEPERS = [_keep_array, _keep_view, _keep_answers, _keep_memoryview, _keep_in_a_cycle]


@pytest.mark.parametrize("keep", KEEPERS)
def test_what_can_still_be_written_to_is_copied(serve: Serve, keep: Callable[..., None]) -> None:
    kept: list[Any] = []

    def infer(requests: Any) -> Any:
        answers = [{"y": filled(request["x"])} for request in requests]
        keep(kept, answers)
        return answers

    client = serve(infer)
    client.ask((2, 1.0), (2, 2.0))
    assert [array[0, 0] for array in client.read()] == [1.0, 2.0]
    assert not client.in_place()[0]


def test_changes_after_the_answer_do_not_reach_it(serve: Serve) -> None:
    kept: list[Array] = []

    def infer(x: Array) -> Any:
        y = filled(x)
        kept.append(y[:1])
        return {"y": y}

    client = serve(batch(infer))
    client.ask((2, 1.0))
    kept[0][:] = 99.0
    expect(client, (2, 1.0), in_place=False)


def test_an_array_that_is_kept_is_never_another_calls_memory(serve: Serve) -> None:
    """Nor does writing to it reach another client; and it can be returned by a later call."""
    kept: list[Array] = []

    def infer(requests: Any) -> Any:
        value = requests[0]["x"][0, 0]
        if value == 1.0:
            kept.append(filled(requests[0]["x"]))
            return [{"y": kept[0]}]
        if value == 5.0:
            return [{"y": kept.pop()}]
        return [{"y": filled(request["x"])} for request in requests]

    client = serve(infer)
    client.ask((1, 1.0))
    for value in (2.0, 3.0, 4.0):
        client.ask((1, value), (3, value + 10))
        assert (kept[0] == 1.0 if value == 2.0 else kept[0] == -1.0).all()
        kept[0][:] = -1.0
        expect(client, (1, value), (3, value + 10))
    client.ask((1, 5.0))
    expect(client, (1, -1.0))  # nobody holds it any more


def test_one_buffer_for_all_calls_is_no_danger(serve: Serve) -> None:
    """The mistake to ask once and use it for ever: each answer is a copy."""
    own: list[Array] = []

    def infer(x: Array) -> Any:
        if not own:
            own.append(pytriton.empty_output((1, COLUMNS), np.float32))
        own[0][:] = x
        return {"y": own[0]}

    model = model_of(batch(infer))
    first, second = serve(None, of=model), serve(None, of=model)
    first.ask((1, 1.0))
    second.ask((1, 2.0))  # while the first proxy still reads
    expect(first, (1, 1.0), in_place=False)
    expect(second, (1, 2.0), in_place=False)


def test_who_keeps_too_much_gets_ordinary_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_MOST_KEPT", 4 << 20)
    kept: list[Array] = []

    def infer(x: Array) -> Any:
        kept.append(filled(x))
        return {"y": kept[-1]}

    client = serve(batch(infer))
    for number in range(20):
        client.ask((1, number))
        expect(client, (1, number), in_place=False)
    assert [array[0, 0] for array in kept] == list(range(20))
    assert [array.flags.owndata for array in kept] == [False] * 5 + [True] * 15
    kept.clear()
    client.ask((1, 1.0))
    client.ask((1, 2.0))
    assert [array.flags.owndata for array in kept] == [False] * 2


def test_a_call_that_fails_leaves_nothing(serve: Serve) -> None:
    def infer(x: Array) -> Any:
        y = filled(x)
        if x[0, 0] < 0:
            raise ValueError("no")
        return {"y": y}

    client = serve(batch(infer))
    for number in range(5):
        (answer,) = client._model.answer([client.part((1, -1.0))])
        assert isinstance(answer, BatchFailed)
        client.ask((1, number))
        expect(client, (1, number))
    assert client.refs()[0].offset == 0


# ── several lanes ────────────────────────────────────────────────────────────────────────────────


def test_of_a_merged_call_only_the_first_lanes_part_is_in_place(serve: Serve) -> None:
    model = model_of(batch(lambda x: {"y": filled(x)}))
    first, second = serve(None, of=model), serve(None, of=model)
    for number in range(5):
        parts = [first.part((1, 1.0 + number), (2, 2.0)), second.part((1, 3.0), (2, 4.0 + number))]
        if number % 2:
            parts.reverse()
        answers = dict(zip((part.lane for part in parts), model.answer(parts)))
        for client in (first, second):
            client.take(answers[client.worker])
        expect(first, (1, 1.0 + number), (2, 2.0), in_place=number % 2 == 0)
        expect(second, (1, 3.0), (2, 4.0 + number), in_place=number % 2 == 1)


def test_an_answer_is_not_overwritten_while_its_proxy_reads(serve: Serve) -> None:
    model = model_of(batch(lambda x: {"y": filled(x)}))
    first, second = serve(None, of=model), serve(None, of=model)
    first.ask((2, 1.0))
    for number in range(5):
        second.ask((2, number))
    expect(first, (2, 1.0))
    expect(second, (2, 4.0))


def test_a_lane_that_ends_gives_its_memory_back() -> None:
    with _descriptors_come_back():
        monkey = pytest.MonkeyPatch()
        monkey.setattr(buffers, "_source", buffers._source)
        model = model_of(batch(lambda x: {"y": filled(x)}))
        for number in range(3):
            client = Client(model)
            client.ask((1, number))
            expect(client, (1, number))
            client.close()
            del client
        monkey.undo()


@contextmanager
def _descriptors_come_back() -> Iterator[None]:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# ── everything at once ───────────────────────────────────────────────────────────────────────────


class _Careless:
    """Keeps, changes, returns later, cuts, merges: whatever a callable may do with its buffers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kept: list[tuple[Array, float]] = []

    def __call__(self, requests: Sequence[Any]) -> list[dict[str, Array]]:
        for array, value in self.kept:
            assert (array == value).all(), "what was kept has changed"
        for index, (array, _) in enumerate(self.kept):
            if self.rng.random() < 0.3:
                array[:] = -1.0
                self.kept[index] = (array, -1.0)
        if self.kept and self.rng.random() < 0.3:
            del self.kept[self.rng.randrange(len(self.kept))]
        before = [array for array, _ in self.kept]
        return [{"y": self._answer(request["x"], before)} for request in requests]

    def _answer(self, x: Array, before: list[Array]) -> Array:
        rows = len(x)
        reusable = [array for array in before if len(array) == rows]
        if reusable and self.rng.random() < 0.2:
            array = reusable[0]
            before[:] = [other for other in before if other is not array]
            self.kept = [entry for entry in self.kept if entry[0] is not array]
        else:
            array = pytriton.empty_output((rows + self.rng.randrange(3), COLUMNS), np.float32)
        answer = array[len(array) - rows :]
        answer[:] = x
        if len(array) == rows and self.rng.random() < 0.4:
            self.kept.append((array, float(x[0, 0])))
        return answer


@pytest.mark.parametrize("seed", range(6))
def test_every_client_gets_its_own_values_whatever_the_callable_does(
    serve: Serve, seed: int
) -> None:
    """Answers are read as late as a proxy may: right before its next batch."""
    rng = random.Random(seed)
    model = model_of(_Careless(rng))
    clients = [serve(None, of=model) for _ in range(3)]
    expected: dict[Client, list[tuple[int, float]]] = {}
    value = 0.0
    in_place = 0
    for _ in range(60):
        chosen = rng.sample(clients, rng.choice((1, 1, 1, 2)))
        parts = []
        for client in chosen:
            _check(client, expected.get(client, []))
            rows = []
            for _ in range(rng.randrange(1, 4)):
                value += 1
                rows.append((rng.randrange(1, 4), value))
            expected[client] = rows
            parts.append(client.part(*rows))
        for client, answer in zip(chosen, model.answer(parts)):
            client.take(answer)
            in_place += sum(client.in_place())
    for client in clients:
        _check(client, expected.get(client, []))
    assert in_place > 20


def _check(client: Client, rows: Sequence[tuple[int, float]]) -> None:
    for array, (count, value) in zip(client.read(), rows):
        assert array.shape == (count, COLUMNS)
        assert (array == value).all(), (array[:, 0], value)
