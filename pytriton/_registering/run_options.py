"""How a model shall run: what `register` can be told about it, and what of that cannot be."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from pytriton._registering.surroundings import Env, StrPath
from pytriton.declaration import Declaration
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits

#: A GPU by number or UUID, several of them for one instance, "cpu" or "" for none, None to leave it
#: to the worker.
Device = Union[int, str, "tuple[int | str, ...]", None]


#: What CUDA_VISIBLE_DEVICES may be: with anything else, "cuda:0" say, CUDA finds no GPU and does not say why.
_VISIBLE_DEVICES = re.compile(r"((\d+|(GPU|MIG)-[^,]+)(,(\d+|(GPU|MIG)-[^,]+))*)?")


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
    requirements: Sequence[str] | None = None

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
    "execution_timeout_s", "on_crash", "requirements",
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
        text = "" if device == "cpu" else device
    else:
        try:
            text = "no number" if isinstance(device, bool) else str(operator.index(device))
        except TypeError:
            text = "no number"
    if not _VISIBLE_DEVICES.fullmatch(text):
        raise PyTritonValidationError(
            f"devices: {device!r} is no device. A GPU's number (0), its UUID ('GPU-...'), a tuple "
            "of them for one instance on several GPUs, or 'cpu'."
        )
    return text


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
