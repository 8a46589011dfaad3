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
    "Option",
    "RegisterModelOptions",
    "RegisterOptions",
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
class Option:
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
        Option(
            "number of workers, or a minimum and a maximum, such as (1, 8), or `Autoscale(...)`, which follow the load "
            "(1, or one for each callable or device)",
            check=checks.instances,
        ),
    ]
    devices: Annotated[
        Optional[Sequence[Device]],
        Option(
            'GPUs, one entry for each instance: 0, "GPU-<uuid>", (0, 1), or "cpu" to hide all; it becomes the '
            "worker's CUDA_VISIBLE_DEVICES before anything is loaded",
            of_process=True,
        ),
    ]
    python: Annotated[
        Optional[StrPath],
        Option(
            "interpreter of the workers, or folder or archive of a virtual or conda environment, with numpy "
            "(this process's); packages that a worker needs and it lacks are downloaded once",
            of_process=True,
        ),
    ]
    env: Annotated[
        Optional[Env],
        Option("variables to set in the workers, or names of variables to copy", of_process=True),
    ]
    cwd: Annotated[
        Optional[StrPath],
        Option("working directory of the workers (this process's)", of_process=True),
    ]
    sys_path: Annotated[
        Optional[Iterable[StrPath]],
        Option("folders to search for modules first", of_process=True),
    ]
    requirements: Annotated[
        Optional[Sequence[str]],
        Option(
            'packages such as "torch>=2": the workers get an environment of `python` with them, made once and kept',
            of_process=True,
        ),
    ]
    load_timeout_s: Annotated[
        Optional[float],
        Option("seconds a worker may take to load the callable", 600, checks.seconds),
    ]
    on_crash: Annotated[
        Optional[str],
        Option(
            'handling of the batch that a worker was running when it crashed: "retry" runs its requests once '
            'more, each by itself, in another worker; "fail" answers them with an error, for callables that must '
            "not run twice",
            "retry",
            checks.one_of("retry", "fail"),
            of_process=True,
        ),
    ]
    spares: Annotated[
        Optional[int],
        Option(
            "loaded, idle workers beyond `instances` that take over at once",
            0,
            checks.whole(0),
            of_process=True,
        ),
    ]
    lazy: Annotated[
        Optional[bool],
        Option(
            "serve the model at once; its workers load it on the first request",
            False,
            checks.truth,
            of_process=True,
        ),
    ]
    execution_timeout_s: Annotated[
        Optional[float],
        Option(
            "seconds a batch may run; beyond that its worker is replaced, and the request that hangs is answered "
            "with an error (no limit)",
            check=checks.seconds,
            of_process=True,
        ),
    ]
    max_batches: Annotated[
        Optional[int],
        Option(
            "batches after which a worker is replaced, for models that leak (no limit)",
            check=checks.whole(1),
            of_process=True,
        ),
    ]
    limits: Annotated[
        Optional[Limits],
        Option(
            "memory, files, processes and CPUs of a worker (none is limited)",
            Limits(),
            checks.limits,
            message=Limits.to_message,
            of_process=True,
        ),
    ]
    memory: Annotated[
        Optional[Size],
        Option(
            'what a worker needs of the daemon\'s memory_budget, in bytes or such as "2GiB" (what is seen when it has '
            "loaded)",
            check=checks.size,
            message=checks.in_bytes,
            of_process=True,
        ),
    ]
    gpu_memory: Annotated[
        Optional[Size],
        Option(
            "the same of gpu_memory_budget, on each of its devices",
            check=checks.size,
            message=checks.in_bytes,
            of_process=True,
        ),
    ]
    lanes: Annotated[
        Optional[int],
        Option(
            "proxies that feed one worker; with two, the next request is on its way while one is computed (2 "
            "without batching, 1 with it; of an `async def` callable `max_concurrency`)",
            check=checks.whole(1),
        ),
    ]
    access_log: Annotated[
        Optional[bool],
        Option(
            "write a line about each request to the model's access log; `client.log_requests` changes it",
            False,
            checks.truth,
        ),
    ]
    zero_copy_inputs: Annotated[
        Optional[bool],
        Option(
            "inputs are read-only views of Triton's memory, valid until the callable returns, instead of arrays of "
            "its own",
            False,
            checks.truth,
        ),
    ]


