"""`FleetClient`: operates several daemons as one. A change is made on all of them or on none.

    connect(nodes=…) ▶ addresses_of ▶ a DaemonClient each ▶ Change.on_all: the same message to all nodes in parallel

A fleet has no processes and no state except those of its daemons: each daemon stores its registrations, and `sync`
copies them to nodes that lack them. The addresses are resolved again for each call, so nodes may be added and removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from pytriton._control.connection import Report, reporter
from pytriton._protocol import messages
from pytriton._protocol.closeable import Closeable
from pytriton.autoscale import Instances, autoscale_of
from pytriton.daemon_client import DaemonClient, connect_daemon
from pytriton.exceptions import (
    DaemonNotRunningError,
    FleetError,
    ModelNotFoundError,
    PyTritonBadParameterError,
)
from pytriton.fleet.addresses import Nodes, addresses_of
from pytriton.fleet.broadcast import Change, FleetModelExistsError, NodeAnswers, ask_each
from pytriton.fleet.canary import Canary, canary_of
from pytriton.fleet.placement_status import FleetModel, NodeStatus, models_of
from pytriton.fleet.rollout import Rollout
from pytriton.fleet.sync import carry_out, plan_sync
from pytriton.run_options import RegisterOptions, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton.model_config import ModelConfig, Tensor

Clients = dict[str, DaemonClient]


class FleetClient(Closeable):
    """Client of the daemons on several nodes. Thread-safe. Created by ``connect(nodes=...)``.

    Methods that change something first connect to every node, and change nothing if one does not answer.

    Args:
        nodes: the nodes' addresses; see `addresses.addresses_of`
        timeout_s: maximum wait for a daemon's response, in seconds
        key_file: key file written by `pytriton-daemon keys add`; all nodes must know this key
    """

    def __init__(
        self, nodes: Nodes, timeout_s: float = 5.0, key_file: Union[str, Path, None] = None
    ) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._key_file = key_file

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    @takes(RegisterOptions)
    def register(
        self,
        infer_fn: Target | Sequence[Target],
        model_name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        config: ModelConfig | None = None,
        *,
        canary: float | Canary | None = None,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterOptions],
    ) -> FleetModel:
        """Serve a callable as a model on every node, or on none. Return when it is ready on all nodes.

        The callable is pickled once and sent to every node. Each node runs `instances` instances. Paths (`python`,
        `cwd`, `sys_path`) and `devices` refer to the nodes. If this process dies during the call, the nodes roll the
        registration back.

        Args:
            infer_fn: as in `DaemonClient.register`, like all arguments except `canary`
            model_name: name of the model; default: the callable's name
            inputs: the model's input tensors, without the batch axis
            outputs: the model's output tensors
            config: batching, queueing and more
            canary: with `replace=True`, the share of the nodes that get the new version first, such as 0.1, or a
                `Canary` with further settings. The new version is rolled back if it performs worse than the old one
                there
            progress: None: show a progress bar on a terminal; False: show nothing; a function receives each
                `messages.Progress`, whose text begins with the node
            options: see `pytriton.run_options`. `isolation="thread"` and `ephemeral` are not supported, because they
                bind a model to a process of this machine

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is invalid.
            PicklingError: the callable refers to something that cannot be sent to another process.
            DaemonNotRunningError: a node does not answer; nothing was registered.
            ModelExistsError: a node already has a model of this name, and `replace` was not set; nothing was
                registered.
            FleetError: registration failed on a node and was rolled back on the others; `failures` contains the
                errors.
            CanaryError: the new version performed worse than the old one, which all nodes serve again.
        """
        from pytriton._register.message import plan

        planned = plan(infer_fn, model_name, inputs, outputs, config, options)
        message = planned.message
        if message.spec.isolation == "thread" or message.ephemeral:
            raise PyTritonBadParameterError(
                f"Model {message.spec.name!r}: isolation='thread' and ephemeral=True bind a model to this "
                f"process, which runs on a single node. Leave them out, or connect to a single daemon."
            )
        how = canary_of(canary, replace=message.replace)
        payloads = planned.payloads()
        clients = self._all()
        with reporter(progress, message.spec.name) as report:
            return self._register(clients, message, payloads, how, report)

    def scale(
        self, name: str, instances: Instances, progress: bool | Report | None = None
    ) -> FleetModel:
        """Change the number of instances that a model has *on each node*; change all nodes or none. No request fails.

        Args:
            name: name of a registered model
            instances: as in `DaemonClient.scale`
            progress: as for `register`

        Raises:
            PyTritonValidationError: `instances` is invalid.
            ModelNotFoundError: a node does not serve the model; use `sync`.
            FleetError: scaling failed on a node; the others have their previous number of instances again.
        """
        autoscale_of(instances)  # reject invalid numbers before contacting a node
        clients = self._all()
        before = self._specs(clients, name)

        def make(node: str, client: DaemonClient, report: Report) -> messages.ModelInfo:
            return client.scale(name, instances, progress=report).info()

        def undo(node: str, client: DaemonClient) -> str:
            former = before[node]
            scale = messages.Scale(name, former.instances, former.autoscale)
            client.scale_prepared(scale)
            return "the previous number of instances was restored"

        with reporter(progress, name) as report:
            # If a node did not answer, restoring the previous number is right, whether or not it has scaled.
            change = Change("scaled", name, make, undo, lambda *_: True)
            found = change.on_all(clients, report)
        return FleetModel(self, name, found, [])

    def rollback(self, name: str, progress: bool | Report | None = None) -> FleetModel:
        """Restore the version that a model had before its last replacement, on all nodes or on none.

        Raises:
            ModelNotFoundError: a node does not serve the model.
            FleetError: the rollback failed on a node; the others are unchanged.
        """
        clients = self._all()
        self._specs(clients, name)

        def make(node: str, client: DaemonClient, report: Report) -> messages.ModelInfo:
            return client.rollback(name, progress=report).info()

        def undo(node: str, client: DaemonClient) -> str:
            client.rollback(name, progress=False)
            return "it is unchanged"

        with reporter(progress, name) as report:
            found = Change("rolled back", name, make, undo).on_all(clients, report)
        return FleetModel(self, name, found, [])

    def unregister(self, name: str) -> None:
        """Stop serving a model on all nodes. In-flight requests are answered, then its workers exit.

        This cannot be undone. If it fails, repeat it. A node that is down keeps the model: unregister it again when
        the node is back, before a `sync` copies the model to the others.

        Raises:
            ModelNotFoundError: no node serves the model.
            FleetError: unregistering failed on a node; the others have unregistered the model.
        """

        def act(client: DaemonClient) -> bool:
            try:
                client.unregister(name)
            except ModelNotFoundError:
                return False
            return True

        answers = self._ask(act)
        if answers.failed:
            done = [node for node, was_there in answers.done.items() if was_there]
            texts = [f"{node}: {error}" for node, error in answers.failed.items()]
            raise FleetError(
                f"Model {name!r} could not be unregistered on all nodes (done: {', '.join(done) or 'none'}).\n"
                + "\n".join(texts),
                model_name=name,
                failures=answers.failed,
            )
        if not any(answers.done.values()):
            raise ModelNotFoundError(f"no node serves a model {name!r}", model_name=name)

    def sync(self, source: str | None = None, progress: bool | Report | None = None) -> list[str]:
        """Copy registrations to nodes that lack them. Return a description of each step.

        Without `source`, every node gets the union of all registrations; nothing is replaced or removed. With
        `source`, every node becomes a copy of that node: models that differ are replaced, and models that it lacks
        are removed.

        Args:
            source: address of the node to copy, as in `nodes`
            progress: as for `register`

        Raises:
            DaemonNotRunningError: a node does not answer.
            FleetError: nodes have different registrations of the same name and `source` is not given, or a rollout is
                in progress (nothing was changed); or a step failed (the other steps were carried out).
        """
        clients = self._all()
        answers = ask_each(clients, lambda _, client: client.registrations())
        raise_first(answers)
        tried = {
            one.spec.name for found in answers.done.values() for one in found if one.spec.lease
        }
        if tried:
            raise FleetError(
                f"A new version of {', '.join(sorted(tried))} is provisional, because a rollout is in progress. "
                f"Wait until the rollout has finished or has been rolled back. Nothing was changed."
            )
        kept = {
            node: {one.spec.name: one.digest for one in found}
            for node, found in answers.done.items()
        }
        plan = plan_sync(kept, source)
        if plan.conflicts:
            who = "; ".join(f"{name}: {', '.join(on)}" for name, on in plan.conflicts.items())
            raise FleetError(
                f"Nodes have different registrations of the same name ({who}). Set source= to the node with the "
                f"right registration, or register the model again with replace=True. Nothing was changed."
            )
        with reporter(progress, "sync") as report:
            return carry_out(plan, clients, report)

    # ── queries ─────────────────────────────────────────────────────────────────────────────────

    @property
    def nodes(self) -> list[str]:
        """The nodes' current addresses.

        Raises:
            DaemonNotRunningError: the DNS name of the nodes does not resolve.
        """
        return addresses_of(self._nodes)

    def models(self) -> list[FleetModel]:
        """Return all models that any node serves.

        Raises:
            DaemonNotRunningError: no node answers.
        """
        answers = self._ask_those_that_answer(lambda client: client.status().models)
        return models_of(self, answers.done, everywhere=True)

    def model(self, name: str) -> FleetModel:
        """Return the model with a given name.

        Raises:
            ModelNotFoundError: no node serves it.
        """
        models = self.models()
        for one in models:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in models) or "none"
        raise ModelNotFoundError(
            f"no node serves a model {name!r}. Models of the fleet: {known}", model_name=name
        )

    def status(self) -> list[NodeStatus]:
        """Return the status of each node, or the reason why it is missing.

        A node that is down does not raise an error.
        """
        answers = self._ask(lambda client: client.status())
        return [
            NodeStatus(node, answers.done[node])
            if node in answers.done
            else NodeStatus(node, error=str(answers.failed[node]))
            for node in sorted({*answers.done, *answers.failed})
        ]

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the most recent log lines of a model on all nodes, or of the daemons, as JSON with the field `node`.

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
        # The sort is stable: it preserves the order within a node.
        records.sort(key=lambda one: str(one.get("timestamp", "")))
        newest = records[-lines:] if lines > 0 else []
        return [json.dumps(one, ensure_ascii=False) for one in newest]

    def close(self) -> None:
        """Do nothing: each call closes its own connections. Exists for symmetry with `DaemonClient`."""

    def __repr__(self) -> str:
        return f"FleetClient({self._nodes!r})"

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def _register(
        self,
        clients: Clients,
        message: messages.Register,
        payloads: Sequence[bytes],
        canary: Canary | None,
        report: Report | None,
    ) -> FleetModel:
        name = message.spec.name
        served = ask_each(clients, lambda _, client: [one.name for one in client.models()])
        raise_first(served)
        before = {node for node, names in served.done.items() if name in names}
        if before and not message.replace:
            raise FleetModelExistsError(
                f"Model {name!r} is already registered on {', '.join(sorted(before))}. Pass replace=True to "
                f"replace it, or use `sync` to copy it to all nodes.",
                model_name=name,
            )

        if canary is not None and before != set(clients):
            missing = ", ".join(node for node in clients if node not in before)
            raise ModelNotFoundError(
                f"Model {name!r} is missing on {missing}, so there is no old version to compare with. Use `sync` "
                f"to copy it to all nodes, or leave out canary=. Nothing was changed.",
                model_name=name,
            )
        found = Rollout(clients, message, payloads, canary, report).run()
        return FleetModel(self, name, found, [])

    def _specs(self, clients: Clients, name: str) -> dict[str, messages.ModelSpec]:
        """Return the registration of a model on each node.

        Raises:
            ModelNotFoundError: a node lacks the model; names the node.
        """
        answers = ask_each(clients, lambda _, client: client.registrations(name))
        missing = [
            node for node, error in answers.failed.items() if isinstance(error, ModelNotFoundError)
        ]
        missing += [node for node, found in answers.done.items() if not found]
        if missing:
            raise ModelNotFoundError(
                f"no model {name!r} is registered on {', '.join(missing)}; `sync` copies it from other nodes. "
                "Nothing was changed.",
                model_name=name,
            )
        raise_first(answers)
        return {node: found[0].spec for node, found in answers.done.items()}

    # ── nodes ────────────────────────────────────────────────────────────────────────────────────

    def _all(self) -> Clients:
        """Connect to all nodes and return their clients.

        Raises:
            DaemonNotRunningError: a node does not answer; the message lists all such nodes.
        """
        answers = self._ask(lambda client: client)
        if answers.failed:
            texts = "\n".join(f"{node}: {error}" for node, error in answers.failed.items())
            raise DaemonNotRunningError(
                f"{len(answers.failed)} of {len(answers.failed) + len(answers.done)} nodes did not answer, but a "
                f"change must reach all of them. Nothing was changed.\n{texts}"
            )
        return answers.done

    def _ask(self, act: Callable[[DaemonClient], Any]) -> NodeAnswers[Any]:
        def one(node: str, _: None) -> Any:
            return act(connect_daemon(node, self._timeout_s, key_file=self._key_file))

        return ask_each(dict.fromkeys(self.nodes), one)

    def _ask_those_that_answer(
        self, act: Callable[[DaemonClient], Any], *expected: type[Exception]
    ) -> NodeAnswers[Any]:
        """Query all nodes, ignoring those that do not answer.

        Raises:
            DaemonNotRunningError: no node answers.
            Exception: a node raised another error that is not in `expected`.
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


def raise_first(answers: NodeAnswers[Any]) -> None:
    """Raise the first error, if any node failed."""
    for error in answers.failed.values():
        raise error


def with_node(line: str, node: str) -> dict[str, Any]:
    """Return a log line as a dict with the additional field `node`."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        record = {"event": line}
    return {**record, "node": node}
