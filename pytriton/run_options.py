"""The options that define how a model runs. Each option is declared once, together with the check of its value.

A declaration here determines:

- the keyword argument and its type in `DaemonClient.register`, `register_model`, `register_repository`, `declare` and
  `Triton.bind`;
- the option's line in `help(DaemonClient.register)`, its default, and the check of its value;
- the field of the same name in `messages.ModelSpec`, if there is one.

A function that forwards options can keep completion and type checks::

    if TYPE_CHECKING:
        from typing_extensions import Unpack

    def serve(name: str, **options: Unpack[RegisterOptions]) -> Model:
        return pytriton.connect().register(load(name), name, **options)
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Optional,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_type_hints,
)

import msgspec

from pytriton._protocol import arguments, messages, routes
from pytriton._protocol.arguments import plain
from pytriton.autoscale import Instances, autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits, Size
from pytriton.openai.card import OpenAI, card_of

if TYPE_CHECKING:
    from pytriton.declaration import Declaration

__all__ = [
    "OPTIONS",
    "CallableOptions",
    "DeclareOptions",
    "Device",
    "Env",
    "RegisterModelOptions",
    "RegisterOptions",
    "RunOption",
    "StrPath",
    "WorkerOptions",
    "names_of",
    "takes",
]

StrPath = Union[str, "os.PathLike[str]"]
#: Environment variables: name -> value (None unsets it), or the names of this process's variables to copy.
Env = Union[Mapping[str, Optional[str]], Sequence[str]]
#: The GPUs of one instance: a number, a UUID or a tuple of these; "cpu" or "" hides all GPUs; None leaves the choice to
#: the worker.
Device = Union[int, str, tuple[Union[int, str], ...], None]
#: Called with an option's name and value; raises PyTritonValidationError if the value is invalid.
Check = Callable[[str, Any], None]


@dataclass(frozen=True)
class RunOption:
    """Metadata of an option, apart from its type.

    Args:
        doc: the description; ends with the default in brackets unless `default` is a number or a string
        default: value used when neither the caller nor `@declare` sets one
        check: raises if a value other than None is invalid
        message: converts a value to the value of the field in `messages.ModelSpec`
        of_process: whether the option requires `isolation="process"`
    """

    doc: str
    default: Any = None
    check: Check = lambda name, value: None
    message: Callable[[Any], Any] = lambda value: value
    of_process: bool = False


# ── checks of values ────────────────────────────────────────────────────────────────────────────


def _check_seconds(name: str, value: Any) -> None:
    """Raise unless the value is a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PyTritonValidationError(f"{name} must be a number of seconds above 0, got {value!r}.")


def _check_bool(name: str, value: Any) -> None:
    """Raise unless the value is True or False. Other values, such as the string "no", could be mistaken for true."""
    if not isinstance(value, bool):
        raise PyTritonValidationError(f"{name} must be True or False, got {value!r}.")


def _at_least(least: int) -> Check:
    """Return a check that raises unless the value is an integer of at least `least`."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PyTritonValidationError(
                f"{name} must be a whole number of {least} or more, got {value!r}."
            )

    return check


def _check_instances(name: str, value: Any) -> None:
    """Raise unless the value is a number of instances or an autoscaling range."""
    autoscale_of(value)


def _one_of(*allowed: str) -> Check:
    """Return a check that raises unless the value is one of the allowed words."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise PyTritonValidationError(f"{name} must be {words}, got {value!r}.")

    return check


def _check_route(name: str, value: Any) -> None:
    """Raise unless the value is a valid path for a route."""
    try:
        routes.check(value)
    except (TypeError, ValueError) as error:
        raise PyTritonValidationError(f"{name}: {error}") from None


def _check_limits(name: str, value: Any) -> None:
    """Raise unless the value is a `Limits`."""
    if not isinstance(value, Limits):
        raise PyTritonValidationError(f"{name} must be pytriton.Limits(...), got {value!r}.")


def _check_size(name: str, value: Any) -> None:
    """Raise unless the value is a positive size in bytes, such as 4096 or "2GiB"."""
    if not _in_bytes(value):
        raise PyTritonValidationError(f"{name} must be {arguments.ALLOWED}, got {value!r}.")


def _in_bytes(value: Any) -> int | None:
    """Return a size in bytes; None for None, and 0 if the value is not a size."""
    try:
        return None if value is None else arguments.parse_size(value)
    except ValueError:
        return 0


