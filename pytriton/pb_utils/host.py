"""The interface between `pb_utils` and the process that it runs in.

Outside of a worker, in a script or a test, the default holds: log lines go to standard error, metrics
count only for themselves, and what needs a tritonserver says that there is none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional

from pytriton.pb_utils.errors import TritonModelException

if TYPE_CHECKING:
    from pytriton._protocol.lanes.lane_messages import MetricUpdate
    from pytriton.pb_utils.requests import InferenceRequest


class Host:
    """The default: no tritonserver around.

    Attributes:
        model_dir: the folder that `model.py` lies in, if it is known.
        model_name: for errors.
    """

    model_dir: Optional[str] = None
    model_name: str = ""

    def log(self, line: str) -> None:
        """Write one line of the log, in the format of tritonserver's own."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def metric(self, update: MetricUpdate) -> None:
        """A custom metric has changed."""

    def delete_metric(self, update: MetricUpdate) -> None:
        """Note that a custom metric was deleted. The garbage collector may call this: it takes no lock."""

    def infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Have another model answer a request: return its response, or an iterator of them.

        Raises:
            TritonModelException: it cannot be asked.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    async def async_infer(self, request: InferenceRequest, *, decoupled: bool) -> Any:
        """Do the same as `infer` without blocking the event loop.

        Raises:
            TritonModelException: it cannot be asked.
        """
        raise TritonModelException(self._cannot("other models cannot be called"))

    def control(self, action: str, model_name: str, **arguments: Any) -> bool:
        """Have tritonserver "load" or "unload" a model, or tell whether it "is_ready".

        Raises:
            TritonModelException: it cannot, or will not.
        """
        raise TritonModelException(self._cannot(f"{action} of {model_name!r} is not possible"))

    def _cannot(self, what: str) -> str:
        return f"{what} here: this process has no connection to a tritonserver"


_current = Host()


def current() -> Host:
    """Return the host of this process."""
    return _current


def use(host: Host) -> None:
    """Take another host from now on."""
    global _current
    _current = host
