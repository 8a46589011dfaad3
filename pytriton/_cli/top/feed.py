"""The table's connection with the daemon: figures come from there, and its keys ask for changes."""

from __future__ import annotations

from pytriton._cli import daemon_connection
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.rates import Row, rows

_LOG_LINES = 200


class Feed:
    """A running daemon, asked again and again. All methods raise CliError as `daemon_connection.ask` does."""

    def __init__(self, rundir: RuntimeDir) -> None:
        self._rundir = rundir
        self._before: messages.Figures | None = None
        self.figures: messages.Figures | None = None

    def take(self) -> tuple[messages.Figures, list[Row]]:
        """Take a snapshot; return it, and what happened since the one before."""
        answer = daemon_connection.ask(self._rundir, messages.GetFigures())
        assert isinstance(
            answer, messages.Figures
        )  # what answers GetFigures, see _protocol/messages/
        self._before, self.figures = self.figures, answer
        return answer, rows(self._before, answer)

    @property
    def seconds(self) -> float:
        """How long the last interval was."""
        if self._before is None or self.figures is None:
            return 0.0
        return self.figures.at - self._before.at

    def log(self, model: str) -> list[str]:
        """Return the newest lines of a model's log: JSON objects."""
        answer = daemon_connection.ask(self._rundir, messages.GetLogs(model, _LOG_LINES))
        assert isinstance(
            answer, messages.LogLines
        )  # what answers GetLogs, see _protocol/messages/
        return answer.lines

    def requests(self, model: str) -> messages.Requests:
        """Return what is known of a model's requests: the slowest, the failed."""
        answer = daemon_connection.ask(self._rundir, messages.GetRequests(model))
        assert isinstance(
            answer, messages.Requests
        )  # what answers GetRequests, see _protocol/messages/
        return answer

    def explain(self, model: str) -> messages.Explanation:
        """Return why a model is as it is."""
        answer = daemon_connection.ask(self._rundir, messages.Explain(model, events=0))
        assert isinstance(
            answer, messages.Explanation
        )  # what answers Explain, see _protocol/messages/
        return answer

    def act(self, message: messages.AnyMessage) -> None:
        """Have the daemon do something; returns when it is done."""
        daemon_connection.ask(self._rundir, message, timeout_s=None)
