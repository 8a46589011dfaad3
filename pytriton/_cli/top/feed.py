"""The table's connection to the daemon: reads metrics, and sends the changes that users request with keys."""

from __future__ import annotations

from pytriton._cli import daemon_connection
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.rates import Row, rows

_LOG_LINES = 200


class Feed:
    """Source of the table's data, which it requests from the daemon. Methods raise CliError as `daemon_connection.ask` does."""

    def __init__(self, rundir: RuntimeDir) -> None:
        self._rundir = rundir
        self._before: messages.MetricsSnapshot | None = None
        self.metrics: messages.MetricsSnapshot | None = None

    def take(self) -> tuple[messages.MetricsSnapshot, list[Row]]:
        """Request a snapshot; return it, and table rows with the rates since the previous one."""
        answer = daemon_connection.ask(self._rundir, messages.GetMetrics())
        # The answer to GetMetrics, see _protocol/messages/.
        assert isinstance(answer, messages.MetricsSnapshot)
        self._before, self.metrics = self.metrics, answer
        return answer, rows(self._before, answer)

    @property
    def seconds(self) -> float:
        """Length of the last interval, in seconds."""
        if self._before is None or self.metrics is None:
            return 0.0
        return self.metrics.at - self._before.at

    def log(self, model: str) -> list[str]:
        """Return the last lines of a model's log (JSON)."""
        answer = daemon_connection.ask(self._rundir, messages.GetLogs(model, _LOG_LINES))
        # The answer to GetLogs, see _protocol/messages/.
        assert isinstance(answer, messages.LogLines)
        return answer.lines

    def requests(self, model: str) -> messages.Requests:
        """Return a model's slowest requests and its most recent failed requests."""
        answer = daemon_connection.ask(self._rundir, messages.GetRequests(model))
        # The answer to GetRequests, see _protocol/messages/.
        assert isinstance(answer, messages.Requests)
        return answer

    def explain(self, model: str) -> messages.Explanation:
        """Return the explanation of a model's state."""
        answer = daemon_connection.ask(self._rundir, messages.Explain(model, events=0))
        # The answer to Explain, see _protocol/messages/.
        assert isinstance(answer, messages.Explanation)
        return answer

    def act(self, message: messages.AnyMessage) -> None:
        """Request a change from the daemon, and return when it is done."""
        daemon_connection.ask(self._rundir, message, timeout_s=None)
