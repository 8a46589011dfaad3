"""From what the caller of `register` says, and what is declared, to the message that goes out."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

from pytriton.declaration import Declaration, declaration_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.ipc import messages
from pytriton.limits import Limits
from pytriton.model_config import ModelConfig, Tensor, to_triton_config
from pytriton.pickling import pack_callable
from pytriton.proxy.telemetry import trace_environment
from pytriton.warming import warmup_messages
from pytriton.worker_imports import WorkerImports
from pytriton.world import Env, StrPath, capture_world

#: A GPU by number or UUID, several of them for one instance, "cpu" or "" for none, None to leave it
#: to the worker.
Device = Union[int, str, "tuple[int | str, ...]", None]
Target = Callable[..., Any]


@dataclass(frozen=True)
class Options:
    """How a model shall run; the arguments of `DaemonClient.register` of the same names."""

    instances: int | None = None
    devices: Sequence[Device] | None = None
    factory: bool = False
    python: StrPath | None = None
    env: Env | None = None
    cwd: StrPath | None = None
    sys_path: Iterable[StrPath] | None = None
    strict: bool = False
    model_version: int = 1
    replace: bool = False
    load_timeout_s: float = 600.0
    on_crash: Literal["retry", "fail"] = "retry"
    spares: int = 0
    execution_timeout_s: float | None = None
    max_batches: int | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    check: Callable[[Any], Any] | None = None
    lanes: int | None = None
    zero_copy_inputs: bool = False
    temporary: bool = False
    isolation: Literal["process", "thread"] = "process"
    trace_config: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raises PyTritonValidationError: a value is unusable."""
        _check_isolation(self)
        _check_seconds("load_timeout_s", self.load_timeout_s)
        if self.execution_timeout_s is not None:
            _check_seconds("execution_timeout_s", self.execution_timeout_s)
        if self.on_crash not in ("retry", "fail"):
            raise PyTritonValidationError(
                f"on_crash has to be 'retry' or 'fail', got {self.on_crash!r}."
            )
        _check_whole("spares", self.spares, 0)
        if self.max_batches is not None:
            _check_whole("max_batches", self.max_batches, 1)
        if self.lanes is not None:
            _check_whole("lanes", self.lanes, 1)
        if not isinstance(self.limits, Limits):
            raise PyTritonValidationError(
                f"limits has to be pytriton.Limits(...), got {self.limits!r}."
            )
        _check_trace_config(self.trace_config)
        if self.check is not None and not callable(self.check):
            raise PyTritonValidationError(
                f"check has to be a function that takes the loaded callable, got {self.check!r}."
            )


#: What only a process of its own can have; threads share their process's.
_OF_PROCESSES = (
    "devices", "python", "env", "cwd", "sys_path", "spares", "limits", "max_batches",
    "execution_timeout_s", "on_crash",
)  # fmt: skip


def _check_isolation(options: Options) -> None:
    if options.isolation not in ("process", "thread"):
        raise PyTritonValidationError(
            f"isolation has to be 'process' or 'thread', got {options.isolation!r}."
        )
    if options.isolation == "process":
        return
    plain = Options()
    wrong = [one for one in _OF_PROCESSES if getattr(options, one) != getattr(plain, one)]
    if wrong:
        words = ", ".join(f"{one}={getattr(options, one)!r}" for one in wrong)
        raise PyTritonValidationError(
            f"isolation='thread' runs the callable in this process, which cannot be given {words}: a thread can "
            "be neither ended from outside nor limited, and has its process's surroundings. Leave "
            f"{'it' if len(wrong) == 1 else 'them'} out, or use isolation='process'."
        )


def default_lanes(config: Mapping[str, Any]) -> int:
    """Two without batching; one with it, and for streams, sequences and queues with rules.

    Without batching, the next request travels while one is computed. With it, a second proxy would take what
    is queued before a batch has come together (docs/performance.md has the figures). And what a
    second proxy has taken has left Triton's queue, whose priorities and time-outs must hold.
    """
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    ruled = "sequence_batching" in config or any(config.get("dynamic_batching", {}).values())
    return 1 if decoupled or ruled or config.get("max_batch_size", 0) > 1 else 2


class Plan(NamedTuple):
    """A registration that has been checked, with the callables themselves.

    Attributes:
        message: what goes to the daemon
        targets: one callable for all instances, or one for each
        check: as given to `register`
        own_interpreter: the workers' interpreter is this process's
    """

    message: messages.Register
    targets: list[Any]
    check: Callable[[Any], Any] | None
    own_interpreter: bool

    def payloads(self) -> list[bytes]:
        """Return what goes to the daemon with the message; for threads there is nothing in it.

        Raises:
            PicklingError: a callable cannot be pickled
        """
        spec = self.message.spec
        if spec.isolation == "thread":
            return [b""] * len(self.targets)
        checks = [] if self.check is None else [self.check]
        with WorkerImports(spec.world, own_interpreter=self.own_interpreter) as imports:
            return [pack_callable(one, imports, spec.name) for one in [*self.targets, *checks]]


