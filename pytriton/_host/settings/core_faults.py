"""Faults in Triton's core, other than vulnerabilities, that a configuration can trigger, and the releases that fixed them.

They were reproduced with 2.51 (docs/contributing/triton-notes.md). The daemon refuses an ensemble that could block the
server, and warns about one that could exhaust the memory; `doctor` lists the faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class CoreFault(NamedTuple):
    """A fault in Triton's core.

    Attributes:
        pull_requests: those of triton-inference-server/core that fixed it
        fixed_in: the first fixed release, by its container's name, such as "26.05"
        version: the version of tritonserver in that container
        trigger: the configuration that can trigger it
        effect: what happens
    """

    pull_requests: tuple[int, ...]
    fixed_in: str
    version: tuple[int, int]
    trigger: str
    effect: str

    def affects(self, version: str | None) -> bool:
        """Return whether a version such as "2.51.0" has the fault; False if the version is unknown."""
        match = re.match(r"(\d+)\.(\d+)", version or "")
        return match is not None and (int(match[1]), int(match[2])) < self.version

    @property
    def source(self) -> str:
        """Where the fault was fixed, as text."""
        numbers = " and ".join(f"core #{number}" for number in self.pull_requests)
        return f"fixed in {self.fixed_in}, {numbers}"


FULL_QUEUE = CoreFault(
    (466, 483),
    "26.05",
    (2, 69),
    "an ensemble whose step has max_queue_size, and runs in parallel with another step or after a decoupled one",
    "once the queue is full, requests to the ensemble are never answered",
)
UNBOUNDED = CoreFault(
    (455, 482),
    "26.05",
    (2, 69),
    "an ensemble with a decoupled step before another step",
    "the decoupled step's responses are all held in memory until the next step takes them",
)
CACHE = CoreFault(
    (449,),
    "25.09",
    (2, 61),
    "Triton's own response cache (cache-config)",
    "memory grows with each cached response, and a response may be that of another request",
)
FAULTS = (FULL_QUEUE, UNBOUNDED, CACHE)


def faults(version: str | None) -> list[CoreFault]:
    """Return the faults of a version of tritonserver; [] if it is unknown."""
    return [fault for fault in FAULTS if fault.affects(version)]


class _Step(NamedTuple):
    """A step of an ensemble.

    Attributes:
        model: the name of its model
        config: its model's configuration; empty if it is unknown
        earlier: set of the steps that must have responded before it runs, one bit each
    """

    model: str
    config: Mapping[str, Any]
    earlier: int


def blocked_by_full_queue(
    ensemble: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]], version: str | None
) -> str | None:
    """Return why a full queue of a step would block an ensemble forever; None if it would not.

    Args:
        ensemble: the ensemble's configuration
        configs: the configurations of its steps' models, by name, as far as they are known
        version: the version of tritonserver
    """
    if not FULL_QUEUE.affects(version):
        return None
    steps = _steps(ensemble, configs)
    for number, step in enumerate(steps):
        if not _limits_queue(step.config):
            continue
        for other_number, other in enumerate(steps):
            if step.earlier >> other_number & 1:
                if not _is_decoupled(other.config):
                    continue
                when = f"after step {other.model}, which is decoupled"
            elif other_number == number or other.earlier >> number & 1:
                continue
            else:
                when = f"in parallel with step {other.model}"
            return (
                f"step {step.model} limits its queue (max_queue_size), and runs {when}. Once that queue is full, "
                f"tritonserver {version} never answers requests to the ensemble ({FULL_QUEUE.source}). Remove "
                f"max_queue_size from the configuration of {step.model}, or use a newer tritonserver"
            )
    return None


def unbounded_step(
    ensemble: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return the name of a decoupled step whose responses are held in memory without a limit; None if there is none.

    Newer versions have a limit (`max_inflight_requests`), which is off by default.
    """
    if ensemble.get("ensemble_scheduling", {}).get("max_inflight_requests"):
        return None
    steps = _steps(ensemble, configs)
    needed = 0
    for step in steps:
        needed |= step.earlier
    return next(
        (
            step.model
            for number, step in enumerate(steps)
            if needed >> number & 1 and _is_decoupled(step.config)
        ),
        None,
    )


def _steps(ensemble: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> list[_Step]:
    """Return the steps in the ensemble's order. The tensor names determine which steps depend on each other."""
    entries = ensemble.get("ensemble_scheduling", {}).get("step", ())
    producers = {
        str(tensor): number
        for number, entry in enumerate(entries)
        for tensor in entry.get("output_map", {}).values()
    }
    direct = [
        {
            producers[str(tensor)]
            for tensor in entry.get("input_map", {}).values()
            if str(tensor) in producers
        }
        for entry in entries
    ]
    earlier = [sum(1 << number for number in numbers) for numbers in direct]
    for _ in entries:  # a chain is at most as long as there are steps; tritonserver refuses cycles
        former = list(earlier)
        for number, numbers in enumerate(direct):
            for one in numbers:
                earlier[number] |= earlier[one]
        if earlier == former:
            break
    return [
        _Step(
            str(entry.get("model_name", "")),
            configs.get(str(entry.get("model_name", "")), {}),
            bits,
        )
        for entry, bits in zip(entries, earlier)
    ]


def _limits_queue(config: Mapping[str, Any]) -> bool:
    return any(int(policy.get("max_queue_size") or 0) > 0 for policy in _queue_policies(config))


def _queue_policies(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    batching = config.get("dynamic_batching") or {}
    yield batching.get("default_queue_policy") or {}
    yield from (batching.get("priority_queue_policy") or {}).values()


def _is_decoupled(config: Mapping[str, Any]) -> bool:
    return bool((config.get("model_transaction_policy") or {}).get("decoupled"))
