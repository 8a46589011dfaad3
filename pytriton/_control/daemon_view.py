"""The read-only requests of a client."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional, Union

from pytriton._control.connection import (
    Connection,
    ControlRequest,
    MessageT,
    exception_of,
    expected,
)
from pytriton._control.remote_connection import RemoteConnection
from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.parameters import access_headers
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
)

if TYPE_CHECKING:
    from pytriton._register.thread_host import ThreadHost


#: Messages that the daemon answers immediately: a silence longer than `connect(timeout_s=...)` means that it hangs.
#: The answer to any other message is awaited for as long as the daemon lives.
_AT_ONCE = (
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
_REGISTERING = (
    messages.Register,
    messages.Scale,
    messages.Rollback,
    messages.LoadFromRepository,
)


class DaemonView:
    """The read-only requests of `DaemonClient`, which inherits them. Usable by any number of threads, and after a fork.

    Every method raises DaemonNotRunningError if the daemon is gone.
    """

    def __init__(self, connection: Connection | RemoteConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    @property
    def access_token(self) -> str | None:
        """The token that Triton's restricted endpoints require; None if the daemon has none.

        Raises:
            DaemonNotRunningError: no daemon runs, or its runtime directory is another user's.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.name!r})"

    def _ask(
        self,
        message: messages.AnyMessage,
        answer_type: type[MessageT],
        payloads: Sequence[bytes] = (),
        report: Report | None = None,
        model: str | None = None,
    ) -> MessageT:
        """Return the daemon's answer; the messages in `_AT_ONCE` time out after `timeout_s`."""
        silence_s = self._timeout_s if isinstance(message, _AT_ONCE) else None
        try:
            answer = self._connection.ask(ControlRequest(message, payloads, silence_s, report))
        except RemoteFailure as failure:
            registering = isinstance(message, _REGISTERING)
            raise exception_of(failure, model_name=model, registering=registering) from None
        return expected(answer, answer_type, message)


# ── The methods of a client that stop, drain or upgrade the daemon ──


class DaemonLife(DaemonView):
    """The methods of `DaemonClient` that stop, drain or upgrade the daemon."""

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

    def _hosts(self) -> list[ThreadHost]:
        """Return the models that this client runs in threads of this process."""
        thread_host = sys.modules.get(
            "pytriton._register.thread_host"
        )  # not imported: there are none
        hosts = [] if thread_host is None else thread_host.hosts()
        return [host for host in hosts if host.serves_by(self._connection)]


# ── The progress of a registration: a line on a terminal, or events for a program ──

Report = Callable[[messages.Progress], None]


@contextmanager
def reporter(progress: Union[bool, Report, None], model_name: str) -> Iterator[Optional[Report]]:
    """Yield the function to which `register` reports its progress.

    Args:
        progress: a callable receives the events; None shows them if standard error is a terminal, True
            always, False never
        model_name: the name to show

    Raises:
        PyTritonBadParameterError: `progress` is something else.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
    elif progress is None or progress is True:
        with _bar(model_name) as report:
            yield report
    else:
        raise PyTritonBadParameterError(
            f"progress={progress!r}: use None, True, False or a callable that takes each event"
        )


def step_reporter(report: Optional[Report]) -> Callable[[str], None]:
    """Return a function that reports the steps before the request, such as the creation of an environment."""

    def say(text: str) -> None:
        if report is not None:
            report(messages.Progress("environment", text))

    return say


@contextmanager
def _bar(model_name: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[model]}: {task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending the callable", total=None, model=model_name)

        def report(event: messages.Progress) -> None:
            bar.update(
                task, description=event.text, completed=event.done, total=event.total or None
            )

        yield report
