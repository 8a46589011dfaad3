"""Sends requests to many nodes in parallel, and makes changes on all nodes or on none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, Optional, TypeVar

from pytriton._control.connection import Report
from pytriton._protocol import messages
from pytriton.daemon_client import DaemonClient
from pytriton.exceptions import (
    DaemonNotRunningError,
    FleetError,
    ModelExistsError,
    PyTritonError,
)

T = TypeVar("T")
NodeT = TypeVar("NodeT")
#: Maximum number of nodes queried in parallel. Each query uses a thread and a socket.
MAX_AT_ONCE = 64


@dataclass
class NodeAnswers(Generic[T]):
    """The results of the nodes that answered and the errors of those that failed, in the order of the nodes."""

    done: dict[str, T] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)


class _Cancelled(PyTritonError):
    """Raised to cancel a change on a node because another node has failed."""


def ask_each(
    nodes: Mapping[str, NodeT],
    act: Callable[[str, NodeT], T],
    stop: Optional[threading.Event] = None,
    answers: Optional[NodeAnswers[T]] = None,
) -> NodeAnswers[T]:
    """Call a function for all nodes in parallel. Return when all calls have ended.

    Args:
        nodes: nodes by address
        act: function called in a thread for each node
        stop: event that is set as soon as a call fails, or this function is interrupted
        answers: object to be filled with the results, even if this function is interrupted
    """
    answers = NodeAnswers() if answers is None else answers
    stop = threading.Event() if stop is None else stop
    done: dict[str, T] = {}
    failed: dict[str, Exception] = {}

    def one(address: str, node: NodeT) -> None:
        try:
            done[address] = act(address, node)
        except Exception as error:
            failed[address] = error
            stop.set()

    try:
        with ThreadPoolExecutor(max(1, min(len(nodes), MAX_AT_ONCE))) as pool:
            running = [pool.submit(one, address, node) for address, node in nodes.items()]
            try:
                wait(running)
            except BaseException:  # Ctrl-C; leaving the pool waits for all calls
                stop.set()
                raise
    finally:
        answers.done.update((address, done[address]) for address in nodes if address in done)
        answers.failed.update((address, failed[address]) for address in nodes if address in failed)
    return answers


class Change(Generic[T]):
    """A change to a model that is made on all nodes. If the change fails on one node, it is undone on the others.

    Args:
        what: participle for error messages, such as "registered"
        model: name of the model
        make: function that makes the change on one node
        undo: function that undoes the change on one node, and returns the outcome for the error message
        was_made: function that returns whether the change was made on a node that did not answer or was cancelled;
            only then is it undone there
        unknown: advice for nodes on which the outcome is unknown
    """

    def __init__(
        self,
        what: str,
        model: str,
        make: Callable[[str, DaemonClient, Report], T],
        undo: Callable[[str, DaemonClient], str],
        was_made: Callable[[str, DaemonClient], bool] = lambda *_: False,
        unknown: str = "check its status once it answers",
    ) -> None:
        self._what = what
        self._model = model
        self._make = make
        self._undo = undo
        self._was_made = was_made
        self._unknown = unknown

    def on_all(self, clients: Mapping[str, DaemonClient], report: Optional[Report]) -> dict[str, T]:
        """Make the change on all nodes. Cancel and undo it as soon as one fails.

        Raises:
            FleetError: a node failed; contains the outcome on the others
            ModelExistsError: the model already exists on all nodes that failed
        """
        stop = threading.Event()
        merged = MergedProgress(report, stop)
        answers: NodeAnswers[T] = NodeAnswers()
        try:
            ask_each(
                clients,
                lambda node, client: self._make(node, client, merged.of(node)),
                stop,
                answers,
            )
        except BaseException:
            self._undo_on({node: clients[node] for node in answers.done})
            raise
        if not answers.failed:
            return answers.done
        undone = self._undo_on({node: clients[node] for node in answers.done})
        # A cancelled node may already have finished, with its answer still in transit.
        silent = _failed_by(DaemonNotRunningError, answers.failed)
        unsure = {
            node: clients[node] for node in (*silent, *_failed_by(_Cancelled, answers.failed))
        }
        settled = ask_each(unsure, self._settle).done
        undone.update(settled)
        unknown = [node for node in silent if not settled.get(node)]
        raise self._error(answers.failed, undone, unknown)

    def _settle(self, node: str, client: DaemonClient) -> str:
        """Undo the change on a node that may have made it. Describe what was undone; "" if the change was not made."""
        return self._undo(node, client) if self._was_made(node, client) else ""

    def _undo_on(self, clients: Mapping[str, DaemonClient]) -> dict[str, str]:
        undone = ask_each(clients, self._undo)
        left = {node: f"undoing it failed: {error}" for node, error in undone.failed.items()}
        return {**undone.done, **left}

    def _error(
        self, failed: Mapping[str, Exception], undone: Mapping[str, str], unknown: Sequence[str]
    ) -> FleetError:
        refused = {
            node: error for node, error in failed.items() if not isinstance(error, _Cancelled)
        }
        texts = [f"{node}: {error}" for node, error in refused.items()]
        texts += [f"{node}: {text}" for node, text in undone.items() if text]
        kind = FleetError
        if all(isinstance(error, ModelExistsError) for error in refused.values()):
            kind = FleetModelExistsError
        where = "on no node."
        if unknown:
            where = f"on no node that answers; the outcome on {', '.join(unknown)} is unknown: {self._unknown}."
        text = f"Model {self._model!r} was not {self._what}, {where}\n" + "\n".join(texts)
        return kind(text, model_name=self._model, failures=refused)


def _failed_by(kind: type[Exception], failed: Mapping[str, Exception]) -> list[str]:
    return [node for node, error in failed.items() if isinstance(error, kind)]


class FleetModelExistsError(FleetError, ModelExistsError):
    """The model already exists on a node, and `replace` was not set."""


class MergedProgress:
    """Combines the progress reports of all nodes.

    Args:
        report: function that receives the combined progress; None: no report
        stop: event that, once set, cancels the operation on each node at its next report
    """

    def __init__(self, report: Optional[Report], stop: threading.Event) -> None:
        self._report = report
        self._stop = stop
        self._newest: dict[str, messages.Progress] = {}
        self._lock = threading.Lock()

    def of(self, node: str) -> Report:
        """Return the progress callback for a node."""

        def forward(event: messages.Progress) -> None:
            if self._stop.is_set():
                raise _Cancelled(f"cancelled: another node failed ({node})")
            with self._lock:
                self._newest[node] = event
                done = sum(one.done for one in self._newest.values())
                total = sum(one.total for one in self._newest.values())
                if self._report is not None:
                    text = f"{node}: {event.text}"
                    self._report(messages.Progress(event.stage, text, done, total))

        return forward
