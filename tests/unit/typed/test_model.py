"""The inference callables around typed functions, called as by a worker."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pytriton.exceptions import HTTPError, PyTritonValidationError
from pytriton.model_config import ModelConfig
from pytriton.proxy.types import Request
from pytriton.typed.markers import batchable
from pytriton.typed.model import BODY, make_model


def request(body: Any, **parameters: Any) -> Request:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request({BODY: np.array([[data]], object)}, parameters)


def body(result: Any) -> Any:
    return json.loads(result[BODY][0, 0])


def served(target: Any, factory: bool = False) -> Any:
    """Return the inference callable as a worker gets it: unpickled, and created by the factory."""
    model = make_model([target], None, factory=factory)
    callable_ = cloudpickle.loads(cloudpickle.dumps(model.targets[0]))
    return callable_() if model.factory else callable_


def double(x: int, by: int = 2) -> int:
    if x < 0:
        raise HTTPError(404, "no negatives")
    return x * by


def test_each_request_gets_its_result_or_its_error() -> None:
    results = served(double)(
        [request({"x": 1}), request({"x": "1"}), request({"x": -1}), request({"x": 2, "by": 5})]
    )
    assert (body(results[0]), body(results[3])) == (2, 10)
    assert (results[1].status, str(results[1])) == (
        422,
        "The request body is invalid: #/x: Expected `int`, got `str`",
    )
    assert (results[2].status, str(results[2])) == (404, "no negatives")


def test_a_content_type_that_is_not_a_string_is_refused() -> None:
    (result,) = served(double)([request({"x": 1}, content_type=5)])
    assert (result.status, str(result)) == (400, "The parameter 'content_type' must be a string")


def test_errors_by_route_are_problem_details() -> None:
    invalid, missing = served(double)(
        [request({"x": "1"}, route="/double"), request({"x": -1}, route="/double")]
    )
    assert json.loads(str(invalid)) == {
        "status": 422,
        "title": "Unprocessable Content",
        "detail": "The request body is invalid",
        "errors": [{"detail": "Expected `int`, got `str`", "pointer": "#/x"}],
    }
    assert str(missing).startswith('{"status":404,')
    assert json.loads(str(missing))["detail"] == "no negatives"


def test_an_exception_of_the_function_is_not_caught() -> None:
    def failing(x: int) -> int:
        raise KeyError(x)

    with pytest.raises(KeyError):
        served(failing)([request({"x": 1})])


def test_a_batchable_function_gets_the_valid_requests_in_one_call() -> None:
    @batchable(max_batch_size=16, max_delay_s=0.001)
    def doubles(x: list[int], by: list[int] = 3) -> list[int]:  # type: ignore[assignment]
        return [HTTPError(409, "odd") if one == 7 else one * k for one, k in zip(x, by)]  # type: ignore[misc]

    model = make_model([doubles], None, factory=False)
    assert (model.config.max_batch_size, model.config.batching) == (16, True)
    results = served(doubles)(
        [request({"x": 1}), request({"x": None}), request({"x": 7}), request({"x": 4, "by": 5})]
    )
    assert (body(results[0]), body(results[3])) == (3, 20)
    assert (results[1].status, results[2].status) == (422, 409)

    @batchable()
    def short(x: list[int]) -> list[int]:
        return x[1:]

    with pytest.raises(ValueError, match="one result for each of the 2 requests, got 1 results"):
        served(short)([request({"x": 1}), request({"x": 2})])


def test_coroutines_run_concurrently() -> None:
    class Waiting:
        def __init__(self) -> None:
            self.count = 0
            self.both = asyncio.Event()

        async def __call__(self, x: int) -> int:
            self.count += 1
            if self.count == 2:
                self.both.set()
            await self.both.wait()
            return x

    async def calls() -> Any:
        return await asyncio.wait_for(served(Waiting)([request({"x": 1}), request({"x": 2})]), 10)

    assert [body(one) for one in asyncio.run(calls())] == [1, 2]


def test_streams() -> None:
    def words(text: str) -> Iterator[str]:
        yield from text.split()

    async def numbers(n: int) -> AsyncIterator[dict[str, int]]:
        for index in range(n):
            yield {"n": index}
        raise HTTPError(500, "over")

    items = list(served(words)([request({"text": "a b"})]))
    assert [body(item) for (item,) in items] == ["a", "b"]
    ((error,),) = served(words)([request({})])
    assert error.status == 422
    assert make_model([words], None, factory=False).config.decoupled

    async def all_of_them() -> list[Any]:
        return [item async for (item,) in served(numbers)([request({"n": 2})])]

    first, second, error = asyncio.run(all_of_them())
    assert (body(first), body(second), error.status) == ({"n": 0}, {"n": 1}, 500)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, by: int = 1) -> int:
        self.count += by
        return self.count


def make_counter() -> Counter:
    return Counter()


async def make_counter_later() -> Counter:
    return Counter()


def test_classes_and_factories_are_called_in_the_worker() -> None:
    for target, factory in ((Counter, False), (make_counter, True)):
        counter = served(target, factory)
        assert [body(one) for one in counter([request({}), request({"by": 3})])] == [1, 4]
    later = asyncio.run(served(make_counter_later, True))
    assert body(later([request({})])[0]) == 1

    def unknown():  # type: ignore[no-untyped-def]
        return Counter()

    with pytest.raises(PyTritonValidationError, match="Annotate its return type"):
        make_model([unknown], None, factory=True)


def test_functions_of_one_model_must_agree() -> None:
    def other(x: str, by: int = 2) -> int:
        return by

    with pytest.raises(PyTritonValidationError, match="same parameters"):
        make_model([double, other], None, factory=False)
    assert len(make_model([double, double], ModelConfig(), factory=False).targets) == 2


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("wrong", ["text", object(), float("nan"), CYCLE])
def test_a_wrong_result_fails_only_its_request(wrong: Any) -> None:
    @batchable()
    def numbers(x: list[int], /) -> list[float]:
        return [wrong if one == 2 else one for one in x]

    results = served(numbers)([request({"x": 1}), request({"x": 2}), request({"x": 3})])
    assert (body(results[0]), body(results[2])) == (1, 3)
    assert isinstance(results[1], (TypeError, ValueError, RecursionError))


def test_a_request_of_several_rows_is_several_items() -> None:
    @batchable()
    def doubles(x: list[int]) -> list[int]:
        return [HTTPError(409, "odd") if one == 7 else one * 2 for one in x]  # type: ignore[misc]

    def rows(*xs: Any) -> Request:
        return Request({BODY: np.array([[json.dumps({"x": x}).encode()] for x in xs], object)}, {})

    results = served(doubles)([rows(1, 2), rows(3, "a"), rows(4), rows(7, 8)])
    assert results[0][BODY].tolist() == [[b"2"], [b"4"]]
    assert results[1].status == 422
    assert results[2][BODY].tolist() == [[b"8"]]
    assert results[3].status == 409
    (error,) = served(double)([rows(1, 2)])
    assert error.status == 400


def test_a_request_for_all_outputs_gets_those_of_its_own_form() -> None:
    made = make_model([double], None, factory=False).targets[0]
    tensors = {"x": np.array([[4]])}
    sent_body, sent_tensors = made([request({"x": 2**62}), Request(tensors, {})])
    assert sent_body.keys() == {BODY}
    assert body(sent_body) == 2**63  # which INT64 cannot hold
    assert {name: value.tolist() for name, value in sent_tensors.items()} == {"result": [[8]]}
    named = [
        Request(tensors, {}, requested_output_names=[*names])
        for names in ((BODY, "result"), (BODY,))
    ]
    assert [[*one] for one in made(named)] == [["result"], [BODY]]


SCRIPT = """
import sys
from dataclasses import dataclass, field
from typing import List, Optional as Maybe, TypedDict

from pytriton._register.pickling import Pickler
from pytriton.typed.model import make_model

class Extra(TypedDict):
    note: Maybe[str]

@dataclass
class Tree:
    value: Maybe[int]
    extra: Extra
    children: List[{tree}] = field(default_factory=list)

def total(tree: Tree) -> int:
    return (tree.value or 0) + sum(map(total, tree.children))

target = make_model([total], None, factory=False).targets[0]
before = dict(Tree.__annotations__)
Pickler(sys.stdout.buffer, lambda module: module.__name__ != "__main__").dump(target)
assert Tree.__annotations__ == before
"""


@pytest.mark.parametrize(
    ("first_line", "tree"),
    [
        ("from __future__ import annotations", "Tree"),
        ("", '"Tree"'),
        pytest.param(
            "",
            "Tree",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 14), reason="Tree is not defined in its own body"
            ),
        ),
    ],
)
def test_the_classes_of_a_script_work_without_its_imports(
    first_line: str, tree: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(first_line + SCRIPT.replace("{tree}", tree))
    pickled = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout
    leaf = {"value": 2, "extra": {"note": None}}
    (result,) = pickle.loads(pickled)([request({**leaf, "children": [leaf]})])
    assert body(result) == 4
