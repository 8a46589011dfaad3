"""Fields of Triton's configuration that are passed through, validated before Triton sees them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from pytriton._protocol import datatypes, messages
from pytriton.dispatcher.server import own_repository
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, Tensor, to_triton_config

X, Y = Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "y")


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"optimization": {"priority": "PRIORITY_MAX", "cuda": {"graphs": True}}},
        {"sequence_batching": {"max_sequence_idle_microseconds": "5", "oldest": {}}},
        {"metric_tags": {"a": "b"}},
        {"version_policy": {"latest": {"num_versions": 2}}},
        {"model_metrics": {"metric_control": [{"histogram_options": {"buckets": [1, 2.5]}}]}},
        {"model_repository_agents": {"agents": [{"name": "a", "parameters": {"k": "v"}}]}},
    ],
)
def test_known_fields_are_passed_through(extra: dict[str, Any]) -> None:
    if not set(extra) <= set(model_config_pb2.ModelConfig.DESCRIPTOR.fields_by_name):
        pytest.skip("this tritonclient has an older schema: model_metrics came with 2.52")
    document = to_triton_config("m", [X], [Y], ModelConfig(extra=extra))
    assert {name: document[name] for name in extra} == extra


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (5, "`extra` must be a dict"),
        ({"optimisation": {}}, "Unknown field 'optimisation' in `extra`. Did you mean 'optim"),
        ({"name": "m"}, "cannot be set through `extra`: set the model's name"),
        ({"model_warmup": [{"inputs": {"x": {"random": True}}}]}, "Did you mean 'random_data'"),
        ({"batch_input": []}, "the callable receives each request"),
        (
            {"optimization": {"prioritty": 1}},
            "Unknown field 'prioritty' in `extra.optimization`. Did you mean 'priority'",
        ),
        (
            {"optimization": {"priority": "PRIORITY_MX"}},
            "`extra.optimization.priority` cannot be 'PRIORITY_MX'. Did you mean 'PRIORITY_MAX'",
        ),
        ({"optimization": None}, "`extra.optimization` must be a dict of fields"),
        (
            {"sequence_batching": {"control_input": [{}, {"nam": "x"}]}},
            r"'nam' in `extra.sequence_batching.control_input\[1\]`. Did you mean 'name'",
        ),
        ({"sequence_batching": {"control_input": {}}}, "control_input` must be a list"),
        (
            {"sequence_batching": {"max_sequence_idle_microseconds": 2.5}},
            "wrong type for Triton's model configuration: .*max_sequence_idle_microseconds",
        ),
        ({"sequence_batching": {"state": []}}, "sequence_batching.state cannot be used: .*callab"),
        ({"metric_tags": {"a": 3}}, "wrong type.*metric_tags"),
        ({"metric_tags": ["a"]}, "`extra.metric_tags` must be a dict"),
        (
            {"model_repository_agents": {"agents": [{"parameters": [1]}]}},
            r"agents\[0\].parameters` must be a dict",
        ),
        ({"version_policy": {"latest": {}, "all": {}}}, "policy_choice"),
        ({"instance_group": []}, "use instances= or devices="),
        ({"instance_group": [{"count": 2}]}, "use instances= or devices="),
        ({"instance_group": [{}, {}]}, "list of one group"),
        (
            {"instance_group": [{"rate_limiter": {"resources": [{"nme": "R"}]}}]},
            r"instance_group\[0\].rate_limiter.resources\[0\]`. Did you mean 'name'",
        ),
    ],
)
def test_unknown_fields_are_refused_with_the_known_ones(extra: Any, message: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match=message):
        ModelConfig(extra=extra)


def test_a_version_policy_must_serve_the_models_version() -> None:
    config = ModelConfig(extra={"version_policy": {"specific": {"versions": [1, 2]}}})
    assert to_triton_config("m", [X], [Y], config, 2)["version_policy"] == {
        "specific": {"versions": [1, 2]}
    }
    with pytest.raises(
        PyTritonBadParameterError, match=r"registered as version 3.*Add 3 to the policy"
    ):
        to_triton_config("m", [X], [Y], config, 3)


def test_triton_gets_the_rate_limiter_with_our_instances() -> None:
    limiter = {"resources": [{"name": "R", "count": 1}], "priority": 2}
    config = ModelConfig(extra={"instance_group": [{"rate_limiter": limiter}]})
    document = to_triton_config("m", [X], [Y], config)
    spec = messages.ModelSpec("m", 1, document, messages.WorkerEnvironment("python"), instances=2)
    loaded = own_repository.triton_config(spec, "endpoint", "key", 2)
    assert loaded["instance_group"] == [{"rate_limiter": limiter, "kind": "KIND_CPU", "count": 4}]


def test_without_tritonclient_the_first_level_is_validated() -> None:
    """As in a worker's environment: the registrant has validated the whole declaration."""
    code = (
        "import sys; sys.modules['tritonclient'] = None\n"
        "from pytriton.model_config import ModelConfig\n"
        "ModelConfig(extra={'optimization': {'a': 1}})\n"
        "ModelConfig(extra={'optimisation': {}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "Unknown field 'optimisation' in `extra`" in done.stderr


def test_control_inputs_of_sequences_have_datatypes() -> None:
    """In tritonserver's own form: kinds that are not meant are empty lists."""
    empty: dict[str, Any] = {"int32_false_true": [], "fp32_false_true": [], "bool_false_true": []}
    controls = [
        {"name": "i", "control": [{**empty, "int32_false_true": [0, 1]}]},
        {"name": "f", "control": [{**empty, "fp32_false_true": [0, 1]}]},
        {"name": "b", "control": [{**empty, "bool_false_true": [False, True]}]},
        {"name": "c", "control": [{**empty, "data_type": "TYPE_STRING"}]},
    ]
    config = {
        "input": [{"name": "x", "data_type": "TYPE_FP16"}],
        "sequence_batching": {"control_input": controls},
    }
    expected = {"x": "FP16", "i": "INT32", "f": "FP32", "b": "BOOL", "c": "BYTES"}
    assert datatypes.of_inputs(config) == expected
    assert datatypes.of_inputs({"input": config["input"]}) == {"x": "FP16"}
