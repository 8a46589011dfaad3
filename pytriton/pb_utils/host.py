"""`Host`: the interface between `pb_utils` and the process that uses it.

Outside of a worker, in a script or a test, the default is used: log lines go to standard error, metrics are counted
only in this process, and calls that need tritonserver raise an exception.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional

from pytriton.pb_utils.errors import TritonModelException

if TYPE_CHECKING:
    from pytriton._protocol.lanes.lane_messages import MetricUpdate
    from pytriton.pb_utils.requests import InferenceRequest


class Host:
    """The default host, for use without a tritonserver.

    Attributes:
        model_dir: folder of `model.py`, if known.
        model_name: name of the model, for error messages.
    """

    model_dir: Optional[str] = None
    model_name: str = ""

    def log(self, line: str) -> None:
        """Write a log line that is already in tritonserver's format."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def metric(self, update: MetricUpdate) -> None:
        """Report a change to a custom metric."""

    def delete_metric(self, update: MetricUpdate) -> None:
        """Report the deletion of a custom metric. Must not take a lock, because the garbage collector may call this."""

    def infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Send a request to another model. Return the response, or an iterator over the responses of a decoupled model.

        Raises:
            TritonModelException: the request cannot be sent.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    async def async_infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Send a request to another model without blocking the event loop; see `infer`.

        Raises:
            TritonModelException: the request cannot be sent.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    def control(self, action: str, model_name: str, **arguments: Any) -> bool:
        """Request an action for a model: "load", "unload", or "is_ready", which returns whether it is ready.

        Raises:
            TritonModelException: the action is not possible, or the daemon rejected it.
        """
        raise TritonModelException(self._cannot(f"{action} of {model_name!r} is not possible"))

    def _cannot(self, what: str) -> str:
        return f"{what} here: this process is not connected to tritonserver"


_current = Host()


def current() -> Host:
    """Return the host of this process."""
    return _current


def use(host: Host) -> None:
    """Set the host of this process."""
    global _current
    _current = host
