"""Talk to a running daemon: register callables as models, list them, and unregister them.

Example::

    from pytriton.daemon import connect
    from pytriton.model_config import ModelConfig, Tensor

    client = connect()
    model = client.register(
        infer_fn,
        model_name="linear",
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=64),
        instances=2,
    )
    print(model.url)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from msgspec import structs

import pytriton._linux_only  # noqa: F401
from pytriton._clash import clashing_distribution
from pytriton._control.connection import Connection
from pytriton._control.daemon_view import DaemonLife, Report, reporter
from pytriton._control.remote_connection import RemoteConnection
from pytriton._protocol import messages
from pytriton._protocol.closeable import Closeable
from pytriton._protocol.files.rundir import RuntimeDir, clients_runtime_dir
from pytriton._register.python_models.register import PythonModelRegistration
from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
)
from pytriton.profiles import Profile
from pytriton.run_options import RegisterOptions, takes
from pytriton.served_model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton.fleet.addresses import Nodes
    from pytriton.fleet.client import FleetClient
    from pytriton.fleet.on_ray.client import RayFleetClient
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.run_options import StrPath

__all__ = ["DaemonClient", "Model", "connect"]

#: Timeout for the threads of an unregistered model, which only have to exit.
_THREADS_END_S = 5.0


@overload
def connect(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
) -> DaemonClient: ...


@overload
def connect(
    *, nodes: Nodes, timeout_s: float = 5.0, key_file: str | Path | None = None
) -> FleetClient: ...


@overload
def connect(*, fleet: str, ray_address: str | None = None) -> RayFleetClient: ...


def connect(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
    nodes: Nodes | None = None,
    fleet: str | None = None,
    ray_address: str | None = None,
) -> DaemonClient | FleetClient | RayFleetClient:
    """Return a client of the daemon in a runtime directory or at an address, or of the daemons of several nodes.

    Args:
        runtime_dir: default: `$PYTRITON_DAEMON_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/pytriton-daemon`,
            `/run/pytriton-daemon` for root, or a folder of this user in the temporary directory;
            or `tcp://HOST:PORT` of a daemon with `control_tcp`, see docs/operations/security.md
        timeout_s: seconds within which a healthy daemon responds
        key_file: for `tcp://`: the file written by `pytriton-daemon keys add`
        nodes: instead of `runtime_dir`: `dns:NAME[:PORT]`, or a list of HOST[:PORT], see docs/operations/fleet.md;
            the nodes are not contacted yet
        fleet: instead of both: the name of a fleet on a Ray cluster
        ray_address: address of that cluster; default: the cluster of this machine

    Raises:
        DaemonNotRunningError: no daemon runs there, or it does not respond; names the places tried.
        PyTritonDaemonError: `nvidia-pytriton` is installed in the same environment, or the daemon
            at an address refuses the key.
    """
    clash = clashing_distribution()
    if clash is not None:
        raise PyTritonDaemonError(clash)
    if fleet is not None:
        from pytriton.fleet.on_ray.client import RayFleetClient

        return RayFleetClient(fleet, ray_address)
    if nodes is not None:
        return _fleet(nodes, runtime_dir, timeout_s, key_file)
    connection: Connection | RemoteConnection
    if str(runtime_dir).startswith("tcp://"):
        connection = RemoteConnection(str(runtime_dir), key_file, timeout_s)
    else:
        folder = Path(runtime_dir).expanduser().absolute() if runtime_dir else clients_runtime_dir()
        connection = Connection(RuntimeDir(folder))
    client = DaemonClient(connection, timeout_s)
    client.status()
    return client


def _fleet(
    nodes: Nodes, runtime_dir: StrPath | None, timeout_s: float, key_file: str | Path | None
) -> FleetClient:
    from pytriton.fleet.client import FleetClient

    if runtime_dir is not None:
        raise PyTritonBadParameterError(
            "connect() takes either runtime_dir, for one daemon, or nodes, for several."
        )
    return FleetClient(nodes, timeout_s, key_file)


class DaemonClient(PythonModelRegistration, DaemonLife, Closeable):
    """The daemon's control socket as methods. Safe to use from several threads and after a fork.

    Create it with `connect`. Every method raises DaemonNotRunningError if the daemon is gone.
    """

    @takes(RegisterOptions)
    def register(
        self,
        infer_fn: Target | Sequence[Target],
        model_name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        config: ModelConfig | None = None,
        *,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterOptions],
    ) -> Model:
        """Serve a callable as a model. Return when it is ready for requests; on failure nothing changes.

        Arguments that are None default to the callable's `@declare`, else to the value in brackets below.
        docs/how-to/registering.md shows every option.

        Args:
            infer_fn: any callable that takes a list of requests and returns a list of dicts (or is
                decorated, see pytriton.decorators), or a list of callables: one instance each. A
                class is called once in each worker
            model_name: letters, digits, dots, underscores, dashes (the callable's own name)
            inputs: the model's input tensors, without the batch axis
            outputs: the model's output tensors
            config: batching, queueing and more (``ModelConfig()``)
            progress: None shows a bar on a terminal, False nothing; a callable receives every
                `messages.Progress`
            options: how the model runs: `instances`, `devices`, `python`, `env`, `limits` and more, each described in
                `pytriton.run_options` and by `help(DaemonClient.register)`

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is invalid.
            PicklingError: the callable refers to something that cannot be sent to another process.
            ModelExistsError: the name is taken and `replace` was not set.
            RegistrationError: the model failed to load in the worker or in tritonserver; carries the remote
                traceback.

        Example:
            >>> model = client.register(double, "double", [x], [y], instances=2)  # doctest: +SKIP
        """
        from pytriton._register.message import plan

        planned = plan(infer_fn, model_name, inputs, outputs, config, options)
        name = planned.message.spec.name
        if planned.message.spec.isolation == "thread":
            from pytriton._register import thread_host

            return Model(self, thread_host.register(self._connection, planned, progress))
        payloads = planned.payloads()
        with reporter(progress, name) as report:
            return self.register_prepared(planned.message, payloads, report)

    def register_prepared(
        self, message: messages.Register, payloads: Sequence[bytes], report: Report | None = None
    ) -> Model:
        """Serve a prepared registration, or one returned by `registrations(payloads=True)` of another daemon.

        Raises:
            ModelExistsError, RegistrationError: as `register`.
        """
        name = message.spec.name
        answer = self._ask(message, messages.Registered, payloads, report, model=name)
        return Model(self, answer.model)

    def models(self) -> list[Model]:
        """Return the served models: registered ones in order of registration, then tritonserver's own."""
        answer = self._ask(messages.ListModels(), messages.Models)
        return [Model(self, info) for info in answer.models]

    def model(self, name: str) -> Model:
        """Return a model by its name.

        Raises:
            ModelNotFoundError: the model is not served; the error names the served models.
        """
        return Model(self, self.model_info(name))

    def unregister(self, name: str) -> None:
        """Stop serving a model: in-flight requests are answered, then its workers exit.

        Raises:
            ModelNotFoundError: the model is not served.
        """
        hosts = [host for host in self._hosts() if host.model == name]
        for host in hosts:
            host.expected = True
        try:
            self._ask(messages.Unregister(name), messages.Done, model=name)
        except BaseException:
            for host in hosts:
                host.expected = False
            raise
        for host in hosts:
            host.join(_THREADS_END_S)

    def scale(
        self, name: str, instances: Instances, progress: bool | Report | None = None
    ) -> Model:
        """Change the number of instances of a model. Return when the new instances serve.

        New workers load beside the old ones; removed workers finish their batch first. No request fails.
        Instances that have no worker because it kept crashing are restarted now.

        Args:
            name: name of a registered model
            instances: number of instances, from 1; devices are assigned in turn. Or a minimum and a maximum, such as
                (1, 8), or `pytriton.Autoscale(...)` to follow the load from then on
            progress: as for `register`

        Raises:
            PyTritonValidationError: `instances` is invalid.
            ModelNotFoundError: the model is not served.
            RegistrationError: a new worker could not be loaded, or the number is not possible; nothing has changed.
                Or the number was changed, but an instance that had no worker could not be restarted.
        """
        with reporter(progress, name) as report:
            autoscale = autoscale_of(instances)
            count = 0 if autoscale is not None else int(cast(int, instances))
            return self.scale_prepared(messages.Scale(name, count, autoscale), report)

    def scale_prepared(self, message: messages.Scale, report: Report | None = None) -> Model:
        """Send a prepared message, such as one with the numbers from `registrations()`; raises as `scale`."""
        answer = self._ask(message, messages.Registered, (), report, model=message.name)
        return Model(self, answer.model)

    def log_requests(self, name: str, on: bool = True) -> None:
        """Turn the access log of a model on or off: one line for each request.

        Takes effect without new workers and survives a restart of the daemon. docs/operations/operations.md
        describes the fields.

        Raises:
            ModelNotFoundError: no such model is served by workers.
        """
        self._ask(messages.LogRequests(name, on), messages.Done, model=name)

    def profile(self, name: str, seconds: float = 10.0, instance: int | None = None) -> Profile:
        """Profile the worker of an instance with 100 samples per second, while it serves.

        The daemon runs py-spy for this (`pip install py-spy` where the daemon is installed).

        Args:
            name: name of a registered model
            seconds: duration in whole seconds, from 1 to 300
            instance: index of the instance; default: the first one that serves

        Returns:
            the samples: `shares()` returns the share of time by activity, `svg()` a flame graph

        Raises:
            ModelNotFoundError: no such model is served by workers.
            PyTritonDaemonError: py-spy is missing or not allowed to attach to the worker, or the worker has exited.

        Example:
            >>> client.profile("linear", seconds=5).shares()  # doctest: +SKIP
            {'callable': 0.61, 'libraries': 0.2, 'pytriton': 0.03, 'waiting for requests': 0.16}
        """
        message = messages.ProfileWorker(name, seconds, instance)
        answer = self._ask(message, messages.Profiled, model=name)
        return Profile(model=name, **structs.asdict(answer))

    def rollback(self, name: str, progress: bool | Report | None = None) -> Model:
        """Restore what a model was before its last replacement. Calling it twice restores the current model.

        As with ``register(..., replace=True)``, the current model serves until the other is ready.

        Raises:
            ModelNotFoundError: the model is not served.
            RegistrationError: it was never replaced, or the previous model cannot be loaded; nothing has changed.
        """
        with reporter(progress, name) as report:
            message = messages.Rollback(name)
            answer = self._ask(message, messages.Registered, (), report, model=name)
        return Model(self, answer.model)

    def renew_lease(self, name: str, lease: str, share: float | None = None) -> None:
        """Renew the lease of a provisional registration; see `pytriton._protocol.messages.Lease`.

        Raises:
            ModelNotFoundError: the model has no such lease (any more).
        """
        self._ask(messages.RenewLease(name, lease, share), messages.Done, model=name)

    def end_lease(self, name: str, lease: str, *, keep: bool) -> None:
        """Confirm a provisional registration, or roll it back to the model that it replaced.

        Raises:
            ModelNotFoundError: the model has no such lease (any more).
            PyTritonDaemonError: the change failed; the registration is rolled back when its lease expires.
        """
        self._ask(messages.EndLease(name, lease, keep), messages.Done, model=name)

    def load_model(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Load or reload a model of a model repository. A loaded version serves until the new one is ready.

        Args:
            name: name of the model's folder
            config: a configuration (config.pbtxt as JSON) that overrides the model's own

        Raises:
            ModelNotFoundError: no repository contains the model.
            RegistrationError: it cannot be loaded; a loaded version keeps serving.
        """
        document = None if config is None else dict(config)
        message = messages.LoadFromRepository(name, document)
        self._ask(message, messages.Done, model=name)

    def unload_model(self, name: str) -> None:
        """Stop serving a model of a model repository; in-flight requests are answered.

        Raises:
            ModelNotFoundError: the model is not loaded, or is not from a repository.
        """
        self._ask(messages.UnloadFromRepository(name), messages.Done, model=name)

    def close(self) -> None:
        """Unregister the models that run in threads of this process; all others stay registered.

        The client holds no other resources between calls.
        """
        for host in self._hosts():
            with contextlib.suppress(DaemonNotRunningError, ModelNotFoundError):  # already gone
                self.unregister(host.model)
