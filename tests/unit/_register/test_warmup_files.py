"""Warm-up requests: their contents, and what is refused."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton._protocol import messages
from pytriton._register.message import plan
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, ModelWarmup, Tensor, WarmupInput, to_triton_config

X = Tensor((-1,), np.float32, "x")
Y = Tensor((1,), np.float32, "y")
OPTIONAL = Tensor((2,), bytes, "o", optional=True)
ZEROS = WarmupInput(np.float32, (3,), zero_data=True)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, bool, "bfloat16", bytes])
def test_warm_up_data_has_shape_and_dtype_and_is_reproducible(dtype: Any) -> None:
    source = WarmupInput(dtype, (2, 3), random_data=True)
    first, again = source.generate(4, seed=1), source.generate(4, seed=1)
    assert first.shape == (4, 2, 3)
    assert source.generate(0).shape == (2, 3)
    np.testing.assert_array_equal(first, again)
    zeros = WarmupInput(dtype, (2,), zero_data=True).generate(1)
    assert not zeros.astype(bool).any()
    assert zeros.dtype == first.dtype


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (np.array([1, 2]), [[1, 2]] * 3),
        (np.array([[1, 2]]), [[1, 2]] * 3),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4], [1, 2]]),
        (np.arange(8).reshape(4, 2), [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_warm_up_file_is_repeated_or_cut_to_the_batch(
    tmp_path: Path, stored: np.ndarray[Any, Any], expected: list[list[int]]
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, stored)
    source = WarmupInput(np.float32, (2,), input_data_file=path)
    np.testing.assert_array_equal(source.generate(3), np.array(expected, np.float32))


def test_an_open_file_is_accepted(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.array([b"a", b"b"]))
    source = WarmupInput(bytes, (2,), input_data_file=content)
    assert source.generate(1).tolist() == source.generate(1).tolist() == [[b"a", b"b"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Cannot read .*No such file"),
        (b"", "Cannot read an array"),
        (b"abc", "Cannot read an array.*np.save"),
        (pickle.dumps(3), "Cannot read an array"),
    ],
)
def test_an_unreadable_warm_up_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PyTritonBadParameterError, match=message):
        WarmupInput(np.float32, (2,), input_data_file=path).generate(3)


def test_random_data_is_the_same_in_every_process_and_differs_between_inputs() -> None:
    source = WarmupInput(np.int32, (4,), random_data=True)
    arrays = ModelWarmup("w", 2, {"a": source, "b": source}).arrays()
    assert arrays["a"].shape == (2, 4)
    assert arrays["a"].ravel()[:2].tolist() == [-1925157033, -248074381]
    assert not np.array_equal(arrays["a"], arrays["b"])
    assert ModelWarmup("w", 2, {"a": source}).arrays(batching=False)["a"].shape == (4,)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"xx": ZEROS}, "data for 'xx', which is not an input.*Did you mean 'x'.*Inputs: x, o"),
        ({}, "defines no data for the input 'x'"),
        (
            {"x": WarmupInput(np.float64, (3,), True)},
            "defines FP64 data for the input 'x'.*is FP32",
        ),
        ({"x": WarmupInput(np.float32, (3, 1), True)}, r"shape \(3, 1\) for the input 'x'"),
        ({"x": ZEROS, "o": WarmupInput(bytes, (3,), True)}, r"shape \(3,\) for the input 'o'"),
    ],
)
def test_a_warm_up_must_be_a_valid_request(inputs: Any, message: str) -> None:
    config = ModelConfig(model_warmup=[ModelWarmup("w", 1, inputs)])
    with pytest.raises(PyTritonBadParameterError, match=message):
        to_triton_config("m", [X, OPTIONAL], [Y], config)


def test_warm_ups_are_sent_with_the_configuration(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    config = ModelConfig(
        model_warmup=[
            ModelWarmup("a", 2, {"x": WarmupInput("FP32", (3,), random_data=True)}),
            ModelWarmup("b", 1, {"x": WarmupInput("FP32", (3,), False, False, tmp_path / "x.npy")}),
        ]
    )
    message = plan(print, "m", [X, OPTIONAL], [Y], config, {}).message
    assert "model_warmup" not in message.spec.config
    file = (tmp_path / "x.npy").read_bytes()
    assert message.spec.warmups == [
        messages.Warmup("a", 2, 1, [messages.WarmupTensor("x", "FP32", [3], "random")]),
        messages.Warmup("b", 1, 1, [messages.WarmupTensor("x", "FP32", [3], "file", file)]),
    ]
    assert messages.decode(messages.encode(message)) == message


def test_a_mismatched_file_is_reported_at_registration(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 5)))
    source = WarmupInput(np.float32, (3,), input_data_file=tmp_path / "x.npy")
    config = ModelConfig(model_warmup=[ModelWarmup("w", 1, {"x": source})])
    with pytest.raises(PyTritonBadParameterError, match=r"shape \(2, 5\)"):
        plan(print, "m", [X], [Y], config, {})
