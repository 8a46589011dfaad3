"""`ModelConfig` and its parts, converted to Triton's configuration and back."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonModelConfigError,
    PyTritonValidationError,
)
from pytriton.model_config import (
    DeviceKind,
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    QueuePolicy,
    ResponseCache,
    Tensor,
    TensorSpec,
    TimeoutAction,
    TritonModelConfig,
    WarmupInput,
    to_triton_config,
)

X = Tensor((-1,), np.float32, "x")
Y = Tensor((2, 3), np.int32, "y")


def test_defaults_are_pytritons() -> None:
    config = ModelConfig()
    assert (config.batching, config.max_batch_size, config.batcher) == (True, 4, DynamicBatcher())
    assert (config.response_cache, config.decoupled, config.model_warmup) == (False, False, None)
    positional = ModelConfig(False, 8, DynamicBatcher(5), True, False, None)
    assert positional.batcher == DynamicBatcher(max_queue_delay_microseconds=5)
    assert pickle.loads(pickle.dumps(positional)) == positional


def test_truth_values_are_true_or_false() -> None:
    config = ModelConfig(batching=np.bool_(False), decoupled=np.bool_(True))  # type: ignore[arg-type]
    assert config.batching is False
    assert config.decoupled is True


@pytest.mark.parametrize("name", ["batching", "response_cache", "decoupled"])
@pytest.mark.parametrize("value", ["no", "false", 0, 1, None])
def test_truthy_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(
        PyTritonBadParameterError, match=f"`{name}` must be True or False, got {value!r}"
    ):
        ModelConfig(**{name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DynamicBatcher(preserve_ordering="no"),  # type: ignore[arg-type]
            "`preserve_ordering` must be True or False, got 'no'",
        ),
        (
            lambda: QueuePolicy(allow_timeout_override=1),  # type: ignore[arg-type]
            "`allow_timeout_override` must be True or False, got 1",
        ),
        (
            lambda: ModelConfig(max_batch_size=0),
            "`max_batch_size` must be greater or equal to 1",
        ),
        (lambda: ModelConfig(max_batch_size=2.5), "`max_batch_size` must be an integer"),  # type: ignore[arg-type]
        (lambda: ModelConfig(batcher=5), "`batcher` must be a DynamicBatcher"),  # type: ignore[arg-type]
        (lambda: ModelConfig(response_cache=True, decoupled=True), "response cache"),
        (
            lambda: ModelConfig(batcher=DynamicBatcher(preferred_batch_size=[8])),
            "`preferred_batch_size` 8 is larger than the `max_batch_size` 4",
        ),
        (
            lambda: ModelConfig(batcher=DynamicBatcher(priority_levels=3)),
            "`default_priority_level` must be between 1 and `priority_levels` .3.",
        ),
        (
            lambda: ModelConfig(batcher=DynamicBatcher(0, None, True, 2, 1)),
            "`preserve_ordering` cannot be combined",
        ),
        (lambda: ModelConfig(parameters={"a": [1]}), "`parameters` of a model"),  # type: ignore[dict-item]
        (lambda: ModelConfig(extra={"optimisation": {}}), "Did you mean 'optimization'"),
        (lambda: ModelConfig(extra={"instance_group": []}), "use instances="),
        (lambda: DynamicBatcher(max_queue_delay_microseconds=-1), "max_queue_delay_microseconds"),
        (lambda: DynamicBatcher(preferred_batch_size=[0]), "preferred_batch_size"),
        (lambda: DynamicBatcher(preferred_batch_size=4), "sequence of integers, got 4"),  # type: ignore[arg-type]
        (
            lambda: DynamicBatcher(priority_levels=3, default_priority_level=4),
            "`default_priority_level` must be between 1 and",
        ),
        (
            lambda: DynamicBatcher(priority_queue_policy={1: QueuePolicy()}),
            "Provide the `priority_levels`",
        ),
        (
            lambda: DynamicBatcher(
                priority_levels=2,
                default_priority_level=1,
                priority_queue_policy={3: QueuePolicy()},
            ),
            "Invalid `priority`=3.*between 1 and 2",
        ),
        (lambda: DynamicBatcher(default_queue_policy={}), "must be a QueuePolicy"),  # type: ignore[arg-type]
        (lambda: QueuePolicy(timeout_action="REJECT"), "TimeoutAction.REJECT"),  # type: ignore[arg-type]
        (lambda: QueuePolicy(max_queue_size=-1), "`max_queue_size` must be greater"),
        (lambda: WarmupInput(np.float32, (1,)), "exactly one of.*got none"),
        (lambda: WarmupInput(np.float32, (1,), True, True), "zero_data and random_data"),
        (lambda: WarmupInput(np.float32, (-1,), True), "cannot have dynamic dimensions"),
        (lambda: ModelWarmup("w", 0, {}), "`batch_size` of warm-up 'w'"),
        (lambda: ModelWarmup("w", 1, {"x": 3}), "must be a WarmupInput"),  # type: ignore[dict-item]
        (lambda: ModelConfig(model_warmup=[3]), "must be a list of ModelWarmup, but contains 3"),  # type: ignore[list-item]
        (
            lambda: ModelConfig(max_batch_size=2, model_warmup=[ModelWarmup("w", 3, {})]),
            "`batch_size` 3 of warm-up 'w' is larger than the model's maximum batch size .2.",
        ),
        (
            lambda: ModelConfig(batching=False, model_warmup=[ModelWarmup("w", 2, {})]),
            "larger than the model's maximum batch size .1.",
        ),
    ],
)
def test_mistakes_are_refused_where_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match=message):
        make()


def test_a_later_mistake_is_found_by_the_conversion() -> None:
    config = ModelConfig()
    config.max_batch_size = 0
    with pytest.raises(PyTritonBadParameterError, match="max_batch_size"):
        to_triton_config("m", [X], [Y], config)


def test_max_batch_size_does_not_matter_without_batching() -> None:
    document = to_triton_config("m", [X], [Y], ModelConfig(batching=False, max_batch_size=0))
    assert document["max_batch_size"] == 0
    assert "dynamic_batching" not in document


def test_the_default_configuration_in_full() -> None:
    assert to_triton_config("m", [Tensor((1,), bytes, optional=True), X], [Y]) == {
        "name": "m",
        "max_batch_size": 4,
        "input": [
            {"name": "INPUT_1", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
            {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]},
        ],
        "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [2, 3]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 0, "preserve_ordering": False},
    }


def test_batching_without_inputs_is_reported_as_having_no_effect() -> None:
    with pytest.warns(UserWarning, match="'m' has no inputs, so it is served without batching"):
        assert to_triton_config("m", [], [Y], ModelConfig(max_batch_size=8))["max_batch_size"] == 0
    for config in (None, ModelConfig(batching=False)):  # batching was not requested
        document = to_triton_config("m", [], [Y], config)
        assert (document["max_batch_size"], document["input"]) == (0, [])
        assert "dynamic_batching" not in document


def test_unnamed_tensors_are_numbered_over_all_tensors() -> None:
    unnamed = Tensor((1,), np.float32)
    document = to_triton_config("m", [X, unnamed], [unnamed, unnamed])
    assert [entry["name"] for entry in document["input"]] == ["x", "INPUT_2"]
    assert [entry["name"] for entry in document["output"]] == ["OUTPUT_1", "OUTPUT_2"]


FULL = ModelConfig(
    max_batch_size=16,
    batcher=DynamicBatcher(
        max_queue_delay_microseconds=100,
        preferred_batch_size=[4, 8],
        preserve_ordering=False,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 100, True, 10),
        priority_queue_policy={1: QueuePolicy(TimeoutAction.REJECT, 200, False, 20)},
    ),
    response_cache=True,
    parameters={"text": "a", "flag": True, "number": 3, "ratio": 0.5},
    extra={"optimization": {"priority": "PRIORITY_MAX"}},
)


def test_every_field_reaches_triton() -> None:
    document = to_triton_config("m", [X], [Y], FULL, version=3)
    assert document["dynamic_batching"] == {
        "max_queue_delay_microseconds": 100,
        "preferred_batch_size": [4, 8],
        "preserve_ordering": False,
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {
            "timeout_action": "DELAY",
            "default_timeout_microseconds": 100,
            "allow_timeout_override": True,
            "max_queue_size": 10,
        },
        "priority_queue_policy": {
            "1": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 200,
                "allow_timeout_override": False,
                "max_queue_size": 20,
            }
        },
    }
    assert document["response_cache"] == {"enable": True}
    assert document["parameters"] == {
        "text": {"string_value": "a"},
        "flag": {"string_value": "true"},
        "number": {"string_value": "3"},
        "ratio": {"string_value": "0.5"},
    }
    assert document["optimization"] == {"priority": "PRIORITY_MAX"}
    assert document["version_policy"] == {"specific": {"versions": [3]}}
    assert json.loads(json.dumps(document)) == document


def test_preserve_ordering_reaches_triton() -> None:
    config = ModelConfig(batcher=DynamicBatcher(preserve_ordering=True))
    assert to_triton_config("m", [X], [Y], config)["dynamic_batching"]["preserve_ordering"] is True


def test_decoupled_and_batcher_none() -> None:
    document = to_triton_config("m", [X], [Y], ModelConfig(decoupled=True, batcher=None))
    assert document["model_transaction_policy"] == {"decoupled": True}
    assert "dynamic_batching" not in document


def test_a_sequence_batcher_replaces_the_dynamic_batcher() -> None:
    config = ModelConfig(extra={"sequence_batching": {"max_sequence_idle_microseconds": 5}})
    document = to_triton_config("m", [X], [Y], config)
    assert "dynamic_batching" not in document
    assert document["sequence_batching"] == {"max_sequence_idle_microseconds": 5}


def test_a_scalar_is_reshaped_because_triton_refuses_empty_dims() -> None:
    entry = to_triton_config("m", [Tensor((), np.float32, "s")], [Y])["input"][0]
    assert (entry["dims"], entry["reshape"]) == ([1], {"shape": []})


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_scalar_without_batching_is_refused(where: str) -> None:
    scalar = Tensor((), np.float32, "s")
    inputs, outputs = ([scalar], [Y]) if where == "input" else ([X], [scalar])
    with pytest.raises(PyTritonValidationError, match=r"'s' has the shape \(\).*shape \(1,\)"):
        to_triton_config("m", inputs, outputs, ModelConfig(batching=False))


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([X, X], [Y], "Two input tensors are called 'x'"),
        ([X], [Y, Y], "Two output tensors are called 'y'"),
        ([X, Tensor((1,), int, "INPUT_1"), X], [Y], "Two input tensors"),
        ([Tensor((1,), int), Tensor((1,), int, "INPUT_1")], [Y], "called 'INPUT_1'"),
        ([X], [Tensor((1,), int, "y", optional=True)], "Output tensors cannot be optional."),
        ([(X,)], [Y], "A trailing comma after Tensor"),
        (X, [Y], r"inputs must be a sequence of Tensor, got Tensor.*Write inputs=\[Tensor"),
        (None, [Y], r"inputs must be a sequence of Tensor, got None. Write inputs=\[\]"),
        ([X], Y, r"outputs must be a sequence of Tensor, got Tensor.*Write outputs=\[Tensor"),
    ],
)
def test_bad_tensors_are_refused(inputs: Any, outputs: Any, message: str) -> None:
    with pytest.raises(PyTritonValidationError, match=message):
        to_triton_config("m", inputs, outputs)


@pytest.mark.parametrize("version", [0, -1, "1", True])
def test_bad_versions_are_refused(version: Any) -> None:
    with pytest.raises(PyTritonBadParameterError, match="model_version"):
        to_triton_config("m", [X], [Y], version=version)


def test_a_configuration_survives_a_round_trip() -> None:
    scalar = Tensor((), bytes, "s", optional=True)
    document = to_triton_config("m", [X, scalar], [Y], FULL, version=3)
    document["instance_group"] = [{"kind": "KIND_CPU", "count": 2}, {"kind": "KIND_CPU"}]
    config = TritonModelConfig.from_triton_config(document, version=3)
    assert config == TritonModelConfig(
        model_name="m",
        model_version=3,
        max_batch_size=16,
        batching=True,
        batcher=FULL.batcher,
        instance_group={DeviceKind.KIND_CPU: 3},
        backend_parameters={"text": "a", "flag": "true", "number": "3", "ratio": "0.5"},
        inputs=[TensorSpec("x", np.float32, (-1,)), TensorSpec("s", np.bytes_, (), True)],
        outputs=[TensorSpec("y", np.int32, (2, 3))],
        response_cache=ResponseCache(True),
    )


def test_reads_int64_values_as_the_server_writes_them() -> None:
    config = TritonModelConfig.from_triton_config(
        {
            "name": "m",
            "max_batch_size": 0,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]}],
            "dynamic_batching": {"max_queue_delay_microseconds": "7", "preferred_batch_size": []},
        }
    )
    assert config.batching is False
    assert config.inputs == [TensorSpec("x", np.float32, (-1, 3))]
    assert config.batcher == DynamicBatcher(max_queue_delay_microseconds=7)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"name": "m", "input": [{"name": "x"}]},
        {"name": "m", "input": [{"name": "x", "data_type": "TYPE_FP8", "dims": []}]},
        {"name": "m", "max_batch_size": "many"},
        {"name": "m", "parameters": ["a"]},
        {"name": 3, "input": 5},
    ],
)
def test_other_documents_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(PyTritonModelConfigError, match="Not a Triton model configuration"):
        TritonModelConfig.from_triton_config(document)