def prepare(
    infer_fn: Target | Sequence[Target],
    model_name: str | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
    given: Mapping[str, Any],
) -> tuple[messages.Register, list[bytes]]:
    """Return the message of a registration and its payloads; arguments and exceptions are those of `plan`.

    Raises:
        PicklingError: a callable cannot be pickled
    """
    planned = plan(infer_fn, model_name, inputs, outputs, config, given)
    return planned.message, planned.payloads()


def plan(
    infer_fn: Target | Sequence[Target],
    model_name: str | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
    given: Mapping[str, Any],
) -> Plan:
    """Check all that can be checked here; return the message and the callables.

    Args:
        infer_fn: one callable for all instances, or a list of them
        model_name: None: as declared, or the callable's own name
        inputs: None: as declared
        outputs: None: as declared
        config: None: as declared, or the default
        given: fields of `Options`; None and missing ones are as declared

    Raises:
        PyTritonValidationError: something is missing or wrong
        PyTritonBadParameterError: a value in `config` is unusable
    """
    several = isinstance(infer_fn, Sequence) and not callable(infer_fn)
    several = several and not isinstance(infer_fn, (str, bytes))
    targets: list[Any] = [*infer_fn] if several else [infer_fn]  # type: ignore[misc]
    per_instance = len(targets) if several else None
    declaration = declaration_of(targets[0]) if targets else None
    options = merge_options(declaration, given, per_instance)
    _check_callables(targets, factory=options.factory)
    name = model_name
    if name is None:
        name = declaration.name if declaration else default_model_name(targets[0])
    inputs = _tensors("inputs", inputs, declaration.inputs if declaration else None, name)
    outputs = _tensors("outputs", outputs, declaration.outputs if declaration else None, name)
    config = config if config is not None else declaration.config if declaration else None
    devices = device_list(options.devices)
    document = to_triton_config(name, inputs, outputs, config, options.model_version)
    hosted = options.isolation == "thread"
    world = (
        messages.World(sys.executable or "", cwd=os.getcwd())
        if hosted
        else capture_world(options.python, options.env, options.cwd, options.sys_path)
    )
    world.env.update(trace_environment(options.trace_config))
    spec = messages.ModelSpec(
        name=name,
        version=options.model_version,
        config=document,
        world=world,
        instances=count_instances(options.instances, devices, per_instance),
        devices=devices,
        factory=options.factory,
        strict=options.strict,
        load_timeout_s=options.load_timeout_s,
        on_crash="fail" if hosted else options.on_crash,  # nobody else could try again
        spares=options.spares,
        execution_timeout_s=options.execution_timeout_s,
        max_batches=options.max_batches,
        limits=options.limits.to_message(),
        check=options.check is not None and not hosted,
        lanes=options.lanes or default_lanes(document),
        zero_copy_inputs=options.zero_copy_inputs,
        isolation=options.isolation,
        warmups=warmup_messages(config, batching=document["max_batch_size"] > 0),
    )
    message = messages.Register(spec, options.replace, options.temporary)
    _check_sendable(message)
    return Plan(message, targets, options.check, own_interpreter=options.python is None)


def merge_options(
    declaration: Declaration | None, given: Mapping[str, Any], per_instance: int | None = None
) -> Options:
    """Return what was given, and for the rest what was declared.

    Raises:
        PyTritonValidationError: a declared option does not exist, or a value is unusable
    """
    known = [field.name for field in dataclasses.fields(Options)]
    said = {name: value for name, value in given.items() if value is not None}
    declared: dict[str, Any] = dict(declaration.options) if declaration else {}
    for name in declared:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PyTritonValidationError(
                f"@declare has an option {name!r} that register() does not know.{hint} There are: "
                f"{', '.join(known)}."
            )
    if declaration and declaration.strict:
        declared["strict"] = True
    if per_instance is not None or said.keys() & {"instances", "devices"}:
        # How many instances is one decision: said here, it is not mixed with the declared one.
        declared.pop("instances", None)
        declared.pop("devices", None)
    return Options(**{**declared, **said})


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PyTritonValidationError(
            f"{name} has to be a number of seconds above 0, got {value!r}."
        )


