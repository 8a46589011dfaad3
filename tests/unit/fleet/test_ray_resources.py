"""Resources requested from Ray for an instance: invalid ones are refused before any request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.on_ray.runtime_env import checked


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (None, {"num_cpus": 1}),
        ({}, {}),
        ({"num_gpus": 0.5, "num_cpus": 2.0}, {"num_gpus": 0.5, "num_cpus": 2}),
        ({"num_gpus": np.float32(2)}, {"num_gpus": 2}),
        ({"memory": 2e9}, {"memory": 2_000_000_000}),
        ({"resources": {"tpu": 1.0}}, {"resources": {"tpu": 1}}),
        ({"label_selector": {"disk": "ssd"}}, {"label_selector": {"disk": "ssd"}}),
        ({"accelerator_type": "A100"}, {"accelerator_type": "A100"}),
    ],
)
def test_resources_requested_from_ray(given: Any, held: dict[str, Any]) -> None:
    assert checked(given) == held


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("num_gpus", "must be a dict"),
        ({"num_gpus": -1}, "num_gpus=-1: it must be a non-negative number"),
        ({"num_gpus": float("nan")}, "a non-negative number"),
        ({"num_cpus": float("inf")}, "a non-negative number"),
        ({"num_gpus": "1"}, "num_gpus='1'"),
        ({"num_gpus": True}, "a non-negative number"),
        ({"num_gpus": 1.5}, "a fraction of 1, or an integer"),
        ({"resources": {"tpu": "all"}}, "tpu='all'"),
        ({"resources": {"": 1}}, "a non-empty string"),
        ({"resources": [1]}, "a dict of names and numbers"),
        ({"label_selector": "ssd"}, "a dict of labels"),
        ({"label_selector": {"disk": 1}}, "the label disk=1"),
        ({"accelerator_type": 1}, "accelerator_type=1"),
        ({"tpu": 1}, '{"resources": {"tpu": 1}}'),
        ({"runtime_env": {}}, "Pass it as runtime_env="),
    ],
)
def test_resources_that_ray_would_refuse(given: Any, said: str) -> None:
    with pytest.raises(PyTritonBadParameterError) as refused:
        checked(given)
    assert said in str(refused.value)
