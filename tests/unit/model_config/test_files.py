"""`ModelConfigGenerator` and `ModelConfigParser`: Triton's model configuration as a dict and as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config import (
    DeviceKind,
    DynamicBatcher,
    QueuePolicy,
    ResponseCache,
    TensorSpec,
    TimeoutAction,
    TritonModelConfig,
)
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser

FULL = TritonModelConfig(
    "m",
    max_batch_size=16,
    batcher=DynamicBatcher(
        max_queue_delay_microseconds=100,
        preferred_batch_size=[4, 8],
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 100, True, 10),
        priority_queue_policy={1: QueuePolicy()},
    ),
    instance_group={DeviceKind.KIND_GPU: None, DeviceKind.KIND_CPU: 2},
    decoupled=True,
    backend_parameters={"workspace": "a b"},
    inputs=[TensorSpec("x", np.float32, (-1,)), TensorSpec("s", np.bytes_, (), optional=True)],
    outputs=[TensorSpec("y", np.int8, (2, 3))],
    response_cache=ResponseCache(True),
)
CONFIGS = {
    "full": FULL,
    "plain": TritonModelConfig("m"),
    "without batching": TritonModelConfig("m", max_batch_size=0, batching=False, batcher=None),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_generated_configurations_parse_back(config: TritonModelConfig, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "config.pbtxt"
    generator = ModelConfigGenerator(config)
    generator.to_file(path)
    read = [ModelConfigParser.from_dict(generator.get_config()), ModelConfigParser.from_file(path)]
    for one in read:
        assert (one.inputs or None, one.outputs or None) == (config.inputs, config.outputs)
        one.inputs, one.outputs = config.inputs, config.outputs
        assert one == config


def test_the_document_has_tritons_names() -> None:
    document = ModelConfigGenerator(FULL).get_config()
    batching = document.pop("dynamic_batching")
    assert batching["default_queue_policy"]["timeout_action"] == "DELAY"
    assert document == {
        "name": "m",
        "backend": "python",
        "max_batch_size": 16,
        "instance_group": [{"kind": "KIND_GPU"}, {"kind": "KIND_CPU", "count": 2}],
        "model_transaction_policy": {"decoupled": True},
        "parameters": {"workspace": {"string_value": "a b"}},
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]},
            {
                "name": "s",
                "data_type": "TYPE_STRING",
                "dims": [1],
                "reshape": {"shape": []},
                "optional": True,
            },
        ],
        "output": [{"name": "y", "data_type": "TYPE_INT8", "dims": [2, 3]}],
        "response_cache": {"enable": True},
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"max_batch_size": 0},
            "The `max_batch_size` must be greater or equal to 1",
        ),
        (
            {"outputs": [TensorSpec("y", np.int8, (1,), optional=True)]},
            "Output tensors cannot be optional.",
        ),
    ],
)
def test_invalid_configurations_are_not_generated(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match=message):
        ModelConfigGenerator(TritonModelConfig("m", **fields)).get_config()


def test_a_handwritten_file(tmp_path: Path) -> None:
    (tmp_path / "resnet").mkdir()
    path = tmp_path / "resnet" / "config.pbtxt"
    path.write_text(
        """
        # by hand
        platform: "onnxruntime_onnx"  max_batch_size: 8
        input [ { name: "data" data_type: TYPE_FP32 dims: [ 3, 224, -1 ] } ]
        instance_group [ { count: 2 kind: KIND_GPU } ]
        """
    )
    config = ModelConfigParser.from_file(path)
    assert (config.model_name, config.max_batch_size, config.batcher) == ("resnet", 8, None)
    assert config.inputs == [TensorSpec("data", np.float32, (3, 224, -1))]
    assert config.instance_group == {DeviceKind.KIND_GPU: 2}


@pytest.mark.parametrize("text", [None, "max_batch_size: many", "nam: 3", "\udce9"])
def test_an_invalid_file_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PyTritonModelConfigError, match=r"Cannot read .*config.pbtxt as a Triton"):
        ModelConfigParser.from_file(path)
