"""The options of `register` and similar functions, each declared once: they define how a model runs.

Derived from a declaration here:

- the keyword argument of `DaemonClient.register`, `register_model`, `register_repository`, `declare` and
  `Triton.bind`, with its type;
- its line in `help(DaemonClient.register)`, its default, and the check of a value;
- its value in `messages.ModelSpec`, if that has a field of the same name.

Example of a function that passes options on, with completion and types::

    if TYPE_CHECKING:
        from typing_extensions import Unpack

    def serve(name: str, **options: Unpack[RegisterOptions]) -> Model:
        return pytriton.connect().register(load(name), name, **options)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypedDict, Union, get_type_hints

from pytriton._register import option_checks as checks
from pytriton.autoscale import Instances
from pytriton.limits import Limits, Size
from pytriton.openai.card import OpenAI, card_of

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
]

StrPath = Union[str, "os.PathLike[str]"]
#: Values of variables (None: unset it), or names of variables of this process to copy.
Env = Union[Mapping[str, Optional[str]], Sequence[str]]
#: A GPU by number or UUID, several of them for one instance, "cpu" or "" for none, None to let the worker
#: choose.
Device = Union[int, str, tuple[Union[int, str], ...], None]


@dataclass(frozen=True)
class RunOption:
    """Metadata of an option besides its type.

    Args:
        doc: description; ends with the default in brackets unless `default` states it
        default: value used when neither the caller nor `@declare` sets one
        check: validates a value other than None
        message: converts a value to the field of `messages.ModelSpec`
        of_process: only available to a worker with its own process: threads share their process's
    """

    doc: str
    default: Any = None
    check: checks.Check = lambda name, value: None
    message: Callable[[Any], Any] = lambda value: value
    of_process: bool = False


# ── the options ──────────────────────────────────────────────────────────────────────────────────


class WorkerOptions(TypedDict, total=False):
    """The options of all models that workers serve: callables and Triton Python models."""

    instances: Annotated[
        Optional[Instances],
        RunOption(
            "number of workers; (1, 8) or `Autoscale(...)` scales with the load (1, or one per callable or device)",
            check=checks.instances,
        ),
    ]
    devices: Annotated[
        Optional[Sequence[Device]],
        RunOption(
            'GPUs, one entry per instance: 0, "GPU-<uuid>", (0, 1), or "cpu" to hide all GPUs; sets CUDA_VISIBLE_DEVICES '
            "of the worker before anything is loaded",
            of_process=True,
        ),
    ]
    python: Annotated[
        Optional[StrPath],
        RunOption(
            "interpreter of the workers, or directory or archive of a virtual or conda environment that has numpy "
            "(this process's); packages that pytriton needs there are downloaded once",
            of_process=True,
        ),
    ]
    env: Annotated[
        Optional[Env],
        RunOption(
            "environment variables of the workers, or names of variables to copy", of_process=True
        ),
    ]
    cwd: Annotated[
        Optional[StrPath],
        RunOption("working directory of the workers (this process's)", of_process=True),
    ]
    sys_path: Annotated[
        Optional[Iterable[StrPath]],
        RunOption("directories to add to the front of sys.path", of_process=True),
    ]
    requirements: Annotated[
        Optional[Sequence[str]],
        RunOption(
            'packages to install, such as "torch>=2", in an environment of `python` that is created once and cached',
            of_process=True,
        ),
    ]
    load_timeout_s: Annotated[
        Optional[float],
        RunOption("maximum time to load the callable, in seconds", 600, checks.seconds),
    ]
    on_crash: Annotated[
        Optional[str],
        RunOption(
            'what to do with the batch of a crashed worker: "retry" runs its requests again, one by one, in another '
            'worker; "fail" fails them, for callables that must not run twice',
            "retry",
            checks.one_of("retry", "fail"),
            of_process=True,
        ),
    ]
    standby_workers: Annotated[
        Optional[int],
        RunOption(
            "standby workers: loaded and idle, ready to replace a lost worker at once",
            0,
            checks.whole(0),
            of_process=True,
        ),
    ]
    lazy: Annotated[
        Optional[bool],
        RunOption(
            "start workers and load the model on the first request",
            False,
            checks.truth,
            of_process=True,
        ),
    ]
    execution_timeout_s: Annotated[
        Optional[float],
        RunOption(
            "maximum time for a batch, in seconds; then the worker is replaced and the hanging request fails (no "
            "limit)",
            check=checks.seconds,
            of_process=True,
        ),
    ]
    max_batches: Annotated[
        Optional[int],
        RunOption(
            "batches after which a worker is recycled, for models that leak memory (no limit)",
            check=checks.whole(1),
            of_process=True,
        ),
    ]
    limits: Annotated[
        Optional[Limits],
        RunOption(
            "limits of a worker: memory, open files, processes, CPUs (no limits)",
            Limits(),
            checks.limits,
            message=Limits.to_message,
            of_process=True,
        ),
    ]
    memory_request: Annotated[
        Optional[Size],
        RunOption(
            'share of memory_budget that a worker needs, in bytes or such as "2GiB" (measured after loading)',
            check=checks.size,
            message=checks.in_bytes,
            of_process=True,
        ),
    ]
    gpu_memory_request: Annotated[
        Optional[Size],
        RunOption(
            "share of gpu_memory_budget that a worker needs on each of its devices, likewise",
            check=checks.size,
            message=checks.in_bytes,
            of_process=True,
        ),
    ]
    max_inflight_batches: Annotated[
        Optional[int],
        RunOption(
            "proxies per worker; with two, the next batch is transferred while the worker computes (2 without "
            "batching, 1 with batching; `max_concurrency` for `async def` callables)",
            check=checks.whole(1),
        ),
    ]
    access_log: Annotated[
        Optional[bool],
        RunOption(
            "log each request to the model's access log; `client.log_requests` switches it at run time",
            False,
            checks.truth,
        ),
    ]
    zero_copy_inputs: Annotated[
        Optional[bool],
        RunOption(
            "pass inputs as read-only views of Triton's memory, valid until the callable returns, instead of copies",
            False,
            checks.truth,
        ),
    ]


class CallableOptions(WorkerOptions, total=False):
    """The options of callables, which `Triton.bind` takes besides its own arguments."""

    factory: Annotated[
        Optional[bool],
        RunOption(
            "call `infer_fn` once in each worker and serve the callable that it returns",
            False,
            checks.truth,
        ),
    ]
    on_error: Annotated[
        Optional[str],
        RunOption(
            'what to do if the callable raises for a batch of several requests: "retry" calls it again for each request, '
            'so that only bad requests fail; "fail" fails all of them, for callables that must not run twice (as '
            "`on_crash`; always fail for sequences and streams)",
            check=checks.one_of("retry", "fail"),
        ),
    ]
    max_concurrency: Annotated[
        Optional[int],
        RunOption(
            "maximum number of concurrent batches or streams of an `async def` callable per worker (64; the number "
            "of lanes for sequences and if `lanes` is set)",
            check=checks.whole(1),
        ),
    ]
    check: Annotated[
        Optional[Callable[[Any], Any]],
        RunOption(
            "function to call with the loaded callable in each worker before it serves; if it raises, the "
            "registration fails, and a replaced model keeps serving",
            check=checks.function,
            message=lambda check: check is not None,
        ),
    ]
    isolation: Annotated[
        Optional[str],
        RunOption(
            '"process" runs the callable in workers of the daemon; "thread" in threads of this process, without pickling, '
            "until the process exits or the client is closed",
            "process",
            checks.one_of("process", "thread"),
        ),
    ]
    openai: Annotated[
        Optional[OpenAI],
        RunOption(
            'also serve it through the OpenAI API: "chat", "completions", "responses" (or several of these), '
            '"embeddings", or a pytriton.openai.ModelCard; leave out `inputs` and `outputs`, see docs/how-to/openai.md '
            "(only Triton's API)",
            check=checks.openai,
            message=lambda value: None if value is None else card_of(value).to_message(),
        ),
    ]


class _RegistrationOptions(TypedDict, total=False):
    replace: Annotated[
        Optional[bool],
        RunOption(
            "replace a model of that name, which serves until the new one is ready",
            False,
            checks.truth,
        ),
    ]
    ephemeral: Annotated[
        Optional[bool],
        RunOption(
            "unregister the model when this process exits, and do not persist it",
            False,
            checks.truth,
        ),
    ]
    trace_config: Annotated[
        Optional[Sequence[str]],
        RunOption(
            "destination of this model's spans, in the format of tritonserver's trace-config, such as "
            '"opentelemetry,url=http://..."; see docs/how-to/tracing.md (that of the daemon)',
            check=checks.trace_settings,
        ),
    ]


class RegisterModelOptions(WorkerOptions, _RegistrationOptions, total=False):
    """The options of Triton Python models, which `register_model` takes besides its own arguments."""


class DeclareOptions(CallableOptions, _RegistrationOptions, total=False):
    """The options that `declare` takes besides its own arguments."""

    model_version: Annotated[Optional[int], RunOption("version number in the model's URLs", 1)]


class RegisterOptions(DeclareOptions, total=False):
    """The options that `DaemonClient.register` takes besides its own arguments."""

    strict: Annotated[
        Optional[bool],
        RunOption(
            "require outputs to have exactly the declared dtype and shape", False, checks.truth
        ),
    ]


# ── derived data ───────────────────────────────────────────────────────────────────────


def names_of(kind: Any) -> list[str]:
    """Return the names of the options in one of the classes above."""
    return list(get_type_hints(kind))


#: All options by name.
OPTIONS: Mapping[str, RunOption] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(RegisterOptions, include_extras=True).items()
}
