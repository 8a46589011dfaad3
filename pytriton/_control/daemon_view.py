"""The questions of a client that change nothing in the daemon."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pytriton._control.connection import Connection, MessageT, exception_of, expected
from pytriton._control.registration_progress import Report
from pytriton._control.remote_connection import RemoteConnection
from pytriton._control.request import Question
from pytriton._protocol import messages
from pytriton._protocol.access import access_headers
from pytriton._protocol.errors import RemoteFailure
from pytriton.exceptions import ModelNotFoundError

#: What the daemon answers at once, so that a longer silence than `connect(timeout_s=...)` means that it hangs. Any
#: other message is waited on for as long as the daemon lives.
_AT_ONCE = (
    messages.GetStatus,
    messages.GetFigures,
    messages.ListModels,
    messages.GetLogs,
    messages.Explain,
    messages.GetEvents,
    messages.GetRequests,
    messages.RenewTrial,
)
#: Messages whose failure is a RegistrationError.
_REGISTERING = (
    messages.Register,
    messages.Scale,
    messages.Rollback,
    messages.LoadFromRepository,
)


class DaemonView:
    """The questions of `DaemonClient`, which inherits them. For any number of threads, and after a fork.

    Every method raises DaemonNotRunningError when the daemon is gone.
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
        """Return the headers that a restricted endpoint of Triton asks for.

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

    def status(self) -> messages.Status:
        """Return the state of the daemon, tritonserver, models and workers."""
        return self._ask(messages.GetStatus(), messages.Status)

    def figures(self) -> messages.Figures:
        """Return everything that the daemon counts and measures of itself, its models and their instances."""
        return self._ask(messages.GetFigures(), messages.Figures)

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

    def repository(self) -> list[messages.RepositoryModel]:
        """Return the models of the model repositories that the daemon was started with, by name.

        Each has a `state`: loading, ready, unloaded or failed (with the `reason`), and says whether
        tritonserver or workers serve it.
        """
        return self._ask(messages.GetRepository(), messages.Repository).models

    def registrations(self, *names: str, payloads: bool = False) -> list[messages.KeptRegistration]:
        """Return what is registered and kept: of these models, or of all.

        With `payloads`, it is all that another daemon needs to serve it.

        Raises:
            ModelNotFoundError: no such model is registered.
        """
        message = messages.GetRegistrations(list(names), payloads)
        return self._ask(message, messages.Registrations).registrations

    def changed_registrations(self, known: str) -> messages.Registrations | None:
        """Return what is registered, as `registrations()`, with its `state`; None if that is `known` already."""
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
        """Return why a model is as it is: a verdict, what was found, and its newest events.

        Of a model that is not served (any more), too, as long as the event log knows it.

        Raises:
            ModelNotFoundError: nothing is known of such a model.

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
            model: that they are about; default: all, and those of the daemon itself
            kinds: names of kinds, see docs/operations/explain.md; default: all
            since: seconds since the epoch
            after: only those with a higher `serial`
            limit: how many at most (1,000 in any case)

        Raises:
            PyTritonDaemonError: there is no such kind.
            ModelNotFoundError: there is no such model, and never was one that is known of.
        """
        message = messages.GetEvents(model, list(kinds), since, after, limit)
        return self._ask(message, messages.EventList).events

    def requests(self, name: str) -> messages.Requests:
        """Return the slowest requests of a model in the last hour, and the last that failed.

        They are sampled at all times; `access_log` says whether each request is written to `file` besides.

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
        """Return the daemon's answer; `_AT_ONCE` says which answers come without waiting."""
        silence_s = self._timeout_s if isinstance(message, _AT_ONCE) else None
        try:
            answer = self._connection.ask(Question(message, payloads, silence_s, report))
        except RemoteFailure as failure:
            registering = isinstance(message, _REGISTERING)
            raise exception_of(failure, model_name=model, registering=registering) from None
        return expected(answer, answer_type, message)
