"""Requests that nobody has written down: hypothesis makes them, and both frontends answer them alike.

Alike means: the same inference, or both say that the request is wrong. Which fault of several is told of, and with which of
400 and 500, may differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.frontend.decisions import Reply, is_equal
from support.frontend.frontend_pair import TYPES, Frontend, both_frontends
from support.frontend.http_client import answer
from support.frontend.requests import Ask

#: What FP32 holds, and each integer type.
_RANGES = {name: _range for bits in (8, 16, 32, 64) for name, _range in (
    (f"INT{bits}", (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)), (f"UINT{bits}", (0, 2**bits - 1)))}  # fmt: skip


@pytest.fixture(scope="module")
def frontends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Frontend, Frontend]]:
    with both_frontends(tmp_path_factory.mktemp("frontends")) as both:
        yield both


def values(datatype: str) -> st.SearchStrategy[Any]:
    """JSON values that a type has."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(max_size=20)
    if datatype in _RANGES:
        return st.integers(*_RANGES[datatype])
    # NVIDIA's executable reads numbers of more than 15 digits to the last bit but one or two: these have fewer.
    return st.integers(-(10**6), 10**6).map(lambda number: number / 8)


# Strategies are made once: to make one for each draw takes as long as the draw.
_DATATYPES = st.sampled_from(sorted(set(TYPES) - {"FP16", "BF16"}))
_DATA = {name: st.lists(values(name), min_size=0, max_size=6) for name in TYPES}


@st.composite
def right_inputs(draw: st.DrawFn) -> dict[str, Any]:
    """An input of model types that is right, flat or nested."""
    datatype = draw(_DATATYPES)
    data = draw(_DATA[datatype])
    nested = draw(st.booleans()) and datatype not in ("BOOL", "BYTES")
    return {"name": f"INPUT{datatype}", "shape": [len(data)], "datatype": datatype, "data": [[one] for one in data] if nested else data}  # fmt: skip


_INPUTS = st.lists(right_inputs(), min_size=1, max_size=4, unique_by=lambda one: one["name"])
_ID = st.text(max_size=10).filter(lambda text: "\0" not in text)
_PARAMETERS = st.dictionaries(
    st.sampled_from(["a", "b", "\u00e4"]),
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=5).filter(lambda text: "\0" not in text),
)


@st.composite
def right_requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request that is right."""
    made = draw(_INPUTS)
    document: dict[str, Any] = {"inputs": made}
    if draw(st.booleans()):
        document["id"] = draw(_ID)
    if draw(st.booleans()):
        wanted = draw(st.sets(st.sampled_from([one["name"] for one in made]), min_size=1))
        document["outputs"] = [
            {
                "name": name.replace("INPUT", "OUTPUT"),
                "parameters": {"binary_data": draw(st.booleans())},
            }
            for name in sorted(wanted)
        ]
    if draw(st.booleans()):
        document["parameters"] = {**draw(_PARAMETERS), "report": True}
    return document


_RIGHT = right_requests()
_WRONG_OF_ONE = 3
#: Any JSON, in places where it does not belong. Numbers that are nearly too large for an int64 end NVIDIA's executable, in a shape.
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.sampled_from([2**70, -(2**70)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed in a document."""
    if path:
        yield path
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, (*path, index))


@st.composite
def wrong_requests(draw: st.DrawFn) -> list[Any]:
    """Requests of which one place is something else, or is not there: a right one takes longest to draw, so of one."""
    right = draw(_RIGHT)
    everywhere = st.sampled_from(list(places(right)))
    made = []
    for _ in range(_WRONG_OF_ONE):
        document = deepcopy(right)
        path = draw(everywhere)
        inner = document
        for step in path[:-1]:
            inner = inner[step]
        if draw(st.booleans()):
            del inner[path[-1]]
        else:
            inner[path[-1]] = draw(anything)
        made.append(document)
    return made


def asked(frontend: Frontend, document: Any) -> Reply:
    """Ask for an inference of model types."""
    return answer(frontend, Ask("", "/v2/models/types/infer", json.dumps(document).encode()))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=right_requests())
def test_valid_requests_get_the_same_response(
    frontends: tuple[Frontend, Frontend], document: Any
) -> None:
    nvidia, native = (asked(frontend, document) for frontend in frontends)
    assert native.status == nvidia.status == 200, (nvidia, native)
    assert is_equal(nvidia.content, native.content), (nvidia, native)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents=wrong_requests())
def test_both_frontends_refuse_invalid_requests(
    frontends: tuple[Frontend, Frontend], documents: Any
) -> None:
    for document in documents:
        nvidia, native = (asked(frontend, document) for frontend in frontends)
        if nvidia.status != 200:
            assert native.status in (400, 404), (nvidia, native)
        elif native.status == 200:
            assert is_equal(nvidia.content, native.content), (nvidia, native)
        else:
            # It is stricter: see frontend_decisions.py.
            assert native.status == 400, (nvidia, native)
            assert native.error, (nvidia, native)
