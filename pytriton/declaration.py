"""``@declare``: attaches a model's name, inputs, outputs and configuration to a callable.

A declared callable can be registered without further arguments: ``client.register(infer_fn)``, or
``pytriton-daemon register module:attribute``. The decorator does not change how the callable behaves.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton._callables import called_function, name_of
from pytriton.exceptions import PyTritonValidationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton.model_config.model_config import ModelConfig
    from pytriton.model_config.tensor import Tensor
    from pytriton.run_options import DeclareOptions

__all__ = ["Declaration", "declaration_of", "declare", "default_model_name", "validate_model_name"]

_ATTRIBUTE = "__pytriton_declaration__"
#: Names that Triton and the file system can use.
_MODEL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

_T = TypeVar("_T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """The declaration that ``@declare`` attaches to a callable.

    Args:
        name: name of the model
        inputs: input tensors of the callable
        outputs: output tensors of the callable
        config: model configuration; None is ``ModelConfig()``
        strict: whether outputs must have exactly the declared dtype and shape
        options: further keyword arguments of ``DaemonClient.register``, such as ``instances=2``
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    config: ModelConfig | None = None
    strict: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


def declare(
    name: str | None = None,
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
    config: ModelConfig | None = None,
    strict: bool = False,
    **options: Unpack[DeclareOptions],
) -> Callable[[_T], _T]:
    """Return a decorator that attaches a model's declaration to a function, class or callable object.

    It can be placed above or below ``@batch`` and the other decorators.

    Args:
        name: name of the model; default: the callable's own name, with characters that are not allowed in
            model names replaced by ``_``
        inputs: input tensors of the callable
        outputs: output tensors of the callable
        config: model configuration
        strict: whether outputs must have exactly the declared dtype and shape
        options: further keyword arguments of ``DaemonClient.register``, such as ``instances=2``; see
            `pytriton.run_options`

    Raises:
        PyTritonValidationError: the name or a tensor is invalid, or the object does not accept attributes

    Example:
        >>> import numpy as np
        >>> from pytriton.model_config import Tensor
        >>> x, y = Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "y")
        >>> @declare(inputs=[x], outputs=[y])
        ... def double(requests):
        ...     return [{"y": 2 * request["x"]} for request in requests]
        >>> declaration_of(double).name
        'double'
    """

    if name is not None and not isinstance(name, str):
        raise PyTritonValidationError(
            f"The name of a declared model has to be a string, got {name!r}. "
            "Write @declare(inputs=[...], outputs=[...]) with parentheses."
        )

    def attach(target: _T) -> _T:
        from pytriton.model_config.triton_config import to_triton_config  # imports numpy

        if not callable(target):
            raise PyTritonValidationError(f"Only a callable can be declared, got {target!r}.")
        declaration = Declaration(
            name=default_model_name(target, "@declare(name=...)") if name is None else name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            config=config,
            strict=strict,
            options=dict(options),
        )
        # Raise here, on the line with the mistake, rather than at registration.
        validate_model_name(declaration.name)
        if inputs or outputs:  # A typed function has none.
            to_triton_config(declaration.name, inputs, outputs, config)
        try:
            setattr(target, _ATTRIBUTE, declaration)
        except AttributeError:
            raise PyTritonValidationError(
                f"A declaration cannot be attached to {target!r}: it does not accept attributes. "
                "Declare the function itself, or pass name, inputs and outputs when registering."
            ) from None
        return target

    return attach


def declaration_of(target: Any) -> Declaration | None:
    """Return the declaration attached to a callable; None if there is none.

    Decorators, bound methods and ``functools.partial`` are unwrapped; for a callable object, its class and the
    ``__call__`` of that are searched, too.
    """
    seen: set[int] = set()
    while target is not None and id(target) not in seen:
        seen.add(id(target))
        found = getattr(target, _ATTRIBUTE, None)
        if isinstance(found, Declaration):
            return found
        target = _underlying(target)
    return None


def validate_model_name(model_name: str) -> None:
    """Raise `PyTritonValidationError` unless the text is valid as a model name in Triton and as a folder name."""
    if not isinstance(model_name, str):
        raise PyTritonValidationError(f"Model name has to be a string, got {model_name!r}")
    if not model_name:
        raise PyTritonValidationError("Model name cannot be empty")
    if not _MODEL_NAME.fullmatch(model_name):
        raise PyTritonValidationError(
            "Model name can only contain alphanumeric characters, dots, underscores and dashes. "
            f"Got {model_name!r}"
        )
    if set(model_name) == {"."}:  # a folder is named after the model
        raise PyTritonValidationError(f"Model name cannot consist of dots only. Got {model_name!r}")


def default_model_name(target: Any, remedy: str = "model_name=") -> str:
    """Return the callable's own name, with characters not allowed in model names replaced by `_`.

    Args:
        target: the callable
        remedy: how the user passes a name, for error messages

    Raises:
        PyTritonValidationError: the callable has no usable name, such as a lambda
    """
    own = name_of(target)
    if own == "<lambda>":
        raise PyTritonValidationError(f"A lambda has no name to use for its model: pass {remedy}.")
    name = re.sub(r"[^a-zA-Z0-9._-]", "_", own)
    if not name.strip("._"):
        raise PyTritonValidationError(f"Cannot derive a model name from {own!r}: pass {remedy}.")
    return name


def _underlying(target: Any) -> Any:
    if isinstance(target, functools.partial):
        return target.func
    if inspect.isroutine(target):
        return getattr(target, "__wrapped__", None)
    call = called_function(target)
    return None if call is target else call