def _check_function(name: str, value: Any) -> None:
    """Raise unless the value is callable."""
    if not callable(value):
        raise PyTritonValidationError(
            f"{name} must be a function that takes the loaded callable, got {value!r}."
        )


def _check_openai(name: str, value: Any) -> None:
    """Raise unless the value names endpoints of the OpenAI API or is a `ModelCard`."""
    card_of(value)


def _check_trace_settings(name: str, value: Any) -> None:
    """Raise unless the value is a list of settings in the format of tritonserver's --trace-config."""
    whole_list = isinstance(value, (list, tuple))
    if not whole_list or not all(isinstance(one, str) and "=" in one for one in value):
        raise PyTritonValidationError(
            f"{name} must be a list of settings such as 'opentelemetry,url=http://...', got {value!r}."
        )


# ── the options ──────────────────────────────────────────────────────────────────────────────────


class WorkerOptions(TypedDict, total=False):
    """Options of every model that workers serve: callables, Triton Python models and model files."""

    instances: Annotated[
        Optional[Instances],
        RunOption(
            "number of workers; (1, 8) or `Autoscale(...)` scales with load (1, or one per callable or device)",
            check=_check_instances,
        ),
    ]
    devices: Annotated[
        Optional[Sequence[Device]],
        RunOption(
            'GPUs of each instance, one entry per instance: 0, "GPU-<uuid>", (0, 1), or "cpu" to hide all GPUs; sets '
            "CUDA_VISIBLE_DEVICES before the worker loads anything",
            of_process=True,
        ),
    ]
    python: Annotated[
        Optional[StrPath],
        RunOption(
            "interpreter of the workers, or the directory or archive of a virtual or conda environment with numpy "
            "(this process's interpreter); other packages that pytriton needs there are downloaded once",
            of_process=True,
        ),
    ]
    env: Annotated[
        Optional[Env],
        RunOption(
            "environment variables to set in the workers, or names of variables to copy from this process",
            of_process=True,
        ),
    ]
    cwd: Annotated[
        Optional[StrPath],
        RunOption("working directory of the workers (that of this process)", of_process=True),
    ]
    sys_path: Annotated[
        Optional[Iterable[StrPath]],
        RunOption("directories to prepend to sys.path in the workers", of_process=True),
    ]
    requirements: Annotated[
        Optional[Sequence[str]],
        RunOption(
            'packages to install, such as "torch>=2", in a cached virtual environment based on `python`',
            of_process=True,
        ),
    ]
    load_timeout_s: Annotated[
        Optional[float],
        RunOption("maximum time to load the callable, in seconds", 600, _check_seconds),
    ]
    on_crash: Annotated[
        Optional[str],
        RunOption(
            'what to do with the current batch when a worker crashes: "retry" runs its requests again, one by one, in '
            'another worker; "fail" fails them, for callables that must not run twice',
            "retry",
            _one_of("retry", "fail"),
            of_process=True,
        ),
    ]
    standby_workers: Annotated[
        Optional[int],
        RunOption(
            "number of standby workers: loaded and idle, ready to replace a lost worker immediately",
            0,
            _at_least(0),
            of_process=True,
        ),
    ]
    lazy: Annotated[
        Optional[bool],
        RunOption(
            "whether to wait for the first request before starting workers and loading the model",
            False,
            _check_bool,
            of_process=True,
        ),
    ]
    execution_timeout_s: Annotated[
        Optional[float],
        RunOption(
            "maximum time to process a batch, in seconds; on timeout, the worker is replaced and the hanging request "
            "fails (no limit)",
            check=_check_seconds,
            of_process=True,
        ),
    ]
    max_batches: Annotated[
        Optional[int],
        RunOption(
            "number of batches after which a worker is recycled, for models that leak memory (no limit)",
            check=_at_least(1),
            of_process=True,
        ),
    ]
    limits: Annotated[
        Optional[Limits],
        RunOption(
            "resource limits of each worker: memory, open files, processes, CPUs (no limits)",
            check=_check_limits,
            message=Limits.to_message,
            of_process=True,
        ),
    ]
    memory_request: Annotated[
        Optional[Size],
        RunOption(
            'memory that a worker needs from `memory_budget`, in bytes or with a unit, such as "2GiB" (measured after '
            "loading)",
            check=_check_size,
            message=_in_bytes,
            of_process=True,
        ),
    ]
    gpu_memory_request: Annotated[
        Optional[Size],
        RunOption(
            "memory that a worker needs from `gpu_memory_budget` on each of its devices (measured after loading)",
            check=_check_size,
            message=_in_bytes,
            of_process=True,
        ),
    ]
    max_inflight_batches: Annotated[
        Optional[int],
        RunOption(
            "maximum number of in-flight batches per worker; with 2, the next batch is transferred while the worker "
            "computes (without batching 4, or 2 with several workers; 1 with batching; `max_concurrency` for `async def` "
            "callables)",
            check=_at_least(1),
        ),
    ]
    access_log: Annotated[
        Optional[bool],
        RunOption(
            "whether to write each request to the model's access log; `client.log_requests` changes it at run time",
            False,
            _check_bool,
        ),
    ]
    zero_copy_inputs: Annotated[
        Optional[bool],
        RunOption(
            "whether to pass inputs as read-only views of Triton's memory, valid until the callable returns, instead of "
            "copies",
            False,
            _check_bool,
        ),
    ]


