"""Errors that programs written for PyTriton may match: the same type, and its key phrase in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton.declaration import validate_model_name
from pytriton.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_values,
    set_triton_context,
)
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    QueuePolicy,
    Tensor,
    TensorSpec,
    TritonModelConfig,
    WarmupInput,
    to_triton_config,
)
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser
from pytriton.proxy.types import Request

ONE, TWO = np.ones((1, 1), np.float32), np.ones((1, 2), np.float32)
X = Tensor((1,), np.float32, "x")
CONFIG = TritonModelConfig("m", outputs=[TensorSpec("y", np.float32, (1,))])


def _batched(result: Any, config: TritonModelConfig | None = None) -> Any:
    infer = batch(lambda x: result)
    if config is not None:
        set_triton_context(infer, config)
    return infer([Request({"x": ONE})])


def _not_batching() -> Any:
    infer = batch(first_value("x")(lambda x: {"y": x}))
    set_triton_context(infer, TritonModelConfig("m", batching=False))
    return infer([Request({"x": ONE})])


def _outputs(*tensors: Tensor) -> Any:
    return to_triton_config("m", [X], tensors)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: batch(lambda **inputs: inputs)([Request({"x": ONE}), Request({"y": ONE})]),
        PyTritonValidationError,
        "Cannot batch requests with different set of inputs keys",
    ),
    (
        lambda: _batched({"y": np.ones((3, 1))}),
        ValueError,
        "Received output tensors with different batch sizes: ",
    ),
    (
        lambda: _batched([ONE, ONE], CONFIG),
        PyTritonValidationError,
        "Outputs length different than config outputs length",
    ),
    (lambda: _batched(3), PyTritonValidationError, "Unsupported output type"),
    (
        lambda: group_by_values("x")(lambda requests: requests)([Request({"x": ONE})]),
        PyTritonRuntimeError,
        "The @group_by_values decorator must be used after the @batch decorator.",
    ),
    (
        lambda: ConstantPadder()([{"y": ONE}, {"y": TWO.astype(np.int8)}]),
        PyTritonRuntimeError,
        "dtype",
    ),
    (lambda: fill_optionals(x=3), PyTritonBadParameterError, "numpy"),  # type: ignore[arg-type]
    (
        lambda: fill_optionals(x=np.ma.masked_array([1.0], [True])),
        PyTritonBadParameterError,
        "masked array",
    ),
    (_not_batching, PyTritonRuntimeError, "batching"),
    (lambda: first_value("triton_context"), PyTritonBadParameterError, "special key"),
    (
        lambda: batch(first_value("x")(lambda x: {"y": x}))([Request({"x": np.eye(2)})]),
        PyTritonRuntimeError,
        "values",
    ),
    (
        lambda: ModelConfig(max_batch_size=0),
        PyTritonBadParameterError,
        "The `max_batch_size` must be greater or equal to 1.",
    ),
    (
        lambda: ModelConfigGenerator(TritonModelConfig("m", max_batch_size=0)).get_config(),
        PyTritonBadParameterError,
        "The `max_batch_size` must be greater or equal to 1.",
    ),
    (
        lambda: DynamicBatcher(priority_levels=2, default_priority_level=3),
        PyTritonBadParameterError,
        "The `default_priority_level` must be between 1 and",
    ),
    (
        lambda: DynamicBatcher(priority_queue_policy={1: QueuePolicy()}),
        PyTritonBadParameterError,
        "Provide the `priority_levels` if you want to define `priority_queue_policy`",
    ),
    (
        lambda: DynamicBatcher(priority_levels=1, priority_queue_policy={2: QueuePolicy()}),
        PyTritonBadParameterError,
        "Invalid `priority`=2",
    ),
    (
        lambda: _outputs(Tensor((1,), np.float32, optional=True)),
        PyTritonValidationError,
        "Output tensors cannot be optional.",
    ),
    (lambda: validate_model_name(""), PyTritonValidationError, "Model name cannot be empty"),
    (
        lambda: validate_model_name("a b"),
        PyTritonValidationError,
        "Model name can only contain alphanumeric characters, dots, underscores and dashes",
    ),
    (lambda: WarmupInput(np.float32, (1,)), PyTritonBadParameterError, "zero_data"),
    (lambda: ModelWarmup("w", 0, {}), PyTritonBadParameterError, "batch_size"),
    (lambda: ModelConfigParser.from_dict({"name": 3, "input": 5}), PyTritonModelConfigError, ""),
    (lambda: ModelConfigParser.from_file("no/such/file"), PyTritonModelConfigError, "no/such/file"),
]


@pytest.mark.parametrize(("fault", "kind", "phrase"), ERRORS)
def test_a_fault_has_pytritons_type_and_phrase(fault: Any, kind: Any, phrase: str) -> None:
    with pytest.raises((PyTritonError, ValueError)) as caught:
        fault()
    assert type(caught.value) is kind
    assert phrase in str(caught.value)
