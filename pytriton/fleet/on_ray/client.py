"""`RayFleetClient`: client of a fleet on Ray. It resembles a daemon's client, but Ray places the instances."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from pytriton._control.connection import Report, reporter
from pytriton._protocol import messages
from pytriton._protocol.arguments import plain
from pytriton.exceptions import (
    CanaryError,
    FleetError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonDaemonError,
)
from pytriton.fleet.canary import Canary, canary_of
from pytriton.fleet.client import with_node
from pytriton.fleet.on_ray import NAMESPACE, check_name, connected
from pytriton.fleet.on_ray.runtime_env import check, checked, uploaded, with_environment
from pytriton.fleet.on_ray.versions import MAX_INSTANCES
from pytriton.fleet.placement_status import FleetModel, NodeStatus, models_of
from pytriton.run_options import RegisterOptions, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.message import Target
    from pytriton.model_config import ModelConfig, Tensor

_POLL_INTERVAL_S = 0.2
_ANSWER_S = 60.0
_STUCK = "The fleet is waiting for a balancer that has not applied the change; see the messages of `fleet balance`."


class RayNode(msgspec.Struct, frozen=True):
    """A node of a fleet on Ray."""

    node: str
    address: str
    draining: bool
    status: Optional[messages.Status] = None
    error: str = ""

    @property
    def label(self) -> str:
        """The node's name in displays that also list nodes of other kinds of fleets."""
        return f"tcp://{self.address}/{self.node}"

    def as_status(self) -> NodeStatus:
        """Return the node as a `NodeStatus`, the class that describes nodes of other kinds of fleets."""
        return NodeStatus(self.label, self.status, self.error)


