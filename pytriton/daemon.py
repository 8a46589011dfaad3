"""Talk to a running daemon: register callables as models, look at them, take them away.

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

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton._clash import clashing_distribution
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
    RegistrationError,
)
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure
from pytriton.ipc.rundir import ENV_RUNTIME_DIR, RuntimeDir, default_runtime_dir
from pytriton.progress import Report, reporter
from pytriton.registration import InferFn, make_registration

if TYPE_CHECKING:
    from pytriton.ipc.control import ControlClient
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.world import Environment, PathLike

__all__ = ["DaemonClient", "Model", "connect"]

#: How often a caller that waits for a daemon's answer looks whether the daemon still lives.
_LIFE_SIGN_S = 1.0
_MessageT = TypeVar("_MessageT", bound=messages.Message)


def connect(runtime_dir: PathLike | None = None, timeout_s: float = 5.0) -> DaemonClient:
    """Return a client of the daemon in a runtime directory.

    Args:
        runtime_dir: default: `$PYTRITON_DAEMON_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/pytriton-daemon`,
            `/run/pytriton-daemon` for root, or a folder of this user's among the temporary files
        timeout_s: seconds within which a daemon that is well answers

    Raises:
        DaemonNotRunningError: none runs there, or it does not answer; says where it was looked for.
        PyTritonDaemonError: `nvidia-pytriton` is installed in the same environment.
    """
    clash = clashing_distribution()
    if clash is not None:
        raise PyTritonDaemonError(clash)
    folder = Path(runtime_dir).expanduser().absolute() if runtime_dir else default_runtime_dir()
    client = DaemonClient(RuntimeDir(folder), timeout_s)
    client.status()
    return client


class Model:
    """A model that the daemon serves, by its name; its facts are asked for when they are read."""

    def __init__(self, client: DaemonClient, info: messages.ModelInfo) -> None:
        self._client = client
        self._info = info

    @property
    def name(self) -> str:
        """The model's name."""
        return self._info.name

    @property
    def version(self) -> int:
        """The version that is served."""
        return self._info.version

    @property
    def url(self) -> str:
        """The model over HTTP, e.g. `http://127.0.0.1:8000/v2/models/linear`; add `/infer` to a POST."""
        return self._info.url

    @property
    def grpc_url(self) -> str:
        """Where gRPC clients connect, e.g. `grpc://127.0.0.1:8001`; empty when gRPC is switched off."""
        return self._client.status().server.grpc_url

    @property
    def instances(self) -> list[messages.InstanceInfo]:
        """The instances as they are now: state, pid and device of each worker."""
        return self.info().instances

    def info(self) -> messages.ModelInfo:
        """Ask the daemon about the model.

        Raises:
            ModelNotFoundError: it is not served any more.
        """
        self._info = self._client.model_info(self.name)
        return self._info

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return when every instance is ready.

        Raises:
            ModelNotFoundError: the model is not served.
            PyTritonDaemonError: an instance has failed for good, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            instances = self.instances
            if all(instance.state == "ready" for instance in instances):
                return
            states = ", ".join(f"{one.index}: {one.state}" for one in instances)
            failed = [one for one in instances if one.state == "failed"]
            if failed or time.monotonic() > deadline:
                reason = failed[0].last_exit if failed else f"not within {timeout_s:g} s"
                raise PyTritonDaemonError(
                    f"model {self.name} is not ready ({states}): {reason}. See pytriton-daemon logs {self.name}"
                )
            time.sleep(0.05)  # the daemon tells when it is asked; nobody waits here but after a crash

    def unregister(self) -> None:
        """Stop serving the model: requests under way are answered, then its workers end."""
        self._client.unregister(self.name)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version}, url={self.url!r})"


