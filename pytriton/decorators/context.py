"""`TritonContext`: gives decorators the configuration of their model.

A worker serves one model, so its process has one current configuration: it calls `set_triton_context`
once, before the first request. If a process (a test, a script) has several callables, the configuration of
each one is found by the callable. A worker that runs in a thread sets the configuration of its thread
(`serve_in_thread`).

PyTriton keeps the context in an attribute ``__triton_context__`` of the callable, or of a method's object.
Code that sets this attribute is supported: the attribute takes precedence, no matter which layer of a stack
of decorators has it, including the undecorated function.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from pytriton import request_ids
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = [
    "CONTEXT_ATTRIBUTE",
    "ModelConfigDict",
    "TritonContext",
    "find_model_config",
    "get_model_config",
    "get_triton_context",
    "set_triton_context",
]

CONTEXT_ATTRIBUTE = "__triton_context__"


class ModelConfigDict(MutableMapping[Callable[..., Any], TritonModelConfig]):
    """Mapping of callables to model configurations. Keys are compared by identity and need not be hashable.

    A decorated function and the function itself are the same key. So are all bound-method objects that Python
    creates for the same method of the same object.
    """

    def __init__(self) -> None:
        # Keep a reference to the callable: its id is valid only while the object exists.
        self.entries: dict[tuple[int, ...], tuple[Callable[..., Any], TritonModelConfig]] = {}

    def __getitem__(self, key: Callable[..., Any]) -> TritonModelConfig:
        try:
            return self.entries[_identity(key)][1]
        except KeyError:
            raise KeyError(key) from None

    def __setitem__(self, key: Callable[..., Any], config: TritonModelConfig) -> None:
        self.entries[_identity(key)] = (key, config)

    def __delitem__(self, key: Callable[..., Any]) -> None:
        try:
            del self.entries[_identity(key)]
        except KeyError:
            raise KeyError(key) from None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter([key for key, _ in self.entries.values()])

    def __reduce__(self) -> tuple[Any, ...]:
        # Ids are meaningless in another process, so pickle pairs of callable and configuration.
        return (_restore_configs, (list(self.entries.values()),))


def _restore_configs(
    pairs: list[tuple[Callable[..., Any], TritonModelConfig]],
) -> ModelConfigDict:
    configs = ModelConfigDict()
    configs.update(pairs)
    return configs


def _identity(key: Callable[..., Any]) -> tuple[int, ...]:
    if inspect.ismethod(key):
        return (id(key.__self__), id(_innermost(key.__func__)))
    return (id(_innermost(key)),)


def _innermost(callable_: Any) -> Any:
    while inspect.isfunction(callable_) and "__wrapped__" in callable_.__dict__:
        callable_ = callable_.__dict__["__wrapped__"]
    return callable_


class TritonContext:
    """The configuration of the model being served, and the IDs of the current requests.

    The ``@triton_context`` decorator passes it to the callable.

    Attributes:
        model_configs: configuration of every callable that this process serves
    """

    def __init__(self, model_configs: ModelConfigDict | None = None) -> None:
        self.model_configs = ModelConfigDict() if model_configs is None else model_configs
        self._current: TritonModelConfig | None = None

    @property
    def model_config(self) -> TritonModelConfig:
        """The configuration of the model being served.

        Raises:
            PyTritonValidationError: no model is being served in this process
        """
        found = self.find()
        if found is None:
            raise _not_served()
        return found

    @property
    def request_id(self) -> str:
        """The IDs of the requests in the current call, joined by commas; empty outside of a call."""
        return request_ids.request_id()

    @property
    def request_ids(self) -> list[str]:
        """The IDs of the requests in the current call."""
        return request_ids.request_ids()

    def find(self, *candidates: Callable[..., Any] | None) -> TritonModelConfig | None:
        """Return the configuration of the first candidate that has one, else that of the model being served, else
        None.
        """
        if self is _process_context and hasattr(_thread_context, "config"):
            return _thread_context.config  # type: ignore[no-any-return]
        if self._current is not None and len(self.model_configs.entries) <= 1:
            return self._current  # hot path of a worker
        for candidate in candidates:
            if candidate is not None and candidate in self.model_configs:
                return self.model_configs[candidate]
        if self._current is not None:
            return self._current
        configs = list(self.model_configs.values())
        return configs[0] if len(configs) == 1 else None

    def serve(self, callable_: Callable[..., Any], model_config: TritonModelConfig) -> None:
        """Record the configuration of a callable and make it the current one."""
        self.model_configs[callable_] = model_config
        self._current = model_config


_process_context = TritonContext()
#: `config` is the configuration of the model that the current thread serves.
_thread_context = threading.local()


def set_triton_context(
    callable_: Callable[..., Any], model_config: TritonModelConfig
) -> TritonContext:
    """Set the configuration of the model that this process serves. Called by the worker, and in unit tests.

    Args:
        callable_: the inference callable, decorated or not
        model_config: the model's configuration

    Returns:
        the context that decorated callables receive
    """
    _process_context.serve(callable_, model_config)
    return _process_context


def serve_in_thread(callable_: Callable[..., Any], model_config: TritonModelConfig) -> None:
    """Set the configuration of the model that this thread serves. Other threads find it by the callable.

    Called by a worker that runs in a thread.
    """
    _thread_context.config = model_config
    _process_context.model_configs[callable_] = model_config


def stop_serving_in_thread(callable_: Callable[..., Any], model_config: TritonModelConfig) -> None:
    """Undo `serve_in_thread`, but keep the callable's configuration if it has been replaced."""
    vars(_thread_context).pop("config", None)
    if _process_context.model_configs.get(callable_) is model_config:
        del _process_context.model_configs[callable_]