class CallableOptions(WorkerOptions, total=False):
    """Options of callables: the keyword options of `Triton.bind`."""

    factory: Annotated[
        Optional[bool],
        RunOption(
            "whether `infer_fn` is a factory: each worker calls it once and serves the callable that it returns",
            False,
            _check_bool,
        ),
    ]
    on_error: Annotated[
        Optional[str],
        RunOption(
            'what to do if the callable raises for a batch of several requests: "retry" calls it again for each request '
            'separately, so that only bad requests fail; "fail" fails all of them, for callables that must not run twice '
            '(the value of `on_crash`; always "fail" for sequences and streams)',
            check=_one_of("retry", "fail"),
        ),
    ]
    max_concurrency: Annotated[
        Optional[int],
        RunOption(
            "maximum number of concurrent batches or streams of an `async def` callable per worker (64; without streams "
            "`max_inflight_batches` if that is set, else 1 for sequences)",
            check=_at_least(1),
        ),
    ]
    check: Annotated[
        Optional[Callable[[Any], Any]],
        RunOption(
            "function that each worker calls with the loaded callable before it serves; if the function raises, the "
            "registration fails, and a model that was to be replaced keeps serving",
            check=_check_function,
            message=lambda check: check is not None,
        ),
    ]
    isolation: Annotated[
        Optional[str],
        RunOption(
            '"process" runs the callable in workers of the daemon; "thread" runs it in threads of this process, without '
            "pickling, until the process exits or the client is closed",
            "process",
            _one_of("process", "thread"),
        ),
    ]
    openai: Annotated[
        Optional[OpenAI],
        RunOption(
            'endpoints of the OpenAI API that also serve the model: "chat", "completions", "responses" (or several of '
            'these), "embeddings", or a pytriton.openai.ModelCard; omit `inputs` and `outputs`; see '
            "docs/how-to/openai.md (none)",
            check=_check_openai,
            message=lambda value: None if value is None else card_of(value).to_message(),
        ),
    ]


class _RegistrationOptions(TypedDict, total=False):
    route: Annotated[
        Optional[str],
        RunOption(
            'path of the HTTP route of a typed function, or of another tool\'s model, such as "/v1.0/predict" ("/" and '
            "the model's name)",
            check=_check_route,
        ),
    ]
    replace: Annotated[
        Optional[bool],
        RunOption(
            "whether to replace an existing model of that name, which keeps serving until the new one is ready",
            False,
            _check_bool,
        ),
    ]
    ephemeral: Annotated[
        Optional[bool],
        RunOption(
            "whether to unregister the model when this process exits, and not to persist it",
            False,
            _check_bool,
        ),
    ]
    trace_config: Annotated[
        Optional[Sequence[str]],
        RunOption(
            "destination of this model's trace spans, in the format of tritonserver's --trace-config, such as "
            '"opentelemetry,url=http://..."; see docs/how-to/tracing.md (the daemon\'s)',
            check=_check_trace_settings,
        ),
    ]


class RegisterModelOptions(WorkerOptions, _RegistrationOptions, total=False):
    """The keyword options of `register_model`."""


class DeclareOptions(CallableOptions, _RegistrationOptions, total=False):
    """The keyword options of `declare`."""

    model_version: Annotated[Optional[int], RunOption("version number in the model's URLs", 1)]


class RegisterOptions(DeclareOptions, total=False):
    """The keyword options of `DaemonClient.register`."""

    strict: Annotated[
        Optional[bool],
        RunOption(
            "whether outputs must have exactly the declared dtype and shape", False, _check_bool
        ),
    ]


