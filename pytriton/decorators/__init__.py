"""Decorators that convert a list of requests to a callable's arguments, and its results to responses.

They run inside the worker, together with the callable. They also work without a server:
a unit test can call a decorated function with a list of `pytriton.proxy.types.Request`.

Stack them in this order, outermost first. Each one is optional::

    fill_optionals -> group_by_keys -> batch -> group_by_values -> pad_batch -> first_value
                   -> triton_context -> your function

``batch`` (or ``sample``) and the decorators above it receive the list of requests; those below it receive
each input as a keyword argument. Functions, methods, ``__call__``, coroutine functions, generators and
asynchronous generators can be decorated. A decorated callable is of the same kind as the original.
"""

from __future__ import annotations

from typing import Any, Union

from numpy.typing import NDArray

from pytriton.decorators.batching import batch, get_inference_request_batch_size, sample
from pytriton.decorators.context import (
    ModelConfigDict,
    TritonContext,
    get_model_config,
    get_triton_context,
    set_triton_context,
)
from pytriton.decorators.grouping import ConstantPadder, group_by_keys, group_by_values
from pytriton.decorators.inputs import fill_optionals, first_value, pad_batch, triton_context
from pytriton.decorators.outputs import convert_output
from pytriton.decorators.wrapping import Kind, kind_of
from pytriton.proxy.types import Request

__all__ = [
    "ConstantPadder",
    "InferenceRequest",
    "InferenceRequests",
    "InferenceResult",
    "InferenceResults",
    "InputNames",
    "Kind",
    "ModelConfigDict",
    "TritonContext",
    "batch",
    "convert_output",
    "fill_optionals",
    "first_value",
    "get_inference_request_batch_size",
    "get_model_config",
    "get_triton_context",
    "group_by_keys",
    "group_by_values",
    "kind_of",
    "pad_batch",
    "sample",
    "set_triton_context",
    "triton_context",
]

# For type annotations of callables and custom decorators.
InputNames = list[str]
InferenceRequest = Union[Request, dict[str, NDArray[Any]]]
InferenceRequests = list[InferenceRequest]
InferenceResult = dict[str, NDArray[Any]]
InferenceResults = list[InferenceResult]
