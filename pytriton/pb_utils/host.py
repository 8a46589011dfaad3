"""The interface between `pb_utils` and its process.

Outside of a worker, in a script or a test, the default applies: log lines go to standard error, metrics
are only counted locally, and calls that need a tritonserver raise.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional

from pytriton.pb_utils.errors import TritonModelException

if TYPE_CHECKING:
    from pytriton._protocol.lanes.lane_messages import MetricUpdate
    from pytriton.pb_utils.requests import InferenceRequest


class Host:
    """The default host, without a tritonserver.

    Attributes:
        model_dir: the folder of `model.py`, if known.
        model_name: name of the model, for errors.
    """

    model_dir: Optional[str] = None
    model_name: str = ""

    def log(self, line: str) -> None:
        """Write one log line in tritonserver's format."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def metric(self, update: MetricUpdate) -> None:
        """Report a change of a custom metric."""

    def delete_metric(self, update: MetricUpdate) -> None:
        """Note that a custom metric was deleted. The garbage collector may call this: it takes no lock."""

    def infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Send a request to another model: return its response, or an iterator over its responses.

        Raises:
            TritonModelException: the request cannot be sent.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    async def async_infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Like `infer`, without blocking the event loop.

        Raises:
            TritonModelException: the request cannot be sent.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    def control(self, action: str, model_name: str, **arguments: Any) -> bool:
        """Make tritonserver "load" or "unload" a model, or return whether it "is_ready".

        Raises:
            TritonModelException: not possible, or refused.
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
