"""`Request`, a client's request as passed to an inference callable, and `Response`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton import request_ids
from pytriton.proxy.telemetry import get_telemetry_tracer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Request", "Requests", "Response", "Responses"]


class _Named(MutableMapping[str, "NDArray[Any]"]):
    """A mapping of names to arrays. Instances are compared by identity, because comparing arrays would be expensive."""

    __slots__ = ()

    data: dict[str, NDArray[Any]]

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.data[name]

    def __setitem__(self, name: str, value: NDArray[Any]) -> None:
        self.data[name] = value

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self.data.keys()

    def items(self) -> ItemsView[str, NDArray[Any]]:
        """Return pairs of name and array."""
        return self.data.items()

    def values(self) -> ValuesView[NDArray[Any]]:
        """Return the arrays."""
        return self.data.values()


# __init__ and __slots__ are not generated, because an object is created for each request on the hot path, and
# Python 3.9 does not have dataclass(slots=True).
@dataclass(init=False, eq=False)
class Request(_Named):
    """The inputs of a client's request: a mapping of input name to array.

    A request is not a dict: ``{**request}`` works, but ``isinstance(request, dict)`` is False.

    Args:
        data: input name -> array, whose first axis is the batch axis if the model batches. Optional inputs that the
            client did not send are missing.
        parameters: request parameters and forwarded headers (str, int, bool or float values)
        span: OpenTelemetry span of the request, if it is traced
        requested_output_names: names of the outputs that the client requested; None: all
        cancelled: function that returns whether the client has disconnected; see `is_cancelled`
        origin: the request's ID, or the worker's reference to the request; see `request_id`

    Example:
        >>> import numpy as np
        >>> request = Request({"x": np.zeros((1, 2))}, parameters={"scale": 2})
        >>> list(request), request["x"].shape, request.parameters["scale"]
        (['x'], (1, 2), 2)
    """

    __slots__ = ("_origin", "cancelled", "data", "parameters", "requested_output_names", "span")

    data: dict[str, NDArray[Any]]
    parameters: dict[str, Any] | None
    span: Any | None
    requested_output_names: list[str] | None

    def __init__(
        self,
        data: dict[str, NDArray[Any]],
        parameters: dict[str, Any] | None = None,
        span: Any | None = None,
        requested_output_names: list[str] | None = None,
        cancelled: Callable[[], bool] | None = None,
        origin: Any = None,
    ) -> None:
        self._origin = origin
        self.cancelled = cancelled
        self.data = data
        self.parameters = parameters
        self.span = span
        self.requested_output_names = requested_output_names

    @property
    def request_id(self) -> str:
        """The request's ID: set by the client, taken from its headers, or generated. See `pytriton.request_ids`.

        The log shows this ID when the request fails. The ID of a manually created request is "".
        """
        if self._origin is None:
            return ""
        if not isinstance(self._origin, str):
            self._origin = request_ids.name_of(self._origin)
        return self._origin

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled, in which case the response is no longer needed.

        This works for requests to decoupled models, with a delay of about a quarter of a second. A generator whose
        clients have all disconnected is closed at its next ``yield``. Call this method in long computations between
        two ``yield``s.
        """
        return self.cancelled is not None and self.cancelled()

    @contextlib.contextmanager
    def traced_span(self, span_name: str, **attributes: Any) -> Iterator[Any | None]:
        """Run a block in a child span of this request's span. Do nothing if the request is not traced.

        Args:
            span_name: name of the new span
            attributes: attributes of the span

        Yields:
            the OpenTelemetry span, or None if the request is not traced
        """
        if self.span is None:
            yield None
            return
        trace = importlib.import_module("opentelemetry.trace")
        tracer = get_telemetry_tracer() or trace.get_tracer("pytriton")
        context = trace.set_span_in_context(self.span)
        with tracer.start_as_current_span(
            span_name, context=context, attributes=attributes or None
        ) as span:
            yield span


@dataclass(eq=False)
class Response(_Named):
    """The outputs for one request. A callable may return it instead of a dict.

    Args:
        data: output name -> array, whose first axis is the batch axis if the model batches
    """

    __slots__ = ("data",)

    data: dict[str, NDArray[Any]]


#: Argument and return types of an undecorated callable.
Requests = list[Request]
Responses = list[Response]
