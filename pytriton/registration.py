"""From the arguments of `register` to the message that the daemon gets: checked, named, packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.declaration import Declaration, declaration_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.ipc import messages
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.triton_config import to_triton_config

InferFn = Callable[..., Any]
Device = Any


def make_registration(
    infer_fn: InferFn | Sequence[InferFn],
    model_name: str | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
    *,
    instances: int | None,
    devices: Sequence[Device] | None,
    factory: bool,
    world_options: Mapping[str, Any],
    strict: bool | None,
    version: int,
    load_timeout_s: float,
) -> tuple[messages.ModelSpec, list[bytes]]:
    """Return the declaration and the payloads of a model; see `DaemonClient.register` for the arguments.

    Raises:
        PyTritonBadParameterError, PyTritonValidationError, PicklingError: what is wrong, and what to do.
    """
    from pytriton.pickling import pack_callable
    from pytriton.world import capture_world

    callables = _callables(infer_fn)
    declared = declaration_of(callables[0])
    name = _name(model_name, declared)
    given_inputs, given_outputs = _tensors(name, inputs, outputs, declared)
    triton_config = to_triton_config(
        name, given_inputs, given_outputs, config or (declared.config if declared else None), version
    )
    pinned = [_visible_devices(device) for device in devices or ()]
    world = capture_world(**world_options)
    spec = messages.ModelSpec(
        name=name,
        version=version,
        config=triton_config,
        world=world,
        instances=_count(instances, len(callables), None if devices is None else len(pinned)),
        devices=list(pinned),
        factory=factory,
        strict=(declared.strict if declared else False) if strict is None else strict,
        load_timeout_s=load_timeout_s,
    )
    return spec, [pack_callable(one, world, model_name=name) for one in callables]


def _callables(infer_fn: InferFn | Sequence[InferFn]) -> list[InferFn]:
    found = list(infer_fn) if isinstance(infer_fn, (list, tuple)) else [infer_fn]
    if not found or not all(callable(one) for one in found):
        wrong = next((one for one in found if not callable(one)), infer_fn)
        raise PyTritonValidationError(
            f"infer_fn has to be either callable or sequence of callables, not {wrong!r:.80} "
            f"(a {type(wrong).__name__})"
        )
    return found


def _name(model_name: str | None, declared: Declaration | None) -> str:
    if model_name is not None:
        return model_name
    if declared is not None:
        return declared.name
    raise PyTritonBadParameterError(
        "the model needs a name: register(infer_fn, model_name=...), or decorate the callable with @declare"
    )


def _tensors(
    name: str,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    declared: Declaration | None,
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    if inputs is None and declared is not None:
        inputs = declared.inputs
    if outputs is None and declared is not None:
        outputs = declared.outputs
    if inputs is None or outputs is None:
        raise PyTritonBadParameterError(
            f"model {name} needs inputs= and outputs=, each a list of Tensor(name=..., dtype=..., shape=...); "
            "or decorate the callable with @declare"
        )
    return inputs, outputs


def _count(instances: int | None, callables: int, devices: int | None) -> int:
    """Return the number of instances that arguments agree on."""
    said = {
        "instances": instances,
        "callables": callables if callables > 1 else None,
        "devices": devices,
    }
    counts = {what: count for what, count in said.items() if count is not None}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{count} {what}" for what, count in counts.items())
        raise PyTritonBadParameterError(f"the number of instances is not clear: {text}")
    count = next(iter(counts.values()), 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise PyTritonBadParameterError(f"instances={count!r}: a model has at least 1 instance")
    return count


def _visible_devices(device: Device) -> str:
    """Return CUDA_VISIBLE_DEVICES for an entry of `devices`."""
    if isinstance(device, str):
        return "" if device == "cpu" else device
    numbers = device if isinstance(device, tuple) else (device,)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise PyTritonBadParameterError(
            f"devices: {device!r} is not a device: a number, a tuple of numbers, a GPU's UUID, or 'cpu'"
        )
    return ",".join(map(str, numbers))