class CallableOptions(WorkerOptions, total=False):
    """The options of callables, which `Triton.bind` takes besides its own arguments."""

    factory: Annotated[
        Optional[bool],
        Option(
            "call `infer_fn` once in each worker, and serve what it returns", False, checks.truth
        ),
    ]
    on_error: Annotated[
        Optional[str],
        Option(
            'what becomes of a batch of several requests whose callable raises: "retry" calls it once more for each '
            'request alone, so that only those that fail get the error; "fail" gives all of them the error, for '
            "callables that must not run twice (as `on_crash`; of sequences and streams all fail)",
            check=checks.one_of("retry", "fail"),
        ),
    ]
    max_concurrency: Annotated[
        Optional[int],
        Option(
            "batches, or streams, that an `async def` callable has under way at once in one worker (64; of sequences, "
            "and where `lanes` is given, as many as lanes)",
            check=checks.whole(1),
        ),
    ]
    check: Annotated[
        Optional[Callable[[Any], Any]],
        Option(
            "is called in each worker with the loaded callable before it serves; what it raises fails the "
            "registration, or with `replace`, leaves the old model serving",
            check=checks.function,
            message=lambda check: check is not None,
        ),
    ]
    isolation: Annotated[
        Optional[str],
        Option(
            '"process" runs the callable in workers of the daemon; "thread" in this very process, unpickled, a '
            "thread for each instance: until it ends, or the client is closed",
            "process",
            checks.one_of("process", "thread"),
        ),
    ]
    openai: Annotated[
        Optional[OpenAI],
        Option(
            'serve it behind the OpenAI API, too: "chat", "completions", "responses", several of these, "embeddings", '
            "or a pytriton.openai.ModelCard; the callable takes and gives what docs/how-to/openai.md says, and has no "
            "`inputs` and `outputs` (Triton's API alone)",
            check=checks.openai,
            message=lambda value: None if value is None else card_of(value).to_message(),
        ),
    ]


class _RegistrationOptions(TypedDict, total=False):
    replace: Annotated[
        Optional[bool],
        Option(
            "take the place of a model of that name, which serves until then", False, checks.truth
        ),
    ]
    temporary: Annotated[
        Optional[bool],
        Option(
            "serve it until this process ends, and do not keep it for the daemon's next start",
            False,
            checks.truth,
        ),
    ]
    trace_config: Annotated[
        Optional[Sequence[str]],
        Option(
            "where this model's spans go, as tritonserver's option says it, such as "
            '"opentelemetry,url=http://...": docs/how-to/tracing.md (as for all models)',
            check=checks.trace_settings,
        ),
    ]


class RegisterModelOptions(WorkerOptions, _RegistrationOptions, total=False):
    """The options of Triton Python models, which `register_model` takes besides its own arguments."""


class DeclareOptions(CallableOptions, _RegistrationOptions, total=False):
    """The options that `declare` takes besides its own arguments."""

    model_version: Annotated[Optional[int], Option("the number in the model's URLs", 1)]


class RegisterOptions(DeclareOptions, total=False):
    """The options that `DaemonClient.register` takes besides its own arguments."""

    strict: Annotated[
        Optional[bool],
        Option("outputs must have exactly the declared dtype and shape", False, checks.truth),
    ]


# ── derived data ───────────────────────────────────────────────────────────────────────


def names_of(kind: Any) -> list[str]:
    """Return the names of the options in one of the classes above."""
    return list(get_type_hints(kind))


#: All options by name.
OPTIONS: Mapping[str, Option] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(RegisterOptions, include_extras=True).items()
}
