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

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytriton._clash import clashing_distribution
from pytriton.connection import Connection, MessageT, exception_of, expected
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelNotFoundError,
    PyTritonDaemonError,
)
from pytriton.ipc import messages
from pytriton.ipc.access import access_headers
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.rundir import RuntimeDir, default_runtime_dir
from pytriton.progress import Report, reporter
from pytriton.remote import RemoteConnection

if TYPE_CHECKING:
    from pytriton.hosting import Host
    from pytriton.limits import Limits
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.python_models import ConfigSource, ModelSource
    from pytriton.registration import Device, Target
    from pytriton.world import Env, StrPath

__all__ = ["DaemonClient", "Model", "connect"]

#: States of an instance that do not become "ready" any more.
_AT_AN_END = ("failed", "stopping", "stopped")
#: After a model was unregistered, its threads have nothing to do but to end.
_THREADS_END_S = 5.0
_REGISTERING = (
    messages.Register,
    messages.Scale,
    messages.Rollback,
    messages.LoadFromRepository,
)


def connect(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
) -> DaemonClient:
    """Return a client of the daemon in a runtime directory, or at an address.

    Args:
        runtime_dir: default: `$PYTRITON_DAEMON_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/pytriton-daemon`,
            `/run/pytriton-daemon` for root, or a folder of this user's among the temporary files;
            or `tcp://HOST:PORT` of a daemon with `control_tcp`, see docs/security.md
        timeout_s: seconds within which a daemon that is well answers
        key_file: for `tcp://`: what `pytriton-daemon keys add` wrote

    Raises:
        DaemonNotRunningError: none runs there, or it does not answer; says where it was looked for.
        PyTritonDaemonError: `nvidia-pytriton` is installed in the same environment, or the daemon
            at an address refuses the key.
    """
    clash = clashing_distribution()
    if clash is not None:
        raise PyTritonDaemonError(clash)
    connection: Connection | RemoteConnection
    if str(runtime_dir).startswith("tcp://"):
        connection = RemoteConnection(str(runtime_dir), key_file, timeout_s)
    else:
        folder = Path(runtime_dir).expanduser().absolute() if runtime_dir else default_runtime_dir()
        connection = Connection(RuntimeDir(folder))
    client = DaemonClient(connection, timeout_s)
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
        """Its HTTP address, e.g. `http://127.0.0.1:8000/v2/models/linear`; POST to it + `/infer`."""
        return self._info.url

    @property
    def grpc_url(self) -> str:
        """Where gRPC clients connect, e.g. `grpc://127.0.0.1:8001`; empty when it is off.

        With TLS it begins with `grpcs://`.
        """
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
        """Return when tritonserver is up and every instance that has not failed for good is ready.

        `register` returns a ready model; this is for after a crash of a worker or of tritonserver.

        Raises:
            ModelNotFoundError: the model is not served.
            PyTritonDaemonError: all instances have failed for good, or it is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = self._client.status()
            self._info = self._client.model_info(self.name, status.models)
            native = self._info.served_by == "tritonserver"  # no instances of ours to look at
            states = [self._info.state] if native else self._states()
            changing = [state for state in states if state not in ("ready", *_AT_AN_END)]
            changing += [self._info.state] if self._info.state == "restoring" else []
            up = status.server.state == self._info.state == "ready"
            if up and not changing and "ready" in states:
                return
            if "ready" not in states and not changing:
                raise PyTritonDaemonError(f"Model {self.name!r} will not be ready: {self._story()}")
            if time.monotonic() > deadline:
                raise PyTritonDaemonError(
                    f"Model {self.name!r} is not ready after {timeout_s:g} s: tritonserver is "
                    f"{status.server.state}, the model is {self._info.state}; {self._story()}"
                )
            time.sleep(0.05)  # the daemon sends no news of its own accord

    def _states(self) -> list[str]:
        return [instance.state for instance in self._info.instances]

    def _story(self) -> str:
        instances = ", ".join(
            f"instance {one.index} is {one.state}"
            + (f" ({one.last_exit})" if one.last_exit else "")
            for one in self._info.instances
        )
        return f"{instances or self._info.error or self._info.state}. See `pytriton-daemon logs {self.name}`."

    def scale(self, instances: int) -> None:
        """Serve the model with another number of instances; see `DaemonClient.scale`."""
        self._client.scale(self.name, instances)

    def rollback(self) -> None:
        """Put back what the model was before it was last replaced; see `DaemonClient.rollback`."""
        self._client.rollback(self.name)

    def unregister(self) -> None:
        """Stop serving the model: requests under way are answered, then its workers end."""
        self._client.unregister(self.name)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version}, url={self.url!r})"


class DaemonClient:
    """The daemon's control socket as methods. For any number of threads, and after a fork.

    Made by `connect`. Every method raises DaemonNotRunningError when the daemon is gone.
    """

    def __init__(self, connection: Connection | RemoteConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    @property
    def access_token(self) -> str | None:
        """The token that Triton's restricted endpoints ask for; None when the daemon has none.

        Raises:
            DaemonNotRunningError: no daemon runs, or its runtime directory is another user's.
            PyTritonDaemonError: the token belongs to another user, or lies on another machine.
        """
        return self._connection.access_token()

    def access_headers(self, grpc: bool = False) -> dict[str, str]:
        """Return what a request to a restricted endpoint of Triton has to carry.

        Args:
            grpc: metadata of gRPC instead of headers of HTTP

        Raises:
            DaemonNotRunningError, PyTritonDaemonError: as `access_token`.

        Example:
            >>> statistics = tritonclient.http.InferenceServerClient(
            ...     "127.0.0.1:8000"
            ... ).get_inference_statistics(headers=client.access_headers())  # doctest: +SKIP
        """
        return access_headers(self.access_token, grpc=grpc)

    def register(
        self,
        infer_fn: Target | Sequence[Target],
        model_name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        config: ModelConfig | None = None,
        *,
        instances: int | None = None,
        devices: Sequence[Device] | None = None,
        factory: bool | None = None,
        python: StrPath | None = None,
        env: Env | None = None,
        cwd: StrPath | None = None,
        sys_path: Iterable[StrPath] | None = None,
        strict: bool | None = None,
        model_version: int | None = None,
        replace: bool | None = None,
        progress: bool | Report | None = None,
        load_timeout_s: float | None = None,
        on_crash: str | None = None,
        spares: int | None = None,
        execution_timeout_s: float | None = None,
        max_batches: int | None = None,
        limits: Limits | None = None,
        check: Callable[[Any], Any] | None = None,
        lanes: int | None = None,
        zero_copy_inputs: bool | None = None,
        requirements: Sequence[str] | None = None,
        temporary: bool | None = None,
        isolation: str | None = None,
        trace_config: Sequence[str] | None = None,
    ) -> Model:
        """Serve a callable as a model; returns when it answers requests. All or nothing.

        What is None is as the callable's `@declare` says, else as given in brackets below.
        docs/registering.md shows every way.

        Args:
            infer_fn: any callable that takes a list of requests and returns a list of dicts (or is
                decorated, see pytriton.decorators), or a list of callables: one instance each. A
                class is called once in each worker
            model_name: letters, digits, dots, underscores, dashes (the callable's own name)
            inputs: tensors it takes, without the batch axis
            outputs: tensors it returns
            config: batching, queueing and more (``ModelConfig()``)
            instances: number of workers (1, or one for each callable or device)
            devices: GPUs, one entry for each instance: 0, "GPU-<uuid>", (0, 1), or "cpu" to hide
                all; it becomes the worker's CUDA_VISIBLE_DEVICES before anything is loaded
            factory: call `infer_fn` once in each worker, and serve what it returns (False)
            python: interpreter of the workers, or folder or archive of a virtual or conda environment,
                with numpy, pyzmq, msgspec and cloudpickle (this process's)
            env: variables to set in the workers, or names of variables to copy
            cwd: working directory of the workers (this process's)
            sys_path: folders to search for modules first
            strict: outputs must have exactly the declared dtype and shape (False)
            model_version: the number in the model's URLs (1)
            replace: take the place of a model of that name, which serves until then (False)
            progress: None shows a bar on a terminal, False nothing; a callable gets every
                `messages.Progress`
            load_timeout_s: seconds a worker may take to load the callable (600)
            on_crash: what becomes of the batch that a worker was running when it ended: "retry" runs
                it once more, in another worker; "fail" answers it with an error, for callables that
                must not run twice ("retry")
            spares: workers beyond `instances`, loaded and idle, that take over at once (0)
            execution_timeout_s: seconds a batch may run; one over it is answered with an error and
                its worker is replaced (no limit)
            max_batches: batches after which a worker is replaced, for models that leak (no limit)
            limits: memory, files, processes and CPUs of a worker (``Limits()``: none)
            check: is called in each worker with the loaded callable before it serves; what it raises
                fails the registration, or with `replace`, leaves the old model serving
            lanes: proxies that feed one worker; with two, the next request is on its way while one
                is computed (2 without batching, 1 with it)
            zero_copy_inputs: inputs are read-only views of Triton's memory, valid until the callable
                returns, instead of arrays of its own (False)
            requirements: packages such as "torch>=2": the workers get an environment of `python` with
                them, made once and kept
            temporary: serve it until this process ends, and do not keep it for the daemon's next
                start (False)
            isolation: "process" runs the callable in workers of the daemon; "thread" in this very
                process, unpickled, a thread for each instance: until it ends, or the client is
                closed ("process")
            trace_config: where this model's spans go, as tritonserver's option says it, such as
                "opentelemetry,url=http://...": docs/tracing.md (as for all models)

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is wrong.
            PicklingError: the callable refers to something that cannot be sent to another process.
            ModelExistsError: the name is taken and `replace` was not given.
            RegistrationError: it failed in the worker or in tritonserver; carries the remote
                traceback.

        Example:
            >>> model = client.register(double, "double", [x], [y], instances=2)  # doctest: +SKIP
        """
        from pytriton.registration import plan

        given = {
            "instances": instances, "devices": devices, "factory": factory, "python": python,
            "env": env, "cwd": cwd, "sys_path": sys_path, "strict": strict,
            "model_version": model_version, "replace": replace, "load_timeout_s": load_timeout_s,
            "on_crash": on_crash, "spares": spares, "execution_timeout_s": execution_timeout_s,
            "max_batches": max_batches, "limits": limits, "check": check, "lanes": lanes,
            "zero_copy_inputs": zero_copy_inputs, "requirements": requirements,
            "temporary": temporary, "isolation": isolation, "trace_config": trace_config,
        }  # fmt: skip
        planned = plan(infer_fn, model_name, inputs, outputs, config, given)
        name = planned.message.spec.name
        if planned.message.spec.isolation == "thread":
            from pytriton import hosting

            return Model(self, hosting.register(self._connection, planned, progress))
        payloads = planned.payloads()
        with reporter(progress, name) as report:
            answer = self._ask(planned.message, messages.Registered, payloads, report, model=name)
        return Model(self, answer.model)

    def register_model(
        self,
        model: ModelSource,
        model_name: str | None = None,
        *,
        config: ConfigSource = None,
        version: int | None = None,
        requirements: Sequence[str] | None = None,
        progress: bool | Report | None = None,
        **options: Any,
    ) -> Any:
        """Serve a Triton Python model, a `model.py`, as it is; returns when it answers requests. All or nothing.

        Returns a `Model`; for a whole model repository a list of them, as `register_repository` does.

        `config.pbtxt`, instance groups, parameters, batching and `auto_complete_config` are respected;
        docs/model-py.md tells how, and what differs from Triton's own python backend.

        Args:
            model: a model's folder in a model repository, on the daemon's machine; or a class with the
                methods of `TritonPythonModel`; or a repository, the folder of such folders
            model_name: the configuration's, or the folder's or class's own
            config: another config.pbtxt than the folder's: a path, the text itself, or its JSON form
            version: which of the numbered folders to serve (those that the version policy chooses: each has
                workers of its own)
            requirements: packages such as "torch>=2": the workers get an environment with them, made
                once and kept
            progress: as for `register`
            options: `instances`, `devices`, `python` (also a conda-pack archive), `env`, `cwd`, `sys_path`,
                `replace`, `load_timeout_s`, `on_crash`, `spares`, `execution_timeout_s`, `max_batches`,
                `limits`, `lanes`, `zero_copy_inputs`: as for `register`

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: there is no such model, its configuration is
                wrong, an argument is wrong, or the environment cannot be made.
            ModelExistsError: the name is taken and `replace` was not given.
            RegistrationError: it failed in the worker or in tritonserver; carries the remote
                traceback.

        Example:
            >>> model = client.register_model("models/add_sub", instances=2)  # doctest: +SKIP
        """
        from pytriton.python_models import prepare_model
        from pytriton.repositories import is_repository

        if is_repository(model):
            own = {"model_name": model_name, "config": config, "version": version}
            given = {**options, **{key: value for key, value in own.items() if value is not None}}
            return self.register_repository(
                str(model), requirements=requirements, progress=progress, **given
            )
        given = {**options, "model_version": version}
        with reporter(progress, model_name or str(model)) as report:
            message, payloads = prepare_model(
                model, model_name, config, requirements, given, report
            )
            name = message.spec.name
            answer = self._ask(message, messages.Registered, payloads, report, model=name)
        return Model(self, answer.model)

    def register_repository(
        self,
        folder: StrPath,
        *,
        requirements: Sequence[str] | None = None,
        progress: bool | Report | None = None,
        **options: Any,
    ) -> list[Model]:
        """Serve all models of a model repository, which have to be Triton Python models; one registration for each.

        All or nothing: when one fails, those before it are unregistered, or what they have replaced is put back.
        A repository with models of other kinds is a matter of the daemon's setting `model_repository`.

        Args:
            folder: of the models' folders, on the daemon's machine
            requirements: as for `register_model`, for all of them
            progress: as for `register`
            options: as for `register_model`, for all of them

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: there is no such repository, a model in it is no
                Python model, or a model or an argument is wrong. Nothing was registered.
            RegistrationError: one failed; says which, and what became of the others.

        Example:
            >>> for model in client.register_repository("models", replace=True): ...  # doctest: +SKIP
        """
        from pytriton.repositories import register_all, repository_of

        repository = repository_of(folder, options, requirements)
        with reporter(progress, repository.folder.name) as report:

            def serve(message: messages.Register, payloads: Sequence[bytes]) -> Model:
                name = message.spec.name
                answer = self._ask(message, messages.Registered, payloads, report, model=name)
                return Model(self, answer.model)

            return register_all(repository, self, serve, report)

    def models(self) -> list[Model]:
        """Return the models that are served: those that are registered, in order, then those of tritonserver's own."""
        answer = self._ask(messages.ListModels(), messages.Models)
        return [Model(self, info) for info in answer.models]

    def model(self, name: str) -> Model:
        """Return a model by its name.

        Raises:
            ModelNotFoundError: it is not served; names those that are.
        """
        return Model(self, self.model_info(name))

    def model_info(
        self, name: str, among: Sequence[messages.ModelInfo] | None = None
    ) -> messages.ModelInfo:
        """Return what the daemon knows of a model, or has just told `among` others.

        Raises:
            ModelNotFoundError: it is not served; names those that are.
        """
        if among is None:
            among = self._ask(messages.ListModels(), messages.Models).models
        names = [info.name for info in among]
        if name in names:
            return among[names.index(name)]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelNotFoundError(
            f"no model {name!r} is registered; registered models: "
            f"{', '.join(names) or 'none'}.{hint}",
            model_name=name,
        )

    def status(self) -> messages.Status:
        """Return how daemon, tritonserver, models and workers are."""
        return self._ask(messages.GetStatus(), messages.Status)

    def unregister(self, name: str) -> None:
        """Stop serving a model: requests under way are answered, then its workers end.

        Raises:
            ModelNotFoundError: it is not served.
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

    def scale(self, name: str, instances: int, progress: bool | Report | None = None) -> Model:
        """Serve a model with another number of instances; returns when they serve.

        New workers load beside the old ones; those that go finish their batch first. No request fails.

        Args:
            name: a registered model
            instances: how many, from 1; devices are used in turn
            progress: as for `register`

        Raises:
            ModelNotFoundError: it is not served.
            RegistrationError: a new worker could not be loaded, or the number is not possible; all is
                as it was then.
        """
        with reporter(progress, name) as report:
            message = messages.Scale(name, instances)
            answer = self._ask(message, messages.Registered, (), report, model=name)
        return Model(self, answer.model)

    def rollback(self, name: str, progress: bool | Report | None = None) -> Model:
        """Put back what a model was before it was last replaced; twice brings back the first again.

        As with ``register(..., replace=True)``, the present one serves until the other is ready.

        Raises:
            ModelNotFoundError: it is not served.
            RegistrationError: it was not replaced, or the former one cannot be loaded; all is as it was then.
        """
        with reporter(progress, name) as report:
            message = messages.Rollback(name)
            answer = self._ask(message, messages.Registered, (), report, model=name)
        return Model(self, answer.model)

    def repository(self) -> list[messages.RepositoryModel]:
        """Return the models of the model repositories that the daemon was started with, by name.

        Each has a `state`: loading, ready, unloaded or failed (with the `reason`), and says whether
        tritonserver or workers serve it.
        """
        return self._ask(messages.GetRepository(), messages.Repository).models

    def load_model(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Load a model of a model repository, or load it anew: what is there serves until it is ready.

        Args:
            name: folder of the model
            config: a configuration (the JSON form of config.pbtxt) to use instead of the one there

        Raises:
            ModelNotFoundError: no repository has it.
            RegistrationError: it cannot be served; what was there serves on.
        """
        document = None if config is None else dict(config)
        message = messages.LoadFromRepository(name, document)
        self._ask(message, messages.Done, model=name)

    def unload_model(self, name: str) -> None:
        """Stop serving a model of a model repository; requests under way are answered.

        Raises:
            ModelNotFoundError: it is not loaded, or not from a repository.
        """
        self._ask(messages.UnloadFromRepository(name), messages.Done, model=name)

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the newest log lines of a model, or of the daemon: JSON objects, oldest first.

        Raises:
            ModelNotFoundError: no such model is served.
        """
        return self._ask(messages.GetLogs(name, lines), messages.LogLines, model=name).lines

    def shutdown(self) -> None:
        """Stop the daemon in order, as SIGTERM does; returns when it has begun to."""
        self._ask(messages.Shutdown(), messages.Done)

    def close(self) -> None:
        """Unregister the models that run in threads of this process; all others stay registered.

        Nothing else is open between calls.
        """
        for host in self._hosts():
            with contextlib.suppress(DaemonNotRunningError, ModelNotFoundError):  # it is gone
                self.unregister(host.model)

    def expect_end(self) -> None:
        """The daemon is about to be stopped, as it should be: no warnings of models that go with it."""
        for host in self._hosts():
            host.expected = True

    def _hosts(self) -> list[Host]:
        """Return what runs in threads of this process by this client."""
        hosting = sys.modules.get("pytriton.hosting")  # not there: nothing does
        hosts = [] if hosting is None else hosting.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]

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
        return f"DaemonClient({self._connection.name!r})"

    def _ask(
        self,
        message: messages.AnyMessage,
        answer_type: type[MessageT],
        payloads: Sequence[bytes] = (),
        report: Report | None = None,
        model: str | None = None,
    ) -> MessageT:
        """Return the daemon's answer; only what it knows at once has to come within `timeout_s`."""
        quick = isinstance(message, (messages.GetStatus, messages.ListModels, messages.GetLogs))
        silence_s = self._timeout_s if quick else None
        try:
            answer = self._connection.ask(
                message, payloads, silence_s=silence_s, on_progress=report
            )
        except RemoteFailure as failure:
            registering = isinstance(message, _REGISTERING)
            raise exception_of(failure, model_name=model, registering=registering) from None
        return expected(answer, answer_type, message)
