"""Canary rollouts on Ray: which nodes get the new version, how it performs, and when it is rolled back.

The controller calls `advance` on each poll. Decisions are part of the model's stored state, so a restarted controller
continues a rollout; only the watch starts again. The instances stay where Ray has placed them, and each node serves
either the old or the new version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from pytriton._protocol import messages
from pytriton.fleet.canary import CanaryCounters, CanaryWatch
from pytriton.fleet.on_ray.controller_state import RegisteredModel, Rolling
from pytriton.fleet.on_ray.reconciler import Observed, Wanted

#: How long a node with the new version may be silent. Its daemon may be restarting.
_SILENT_S = 120.0


class Rollouts:
    """The rollouts in progress, by model.

    Args:
        clock: function like time.monotonic

    Attributes:
        progress: model -> progress of its rollout, for display
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watches: dict[str, CanaryWatch] = {}
        #: Model -> time since which a node with its new version has not answered.
        self._silent: dict[str, float] = {}
        self.progress: dict[str, str] = {}

    def advance(
        self,
        name: str,
        model: RegisteredModel,
        wanted: Wanted,
        observed: Observed,
        seen: Mapping[str, CanaryCounters],
    ) -> bool:
        """Take the next step of a rollout, if it is due. Return whether the model's state has changed.

        Args:
            name: name of the model
            model: the model, which is updated
            wanted: where Ray has placed the model's instances
            observed: node -> models that it serves
            seen: node -> counters of the model
        """
        rolling = model.rolling
        if rolling is None:
            return False
        places = wanted.nodes
        there = [node for node in rolling.nodes if node in places]
        if wanted.pending or not places:
            self.progress[name] = "waiting for Ray to place all instances"
            return False
        if not there and not rolling.watched:
            return self._begin(name, model, rolling, places)
        silent_node = _silent_node(rolling, there, observed, seen)
        if silent_node:
            return self._wait_for(name, model, silent_node)
        self._silent.pop(name, None)
        if not all(
            name in observed.get(node, {}) and observed[node][name].digest == model.digest
            for node in there
        ):
            self.progress[name] = f"on {len(there)} of {len(places)} nodes"
            return False
        if not rolling.watched:
            return self._evaluate(name, model, rolling, seen)
        return self._extend(name, model, rolling, list(places), there)

    def roll_back(self, name: str, model: RegisteredModel, why: str) -> None:
        """Restore the old version with its number of instances, and record the reason."""
        assert model.rolling is not None
        model.become(model.rolling.former)
        model.rolling, model.rollback_reason = None, why
        self.forget(name)

    def forget(self, name: str) -> None:
        """Discard the data of a model's rollout, which has ended."""
        for one in (self._watches, self.progress, self._silent):
            one.pop(name, None)

    def _begin(
        self, name: str, model: RegisteredModel, rolling: Rolling, places: Mapping[str, int]
    ) -> bool:
        if len(places) < 2:
            self.roll_back(
                name,
                model,
                "all of its instances are on the same node, so there is no old version to compare with",
            )
            return True
        # Nodes with the fewest instances come first, as many as the share allows.
        most = rolling.canary.share * sum(places.values())
        rolling.nodes, taken = [], 0
        for node, count in sorted(places.items(), key=lambda one: (one[1], one[0])):
            if rolling.nodes and (taken + count > most or len(rolling.nodes) + 1 == len(places)):
                break
            rolling.nodes.append(node)
            taken += count
        self._watches.pop(name, None)
        return True

    def _wait_for(self, name: str, model: RegisteredModel, node: str) -> bool:
        silent_s = self._clock() - self._silent.setdefault(name, self._clock())
        if silent_s >= _SILENT_S:
            self.roll_back(name, model, f"{node[:8]} cannot be watched: it does not answer")
            return True
        self.progress[name] = "waiting for a node's metrics"
        return False

    def _evaluate(
        self,
        name: str,
        model: RegisteredModel,
        rolling: Rolling,
        now: Mapping[str, CanaryCounters],
    ) -> bool:
        if name not in self._watches:
            self._watches[name] = CanaryWatch(rolling.canary, self._clock(), now)
        fault, summary, over = self._watches[name].judge(self._clock(), now, rolling.nodes)
        if fault:
            self.roll_back(name, model, fault)
            return True
        self.progress[name] = summary
        rolling.watched = over
        return over

    def _extend(
        self,
        name: str,
        model: RegisteredModel,
        rolling: Rolling,
        places: list[str],
        there: list[str],
    ) -> bool:
        left = [node for node in places if node not in rolling.nodes]
        if left:
            rolling.nodes = [*there, *left[: max(1, 2 * len(there))]]
            self.progress[name] = f"on {len(there)} of {len(places)} nodes"
        else:
            model.previous, model.rolling = rolling.former, None
            self.forget(name)
        return True


def _silent_node(
    rolling: Rolling, there: list[str], observed: Observed, seen: Mapping[str, CanaryCounters]
) -> str:
    """Return a node that should have the new version but does not answer; "" if there is none."""
    silent = (
        node for node in there if node not in observed or not (rolling.watched or node in seen)
    )
    return next(silent, "")


def watched(models: Mapping[str, RegisteredModel]) -> list[str]:
    """Return the names of the models whose new version is being watched."""
    rolling = ((name, one.rolling) for name, one in models.items())
    return [name for name, one in rolling if one is not None and one.nodes and not one.watched]


def with_shares(
    statuses: Mapping[str, messages.Status], models: Mapping[str, RegisteredModel]
) -> dict[str, messages.Status]:
    """Return the nodes' statuses for balancers, with the canary's share of requests for each version being watched."""
    found = dict(statuses)
    for name, model in models.items():
        rolling = model.rolling
        if rolling is None or rolling.watched:
            continue
        lease = messages.Lease(model.digest[:16], share=rolling.canary.share)
        for node in rolling.nodes:
            if node in found:
                there = [
                    msgspec.structs.replace(one, lease=lease) if one.name == name else one
                    for one in found[node].models
                ]
                found[node] = msgspec.structs.replace(found[node], models=there)
    return found
