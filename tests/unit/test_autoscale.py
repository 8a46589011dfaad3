"""Users' ways to say that the number of instances follows the load, and what they become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton._protocol import messages
from pytriton._register.message import plan
from pytriton._register.python_models.model_programs import prepare_model
from pytriton.autoscale import (
    INSTANCES_PARAMETER,
    Autoscale,
    autoscale_in,
    autoscale_of,
    instances_of_text,
)
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Tensor

pytestmark = pytest.mark.usefixtures("no_interpreter")

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (3, None),
        ((1, 8), messages.Autoscale(1, 8)),
        ([2, 2], messages.Autoscale(2, 2)),
        (Autoscale(4), messages.Autoscale(1, 4)),
        ((0, 2), messages.Autoscale(0, 2, idle_after_s=600.0)),
        (Autoscale(2, 0, idle_after="30s"), messages.Autoscale(0, 2, idle_after_s=30.0)),
        (
            Autoscale(4, 2, 0.5, "500ms", "10m", concurrency=8, weight=2),
            messages.Autoscale(2, 4, 0.5, 0.5, 600.0, concurrency=8, weight=2.0),
        ),
    ],
)
def test_accepted_autoscale_values(said: Any, becomes: messages.Autoscale | None) -> None:
    assert autoscale_of(said) == becomes


@pytest.mark.parametrize(
    "said", [0, True, "4", (1,), (1, 2, 3), (3, 1), (0, 0), (-1, 3), (1, 2.0), None, 1.5]
)
def test_invalid_instance_counts_are_refused(said: Any) -> None:
    with pytest.raises(PyTritonValidationError, match=r"instances has to be|Autoscale: "):
        autoscale_of(said)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 0}, {"target": 1.1}, {"up_after": "soon"}, {"down_after": -1}, {"down_after": True},
        {"concurrency": 0}, {"weight": float("nan")}, {"max": 0}, {"min": 9},
        {"idle_after": 5.0}, {"min": 0, "idle_after": 0},
    ],
)  # fmt: skip
def test_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(PyTritonValidationError, match="Autoscale: "):
        Autoscale(**{"max": 4, **wrong})


@pytest.mark.parametrize(("text", "said"), [("4", 4), ("1:8", (1, 8)), (" 2 .. 3 ", (2, 3))])
def test_command_line_arguments(text: str, said: Any) -> None:
    assert instances_of_text(text) == said


@pytest.mark.parametrize("text", ["", "0", "many", "1:", "8:1", "1:2:3", "0:8:soon", "0:8:", "-1"])
def test_invalid_command_line_arguments(text: str) -> None:
    with pytest.raises(PyTritonValidationError):
        instances_of_text(text)


def spec_of(target: Any = lambda requests: requests, **options: Any) -> messages.ModelSpec:
    return plan(target, "m", X, X, None, options).message.spec


def test_a_registration_starts_with_the_minimum() -> None:
    spec = spec_of(instances=(2, 8), devices=[0, 1, 2])
    assert (spec.instances, spec.devices) == (2, ["0", "1", "2"])
    assert spec.autoscale == messages.Autoscale(2, 8)
    assert spec_of(instances=3).autoscale is None


def test_a_list_of_callables_cannot_autoscale() -> None:
    with pytest.raises(PyTritonValidationError, match="Pass a single callable"):
        spec_of([lambda r: r, lambda r: r], instances=(1, 4))


def parameter(text: str) -> dict[str, Any]:
    return {"parameters": {INSTANCES_PARAMETER: {"string_value": text}}}


def test_a_configuration_declares_it_as_a_parameter() -> None:
    assert autoscale_in({}) is None
    assert autoscale_in(parameter("2:8")) == messages.Autoscale(2, 8)
    for text in ("4", "many", ""):
        with pytest.raises(PyTritonValidationError, match="such as"):
            autoscale_in(parameter(text))


class TritonPythonModel:
    """The class of a model.py."""

    def execute(self, requests: Any) -> Any:
        return requests


def test_a_python_model_autoscales_by_its_configuration_or_registration() -> None:
    config = {"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}], **parameter("2:8")}

    def spec(**options: Any) -> messages.ModelSpec:
        return prepare_model(TritonPythonModel, "m", config, None, options, None)[0].spec

    assert (spec().instances, spec().autoscale) == (2, messages.Autoscale(2, 8))
    assert spec(instances=3).autoscale is None
    assert spec(instances=(1, 3)).autoscale == messages.Autoscale(1, 3)