# ── derived data ───────────────────────────────────────────────────────────────────────


def names_of(kind: Any) -> list[str]:
    """Return the names of the options that a class such as `RegisterOptions` declares."""
    return list(get_type_hints(kind))


#: Every option, by name.
OPTIONS: Mapping[str, RunOption] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(RegisterOptions, include_extras=True).items()
}


# ── the options of one registration ─────────────────────────────────────────────────────────────

#: The default of each field of `ModelSpec`, by name.
_SPEC_FIELDS = {field.name: field.default for field in msgspec.structs.fields(messages.ModelSpec)}
#: The default of `max_concurrency`.
DEFAULT_MAX_CONCURRENCY = 64

#: Valid values of CUDA_VISIBLE_DEVICES: with others, such as "cuda:0", CUDA silently finds no GPU.
_VISIBLE_DEVICES = re.compile(r"((\d+|(GPU|MIG)-[^,]+)(,(\d+|(GPU|MIG)-[^,]+))*)?")


def check_names(function: str, passed: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError if a function was passed an option that it does not accept.

    Args:
        function: name of the function, for the error message
        passed: the options passed
        known: the options that the function accepts
    """
    for name in passed:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def merge_options(
    declaration: Declaration | None, passed: Mapping[str, Any], per_instance: int | None = None
) -> RegisterOptions:
    """Return the value of every option: the one passed, else the declared one, else the default.

    Args:
        declaration: the callable's declaration, if it has one
        passed: the options passed by the caller; None counts as not passed
        per_instance: number of callables if there is one for each instance

    Raises:
        PyTritonValidationError: a declared option does not exist, or a value is invalid
    """
    passed = {name: value for name, value in passed.items() if value is not None}
    options = declaration.options if declaration else {}
    declared = {name: value for name, value in options.items() if value is not None}
    for name in declared:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PyTritonValidationError(
                f"@declare has an option {name!r} that register() does not accept.{hint} Valid options: "
                f"{', '.join(OPTIONS)}."
            )
    if declaration and declaration.strict:
        declared["strict"] = True
    if per_instance is not None or passed.keys() & {"instances", "devices"}:
        # These determine the number of instances: passing one of them overrides everything declared about it.
        declared.pop("instances", None)
        declared.pop("devices", None)
    defaults = {name: option.default for name, option in OPTIONS.items()}
    given = {name: plain(value) for name, value in {**declared, **passed}.items()}
    merged = {**defaults, **given}
    for name, value in merged.items():
        if value is not None:
            OPTIONS[name].check(name, value)
    _check_isolation(merged)
    return cast(RegisterOptions, merged)


def spec_fields(options: RegisterOptions) -> dict[str, Any]:
    """Return the values of those `messages.ModelSpec` fields that share their names with options.

    An option that is None is omitted, so that the field takes its default, unless that default is None, too.
    """
    return {
        name: OPTIONS[name].message(value)
        for name, value in options.items()
        if name in _SPEC_FIELDS and not (value is None and _SPEC_FIELDS[name] is not None)
    }


def refuse_route(options: RegisterOptions) -> None:
    """Refuse a route for a model that has tensors.

    Raises:
        PyTritonValidationError: one is set
    """
    if options["route"] is not None:
        raise PyTritonValidationError(
            "route= is for typed functions and models from other tools; this model takes tensors."
        )


def _check_isolation(merged: Mapping[str, Any]) -> None:
    if merged["isolation"] == "process":
        return
    unsupported = [
        f"{name}={merged[name]!r}"
        for name, option in OPTIONS.items()
        if option.of_process and merged[name] != option.default
    ]
    if unsupported:
        raise PyTritonValidationError(
            "isolation='thread' runs the callable in this process and does not support "
            f"{', '.join(unsupported)}: a thread cannot be killed or limited, and shares the environment of its "
            f"process. Omit {'it' if len(unsupported) == 1 else 'them'}, or use isolation='process'."
        )


def device_list(devices: Sequence[Device] | None) -> list[str | None]:
    """Return the value of CUDA_VISIBLE_DEVICES for each instance: "" hides all GPUs, None leaves it unchanged.

    Raises:
        PyTritonValidationError: an entry is not a device
    """
    if devices is None:
        return []
    if isinstance(devices, (str, int)) or not isinstance(devices, Sequence):
        raise PyTritonValidationError(
            f"devices must be a list with one entry per instance, got {devices!r}. Write "
            f"devices=[{devices!r}] for one instance."
        )
    if not devices:
        raise PyTritonValidationError(
            "devices=[] is empty: pass one entry per instance, or omit it."
        )
    return [None if device is None else _device_text(device) for device in devices]


def _device_text(device: Any) -> str:
    if isinstance(device, tuple):
        if not device or any(isinstance(part, tuple) or part in ("", "cpu") for part in device):
            raise PyTritonValidationError(
                f"devices: {device!r} must name one or more GPUs for one instance, e.g. (0, 1)."
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
            f"devices: {device!r} is not a device. Use a GPU's number (0), its UUID ('GPU-...'), a tuple "
            "of them for one instance on several GPUs, or 'cpu'."
        )
    return text


def count_instances(
    instances: Instances | None, devices: Sequence[str | None], per_instance: int | None
) -> int:
    """Return the number of instances to start.

    `instances`, the number of devices and the number of callables may each determine it, and must agree. With
    autoscaling, it is the minimum, but at least 1.

    Raises:
        PyTritonValidationError: they contradict each other
    """
    autoscale = None if instances is None else autoscale_of(instances)
    if autoscale is not None:
        if per_instance is not None:
            raise PyTritonValidationError(
                "A list of callables, one per instance, cannot be combined with autoscaling. Pass a single callable."
            )
        return max(1, autoscale.least)
    passed = {
        "instances": cast(Optional[int], instances),
        "the number of devices": len(devices) or None,
        "the number of callables": per_instance,
    }
    counts = {what: count for what, count in passed.items() if count is not None}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{what} is {count}" for what, count in counts.items())
        raise PyTritonValidationError(
            f"These contradict each other: {words}. Each device, and each callable in a list, gets "
            "one instance; omit instances= if you pass devices= or a list."
        )
    return next(iter(counts.values()), 1)


def default_lanes(config: Mapping[str, Any]) -> int:
    """Return the default number of lanes per worker: 1 with batching, streams, sequences or queue policies, else 0.

    With 0, the dispatcher chooses more than one, so that the next request is transferred while the worker computes. With
    batching, however, a second lane would take queued requests before a batch is full (docs/audits/performance.md has
    measurements). It would also take them out of Triton's queue, where priorities and timeouts apply.
    """
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    ruled = "sequence_batching" in config or any(config.get("dynamic_batching", {}).values())
    return 1 if decoupled or ruled or config.get("max_batch_size", 0) > 1 else 0


def default_concurrency(config: Mapping[str, Any], lanes: int | None) -> int:
    """Return the default number of batches or streams that an `async def` callable processes concurrently per worker.

    It is 64 for streams. Otherwise each batch occupies a lane, so it is `lanes` if the user set that, and the default
    number of lanes for sequences, whose requests are processed one after another.
    """
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return DEFAULT_MAX_CONCURRENCY
    return lanes or (
        default_lanes(config) if "sequence_batching" in config else DEFAULT_MAX_CONCURRENCY
    )


# ── the options in `help` ───────────────────────────────────────────────────────────────────────

_F = TypeVar("_F", bound=Callable[..., Any])
_IN_DOCSTRING = re.compile(r"^(?P<indent> +)options: .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def takes(kind: Any) -> Callable[[_F], _F]:
    """Return a decorator that makes `help` and completion list each option of ``**options: Unpack[kind]``.

    It sets the function's signature, and replaces the entry `options` in the docstring with one line per option. The
    entry must be the last one of the section Args.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in get_type_hints(kind).items()
        ]
        shown = signature.replace(parameters=[*named, *options])
        function.__signature__ = shown  # type: ignore[attr-defined]
        if function.__doc__:  # None with `python -OO`
            function.__doc__ = _IN_DOCSTRING.sub(
                lambda match: _described(names_of(kind), match["indent"]), function.__doc__
            )
        return function

    return decorate


def _described(names: Iterable[str], indent: str) -> str:
    lines = []
    for name in names:
        option = OPTIONS[name]
        default = option.default
        shown = f'"{default}"' if isinstance(default, str) else f"{default}"
        states_default = isinstance(default, (str, int, float))
        text = f"{name}: {option.doc} ({shown})" if states_default else f"{name}: {option.doc}"
        lines += textwrap.wrap(
            text, 105 + len(indent), initial_indent=indent, subsequent_indent=f"{indent}    "
        )
    return "\n".join(lines)