def _check_trace_config(settings: Any) -> None:
    if settings is None:
        return
    whole = isinstance(settings, (list, tuple))
    if not whole or not all(isinstance(one, str) and "=" in one for one in settings):
        raise PyTritonValidationError(
            "trace_config has to be a list of settings such as 'opentelemetry,url=http://...', "
            f"got {settings!r}."
        )


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PyTritonValidationError(
            f"{name} has to be a whole number from {least}, got {value!r}."
        )


def default_model_name(target: Target) -> str:
    """Return the callable's own name, with what model names cannot have replaced by `_`.

    Raises:
        PyTritonValidationError: it has none (a lambda)
    """
    while isinstance(target, functools.partial):
        target = target.func
    own = getattr(target, "__name__", None) or type(target).__name__
    if own == "<lambda>":
        raise PyTritonValidationError("A lambda has no name to give its model: pass model_name=.")
    name = re.sub(r"[^a-zA-Z0-9._-]", "_", own)
    if not name.strip("._"):
        raise PyTritonValidationError(f"No model name can be made of {own!r}: pass model_name=.")
    return name


def device_list(devices: Sequence[Device] | None) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each instance: "" hides all GPUs, None leaves it alone.

    Raises:
        PyTritonValidationError: an entry is no device
    """
    if devices is None:
        return []
    if isinstance(devices, (str, int)) or not isinstance(devices, Sequence):
        raise PyTritonValidationError(
            f"devices has to be a list with one entry for each instance, got {devices!r}. Write "
            f"devices=[{devices!r}] for one instance."
        )
    if not devices:
        raise PyTritonValidationError("devices=[] asks for no instance at all; leave it out.")
    return [None if device is None else _device_text(device) for device in devices]


def _device_text(device: Any) -> str:
    if isinstance(device, tuple):
        if not device or any(isinstance(part, tuple) or part in ("", "cpu") for part in device):
            raise PyTritonValidationError(
                f"devices: {device!r} has to name one or more GPUs for one instance, e.g. (0, 1)."
            )
        return ",".join(_device_text(part) for part in device)
    if isinstance(device, str):
        return "" if device == "cpu" else device
    try:
        if isinstance(device, bool):
            raise TypeError
        number = operator.index(device)
    except TypeError:
        number = -1
    if number < 0:
        raise PyTritonValidationError(
            f"devices: {device!r} is no device. A GPU's number (0), its UUID ('GPU-...'), a tuple "
            "of them for one instance on several GPUs, or 'cpu'."
        )
    return str(number)


def count_instances(
    instances: int | None, devices: Sequence[str | None], per_instance: int | None
) -> int:
    """Return the number of instances, which may be said in up to three ways, but only in one voice.

    Raises:
        PyTritonValidationError: they contradict each other
    """
    if instances is not None:
        _check_whole("instances", instances, 1)
    said = {
        "instances": instances,
        "the number of devices": len(devices) or None,
        "the number of callables": per_instance,
    }
    counts = {what: count for what, count in said.items() if count is not None}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{what} is {count}" for what, count in counts.items())
        raise PyTritonValidationError(
            f"These contradict each other: {words}. Each device and each callable of a list gets "
            "one instance; leave instances= out then."
        )
    return next(iter(counts.values()), 1)


def _tensors(
    what: str, given: Sequence[Tensor] | None, declared: Sequence[Tensor] | None, model_name: str
) -> Sequence[Tensor]:
    tensors = given if given is not None else declared
    if tensors is None:
        raise PyTritonValidationError(
            f"Model {model_name!r} has no {what}. Pass {what}=[Tensor(name=..., dtype=..., "
            "shape=...)], or decorate the callable with @pytriton.declare(inputs=[...], "
            "outputs=[...])."
        )
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _check_callables(targets: Sequence[Any], *, factory: bool) -> None:
    if not targets:
        raise PyTritonValidationError("infer_fn is an empty list: there is nothing to serve.")
    for target in targets:
        if callable(target):
            continue
        if factory:
            wanted = (
                "With factory=True, infer_fn has to be a class or function that makes the callable"
            )
        else:
            wanted = "infer_fn has to be a callable or a list of callables"
        hint = (
            " 'module:attribute' is for the command line; import it here."
            if isinstance(target, str)
            else ""
        )
        raise PyTritonValidationError(f"{wanted}, got a {type(target).__name__}.{hint}")


def _check_sendable(message: messages.Register) -> None:
    try:
        messages.encode(message)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise PyTritonValidationError(
            f"Model {message.spec.name!r} has a value that cannot be sent to the daemon: {error}. "
            "Use plain Python numbers, strings, lists and dicts in ModelConfig."
        ) from error
