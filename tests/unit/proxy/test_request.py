"""`Request`: mapping behaviour that PyTriton users rely on."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pytriton.proxy.types import Request


def test_behaves_as_a_mapping_but_is_not_a_dict() -> None:
    x, y = np.zeros(2), np.ones(3)
    request = Request({"x": x})
    request["y"] = y
    assert isinstance(request, Mapping)
    assert not isinstance(request, dict)
    assert {**request} == {"x": x, "y": y}
    assert list(request) == list(request.keys()) == ["x", "y"]
    assert request["x"] is x
    assert request.get("z") is None
    assert "x" in request
    assert "z" not in request
    assert [id(value) for value in request.values()] == [id(x), id(y)]
    assert dict(request.items()) == {"x": x, "y": y}
    del request["x"]
    assert len(request) == 1
    with pytest.raises(KeyError, match="x"):
        request["x"]


def test_unpacks_into_keyword_arguments() -> None:
    def infer(**inputs: Any) -> list[str]:
        return sorted(inputs)

    assert infer(**Request({"a": np.zeros(1), "b": np.zeros(1)})) == ["a", "b"]


def test_is_a_dataclass_with_pytritons_fields_in_order() -> None:
    names = [field.name for field in dataclasses.fields(Request)]
    assert names == ["data", "parameters", "span", "requested_output_names"]
    request = Request({"x": np.zeros(1)}, {"p": 1}, None, ["y"])
    assert request.parameters == {"p": 1}
    assert request.requested_output_names == ["y"]
    replaced = dataclasses.replace(request, parameters={"p": 2})
    assert replaced.parameters == {"p": 2}
    assert replaced.data is request.data


def test_parameters_span_and_requested_outputs_default_to_none() -> None:
    request = Request({})
    assert (request.parameters, request.span, request.requested_output_names) == (None,) * 3


def test_compares_by_identity_and_is_hashable() -> None:
    data = {"x": np.zeros(2)}
    request = Request(data)
    assert request == request
    assert request != Request(data)
    assert len({request, request}) == 1


def test_refuses_unknown_attributes() -> None:
    with pytest.raises(AttributeError):
        Request({}).paramters = {}  # type: ignore[attr-defined]


def test_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(Request({"x": np.arange(3)}, {"p": "q"})))
    assert copy.parameters == {"p": "q"}
    np.testing.assert_array_equal(copy["x"], np.arange(3))


def test_traced_span_does_nothing_without_a_span() -> None:
    with Request({}).traced_span("preprocess") as span:
        assert span is None
