"""An unknown keyword of a public class: the error names the closest one, as documented."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from pytriton import Autoscale, DynamicBatcher, Limits, ModelConfig, QueuePolicy, Tensor
from pytriton.client.options import RequestOptions
from pytriton.client.tls import TlsOptions
from pytriton.fleet import Canary
from pytriton.model_config.warmup import ModelWarmup, WarmupInput


@pytest.mark.parametrize(
    ("cls", "wrong", "meant"),
    [
        (ModelConfig, "max_batchsize", "max_batch_size"),
        (DynamicBatcher, "max_queue_delay", "max_queue_delay_microseconds"),
        (QueuePolicy, "max_queue_sise", "max_queue_size"),
        (Tensor, "dtyp", "dtype"),
        (Limits, "memory_hart", "memory_limit"),
        (Autoscale, "idle_afetr", "idle_after"),
        (ModelWarmup, "batchsize", "batch_size"),
        (WarmupInput, "shap", "shape"),
        (Canary, "shares", "share"),
    ],
)
def test_an_unknown_keyword_is_reported_with_the_closest(cls: Any, wrong: str, meant: str) -> None:
    text = rf"^{cls.__name__}\(\) got an unexpected keyword argument '{wrong}'\. Did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=text) as error:
        cls(**{wrong: 1})
    assert error.value.__cause__ is None
    assert meant in inspect.signature(cls).parameters


@pytest.mark.parametrize("cls", [ModelConfig, Limits, TlsOptions, RequestOptions])
def test_an_unknown_keyword_without_a_match_lists_all(cls: Any) -> None:
    known = ", ".join(inspect.signature(cls).parameters)
    with pytest.raises(TypeError, match=f"'xyzzy'. Valid names: {known}"):
        cls(xyzzy=1)


def test_missing_arguments_are_reported_as_by_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'shape'"):
        Tensor(dtype=np.float32)  # type: ignore[call-arg]
