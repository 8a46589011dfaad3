"""The client of one daemon: its control socket as methods. `pytriton.daemon` is the public name."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

import pytriton._linux_only  # noqa: F401
from pytriton._control.connection import (
    Connection,
    ControlRequest,
    MessageT,
    RemoteConnection,
    Report,
    exception_of,
    expected,
    reporter,
)
from pytriton._protocol import messages
from pytriton._protocol.closeable import Closeable
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir, clients_runtime_dir
from pytriton._protocol.parameters import access_headers
from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError, PyTritonDaemonError
from pytriton.profiles import Profile
from pytriton.run_options import RegisterModelOptions, RegisterOptions, takes
from pytriton.served_model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton._register.python_models.model_programs import ConfigSource, ModelSource
    from pytriton._register.thread_host import ThreadHost
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.run_options import StrPath

#: Timeout for the threads of an unregistered model, which only have to exit.
_THREAD_EXIT_TIMEOUT_S = 5.0
#: Messages that the daemon answers immediately: a silence longer than `connect(timeout_s=...)` means that it hangs.
#: The answer to any other message is awaited for as long as the daemon lives.
_ANSWERED_IMMEDIATELY = (
    messages.GetStatus,
    messages.GetMetrics,
    messages.ListModels,
    messages.GetLogs,
    messages.Explain,
    messages.GetEvents,
    messages.GetRequests,
    messages.RenewLease,
)
#: Messages that fail with a RegistrationError.
_RAISES_REGISTRATION_ERROR = (
    messages.Register,
    messages.Scale,
    messages.Rollback,
    messages.LoadFromRepository,
)


def connect_daemon(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
) -> DaemonClient:
    """Return a client of one daemon that runs and responds; arguments and exceptions are those of `connect`."""
    connection: Connection | RemoteConnection
    if str(runtime_dir).startswith("tcp://"):
        connection = RemoteConnection(str(runtime_dir), key_file, timeout_s)
    else:
        folder = Path(runtime_dir).expanduser().absolute() if runtime_dir else clients_runtime_dir()
        connection = Connection(RuntimeDir(folder))
    client = DaemonClient(connection, timeout_s)
    client.status()
    return client


class DaemonClient(Closeable):
    """The daemon's control socket as methods. Safe to use from several threads and after a fork.

    Create it with `connect`. Every method raises DaemonNotRunningError if the daemon is gone.
    """

    def __init__(self, connection: Connection | RemoteConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.name!r})"

    # ── register ───────────────────────────────────────────────────────────────────────────────────

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

    @takes(RegisterModelOptions)
    def register_model(
        self,
        model: ModelSource,
        model_name: str | None = None,
        *,
        config: ConfigSource = None,
        version: int | None = None,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterModelOptions],
    ) -> Any:
        """Serve a Triton Python model, a `model.py`, or a framework's file as it is. All or nothing.

        Returns when the model answers requests. A file is one of ONNX (`.onnx`), PyTorch (`.pt`, `.pt2`), TensorFlow
        (`.savedmodel`), scikit-learn (`.joblib`, `.pkl`), XGBoost (`.ubj`, `.json`) or LightGBM (`.txt`). Workers load
        it
        from its original path. `config` must describe the tensors that the file does not.

        Returns a `Model`; for a whole model repository a list of them, as `register_repository` does.

        `config.pbtxt`, instance groups, parameters, batching and `auto_complete_config` are respected;
        docs/how-to/model-py.md describes how, and the differences from Triton's own python backend.

        Args:
            model: a model's folder in a model repository, on the daemon's machine; or a class with the
                methods of `TritonPythonModel`; or a repository, the folder of such folders; or a model file
            model_name: default: the configuration's, or the folder's or class's own
            config: a config.pbtxt to use instead of the folder's: a path, the text itself, or its JSON form
            version: which of the numbered folders to serve (default: those selected by the version policy; each has
                its own workers)
            progress: as for `register`
            options: how it runs: those of `register` except `factory`, `check`, `strict`, `isolation` and
                `model_version`; each is described in `pytriton.run_options` and by `help(DaemonClient.register_model)`

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the model does not exist, its configuration or
                an argument is invalid, or the environment cannot be created.
            ModelExistsError: the name is taken and `replace` is not set.
            RegistrationError: the model failed in the worker or in tritonserver; carries the remote
                traceback.

        Example:
            >>> model = client.register_model("models/add_sub", instances=2)  # doctest: +SKIP
        """
        from pytriton._register.python_models.model_files import is_model_file, prepare_file
        from pytriton._register.python_models.model_programs import prepare_model
        from pytriton._register.python_models.whole_repository import is_repository

        if is_repository(model):
            own = {"model_name": model_name, "config": config, "version": version}
            given: dict[str, Any] = {**options, **own}
            return self.register_repository(str(model), progress=progress, **given)
        with reporter(progress, model_name or str(model)) as report:
            if is_model_file(model):
                path = cast("StrPath", model)
                message, payloads = prepare_file(path, model_name, config, version, options, report)
            else:
                message, payloads = prepare_model(
                    model, model_name, config, version, options, report
                )
            return self.register_prepared(message, payloads, report)

    @takes(RegisterModelOptions)
    def register_repository(
        self,
        folder: StrPath,
        *,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterModelOptions],
    ) -> list[Model]:
        """Serve all models of a model repository, which must be Triton Python models; one registration for each.

        All or nothing: if one fails, those before it are unregistered or rolled back.
        To serve a repository with other kinds of models, use the daemon's setting `model_repository`.

        Args:
            folder: the repository, on the daemon's machine
            progress: as for `register`
            options: as for `register_model`, applied to all models

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the repository does not exist, contains a model that is
                not
                a Python model, or a model or an argument is invalid. Nothing was registered.
            RegistrationError: one failed; states which, and what happened to the others.

        Example:
            >>> for model in client.register_repository("models", replace=True): ...  # doctest: +SKIP
        """
        from pytriton._register.python_models.whole_repository import register_all, repository_of

        repository = repository_of(folder, options)
        with reporter(progress, repository.folder.name) as report:
            return register_all(repository, self, report)

    # ── change models ──────────────────────────────────────────────────────────────────────────────

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
            host.join(_THREAD_EXIT_TIMEOUT_S)

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
            ModelNotFoundError: the model does not have this lease, or no longer.
        """
        self._ask(messages.RenewLease(name, lease, share), messages.Done, model=name)

    def end_lease(self, name: str, lease: str, *, keep: bool) -> None:
        """Confirm a provisional registration, or roll it back to the model that it replaced.

        Raises:
            ModelNotFoundError: the model does not have this lease, or no longer.
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

    # ── read ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def access_token(self) -> str | None:
        """The token that Triton's restricted endpoints require; None if the daemon has none.

        Raises:
            DaemonNotRunningError: no daemon runs, or its runtime directory belongs to another user.
            PyTritonDaemonError: the token belongs to another user, or is on another machine.
        """
        return self._connection.access_token()

    def access_headers(self, grpc: bool = False) -> dict[str, str]:
        """Return the headers that a restricted endpoint of Triton requires.

        Args:
                grpc: return gRPC metadata instead of HTTP headers

        Raises:
            DaemonNotRunningError, PyTritonDaemonError: as `access_token`.

        Example:
            >>> statistics = tritonclient.http.InferenceServerClient(
            ...     "127.0.0.1:8000"
            ... ).get_inference_statistics(headers=client.access_headers())  # doctest: +SKIP
        """
        return access_headers(self.access_token, grpc=grpc)

    def status(self) -> messages.Status:
        """Return the state of the daemon, tritonserver, models and workers."""
        return self._ask(messages.GetStatus(), messages.Status)

    def metrics(self) -> messages.MetricsSnapshot:
        """Return all metrics of the daemon, its models and their instances."""
        return self._ask(messages.GetMetrics(), messages.MetricsSnapshot)

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

    def model_info(
        self, name: str, among: Sequence[messages.ModelInfo] | None = None
    ) -> messages.ModelInfo:
        """Return the daemon's information about a model, or the one in `among`, an earlier answer.

        Raises:
            ModelNotFoundError: it is not registered; the text names the registered models.
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

    def repository(self) -> list[messages.RepositoryModel]:
        """Return the models in the daemon's model repositories, by name.

        Each has a `state`: loading, ready, unloaded or failed (with the `reason`), and says whether
        tritonserver or workers serve it.
        """
        return self._ask(messages.GetRepository(), messages.Repository).models

    def registrations(self, *names: str, payloads: bool = False) -> list[messages.KeptRegistration]:
        """Return the persisted registrations: of these models, or of all.

        With `payloads`, they contain everything that another daemon needs to serve the models.

        Raises:
            ModelNotFoundError: no such model is registered.
        """
        message = messages.GetRegistrations(list(names), payloads)
        return self._ask(message, messages.Registrations).registrations

    def changed_registrations(self, known: str) -> messages.Registrations | None:
        """Return the registrations with their `state`, as `registrations()` does; None if the state is still `known`."""
        message = messages.GetRegistrations(known=known)
        answer = self._ask(message, messages.Registrations)
        return None if known and answer.state == known else answer

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the newest log lines of a model, or of the daemon: JSON objects, oldest first.

        Raises:
            ModelNotFoundError: no such model is served.
        """
        return self._ask(messages.GetLogs(name, lines), messages.LogLines, model=name).lines

    def explain(self, name: str, events: int = 100) -> messages.Explanation:
        """Return an explanation of a model's state: a verdict, the findings, and its newest events.

        This also works for a model that is not served (any more), as long as the event log has events of it.

        Raises:
            ModelNotFoundError: nothing is known about such a model.

        Example:
            >>> client.explain("linear").verdict  # doctest: +SKIP
            'linear is ready: nothing is wrong'
        """
        return self._ask(messages.Explain(name, events), messages.Explanation, model=name)

    def events(
        self,
        model: str | None = None,
        *,
        kinds: Sequence[str] = (),
        since: float = 0.0,
        after: int = 0,
        limit: int = 100,
    ) -> list[messages.Event]:
        """Return the newest events of the daemon's event log, oldest first.

        Args:
                model: only events of this model; default: of all models and of the daemon
                kinds: names of event kinds, see docs/operations/explain.md; default: all
                since: seconds since the epoch
                after: only events with a higher `serial`
                limit: maximum number of events (never more than 1,000)

        Raises:
                PyTritonDaemonError: there is no such event kind.
                ModelNotFoundError: no such model is or was known.
        """
        message = messages.GetEvents(model, list(kinds), since, after, limit)
        return self._ask(message, messages.EventList).events

    def requests(self, name: str) -> messages.Requests:
        """Return the slowest requests of a model in the last hour, and the last failed ones.

        They are always sampled. `access_log` says whether each request is also written to `file`.

        Raises:
            ModelNotFoundError: no such model is served by workers.

        Example:
            >>> slowest = client.requests("linear").slowest[0]  # doctest: +SKIP
            >>> slowest.id, slowest.compute_ns / 1e6  # doctest: +SKIP
            ('order-17', 48.2)
        """
        return self._ask(messages.GetRequests(name), messages.Requests, model=name)

    # ── the daemon itself ──────────────────────────────────────────────────────────────────────────

    def shutdown(self) -> None:
        """Stop the daemon gracefully, as SIGTERM does; return once the shutdown has begun."""
        self._ask(messages.Shutdown(), messages.Done)

    def drain(
        self, settle_s: float = 5.0, timeout_s: float | None = None, stop: bool = True
    ) -> None:
        """Drain the daemon before its host goes away, without failing requests or streams.

        The daemon immediately reports not ready over HTTP, gRPC and to load balancers, and refuses registrations. It
        keeps serving for `settle_s`, then finishes in-flight requests and exits with code 0, so that no service manager
        restarts it. Call this again to change the times.

        Args:
            settle_s: seconds during which new requests are still accepted, until every load balancer has noticed
            timeout_s: seconds that in-flight requests and streams then get; default: the setting `grace_period_s`
            stop: True: return at once, and let the daemon exit. False: the daemon does not exit; return when it can
                be stopped
        """
        if stop:
            self.expect_end()
        self._ask(messages.Drain(settle_s, timeout_s, stop), messages.Done)

    def upgrade(self, python: str | None = None, wait_s: float = 30.0) -> None:
        """Upgrade the running daemon to the installed version of pytriton-daemon; return when it is done.

        Models keep serving in the same workers: no request and no stream fails. Changes of models wait for about a
        second.

        Args:
            python: interpreter of another environment that has the next version; default: the daemon's own
            wait_s: seconds that changes of models in progress may take to finish

        Raises:
            PyTritonDaemonError: the daemon is still the old version and keeps serving, or it has been restarted
                instead. The text says why.
        """
        from pytriton._control.upgrade import NotUpgraded, upgrade

        def ask(message: messages.AnyMessage) -> messages.AnyMessage:
            if isinstance(message, messages.Upgrade):
                return self._ask(message, messages.Done)
            return self._ask(message, messages.EventList)

        try:
            gone = DaemonNotRunningError
            upgrade(ask, messages.Upgrade(python, wait_s), lambda error: isinstance(error, gone))
        except NotUpgraded as error:
            raise PyTritonDaemonError(str(error)) from None

    def expect_end(self) -> None:
        """Suppress the warnings about models that end with the daemon: it is about to be stopped on purpose."""
        for host in self._hosts():
            host.expected = True

    def close(self) -> None:
        """Unregister the models that run in threads of this process; all others stay registered.

        The client holds no other resources between calls.
        """
        for host in self._hosts():
            with contextlib.suppress(DaemonNotRunningError, ModelNotFoundError):  # already gone
                self.unregister(host.model)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        message: messages.AnyMessage,
        answer_type: type[MessageT],
        payloads: Sequence[bytes] = (),
        report: Report | None = None,
        model: str | None = None,
    ) -> MessageT:
        """Return the daemon's answer; the messages in `_ANSWERED_IMMEDIATELY` time out after `timeout_s`."""
        silence_s = self._timeout_s if isinstance(message, _ANSWERED_IMMEDIATELY) else None
        try:
            answer = self._connection.ask(ControlRequest(message, payloads, silence_s, report))
        except RemoteFailure as failure:
            registering = isinstance(message, _RAISES_REGISTRATION_ERROR)
            raise exception_of(failure, model_name=model, registering=registering) from None
        return expected(answer, answer_type, message)

    def _hosts(self) -> list[ThreadHost]:
        """Return the models that this client runs in threads of this process."""
        thread_host = sys.modules.get(
            "pytriton._register.thread_host"
        )  # not imported: there are none
        hosts = [] if thread_host is None else thread_host.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]
