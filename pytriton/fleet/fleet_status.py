"""The read-only operations of a fleet's client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, cast

from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError
from pytriton.fleet.addresses import Nodes, addresses_of
from pytriton.fleet.broadcast import NodeAnswers, ask_each
from pytriton.fleet.placement_status import FleetModel, NodeStatus, models_of

if TYPE_CHECKING:
    from pytriton.fleet.client import FleetClient

Clients = dict[str, DaemonClient]


class FleetView:
    """The read-only operations of `FleetClient`, which inherits them.

    Args:
        nodes: as for `addresses.addresses_of`
        timeout_s: seconds within which a healthy daemon responds
        key_file: the file written by `pytriton-daemon keys add`; all nodes must have the same keys
    """

    def __init__(
        self, nodes: Nodes, timeout_s: float = 5.0, key_file: Union[str, Path, None] = None
    ) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._key_file = key_file

    @property
    def nodes(self) -> list[str]:
        """The nodes' current addresses.

        Raises:
            DaemonNotRunningError: the nodes' name does not resolve.
        """
        return addresses_of(self._nodes)

    def models(self) -> list[FleetModel]:
        """Return the models that any node serves, in the order of the first such node.

        Raises:
            DaemonNotRunningError: no node answers.
        """
        answers = self._ask_those_that_answer(lambda client: client.status().models)
        return models_of(cast("FleetClient", self), answers.done, everywhere=True)

    def model(self, name: str) -> FleetModel:
        """Return a model by its name.

        Raises:
            ModelNotFoundError: no node serves it.
        """
        models = self.models()
        for one in models:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in models) or "none"
        raise ModelNotFoundError(
            f"no node serves a model {name!r}; models of the fleet: {known}", model_name=name
        )

    def status(self) -> list[NodeStatus]:
        """Return the status of each node, or the reason why it is missing; a node that is down is not an error here."""
        answers = self._ask(lambda client: client.status())
        return [
            NodeStatus(node, answers.done[node])
            if node in answers.done
            else NodeStatus(node, error=str(answers.failed[node]))
            for node in self._order(answers)
        ]

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the newest log lines of a model on all nodes, or of the daemons: JSON sorted by time, with `node`.

        Raises:
            ModelNotFoundError: no node serves it.
            DaemonNotRunningError: no node answers.
        """
        answers = self._ask_those_that_answer(
            lambda client: client.logs(name, lines), ModelNotFoundError
        )
        if not answers.done:
            raise_first(answers)
        records = [with_node(line, node) for node, found in answers.done.items() for line in found]
        records.sort(
            key=lambda one: str(one.get("timestamp", ""))
        )  # stable: preserves the order within a node
        newest = records[-lines:] if lines > 0 else []
        return [json.dumps(one, ensure_ascii=False) for one in newest]

    # ── nodes ────────────────────────────────────────────────────────────────────────────────────

    def _all(self) -> Clients:
        """Return a client of each node.

        Raises:
            DaemonNotRunningError: a node does not answer; names all of them.
        """
        answers = self._ask(lambda client: client)
        if answers.failed:
            texts = "\n".join(f"{node}: {error}" for node, error in answers.failed.items())
            raise DaemonNotRunningError(
                f"{len(answers.failed)} of {len(answers.failed) + len(answers.done)} nodes do not answer, and a change "
                f"has to reach all of them. Nothing was changed.\n{texts}"
            )
        return answers.done

    def _ask(self, act: Callable[[DaemonClient], Any]) -> NodeAnswers[Any]:
        def one(node: str, _: None) -> Any:
            return act(connect(node, self._timeout_s, key_file=self._key_file))

        return ask_each(dict.fromkeys(self.nodes), one)

    def _ask_those_that_answer(
        self, act: Callable[[DaemonClient], Any], *expected: type[Exception]
    ) -> NodeAnswers[Any]:
        """Query all nodes; omit those that do not answer.

        Raises:
            DaemonNotRunningError: none answers.
            Exception: any other error of a node, unless `expected`.
        """
        answers = self._ask(act)
        for error in answers.failed.values():
            if not isinstance(error, (DaemonNotRunningError, *expected)):
                raise error
        down = [one for one in answers.failed.values() if isinstance(one, DaemonNotRunningError)]
        if down and len(down) == len(answers.failed) + len(answers.done):
            texts = "\n".join(f"{node}: {error}" for node, error in answers.failed.items())
            raise DaemonNotRunningError(f"No node answers.\n{texts}")
        return answers

    def _order(self, answers: NodeAnswers[Any]) -> list[str]:
        return sorted({*answers.done, *answers.failed})


def raise_first(answers: NodeAnswers[Any]) -> None:
    """Raise the error of the first node that failed."""
    for error in answers.failed.values():
        raise error


def with_node(line: str, node: str) -> dict[str, Any]:
    """Return a log line as a record with its node."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        record = {"event": line}
    return {**record, "node": node}
