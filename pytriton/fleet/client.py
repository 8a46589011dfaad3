"""Many daemons as one: what is registered, scaled or unregistered is so on all of them, or on none.

    connect(nodes=…) ▶ addresses_of ▶ a DaemonClient each ▶ Change.on_all: the same message, at once, to all

There is no process and no memory besides the daemons': each keeps its own registrations, and `sync` brings them to
nodes that lack them. The addresses are looked up anew for each call, so nodes may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton._control.registration_progress import Report, reporter
from pytriton._protocol import messages
from pytriton._protocol.closeable import Closeable
from pytriton._register.option_help import takes
from pytriton.autoscale import Instances, autoscale_of
from pytriton.daemon import DaemonClient
from pytriton.exceptions import (
    FleetError,
    ModelNotFoundError,
    PyTritonBadParameterError,
)
from pytriton.fleet.broadcast import Change, FleetModelExistsError, ask_each
from pytriton.fleet.canary import Canary, canary_of
from pytriton.fleet.fleet_status import Clients, FleetView, raise_first
from pytriton.fleet.placement_status import FleetModel
from pytriton.fleet.rollout import Rollout
from pytriton.fleet.sync import carry_out, plan_sync
from pytriton.run_options import RegisterOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton.model_config import ModelConfig, Tensor


class FleetClient(FleetView, Closeable):
    """The daemons of several nodes. For any number of threads. Made by ``connect(nodes=...)``.

    Every method that changes something first connects to every node, and changes nothing when one does not answer.
    """

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
        """Serve a callable as a model on every node; returns when it answers requests on all. All or nothing.

        The callable is pickled once, and each node gets the same bytes. Each node has `instances` of it.
        Paths (`python`, `cwd`, `sys_path`) and devices are those of the nodes. Should this process die meanwhile, the
        nodes withdraw it by themselves.

        Args:
            infer_fn: as for `DaemonClient.register`, and so are all others
            model_name: the callable's own name
            inputs: tensors it takes, without the batch axis
            outputs: tensors it returns
            config: batching, queueing and more
            canary: with `replace=True`: such a share of the nodes gets it first, such as 0.1, and is watched; or more
                about it, as a `Canary`
            progress: None shows a bar on a terminal, False nothing; a callable gets every
                `messages.Progress`, whose text begins with the node
            options: each is described in `pytriton.run_options`; `isolation="thread"` and `temporary` bind a
                model to a process of this machine, so a fleet does not take them

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: an argument is wrong.
            PicklingError: the callable refers to something that cannot be sent to another process.
            DaemonNotRunningError: a node does not answer; nothing was registered.
            ModelExistsError: the name is taken on a node, and `replace` was not given; nothing was registered.
            FleetError: it failed on a node, and was withdrawn from the others; `failures` has the errors.
            CanaryError: it did worse than what it was to replace, which all nodes serve again.
        """
        from pytriton._register.message import plan

        planned = plan(infer_fn, model_name, inputs, outputs, config, options)
        message = planned.message
        if message.spec.isolation == "thread" or message.temporary:
            raise PyTritonBadParameterError(
                f"Model {message.spec.name!r}: isolation='thread' and temporary=True bind a model to this process, "
                "which is on one node. Leave them out, or connect to one daemon."
            )
        how = canary_of(canary, replace=message.replace)
        payloads = planned.payloads()
        clients = self._all()
        with reporter(progress, message.spec.name) as report:
            return self._register(clients, message, payloads, how, report)

    def scale(
        self, name: str, instances: Instances, progress: bool | Report | None = None
    ) -> FleetModel:
        """Serve a model with another number of instances *on each node*. All or nothing; no request fails.

        Args:
            name: a registered model
            instances: as for `DaemonClient.scale`
            progress: as for `register`

        Raises:
            PyTritonValidationError: that is no number of instances.
            ModelNotFoundError: a node does not serve it; `sync` brings it there.
            FleetError: it failed on a node; the others have their former number again.
        """
        autoscale_of(instances)  # a wrong one is refused before anything is asked
        clients = self._all()
        before = self._specs(clients, name)

        def make(node: str, client: DaemonClient, report: Report) -> messages.ModelInfo:
            return client.scale(name, instances, progress=report).info()

        def undo(node: str, client: DaemonClient) -> str:
            former = before[node]
            scale = messages.Scale(name, former.instances, former.autoscale)
            client.scale_prepared(scale)
            return "it has its former number of instances"

        with reporter(progress, name) as report:
            # The former number is right on a node that was silent, whatever it did.
            change = Change("scaled", name, make, undo, lambda *_: True)
            found = change.on_all(clients, report)
        return FleetModel(self, name, found, [])

    def rollback(self, name: str, progress: bool | Report | None = None) -> FleetModel:
        """Put back, on all nodes, what a model was before it was last replaced. All or nothing.

        Raises:
            ModelNotFoundError: a node does not serve it.
            FleetError: it failed on a node; the others are as they were.
        """
        clients = self._all()
        self._specs(clients, name)

        def make(node: str, client: DaemonClient, report: Report) -> messages.ModelInfo:
            return client.rollback(name, progress=report).info()

        def undo(node: str, client: DaemonClient) -> str:
            client.rollback(name, progress=False)
            return "it is what it was"

        with reporter(progress, name) as report:
            found = Change("rolled back", name, make, undo).on_all(clients, report)
        return FleetModel(self, name, found, [])

    def unregister(self, name: str) -> None:
        """Stop serving a model on all nodes: requests under way are answered, then its workers end.

        This cannot be undone: where it failed, say it again. A node that is down keeps the model: unregister it again
        once the node is back, before a `sync` brings it to the others.

        Raises:
            ModelNotFoundError: no node serves it.
            FleetError: it could not be unregistered on some node; it was on the others.
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
                f"Model {name!r} was unregistered on {', '.join(done) or 'no node'}, but not everywhere.\n"
                + "\n".join(texts),
                model_name=name,
                failures=answers.failed,
            )
        if not any(answers.done.values()):
            raise ModelNotFoundError(f"no node serves a model {name!r}", model_name=name)

    def sync(self, source: str | None = None, progress: bool | Report | None = None) -> list[str]:
        """Bring what is registered to nodes that lack it; return a sentence for each step.

        What the nodes keep is the truth. Without `source`, every node gets what any of them has; nothing is replaced
        or removed. With it, every node becomes as that one: what differs is replaced, what that one lacks goes.

        Args:
            source: the address of a node, as in `nodes`
            progress: as for `register`

        Raises:
            DaemonNotRunningError: a node does not answer.
            FleetError: nodes have different registrations of one name, and no `source` says which is right
                (nothing was done); or a step failed (the others were done).
        """
        clients = self._all()
        told = ask_each(clients, lambda _, client: client.registrations())
        raise_first(told)
        tried = {one.spec.name for found in told.done.values() for one in found if one.spec.trial}
        if tried:
            raise FleetError(
                f"A new version of {', '.join(sorted(tried))} is on trial: somebody is rolling it out. Wait until all "
                "nodes have it, or have gone back. Nothing was changed."
            )
        kept = {
            node: {one.spec.name: one.digest for one in found} for node, found in told.done.items()
        }
        plan = plan_sync(kept, source)
        if plan.conflicts:
            who = "; ".join(f"{name}: {', '.join(on)}" for name, on in plan.conflicts.items())
            raise FleetError(
                f"Nodes have different registrations of the same name ({who}). Say with source= which node is right, "
                "or register it again with replace=True. Nothing was changed."
            )
        with reporter(progress, "sync") as report:
            return carry_out(plan, clients, report)

    def close(self) -> None:
        """Do nothing, for symmetry with `DaemonClient`: each call closes what it opens."""

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
                f"Model {name!r} is registered already on {', '.join(sorted(before))}. Pass replace=True for a new "
                "version in its place, or `sync` to bring it to all nodes.",
                model_name=name,
            )

        if canary is not None and before != set(clients):
            missing = ", ".join(node for node in clients if node not in before)
            raise ModelNotFoundError(
                f"Model {name!r} is not there on {missing}, so there is nothing to compare a new version with. `sync` "
                "brings it to all nodes; or leave canary out. Nothing was changed.",
                model_name=name,
            )
        found = Rollout(clients, message, payloads, canary, report).run()
        return FleetModel(self, name, found, [])

    def _specs(self, clients: Clients, name: str) -> dict[str, messages.ModelSpec]:
        """Return what each node has registered under a name.

        Raises:
            ModelNotFoundError: one has nothing; says which.
        """
        answers = ask_each(clients, lambda _, client: client.registrations(name))
        missing = [
            node for node, error in answers.failed.items() if isinstance(error, ModelNotFoundError)
        ]
        missing += [node for node, found in answers.done.items() if not found]
        if missing:
            raise ModelNotFoundError(
                f"no model {name!r} is registered on {', '.join(missing)}; `sync` brings what others have there. "
                "Nothing was changed.",
                model_name=name,
            )
        raise_first(answers)
        return {node: found[0].spec for node, found in answers.done.items()}
