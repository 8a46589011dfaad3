"""The client of one daemon. Import it as `pytriton.daemon.DaemonClient`."""

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

#: Time that the threads of an unregistered model get to exit, in seconds.
_THREAD_EXIT_TIMEOUT_S = 5.0
#: Messages that the daemon answers immediately; they time out after `connect(timeout_s=...)`. The client waits for the
#: answer to any other message as long as the daemon is alive.
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
#: Messages whose failure is raised as a RegistrationError.
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
    """Connect to one daemon, and check that it responds. Arguments and exceptions are those of `connect`."""
    connection: Connection | RemoteConnection
    if str(runtime_dir).startswith("tcp://"):
        connection = RemoteConnection(str(runtime_dir), key_file, timeout_s)
    else:
        folder = Path(runtime_dir).expanduser().absolute() if runtime_dir else clients_runtime_dir()
        connection = Connection(RuntimeDir(folder))
    client = DaemonClient(connection, timeout_s)
    client._ask(messages.GetStatus(models=False), messages.Status)
    return client


class DaemonClient(Closeable):
    """A client of one daemon. Safe to use from several threads and after a fork.

    Create it with `connect`. Every method raises DaemonNotRunningError if the daemon is not running or does not respond.
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
        """Serve a callable as a model. Return when the model is ready for requests; on failure nothing changes.

        Arguments that are None take the value in the callable's `@declare`, else the default in brackets.
        docs/how-to/registering.md shows every option.

        Args:
            infer_fn: a callable that accepts a list of requests and returns a list of dicts, or one with a decorator
                of pytriton.decorators; or a list of callables, one for each instance. A class is instantiated once in
                each worker, and its instance is served
            model_name: letters, digits, dots, underscores and dashes (the callable's own name)
            inputs: the model's input tensors, without the batch axis
            outputs: the model's output tensors, without the batch axis
            config: batching, queueing and more (``ModelConfig()``)
            progress: True shows a progress bar, False does not, None shows it on a terminal; a callable is called with
                every `messages.Progress`
            options: how the model runs: `instances`, `devices`, `python`, `env`, `limits` and more, each described in
                `pytriton.run_options` and by `help(DaemonClient.register)`

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is invalid.
            PicklingError: the callable refers to something that cannot be sent to another process.
            ModelExistsError: a model of that name exists, and `replace` is not set.
            RegistrationError: the model failed to load in a worker or in tritonserver. Includes the remote traceback.

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
        """Send a registration that is already packed, such as one that `registrations(payloads=True)` returned.

        Args:
            message: the registration
            payloads: one pickled callable for all instances or one per instance, followed by the check, if any
            report: called with every `messages.Progress`

        Raises:
            ModelExistsError, RegistrationError: as for `register`.
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
        """Serve an unmodified Triton Python model, a model file, or another tool's model. Return when it is ready for
        requests.

        A model file is one of ONNX (`.onnx`), PyTorch (`.pt`, `.pt2`), TensorFlow (`.savedmodel`), scikit-learn
        (`.joblib`, `.pkl`), XGBoost (`.ubj`, `.json`) or LightGBM (`.txt`). Workers load it from its original path. If
        the file does not describe its tensors, `config` must.

        A model of another tool is named by `mlflow:PATH`, `hf:TASK=PATH`, `sentence-transformers:PATH`,
        `torchserve:FILE.mar` or `litserve:FILE.py:API`. It becomes a web API with a `route`; see
        docs/how-to/models-from-other-tools.md.

        `config.pbtxt`, instance groups, parameters, batching and `auto_complete_config` work as in Triton;
        docs/how-to/model-py.md has the details and the differences from Triton's own python backend. On failure nothing
        changes.

        Args:
            model: a model's folder in a model repository, on the daemon's machine; a class with the
                methods of `TritonPythonModel`; a whole repository; a model file; or another tool's model
            model_name: default: the name in the configuration, or that of the folder, class or file
            config: a config.pbtxt that replaces the one in the folder: its path, its text, or its JSON form
            version: the version to serve; default: those that the version policy selects, each with its own workers
            progress: as for `register`
            options: how it runs: those of `register` except `factory`, `check`, `strict`, `isolation` and
                `model_version`; each is described in `pytriton.run_options` and by `help(DaemonClient.register_model)`

        Returns:
            a `Model`; for a whole repository a list of them, as `register_repository` does

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the model does not exist, its configuration or
                an argument is invalid, or the environment cannot be created.
            ModelExistsError: a model of that name exists, and `replace` is not set.
            RegistrationError: the model failed to load in a worker or in tritonserver. Includes the remote traceback.

        Example:
            >>> model = client.register_model("models/add_sub", instances=2)  # doctest: +SKIP
        """
        from pytriton._register.python_models.model_files import is_model_file, prepare_file
        from pytriton._register.python_models.model_programs import prepare_model
        from pytriton._register.python_models.whole_repository import is_repository
        from pytriton.formats.table import tool_of

        if tool_of(model) is not None:
            from pytriton._register.tool_models import prepare_tool

            with reporter(progress, model_name or str(model)) as report:
                message, payloads = prepare_tool(
                    str(model), model_name, config, version, options, report
                )
                return self.register_prepared(message, payloads, report)
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
        """Register every model of a model repository, which must contain Triton Python models only.

        If one registration fails, the previous ones are unregistered or rolled back.
        To serve a repository with other kinds of models, use the daemon's setting `model_repository`.

        Args:
            folder: the repository, on the daemon's machine
            progress: as for `register`
            options: as for `register_model`, applied to all models

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the repository does not exist, contains a model that is
                not a Python model, or a model or an argument is invalid. Nothing was registered.
            RegistrationError: a registration failed; the text says which one, and what happened to the others.

        Example:
            >>> for model in client.register_repository("models", replace=True): ...  # doctest: +SKIP
        """
        from pytriton._register.python_models.whole_repository import register_all, repository_of

        repository = repository_of(folder, options)
        with reporter(progress, repository.folder.name) as report:
            return register_all(repository, self, report)

    # ── change models ──────────────────────────────────────────────────────────────────────────────

    def unregister(self, name: str) -> None:
        """Stop serving a model. In-flight requests are answered, then its workers exit.

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
        """Change the number of instances of a model. Return once the new instances are serving.

        The existing workers keep serving while new ones load, and removed workers finish their current batches, so no
        request fails. Instances whose workers kept crashing are restarted immediately.

        Args:
            name: name of a registered model
            instances: number of instances, at least 1; the model's devices are assigned to them in turn. Or a minimum
                and a maximum, such as (1, 8), or `pytriton.Autoscale(...)`, to scale with load
            progress: as for `register`

        Raises:
            PyTritonValidationError: `instances` is invalid.
            ModelNotFoundError: the model is not served.
            RegistrationError: a new worker could not be loaded, or the number is not possible; nothing has changed.
                Or the number was changed, but an instance whose worker kept crashing could not be restarted.
        """
        with reporter(progress, name) as report:
            autoscale = autoscale_of(instances)
            count = 0 if autoscale is not None else int(cast(int, instances))
            return self.scale_prepared(messages.Scale(name, count, autoscale), report)

    def scale_prepared(self, message: messages.Scale, report: Report | None = None) -> Model:
        """Send a message that changes a model's number of instances; return the model. Raises the same exceptions as
        `scale`.
        """
        answer = self._ask(message, messages.Registered, (), report, model=message.name)
        return Model(self, answer.model)

    def log_requests(self, name: str, on: bool = True) -> None:
        """Turn a model's access log, which has one line for each request, on or off.

        Takes effect immediately, without restarting workers, and survives a restart of the daemon.
        docs/operations/operations.md describes the fields.

        Raises:
            ModelNotFoundError: no such model is served by workers.
        """
        self._ask(messages.LogRequests(name, on), messages.Done, model=name)

    def profile(self, name: str, seconds: float = 10.0, instance: int | None = None) -> Profile:
        """Profile the worker of an instance while it is serving, at 100 samples per second.

        The daemon runs py-spy, which must be installed in the daemon's environment (`pip install py-spy`).

        Args:
            name: name of a registered model
            seconds: duration in whole seconds, from 1 to 300
            instance: index of the instance; default: the first one that serves

        Returns:
            the samples, with methods such as `shares()` (share of time by activity) and `svg()` (flame graph)

        Raises:
            ModelNotFoundError: no such model is served by workers.
            PyTritonDaemonError: py-spy is missing or may not attach to the worker, or the worker exited.

        Example:
            >>> client.profile("linear", seconds=5).shares()  # doctest: +SKIP
            {'callable': 0.61, 'libraries': 0.2, 'pytriton': 0.03, 'waiting for requests': 0.16}
        """
        message = messages.ProfileWorker(name, seconds, instance)
        answer = self._ask(message, messages.Profiled, model=name)
        return Profile(model=name, **structs.asdict(answer))

    def rollback(self, name: str, progress: bool | Report | None = None) -> Model:
        """Restore the registration that the last replacement replaced. A second rollback undoes the first one.

        As with ``register(..., replace=True)``, the current model serves until the other one is ready.

        Raises:
            ModelNotFoundError: the model is not served.
            RegistrationError: the model was never replaced, or the previous one cannot be loaded; nothing has changed.
        """
        with reporter(progress, name) as report:
            message = messages.Rollback(name)
            answer = self._ask(message, messages.Registered, (), report, model=name)
        return Model(self, answer.model)

    def renew_lease(self, name: str, lease: str, share: float | None = None) -> None:
        """Renew the lease of a provisional registration; see `pytriton._protocol.messages.Lease`.

        Raises:
            ModelNotFoundError: the model does not have this lease; it may have expired.
        """
        self._ask(messages.RenewLease(name, lease, share), messages.Done, model=name)

    def end_lease(self, name: str, lease: str, *, keep: bool) -> None:
        """Confirm a provisional registration (`keep=True`), or roll it back to the model that it replaced.

        Raises:
            ModelNotFoundError: the model does not have this lease; it may have expired.
            PyTritonDaemonError: the change failed; the registration will be rolled back when its lease expires.
        """
        self._ask(messages.EndLease(name, lease, keep), messages.Done, model=name)

    def load_model(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Load or reload a model of a model repository. During a reload, the previously loaded version keeps serving.

        Args:
            name: name of the model's folder
            config: a configuration (config.pbtxt as JSON) that replaces the model's own

        Raises:
            ModelNotFoundError: no repository contains the model.
            RegistrationError: it cannot be loaded; the previously loaded version, if any, keeps serving.
        """
        document = None if config is None else dict(config)
        message = messages.LoadFromRepository(name, document)
        self._ask(message, messages.Done, model=name)

    def unload_model(self, name: str) -> None:
        """Stop serving a model from a model repository. In-flight requests are answered.

        Raises:
            ModelNotFoundError: the model is not loaded, or does not come from a repository.
        """
        self._ask(messages.UnloadFromRepository(name), messages.Done, model=name)

    # ── read ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def access_token(self) -> str | None:
        """The token that Triton's restricted endpoints require; None if the daemon uses no token.

        Raises:
            DaemonNotRunningError: no daemon is running, or its runtime directory cannot be read by this user.
            PyTritonDaemonError: the token cannot be read by this user, or is on another machine.
        """
        return self._connection.access_token()

    def access_headers(self, grpc: bool = False) -> dict[str, str]:
        """Return the headers that Triton's restricted endpoints require.

        Args:
            grpc: return gRPC metadata instead of HTTP headers

        Raises:
            DaemonNotRunningError, PyTritonDaemonError: as for `access_token`.

        Example:
            >>> statistics = tritonclient.http.InferenceServerClient(
            ...     "127.0.0.1:8000"
            ... ).get_inference_statistics(headers=client.access_headers())  # doctest: +SKIP
        """
        return access_headers(self.access_token, grpc=grpc)

    def status(self) -> messages.Status:
        """Return the status of the daemon, tritonserver, the models and their workers."""
        return self._ask(messages.GetStatus(), messages.Status)

    def metrics(self) -> messages.MetricsSnapshot:
        """Return a snapshot of all metrics of the daemon, its models and their instances."""
        return self._ask(messages.GetMetrics(), messages.MetricsSnapshot)

    def models(self) -> list[Model]:
        """Return the served models: registered ones in order of registration, then those that tritonserver runs itself."""
        answer = self._ask(messages.ListModels(), messages.Models)
        return [Model(self, info) for info in answer.models]

    def model(self, name: str) -> Model:
        """Return a model by its name.

        Raises:
            ModelNotFoundError: the model is not served; the text names those that are.
        """
        return Model(self, self.model_info(name))

    def model_info(
        self, name: str, among: Sequence[messages.ModelInfo] | None = None
    ) -> messages.ModelInfo:
        """Return the status of a model.

        Args:
            name: name of the model
            among: models to search, such as those of an earlier `status()`; default: ask the daemon

        Raises:
            ModelNotFoundError: the model is not registered; the text names the registered models.
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
        """Return the models in the daemon's model repositories, sorted by name.

        Each has a `state` (loading, ready, unloaded, or failed with a `reason`) and says whether
        tritonserver or workers serve it.
        """
        return self._ask(messages.GetRepository(), messages.Repository).models

    def registrations(self, *names: str, payloads: bool = False) -> list[messages.KeptRegistration]:
        """Return the persisted registrations of the named models, or of all models.

        With `payloads`, they contain everything that another daemon needs to serve the models.

        Raises:
            ModelNotFoundError: one of the models is not registered.
        """
        message = messages.GetRegistrations(list(names), payloads)
        return self._ask(message, messages.Registrations).registrations

    def changed_registrations(self, known: str) -> messages.Registrations | None:
        """Return all persisted registrations if they have changed, else None.

        Args:
            known: the `state` of an earlier answer; "" returns the registrations in any case
        """
        message = messages.GetRegistrations(known=known)
        answer = self._ask(message, messages.Registrations)
        return None if known and answer.state == known else answer

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the last log lines of a model, or of the daemon. Each is a JSON object; the newest comes last.

        Raises:
            ModelNotFoundError: no such model is served.
        """
        return self._ask(messages.GetLogs(name, lines), messages.LogLines, model=name).lines

    def explain(self, name: str, events: int = 100) -> messages.Explanation:
        """Return an explanation of a model's state: a verdict, the findings, and the most recent events.

        This also works for a model that is not served, if the event log has events of it.

        Raises:
            ModelNotFoundError: the model is not served, and the event log has no events of it.

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
        """Return the most recent events of the daemon's event log, newest last.

        Args:
            model: return only events of this model; default: events of all models and of the daemon
            kinds: return only these kinds of events, see docs/operations/explain.md; default: all kinds
            since: return only events after this time, in seconds since the epoch
            after: return only events with a higher `serial`
            limit: maximum number of events, at most 1,000

        Raises:
            PyTritonDaemonError: there is no such kind of event.
            ModelNotFoundError: no such model is or was registered.
        """
        message = messages.GetEvents(model, list(kinds), since, after, limit)
        return self._ask(message, messages.EventList).events

    def requests(self, name: str) -> messages.Requests:
        """Return the slowest requests of a model in the last hour, and the most recent failed ones.

        They are recorded whether the access log is on or not; `access_log` in the answer says whether it is, and `file`
        where it is written.

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
        """Shut the daemon down gracefully, as SIGTERM does. Return once the shutdown has begun."""
        self._ask(messages.Shutdown(), messages.Done)

    def drain(
        self, settle_s: float = 5.0, timeout_s: float | None = None, stop: bool = True
    ) -> None:
        """Drain the daemon before its host goes away, without failing requests or streams.

        The daemon immediately reports not ready over HTTP, over gRPC and to load balancers, and refuses registrations. It
        keeps serving for `settle_s`, then finishes in-flight requests and exits with code 0, so that no service manager
        restarts it. Call this again to change the times.

        Args:
            settle_s: seconds during which new requests are still accepted, for load balancers to notice
            timeout_s: seconds that in-flight requests and streams get after that; default: the setting `grace_period_s`
            stop: if True, return immediately, and the daemon exits when it is drained. If False, return when the daemon
                is drained; it does not exit
        """
        if stop:
            self.expect_end()
        self._ask(messages.Drain(settle_s, timeout_s, stop), messages.Done)

    def upgrade(self, python: str | None = None, wait_s: float = 30.0) -> None:
        """Upgrade the running daemon to the installed version of pytriton-daemon. Return when it is done.

        Models keep serving in the same workers, and no request and no stream fails. Registrations and other changes to
        models wait for about a second.

        Args:
            python: interpreter of an environment that has the next version; default: the daemon's own interpreter
            wait_s: seconds to wait for changes to models that are in progress

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
        """Suppress the warnings about models in threads of this process, because the daemon is about to be stopped."""
        for host in self._hosts():
            host.expected = True

    def close(self) -> None:
        """Unregister the models that this client runs in threads of this process; all others stay registered."""
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
        """Send a message and return the daemon's answer, or raise its failure as an exception."""
        silence_s = self._timeout_s if isinstance(message, _ANSWERED_IMMEDIATELY) else None
        try:
            answer = self._connection.ask(ControlRequest(message, payloads, silence_s, report))
        except RemoteFailure as failure:
            registering = isinstance(message, _RAISES_REGISTRATION_ERROR)
            raise exception_of(failure, model_name=model, registering=registering) from None
        return expected(answer, answer_type, message)

    def _hosts(self) -> list[ThreadHost]:
        """Return the models that this client runs in threads of this process."""
        # If the module is not imported, this process has no such models.
        thread_host = sys.modules.get("pytriton._register.thread_host")
        hosts = [] if thread_host is None else thread_host.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]
