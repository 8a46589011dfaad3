"""Validates `ModelConfig.extra`: fields of Triton's model configuration that are passed through unchanged.

Names and types are checked against tritonclient's copy of model_config.proto. If tritonclient is not installed,
as in a worker's environment, only the top-level names are checked: the registering process has already checked
everything that reaches Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.formats import pbtxt

__all__ = ["check_extra", "nearest"]

_PASSED_THROUGH = (
    "instance_group",
    "metric_tags",
    "model_metrics",
    "model_operations",
    "model_repository_agents",
    "model_warmup",
    "optimization",
    "sequence_batching",
    "version_policy",
)
_INSTANCES = "use instances= or devices= when registering"
_SET_ELSEWHERE = {
    "backend": "it is set by the proxy",
    "batch_input": "Triton's Python backend does not support batch inputs; the callable receives each request",
    "batch_output": "Triton's Python backend does not support batch outputs; the callable receives each request",
    "cc_model_filenames": "it does not apply to Python models",
    "default_model_filename": "it is set by the proxy",
    "dynamic_batching": "use ModelConfig(batcher=DynamicBatcher(...))",
    "ensemble_scheduling": "ensembles have no callable",
    "input": "use inputs=[Tensor(...)]",
    "max_batch_size": "use ModelConfig(max_batch_size=...)",
    "model_transaction_policy": "use ModelConfig(decoupled=...)",
    "name": "set the model's name when registering it",
    "output": "use outputs=[Tensor(...)]",
    "parameters": "use ModelConfig(parameters={...})",
    "platform": "it is set by the proxy",
    "response_cache": "use ModelConfig(response_cache=...)",
    "runtime": "it is set by the proxy",
}
#: Fields of an instance group that users may set. The dispatcher sets all others.
_INSTANCE_GROUP_FIELDS = ("host_policy", "rate_limiter")


def check_extra(extra: Any) -> None:
    """Raise `PyTritonBadParameterError` for a field or value that Triton or the daemon would reject.

    Args:
        extra: fields of Triton's ModelConfig message, in its JSON form
    """
    if not isinstance(extra, Mapping):
        raise PyTritonBadParameterError(
            f"`extra` must be a dict of fields of Triton's model configuration, got {extra!r}."
        )
    for name in extra:
        _check_name(name)
    if extra:
        _check_instance_group(extra.get("instance_group"))
        _check_against_the_schema(extra)
        _check_sequences(extra.get("sequence_batching"))


def nearest(name: object, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or an empty string if no known name is similar."""
    import difflib  # imported here because it takes 2 ms in each worker

    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _check_name(name: Any) -> None:
    if name in _SET_ELSEWHERE:
        raise PyTritonBadParameterError(
            f"The field {name!r} cannot be set through `extra`: {_SET_ELSEWHERE[name]}."
        )
    if name not in _PASSED_THROUGH:
        raise PyTritonBadParameterError(
            f"Unknown field {name!r} in `extra`.{nearest(name, (*_PASSED_THROUGH, *_SET_ELSEWHERE))} "
            f"Fields that can be passed through: {', '.join(_PASSED_THROUGH)}."
        )


def _check_instance_group(groups: Any) -> None:
    if groups is None:
        return
    one = isinstance(groups, (list, tuple)) and len(groups) == 1 and isinstance(groups[0], Mapping)
    for name in groups[0] if one else ("instance_group",):
        if name not in _INSTANCE_GROUP_FIELDS:
            raise PyTritonBadParameterError(
                "The `instance_group` in `extra` must be a list of one group that sets only "
                f"{' and '.join(_INSTANCE_GROUP_FIELDS)}, got {groups!r}. To set the number of instances "
                f"or their devices, {_INSTANCES}."
            )


def _check_sequences(section: Any) -> None:
    if section and "state" in section:
        # Observed in 2.51: the initial state arrives as an input, but the Python backend has no function to
        # update it.
        raise PyTritonBadParameterError(
            "The field sequence_batching.state cannot be used: Triton's Python backend does not support "
            "implicit state. Keep the state of each sequence in the callable, keyed by its correlation ID (a control "
            "input of kind CONTROL_SEQUENCE_CORRID)."
        )


def _check_against_the_schema(extra: Mapping[str, Any]) -> None:
    try:
        # Imported here because it is not installed everywhere.
        from google.protobuf import json_format

        message_class = pbtxt.message_class()
    except ImportError:
        return
    _check_message(extra, message_class.DESCRIPTOR, "extra")
    try:
        json_format.ParseDict(dict(extra), message_class())
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        raise PyTritonBadParameterError(
            f"A value in `extra` has the wrong type for Triton's model configuration: {error}"
        ) from None


def _check_message(value: Any, descriptor: Any, path: str) -> None:
    """Check a value recursively against Triton's schema; `path` is its location."""
    if not isinstance(value, Mapping):
        raise PyTritonBadParameterError(
            f"`{path}` must be a dict of fields of Triton's {descriptor.name} "
            f"({', '.join(descriptor.fields_by_name)}), got {value!r}."
        )
    for name, inner in value.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            known = list(descriptor.fields_by_name)
            raise PyTritonBadParameterError(
                f"Unknown field {name!r} in `{path}`.{nearest(name, known)} "
                f"Triton's {descriptor.name} has: {', '.join(known)}."
            )
        _check_field(inner, field, f"{path}.{name}")


def _check_field(value: Any, field: Any, path: str) -> None:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise PyTritonBadParameterError(f"`{path}` must be a dict, got {value!r}.")
        of_values = message.fields_by_name["value"]
        for key, inner in value.items():
            _check_one(inner, of_values, f"{path}[{key!r}]")
    elif _is_repeated(field):
        if not isinstance(value, (list, tuple)):
            raise PyTritonBadParameterError(f"`{path}` must be a list, got {value!r}.")
        for index, inner in enumerate(value):
            _check_one(inner, field, f"{path}[{index}]")
    else:
        _check_one(value, field, path)


def _is_repeated(field: Any) -> bool:
    # protobuf 6 deprecates `label`, older versions have no `is_repeated`.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _check_one(value: Any, field: Any, path: str) -> None:
    if field.message_type is not None:
        _check_message(value, field.message_type, path)
    elif field.enum_type is not None and isinstance(value, str):
        known = field.enum_type.values_by_name
        if value not in known:
            raise PyTritonBadParameterError(
                f"`{path}` cannot be {value!r}.{nearest(value, known)} "
                f"Known values: {', '.join(known)}."
            )
