"""Output buffers never share memory with another call: when kept, changed later, returned later, and on several lanes."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.models.descriptors import leaves_open
from support.output_client import (
    COLUMNS,
    Client,
    Serve,
    expect,
    filled,
    model_of,
)

import pytriton
from pytriton import buffers
from pytriton._protocol.lanes.lane_messages import BatchFailed
from pytriton._protocol.lanes.tensors import Array
from pytriton.decorators import batch
from pytriton.worker import output_buffers

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
def test_writable_buffers_are_copied(serve: Serve, keep: Callable[..., None]) -> None:
    kept: list[Any] = []

    def infer(requests: Any) -> Any:
        answers = [{"y": filled(request["x"])} for request in requests]
        keep(kept, answers)
        return answers

    client = serve(infer)
    client.ask((2, 1.0), (2, 2.0))
    assert [array[0, 0] for array in client.read()] == [1.0, 2.0]
    assert not client.in_place()[0]


def test_a_kept_array_is_never_reused_by_another_call(serve: Serve) -> None:
    """Writing to it reaches no other client, and a later call can return it."""
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
    expect(client, (1, -1.0))  # there are no more references


def test_one_buffer_for_all_calls_is_safe(serve: Serve) -> None:
    """A callable may mistakenly allocate once and reuse the buffer: each answer is a copy."""
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


def test_keeping_too_many_buffers_falls_back_to_ordinary_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_buffers, "_MAX_KEPT", 4 << 20)
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


def test_a_failed_call_leaks_no_buffer(serve: Serve) -> None:
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


def test_only_the_first_lanes_part_of_a_merged_call_is_in_place(serve: Serve) -> None:
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


def test_a_closed_lane_releases_its_memory() -> None:
    with leaves_open():
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
        gc.collect()


# ── everything at once ───────────────────────────────────────────────────────────────────────────


class _Careless:
    """Keeps, changes, returns later, slices, merges: whatever a callable may do with its buffers."""

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
    """Answers are read as late as a proxy may: just before its next batch."""
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
