"""What the test writes where a document's example goes on (`...`): questions whose answers are printed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytriton import model_config
from pytriton.client import ModelClient
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.types import Request

if TYPE_CHECKING:
    from pytriton.triton import Triton


def ask(triton: Triton, name: str, *arrays: npt.NDArray[Any], times: int = 1) -> None:
    """Print a model's answer, by HTTP and by gRPC, to a batch."""
    for url in (triton.http_url, triton.grpc_url) * times:
        with ModelClient(url, name, inference_timeout_s=60) as client:
            result = client.infer_batch(*arrays)
        print(name, {key: array.tolist() for key, array in sorted(result.items())}, flush=True)


def call(infer_fn: Any) -> None:
    """Call a decorated callable without a server, well and badly."""
    good = infer_fn([Request({"x": np.ones((2, 1), np.float32)})])
    print("called", [answer["x"].tolist() for answer in good])
    try:
        infer_fn([Request({"x": -np.ones((1, 1), np.float32)})])
    except PyTritonUnrecoverableError as error:
        print("unrecoverable:", error, "because of", repr(error.__cause__))


def show_specs(*tensors: Any) -> None:
    """Print tensors: name, type, shape."""
    for tensor in tensors:
        one = tensor[0] if isinstance(tensor, tuple) else tensor  # the text has `Tensor(...),`
        print("tensor", one.name, np.dtype(one.dtype).name, one.shape)


def compare(documented: type) -> None:
    """Print the fields of a documented class, with their defaults, that the real one has otherwise."""
    real = {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(getattr(model_config, documented.__name__))
    }
    wanted = {name: getattr(documented, name) for name in documented.__annotations__}
    other = [name for name, value in wanted.items() if real.get(name, "none") != value]
    print(documented.__name__, len(wanted), "fields, other here:", other)
