"""Parts of a model configuration: batcher, queue policies, device kinds, response cache, warm-up.

Field names and meanings are those of Triton's model_config.proto. Fields are validated on construction, so
that a traceback points to the mistake. They are validated again when the configuration is passed to Triton,
because these objects can be modified.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytriton._protocol.arguments import closest_keywords
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.warmup import ModelWarmup, WarmupInput

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelWarmup",
    "QueuePolicy",
    "ResponseCache",
    "TimeoutAction",
    "WarmupInput",
]


class DeviceKind(enum.Enum):
    """The kind of device that an instance group runs on, as in Triton's model configuration."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """What Triton does with a request that has waited in the queue for too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@closest_keywords
@dataclass
class QueuePolicy:
    """Limits for the requests in a queue.

    Args:
        timeout_action: reject a request that has waited too long, or serve it after all other requests
        default_timeout_microseconds: maximum waiting time in µs; 0: no limit
        allow_timeout_override: allow requests to set a shorter timeout
        max_queue_size: maximum number of queued requests; further requests are rejected; 0: no limit

    Raises:
        PyTritonBadParameterError: a field is invalid
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise `PyTritonBadParameterError` if a field is invalid."""
        if not isinstance(self.timeout_action, TimeoutAction):
            raise PyTritonBadParameterError(
                "The `timeout_action` must be TimeoutAction.REJECT or TimeoutAction.DELAY, "
                f"got {self.timeout_action!r}."
            )
        for field in ("default_timeout_microseconds", "max_queue_size"):
            require_integer(getattr(self, field), field, minimum=0)
        self.allow_timeout_override = require_bool(
            self.allow_timeout_override, "allow_timeout_override"
        )


@closest_keywords
@dataclass
class DynamicBatcher:
    """Settings of Triton's dynamic batcher, which combines requests into batches.

    Args:
        max_queue_delay_microseconds: how long a request may wait for other requests to fill the batch, in µs
        preferred_batch_size: batch sizes at which Triton does not wait for more requests
        preserve_ordering: return responses in the order of arrival, even with several instances
        priority_levels: number of priorities, of which 1 is the highest; 0 disables priorities
        default_priority_level: priority of requests that do not set one; 1 to `priority_levels`
        default_queue_policy: queue policy for priorities that are not in `priority_queue_policy`
        priority_queue_policy: priority -> queue policy

    Raises:
        PyTritonBadParameterError: a field is invalid or out of range

    Example:
        >>> DynamicBatcher(max_queue_delay_microseconds=5000, preferred_batch_size=[8, 16]).preferred_batch_size
        [8, 16]
    """

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: Sequence[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: Mapping[int, QueuePolicy] | None = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise `PyTritonBadParameterError` if a field or one of the queue policies is invalid."""
        for field in ("max_queue_delay_microseconds", "priority_levels", "default_priority_level"):
            require_integer(getattr(self, field), field, minimum=0)
        if isinstance(self.preferred_batch_size, np.ndarray):
            self.preferred_batch_size = self.preferred_batch_size.tolist()
        sizes = self.preferred_batch_size
        if sizes is not None and not isinstance(sizes, Collection):
            raise PyTritonBadParameterError(
                f"The `preferred_batch_size` must be a sequence of integers, got {sizes!r}. Write [4] for a single size."
            )
        for size in self.preferred_batch_size or ():
            require_integer(size, "preferred_batch_size", minimum=1)
        self.preserve_ordering = require_bool(self.preserve_ordering, "preserve_ordering")
        self._validate_default_priority()
        self._validate_policies()

    def _validate_default_priority(self) -> None:
        # ModelConfig rejects level 0 with priority levels: here the default may not have been set yet.
        if self.default_priority_level > self.priority_levels:
            raise PyTritonBadParameterError(
                "The `default_priority_level` must be between 1 and `priority_levels` "
                f"({self.priority_levels}), got {self.default_priority_level}."
            )

    def _validate_policies(self) -> None:
        if self.default_queue_policy is not None:
            _require_policy(self.default_queue_policy, "default_queue_policy")
        if not self.priority_queue_policy:
            return
        if self.priority_levels == 0:
            raise PyTritonBadParameterError(
                "Provide the `priority_levels` if you want to define `priority_queue_policy` "
                "for Dynamic Batching."
            )
        for priority, policy in self.priority_queue_policy.items():
            if require_integer(priority, "priority_queue_policy", minimum=1) > self.priority_levels:
                raise PyTritonBadParameterError(
                    f"Invalid `priority`={priority} in `priority_queue_policy`. "
                    f"The value must be between 1 and {self.priority_levels}."
                )
            _require_policy(policy, f"priority_queue_policy[{priority}]")


@closest_keywords
@dataclass
class ResponseCache:
    """Setting that enables Triton's response cache, which answers identical requests without calling the model."""

    enable: bool


def require_integer(value: Any, field: str, *, minimum: int) -> int:
    """Return `value` as an int. Raise `PyTritonBadParameterError` if it is not an integer of at least `minimum`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise PyTritonBadParameterError(
            f"The `{field}` must be an integer, got {value!r}."
        ) from None
    if number < minimum:
        raise PyTritonBadParameterError(
            f"The `{field}` must be greater or equal to {minimum}. Got {number}."
        )
    return number


def require_bool(value: Any, field: str) -> bool:
    """Return `value` as a bool. Raise `PyTritonBadParameterError` for other types, such as the string "false"."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise PyTritonBadParameterError(f"The `{field}` must be True or False, got {value!r}.")


def _require_policy(policy: Any, field: str) -> None:
    if not isinstance(policy, QueuePolicy):
        raise PyTritonBadParameterError(f"The `{field}` must be a QueuePolicy, got {policy!r}.")
    policy.validate()
