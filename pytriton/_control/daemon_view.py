"""The read-only requests of a client."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pytriton._control.connection import Connection, MessageT, exception_of, expected
from pytriton._control.registration_progress import Report
from pytriton._control.remote_connection import RemoteConnection
from pytriton._control.request import ControlRequest
from pytriton._protocol import messages
from pytriton._protocol.access import access_headers
from pytriton._protocol.errors import RemoteFailure
from pytriton.exceptions import ModelNotFoundError

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