class DaemonClient:
    """The daemon's control socket as methods. Safe to use from several threads, and after a fork.

    Made by `connect`. Every method raises DaemonNotRunningError when the daemon is gone.
    """

    def __init__(self, rundir: RuntimeDir, timeout_s: float) -> None:
        self._rundir = rundir
        self._timeout_s = timeout_s
        self._local = threading.local()

    def register(
        self,
        infer_fn: InferFn | Sequence[InferFn],
        model_name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        config: ModelConfig | None = None,
        *,
        instances: int | None = None,
        devices: Sequence[int | str | tuple[int, ...]] | None = None,
        factory: bool = False,
        python: PathLike | None = None,
        env: Environment = None,
        cwd: PathLike | None = None,
        sys_path: Sequence[PathLike] | None = None,
        strict: bool | None = None,
        model_version: int = 1,
        replace: bool = False,
        progress: bool | Report | None = None,
        load_timeout_s: float = 600.0,
    ) -> Model:
        """Serve a callable as a model; returns when it answers requests. All or nothing.

        Args:
            infer_fn: function, lambda, closure, method, callable object or coroutine function that takes a list of
                requests and returns a list of dicts (or is decorated, see pytriton.decorators); a class or, with
                `factory=True`, a function that makes such a callable inside the worker; or a list of them, one
                instance each
            model_name: letters, digits, dots, underscores, dashes; default: from `@declare`
            inputs: tensors it takes, without the batch axis; default: from `@declare`
            outputs: tensors it returns; default: from `@declare`
            config: batching and scheduling; default: from `@declare`, else ModelConfig()
            instances: worker processes; default 1, or as many as there are callables or devices
            devices: one instance per entry, which becomes its CUDA_VISIBLE_DEVICES: a number, a tuple of
                numbers, a UUID, or "cpu" to hide all GPUs
            factory: call `infer_fn` once in each worker, and serve what it returns
            python: another interpreter or environment for the workers; it needs numpy, pyzmq, msgspec and
                cloudpickle
            env: variables to set for the workers, or names of this process's variables to copy
            cwd: the workers' working directory; default: this process's
            sys_path: the workers' module search path; default: this process's
            strict: outputs must have exactly the declared dtype and shape
            model_version: the number in the model's URLs
            replace: put it in the place of a model of the same name, which serves until this one is ready
            progress: None shows a bar on a terminal, False nothing; a callable gets each `messages.Progress`
            load_timeout_s: seconds a worker may take to load the callable

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is wrong.
            PicklingError: the callable refers to something that cannot be sent to another process.
            ModelExistsError: the name is taken and `replace` was not given.
            RegistrationError: it failed in the worker or in tritonserver; carries the remote traceback.

        Example:
            >>> model = client.register(double, "double", [x], [y], instances=2)  # doctest: +SKIP
        """
        spec, payloads = make_registration(
            infer_fn,
            model_name,
            inputs,
            outputs,
            config,
            instances=instances,
            devices=devices,
            factory=factory,
            world_options={"python": python, "env": env, "cwd": cwd, "sys_path": sys_path},
            strict=strict,
            version=model_version,
            load_timeout_s=load_timeout_s,
        )
        with reporter(progress, spec.name) as report:
            message = messages.Register(spec, replace)
            answer = self._ask(message, messages.Registered, payloads, report, model=spec.name)
        return Model(self, answer.model)

    def models(self) -> list[Model]:
        """Return the models that are served, in the order of registration."""
        answer = self._ask(messages.ListModels(), messages.Models)
        return [Model(self, info) for info in answer.models]

    def model(self, name: str) -> Model:
        """Return a model by its name.

        Raises:
            ModelNotFoundError: it is not served; names those that are.
        """
        return Model(self, self.model_info(name))

    def model_info(self, name: str) -> messages.ModelInfo:
        """Return what the daemon knows of a model.

        Raises:
            ModelNotFoundError: it is not served; names those that are.
        """
        infos = self._ask(messages.ListModels(), messages.Models).models
        for info in infos:
            if info.name == name:
                return info
        known = ", ".join(info.name for info in infos) or "none"
        raise ModelNotFoundError(
            f"no model {name!r} is registered; registered models: {known}", model_name=name
        )

    def status(self) -> messages.Status:
        """Return how daemon, tritonserver, models and workers are."""
        return self._ask(messages.GetStatus(), messages.Status)

    def unregister(self, name: str) -> None:
        """Stop serving a model: requests under way are answered, then its workers end.

        Raises:
            ModelNotFoundError: it is not served.
        """
        self._ask(messages.Unregister(name), messages.Done, model=name)

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the newest log lines of a model, or of the daemon: JSON, one object each, oldest first.

        Raises:
            ModelNotFoundError: no such model is served.
        """
        return self._ask(messages.GetLogs(name, lines), messages.LogLines, model=name).lines

    def shutdown(self) -> None:
        """Stop the daemon in order, as SIGTERM does; returns when it has begun to."""
        self._ask(messages.Shutdown(), messages.Done)

    def close(self) -> None:
        """Close this thread's connection; the client stays usable."""
        control = self._local.__dict__.pop("control", None)
        if control is not None and self._local.__dict__.pop("pid", None) == os.getpid():
            control.close()

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DaemonClient({str(self._rundir.path)!r})"

    def _ask(
        self,
        message: messages.AnyMessage,
        answer_type: type[_MessageT],
        payloads: Sequence[bytes] = (),
        report: Callable[[messages.Progress], None] | None = None,
        model: str | None = None,
    ) -> _MessageT:
        """Return the daemon's answer, however long it takes while the daemon lives and is up to it."""
        from pytriton.ipc.control import ControlTimeout

        self._daemon_pid()
        quick = isinstance(message, (messages.GetStatus, messages.ListModels, messages.GetLogs))
        try:
            answer = self._control().ask(
                message,
                payloads,
                timeout_s=self._timeout_s if quick else None,
                on_progress=report,
                life_sign_s=_LIFE_SIGN_S,
                is_alive=lambda: self._rundir.running_pid() is not None,
            )
        except RemoteFailure as failure:
            raise _exception_of(failure, message, model) from None
        except (ControlTimeout, messages.MalformedMessage) as error:
            self.close()
            raise DaemonNotRunningError(f"the daemon in {self._rundir.path}: {error}") from None
        if not isinstance(answer, answer_type):
            raise PyTritonDaemonError(
                f"the daemon answered {type(answer).__name__} to {type(message).__name__}; restart it with the "
                "version of pytriton-daemon that is installed here"
            )
        return answer

    def _daemon_pid(self) -> int:
        pid = self._rundir.running_pid()
        if pid is None:
            raise DaemonNotRunningError(
                f"no daemon runs in the runtime directory {self._rundir.path}. Start one with "
                "`pytriton-daemon start --detach`, or name another daemon's directory with "
                f"connect(runtime_dir=...) or {ENV_RUNTIME_DIR}."
            )
        return pid

    def _control(self) -> ControlClient:
        """Return this thread's connection; ZeroMQ sockets belong to one thread and do not survive a fork."""
        from pytriton.ipc.control import ControlClient

        local = self._local.__dict__
        if "control" not in local or local["pid"] != os.getpid():
            local["control"] = ControlClient(self._rundir.control_endpoint)
            local["pid"] = os.getpid()
        control: ControlClient = local["control"]
        return control


def _exception_of(
    failure: RemoteFailure, message: messages.AnyMessage, model: str | None
) -> Exception:
    """Return the public exception for a failure that the daemon answered with."""
    if failure.kind is ErrorKind.EXISTS:
        return ModelExistsError(failure.text, model_name=model)
    if failure.kind is ErrorKind.NOT_FOUND:
        return ModelNotFoundError(failure.text, model_name=model)
    if isinstance(message, messages.Register):
        return RegistrationError(
            failure.text, model_name=model, remote_traceback=failure.traceback
        )
    if failure.kind is ErrorKind.INVALID:
        return PyTritonBadParameterError(failure.text)
    return PyTritonDaemonError(failure.text)
