"""`ModelConfig`: how Triton schedules and caches the requests of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytriton._protocol.arguments import closest_keywords, plain
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import DynamicBatcher, require_bool, require_integer
from pytriton.model_config.pass_through import check_extra
from pytriton.model_config.warmup import ModelWarmup

__all__ = ["ModelConfig"]


@closest_keywords
@dataclass
class ModelConfig:
    """Configuration of one model, except its name, inputs and outputs.

    Args:
        batching: requests have a batch axis, and Triton may combine several requests
        max_batch_size: maximum number of rows per call to the callable; ignored without batching
        batcher: how Triton forms batches; None: requests are not combined
        response_cache: answer identical requests from Triton's response cache
        decoupled: allow any number of responses per request (streaming)
        model_warmup: requests that the callable processes in every worker before the worker counts as ready
        parameters: custom parameters, stored as strings in Triton's configuration
        extra: other fields of Triton's model configuration, in its JSON form, which are passed through, such as
            ``sequence_batching``, ``version_policy``, ``optimization`` or ``metric_tags``. Names
            and types are checked against Triton's schema. Set the rate limiter with
            ``{"instance_group": [{"rate_limiter": {...}}]}``.

    Raises:
        PyTritonBadParameterError: a field is out of range, or `extra` has an unknown field or
            a value of the wrong type

    Example:
        >>> ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=99))
        ... # doctest: +ELLIPSIS
        ModelConfig(batching=True, max_batch_size=64, ...)
    """

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: Sequence[ModelWarmup] | None = None
    parameters: Mapping[str, str | int | bool | float] | None = None
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise `PyTritonBadParameterError` if a field is invalid.

        Called on construction, and again when the configuration is passed to Triton.
        """
        for name in ("batching", "response_cache", "decoupled"):
            setattr(self, name, require_bool(getattr(self, name), name))
        if self.batching:
            self.max_batch_size = require_integer(self.max_batch_size, "max_batch_size", minimum=1)
        if self.batcher is not None:
            if not isinstance(self.batcher, DynamicBatcher):
                raise PyTritonBadParameterError(
                    f"The `batcher` must be a DynamicBatcher or None, got {self.batcher!r}."
                )
            self.batcher.validate()
            _validate_for_triton(self.batcher)
        self._validate_preferred_sizes()
        self._validate_cache()
        _validate_parameters(self.parameters or {})
        if self.extra is not None:
            check_extra(self.extra)
        self._validate_warmups()

    def _validate_preferred_sizes(self) -> None:
        if not self.batching or self.batcher is None:
            return
        for size in self.batcher.preferred_batch_size or ():
            if size > self.max_batch_size:
                raise PyTritonBadParameterError(
                    f"The `preferred_batch_size` {size} is larger than the `max_batch_size` "
                    f"{self.max_batch_size}."
                )

    def _validate_warmups(self) -> None:
        for warmup in self.model_warmup or ():
            if not isinstance(warmup, ModelWarmup):
                raise PyTritonBadParameterError(
                    f"The `model_warmup` must be a list of ModelWarmup, but contains {warmup!r}."
                )
            maximum = self.max_batch_size if self.batching else 1
            if warmup.batch_size > maximum:
                raise PyTritonBadParameterError(
                    f"The `batch_size` {warmup.batch_size} of warm-up {warmup.name!r} is larger "
                    f"than the model's maximum batch size ({maximum})."
                )

    def _validate_cache(self) -> None:
        if self.decoupled and self.response_cache:
            raise PyTritonBadParameterError(
                "A decoupled model cannot use the response cache: Triton caches one response per "
                "request. Set `response_cache` or `decoupled` to False."
            )


def _validate_for_triton(batcher: DynamicBatcher) -> None:
    # Triton 2.51 rejects these combinations when it loads the model, with less helpful messages (observed).
    if batcher.priority_levels > 0 and batcher.default_priority_level == 0:
        raise PyTritonBadParameterError(
            "The `default_priority_level` must be between 1 and `priority_levels` "
            f"({batcher.priority_levels}) if `priority_levels` is set, got 0."
        )
    if batcher.preserve_ordering and batcher.priority_levels > 1:
        raise PyTritonBadParameterError(
            "`preserve_ordering` cannot be combined with `priority_levels` above 1, because requests "
            "of a higher priority overtake others. Use only one of the two."
        )


def _validate_parameters(parameters: Mapping[str, Any]) -> None:
    for key, value in parameters.items():
        if not isinstance(key, str) or not isinstance(plain(value), (str, int, bool, float)):
            raise PyTritonBadParameterError(
                "The `parameters` of a model must map strings to str, int, bool or float, "
                f"got {key!r}: {value!r}."
            )
