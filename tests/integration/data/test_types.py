"""Every Triton type in both directions, in any shape and layout, with the real server and a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.models.inference import PROTOCOLS, Array, Inference
from support.real_daemon import RunningDaemon

from pytriton.model_config import ModelConfig, Tensor

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
_PROPERTY = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _identity(requests: Any) -> Any:
    return [{f"out_{name}": array for name, array in request.items()} for request in requests]


def _tensors(prefix: str, *, optional: bool, batching: bool) -> list[Tensor]:
    shape = (-1, -1) if batching else (-1, -1, -1)
    return [
        Tensor(name=f"{prefix}{name}", dtype=dtype, shape=shape, optional=optional)
        for name, dtype in DTYPES.items()
    ]


@pytest.fixture(scope="module")
def identity(daemon: RunningDaemon) -> RunningDaemon:
    """A daemon that serves an identity model of every type, with batching and without."""
    for name, batching in (("batched", True), ("unbatched", False)):
        daemon.client.register(
            _identity,
            name,
            inputs=_tensors("", optional=True, batching=batching),
            outputs=_tensors("out_", optional=False, batching=batching),
            config=ModelConfig(batching=batching, max_batch_size=64),
            progress=False,
        )
    return daemon


@pytest.fixture(scope="module", params=PROTOCOLS)
def inference(request: pytest.FixtureRequest, identity: RunningDaemon) -> Iterator[Inference]:
    connection = Inference(request.param, getattr(identity, request.param))
    yield connection
    connection.close()


def _arrays(datatype: str, *, smallest: int) -> st.SearchStrategy[Array]:
    shapes = hnp.array_shapes(min_dims=3, max_dims=3, min_side=smallest, max_side=5)
    if datatype == "BYTES":
        elements = st.binary(max_size=12) | st.just(b"\x00") | st.just(b"tail\x00\x00")
        return shapes.flatmap(
            lambda shape: st.lists(
                elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
            ).map(lambda items: _objects(items, shape))
        )
    if datatype == "BF16":
        words = hnp.arrays(np.uint16, shapes)
        return words.map(lambda array: array.view(ml_dtypes.bfloat16))
    return hnp.arrays(np.dtype(DTYPES[datatype]), shapes)


def _objects(items: list[bytes], shape: tuple[int, ...]) -> Array:
    array: Array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


#: Made once: to make one for each example takes longer than the example.
_ANY = {
    datatype: _arrays(datatype, smallest=0).filter(lambda array: array.shape[0] > 0)
    for datatype in DTYPES
}


def _same(got: Array, sent: Array) -> None:
    assert got.shape == sent.shape
    assert got.dtype == sent.dtype
    if sent.dtype == object:
        assert got.ravel().tolist() == sent.ravel().tolist()
    else:
        assert got.tobytes() == sent.tobytes()  # NaNs and negative zeros included


@pytest.mark.parametrize("datatype", DTYPES)
@_PROPERTY
@given(data=st.data())
def test_any_array_round_trips_bit_for_bit(
    inference: Inference, datatype: str, data: st.DataObject
) -> None:
    """With a batch dimension; other dimensions may be 0."""
    array = data.draw(_ANY[datatype])
    answer = inference.infer("batched", {datatype: array}, [f"out_{datatype}"])
    _same(answer[f"out_{datatype}"], array)


@pytest.mark.parametrize("datatype", DTYPES)
def test_without_batching(inference: Inference, datatype: str) -> None:
    """Without a batch dimension; the first dimension may be 0, too."""
    for shape in ((0, 2, 2), (2, 3, 1), (1, 1, 1)):
        array = np.ones(shape).astype(DTYPES[datatype])
        if datatype == "BYTES":
            array = _objects([b"x"] * array.size, shape)
        answer = inference.infer("unbatched", {datatype: array}, [f"out_{datatype}"])
        _same(answer[f"out_{datatype}"], array)


def test_all_types_in_one_request(inference: Inference) -> None:
    """Inputs of all types in one request are not mixed up."""
    inputs = {
        name: np.arange(6).reshape(2, 3, 1).astype(dtype) if name != "BYTES" else
        _objects([b"a\x00b", b"", b"\x00", "ä".encode(), b"x" * 1000, b"z"], (2, 3, 1))
        for name, dtype in DTYPES.items()
    }  # fmt: skip
    answer = inference.infer("batched", inputs, [f"out_{name}" for name in inputs])
    for name, array in inputs.items():
        _same(answer[f"out_{name}"], array)


@given(counts=st.lists(st.integers(1, 2_000_000), min_size=3, max_size=6))
@settings(_PROPERTY, max_examples=6)
def test_sizes_may_change_on_every_call(inference: Inference, counts: list[int]) -> None:
    """Triton's region grows and is remapped, and its old address must not be read."""
    for count in counts:
        array = np.random.default_rng(count).integers(0, 255, (1, count, 1), dtype=np.uint8)
        _same(inference.infer("batched", {"UINT8": array}, ["out_UINT8"])["out_UINT8"], array)


@pytest.mark.slow
def test_a_tensor_of_a_hundred_megabytes_round_trips(inference: Inference) -> None:
    """A small tensor follows."""
    large = np.arange(26_000_000, dtype=np.float32).reshape(1, -1, 1)
    _same(inference.infer("batched", {"FP32": large}, ["out_FP32"])["out_FP32"], large)
    small = np.ones((1, 1, 1), np.float32)
    _same(inference.infer("batched", {"FP32": small}, ["out_FP32"])["out_FP32"], small)