def _not_served() -> PyTritonValidationError:
    return PyTritonValidationError(
        "No model configuration is available, because the callable is not being served. Bind it to a "
        "Triton, or register it. In tests, call "
        "pytriton.decorators.set_triton_context(callable, TritonModelConfig(...))."
    )


def _context_of(wrapped: Callable[..., Any], instance: Any | None) -> Any:
    """Return the context that was set manually, which may be of any type, or else this process's context."""
    owners = (wrapped,) if instance is None else (instance, wrapped)
    for owner in owners:
        layer: Any = owner
        while layer is not None:
            context = getattr(layer, CONTEXT_ATTRIBUTE, None)
            if context is not None:
                return context
            # All layers of a stack of decorators are functions.
            layer = layer.__dict__.get("__wrapped__") if inspect.isfunction(layer) else None
    return _process_context


def get_triton_context(wrapped: Callable[..., Any], instance: Any | None = None) -> TritonContext:
    """Return the context of a decorated callable; for custom decorators.

    Args:
        wrapped: the decorated function
        instance: if `wrapped` is a method, the object it belongs to

    Raises:
        PyTritonValidationError: the callable is not being served, and no context was set
    """
    context: TritonContext = _context_of(wrapped, instance)
    if context is _process_context and find_model_config(wrapped, instance) is None:
        raise _not_served()
    return context


def find_model_config(
    wrapped: Callable[..., Any], instance: Any | None = None
) -> TritonModelConfig | None:
    """Return the configuration of the model that a decorated callable serves; None if no model is being served."""
    context = _context_of(wrapped, instance)
    if not isinstance(context, TritonContext):  # for example a test's own object
        found: TritonModelConfig | None = getattr(context, "model_config", None)
        return found
    if instance is None:
        return context.find(wrapped)
    # One object may serve several models with different methods, so try the method before the object.
    method = getattr(wrapped, "__get__", lambda owner: wrapped)(instance)
    return context.find(method, instance if callable(instance) else None, wrapped)


def get_model_config(wrapped: Callable[..., Any], instance: Any | None = None) -> TritonModelConfig:
    """Return the configuration of the model that a decorated callable serves; for custom decorators.

    Args:
        wrapped: the decorated function
        instance: if `wrapped` is a method, the object it belongs to

    Raises:
        PyTritonValidationError: no model is being served in this process
    """
    found = find_model_config(wrapped, instance)
    if found is None:
        raise _not_served()
    return found
