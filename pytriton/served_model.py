"""`Model`: a handle to a model that a daemon serves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.autoscale import Instances
from pytriton.exceptions import PyTritonDaemonError

if TYPE_CHECKING:
    from pytriton._protocol import messages
    from pytriton.daemon_client import DaemonClient

#: States of an instance that will never be "ready" again.
_FINAL_STATES = ("failed", "stopping", "stopped")


class Model:
    """A model that the daemon serves. Most properties query the daemon when they are read."""

    def __init__(self, client: DaemonClient, info: messages.ModelInfo) -> None:
        self._client = client
        self._info = info

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._info.name

    @property
    def version(self) -> int:
        """The version that is being served."""
        return self._info.version

    @property
    def url(self) -> str:
        """The model's HTTP address, e.g. `http://127.0.0.1:8000/v2/models/linear`.

        Inference requests go to this address + `/infer`.
        """
        return self._info.url

    @property
    def grpc_url(self) -> str:
        """The URL for gRPC clients, e.g. `grpc://127.0.0.1:8001`; empty if gRPC is disabled.

        With TLS, it begins with `grpcs://`.
        """
        return self._client.status().server.grpc_url

    @property
    def instances(self) -> list[messages.InstanceInfo]:
        """The current instances, with the state, PID and device of each worker."""
        return self.info().instances

    def info(self) -> messages.ModelInfo:
        """Query the daemon for the current state of the model.

        Raises:
            ModelNotFoundError: the model is no longer served.
        """
        self._info = self._client.model_info(self.name)
        return self._info

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until tritonserver and all instances are ready, except instances that have failed permanently.

        `register` returns a model that is already ready. Use this method after a crash of a worker or of
        tritonserver. A suspended model counts as ready, because its next request resumes it.

        Raises:
            ModelNotFoundError: the model is not served.
            PyTritonDaemonError: all instances have failed permanently, or the timeout expired.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = self._client.status()
            self._info = self._client.model_info(self.name, status.models)
            states = [instance.state for instance in self._info.instances]
            if self._info.served_by == "tritonserver":  # no instances of ours to check
                states = [self._info.state]
            changing = [state for state in states if state not in ("ready", *_FINAL_STATES)]
            changing += [self._info.state] if self._info.state in ("restoring", "loading") else []
            if status.server.state == "ready" and self._info.state == "suspended":
                return
            up = status.server.state == "ready" and self._info.state in ("ready", "degraded")
            if up and not changing and "ready" in states:
                return
            if "ready" not in states and not changing:
                raise PyTritonDaemonError(
                    f"Model {self.name!r} cannot become ready: {self._describe_instances()}"
                )
            if time.monotonic() > deadline:
                raise PyTritonDaemonError(
                    f"Model {self.name!r} is not ready after {timeout_s:g} s: tritonserver is "
                    f"{status.server.state}, the model is {self._info.state}; {self._describe_instances()}"
                )
            time.sleep(0.05)  # the daemon does not push state changes

    def _describe_instances(self) -> str:
        instances = ", ".join(
            f"instance {one.index} is {one.state}"
            + (f" ({one.last_exit})" if one.last_exit else "")
            for one in self._info.instances
        )
        return f"{instances or self._info.error or self._info.state}. See `pytriton-daemon logs {self.name}`."

    def scale(self, instances: Instances) -> None:
        """Change the number of instances of the model; see `DaemonClient.scale`."""
        self._client.scale(self.name, instances)

    def rollback(self) -> None:
        """Restore the version that the model had before its last replacement; see `DaemonClient.rollback`."""
        self._client.rollback(self.name)

    def unregister(self) -> None:
        """Stop serving the model. In-flight requests are answered, then its workers exit."""
        self._client.unregister(self.name)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version}, url={self.url!r})"
