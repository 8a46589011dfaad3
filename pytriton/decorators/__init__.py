"""Decorators that turn a list of requests into the arguments a model wants, and its results back.

They run inside the worker, together with the user's callable, and work without any server too:
a decorated function can be called with a list of `pytriton.proxy.types.Request` in a unit test.

Order in a stack, outermost first (each may be left out)::

    fill_optionals -> group_by_keys -> batch -> group_by_values -> pad_batch -> first_value
                   -> triton_context -> your function

Down to ``batch`` (or ``sample``) the argument is the list of requests; below it, every input is a
keyword argument. Functions, methods, ``__call__``, coroutine functions, generators and
asynchronous generators can all be decorated; what comes out is of the same kind.
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

# For annotations of callables, and of decorators of one's own.
InputNames = list[str]
InferenceRequest = Union[Request, dict[str, NDArray[Any]]]
InferenceRequests = list[InferenceRequest]
InferenceResult = dict[str, NDArray[Any]]
InferenceResults = list[InferenceResult]