class RayFleetClient:
    """Client of a fleet on a Ray cluster. Created by ``connect(fleet=...)``.

    Args:
        fleet: name of the fleet
        ray_address: address of the cluster; None: this machine's cluster
    """

    def __init__(self, fleet: str = "default", ray_address: str | None = None) -> None:
        check_name(fleet)
        self._ray = connected(ray_address)
        self.name = fleet
        try:
            self._controller = self._ray.get_actor(f"fleet-{fleet}", NAMESPACE)
        except ValueError as error:
            raise PyTritonDaemonError(
                f"There is no fleet {fleet!r} on this Ray cluster. Start it with `pytriton-daemon fleet start`."
            ) from error

    @takes(RegisterOptions)
    def register(
        self,
        infer_fn: Target | Sequence[Target],
        model_name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        config: ModelConfig | None = None,
        *,
        resources: dict[str, Any] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        canary: float | Canary | None = None,
        wait_s: float = 600.0,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterOptions],
    ) -> list[RayNode]:
        """Serve a callable with `instances` instances in total, wherever Ray has room.

        Return when all are ready. If that fails, the registration is rolled back.

        Args:
            infer_fn: as in `DaemonClient.register`, like all arguments that are not described here
            model_name: name of the model; default: the callable's name
            inputs: the model's input tensors, without the batch axis
            outputs: the model's output tensors
            config: batching, queueing and more
            resources: Ray resources of each instance: ``{"num_cpus": 1}``, ``{"num_gpus": 0.5}``,
                ``{"resources": {"tpu": 1}}``; ``{"label_selector": {...}}`` restricts the nodes
            runtime_env: runtime environment, as for a Ray actor. Ray creates it on each node that serves the model,
                and the workers run in it. Local folders are packed and uploaded
            canary: as in `FleetClient.register`. The rollout continues, or is rolled back, even if this process dies
            wait_s: maximum wait until all instances serve, in seconds. Ray may have to free resources or add nodes
            progress: as in `DaemonClient.register`
            options: as in `DaemonClient.register`, except `devices`, which Ray assigns

        Raises:
            ModelExistsError: a model of this name exists, and `replace` was not set.
            FleetError: a node failed, or not all instances were ready in time; the change is being rolled back.
            CanaryError: the new version performed worse than the old one, which all nodes serve again.
        """
        from pytriton._register.message import plan

        around = check(runtime_env, options)
        planned = plan(infer_fn, model_name, inputs, outputs, config, options)
        planned = with_environment(planned, around, options)
        spec, replace = planned.message.spec, planned.message.replace
        self._check(planned.message)
        how, held = canary_of(canary, replace=replace), checked(resources)
        payloads = planned.payloads()
        environment, packages = uploaded(around)
        request, encoded = secrets.token_hex(8), msgspec.msgpack.encode(spec)
        given = encoded, [*payloads, *packages], held, replace, how, request, environment
        try:
            refused = self._ask("register", *given)
            if not refused:
                with reporter(progress, spec.name) as report:
                    if how is None:
                        self._until_served(spec.name, wait_s, report, request)
                    else:
                        wait_s += how.watch_s
                        self._until_rolled_out(spec.name, wait_s, report, request)
        except CanaryError:
            raise
        except BaseException:
            self._ask("withdraw", spec.name, request)
            raise
        if refused:
            raise (FleetError if replace else ModelExistsError)(refused, model_name=spec.name)
        return self.nodes()

    def scale(
        self,
        name: str,
        instances: int,
        wait_s: float = 600.0,
        progress: bool | Report | None = None,
    ) -> None:
        """Change the total number of instances of a model. Return when all are ready.

        Raises:
            ModelNotFoundError: there is no such model.
            FleetError: not all instances were ready in time; Ray keeps trying to place them.
        """
        instances = plain(instances)
        whole = isinstance(instances, int) and not isinstance(instances, bool)
        if not whole or not 1 <= instances <= MAX_INSTANCES:
            raise PyTritonBadParameterError(
                f"instances={instances!r}: must be an integer from 1 to {MAX_INSTANCES}"
            )
        if not self._ask("scale", name, instances):
            raise self._unknown(name)
        with reporter(progress, name) as report:
            self._until_served(name, wait_s, report)

    def rollback(
        self, name: str, wait_s: float = 600.0, progress: bool | Report | None = None
    ) -> None:
        """Restore a model's previous version, with the current number of instances, or cancel a rollout in progress.

        Raises:
            ModelNotFoundError: there is no such model.
            FleetError: the model was never replaced, or not all instances were ready in time.
        """
        request = secrets.token_hex(8)
        refused = self._ask("rollback", name, request)
        if refused is None:
            raise self._unknown(name)
        if refused:
            raise FleetError(refused, model_name=name)
        with reporter(progress, name) as report:
            self._until_served(name, wait_s, report, request)

    def unregister(self, name: str, wait_s: float = 600.0) -> None:
        """Stop serving a model. Return when no node serves it any longer.

        Raises:
            ModelNotFoundError: there is no such model.
            FleetError: a node still serves the model after the maximum wait, for example because a balancer still
                uses it.
        """
        if not self._ask("unregister", name, secrets.token_hex(8)):
            raise self._unknown(name)
        deadline = time.monotonic() + wait_s
        while not self._ask("progress", name)[0]:
            if time.monotonic() > deadline:
                raise FleetError(
                    f"Model {name!r} was unregistered, but is still served after {wait_s:g} s. {_STUCK}",
                    model_name=name,
                )
            time.sleep(_POLL_INTERVAL_S)

    def drain(self, node: str | None = None, wait_s: float = 600.0) -> str:
        """Drain a node and return its ID. Its instances are started elsewhere first, so no request fails.

        Args:
            node: ID of the node, or a prefix of it; None: the node on which this is called
            wait_s: maximum wait until the node is empty, in seconds

        Raises:
            PyTritonBadParameterError: no node or several nodes match.
            FleetError: the node is not empty in time, for example because Ray has no room for its instances
                elsewhere; it keeps serving.
        """
        if node is None:
            node = str(self._ray.get_runtime_context().get_node_id())
        found = [one.node for one in self.nodes() if one.node.startswith(node)]
        if len(found) != 1:
            raise PyTritonBadParameterError(
                f"{node!r} matches the IDs of {len(found)} nodes instead of one"
            )
        refused = self._ask("drain", found[0])
        if refused:
            raise PyTritonBadParameterError(refused)
        deadline = time.monotonic() + wait_s
        while not self._ask("drained", found[0]):
            if time.monotonic() > deadline:
                raise FleetError(
                    f"node {found[0]} still serves models after {wait_s:g} s. Does Ray have room on another "
                    f"node? {_STUCK}"
                )
            time.sleep(_POLL_INTERVAL_S)
        return found[0]

    def nodes(self) -> list[RayNode]:
        """Return the nodes of the fleet, each with the models that its daemon serves."""
        return [
            RayNode(node, address, draining, *_decoded(status, error))
            for node, address, draining, status, error in self._ask("nodes")
        ]

    def models(self) -> list[FleetModel]:
        """Return all models that any node serves, with their state on each node (`by_node`)."""
        infos = {one.node: one.status.models for one in self.nodes() if one.status is not None}
        return models_of(self, infos, everywhere=False)

    def status(self) -> list[NodeStatus]:
        """Return the status of each node; see `FleetClient.status`."""
        return [one.as_status() for one in self.nodes()]

    def logs(self, name: str | None = None, lines: int = 100) -> list[str]:
        """Return the most recent log lines of a model on all nodes, or of the daemons.

        They are JSON objects with the field `node`, sorted by time.
        """
        answers = self._ask("logs", name, lines)
        records = [with_node(line, node) for node, found in answers.items() for line in found]
        records.sort(key=lambda one: str(one.get("timestamp", "")))
        return [json.dumps(one, ensure_ascii=False) for one in records[-lines:]]

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return self._ray.get(
                getattr(self._controller, method).remote(*arguments), timeout=_ANSWER_S
            )
        except self._ray.exceptions.RayTaskError as error:
            raise PyTritonDaemonError(
                f"The fleet {self.name!r} cannot {method}: {error.cause}"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise PyTritonDaemonError(
                f"The controller of the fleet {self.name!r} does not answer {method}: {error}. Models are still served, "
                "and Ray will restart the controller."
            ) from error

    def _until_served(
        self, name: str, wait_s: float, report: Report | None, request: str = ""
    ) -> None:
        deadline = time.monotonic() + wait_s
        reported = -1
        while True:
            done, served, wanted, error = self._ask("progress", name, request)
            if error:
                raise FleetError(f"Model {name!r}: {error}", model_name=name)
            if done:
                return
            if time.monotonic() > deadline:
                raise FleetError(
                    f"Model {name!r}: {served} of {wanted} instances are ready after {wait_s:g} s. `ray status` "
                    f"shows the free resources.",
                    model_name=name,
                )
            if report is not None and served != reported:
                report(
                    messages.Progress(
                        "placing", f"{served} of {wanted} instances are ready", served, wanted
                    )
                )
                reported = served
            time.sleep(_POLL_INTERVAL_S)

    def _until_rolled_out(
        self, name: str, wait_s: float, report: Report | None, request: str
    ) -> None:
        deadline = time.monotonic() + wait_s
        reported = ""
        while True:
            done, served, wanted, error = self._ask("progress", name, request)
            how_far, rollback_reason = self._ask("rollout", name)
            late = time.monotonic() > deadline
            if rollback_reason and (done or error or late):
                raise CanaryError(
                    f"Model {name!r}: the new version was rolled back: {rollback_reason}.",
                    model_name=name,
                )
            if error and not wanted:  # the controller rolls back a failed registration
                raise FleetError(f"Model {name!r}: {error}", model_name=name)
            if done:
                return
            if late:
                raise FleetError(
                    f"Model {name!r}: its new version is not on all nodes after {wait_s:g} s: {error or how_far}.",
                    model_name=name,
                )
            if report is not None and how_far not in ("", reported):
                report(messages.Progress("canary", f"canary: {how_far}", served, wanted))
                reported = how_far
            time.sleep(_POLL_INTERVAL_S)

    def _check(self, message: messages.Register) -> None:
        spec = message.spec
        if (
            spec.isolation == "thread"
            or message.ephemeral
            or spec.autoscale is not None
            or spec.devices
        ):
            raise PyTritonBadParameterError(
                f"Model {spec.name!r}: a fleet on Ray supports only a fixed number of instances in processes, and "
                'Ray assigns the devices: resources={"num_gpus": 1}. Leave out isolation, ephemeral, devices and '
                "autoscaling."
            )

    def _unknown(self, name: str) -> ModelNotFoundError:
        return ModelNotFoundError(f"the fleet {self.name!r} has no model {name!r}", model_name=name)


class BalancerView:
    """A balancer's connection to the controller: it gets the nodes' state and reports which state has been applied.

    Args:
        fleet: client of the fleet
        balancer: name of this balancer
    """

    def __init__(self, fleet: RayFleetClient, balancer: str) -> None:
        self._ask: Callable[..., Any] = fleet._ask
        self._balancer = balancer
        self._seen = self._done = -1
        self._newest: list[NodeStatus] = []

    def fetch(self) -> Iterable[NodeStatus]:
        """Return the nodes as published by the controller.

        Raises:
            PyTritonDaemonError: the controller has not polled all nodes yet, while HAProxy may still run with the
                state of a previous balancer
        """
        generation, encoded = self._ask("view", self._balancer, self._done)
        if generation < 0 and self._seen < 0:
            raise PyTritonDaemonError(
                "The controller has just started, and has not polled all nodes and models yet. Until "
                "then, HAProxy keeps its current configuration."
            )
        if generation >= 0 and encoded:
            self._seen = generation
            self._newest = msgspec.msgpack.decode(encoded, type=list[NodeStatus])
        return self._newest

    def applied(self) -> None:
        """Record that all requests are now routed according to the most recently fetched state."""
        self._done = self._seen


def _decoded(status: bytes, error: str) -> tuple[Optional[messages.Status], str]:
    """Decode a node's status. If it is invalid, return an error instead of raising, so that the other nodes are still shown."""
    try:
        return (msgspec.msgpack.decode(status, type=messages.Status) if status else None), error
    except msgspec.MsgspecError as wrong:
        return None, f"its status is invalid: {wrong}"
