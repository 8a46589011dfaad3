"""The description of a model (without its callables) in a registration, and the digest of a registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional

import msgspec

if TYPE_CHECKING:
    import hashlib


class WorkerEnvironment(msgspec.Struct, frozen=True):
    """The environment that a worker runs in, by default that of the registering process.

    `python` is the interpreter; `sys_path` its module search path, in order (empty: the interpreter's own); `cwd` the
    working directory; `env` the variables that are set in addition to the daemon's own; `argv` the worker's `sys.argv`,
    by default as in Triton's python backend. `stayed` lists the registrant's variables that were not forwarded.
    """

    python: str
    sys_path: list[str] = []
    cwd: str = "/"
    env: dict[str, str] = {}
    argv: list[str] = msgspec.field(default_factory=lambda: [""])
    stayed: list[str] = []


class Limits(msgspec.Struct, frozen=True):
    """The resource limits of one worker. None means no limit. Sizes are in bytes.

    A worker whose own memory (resident, not shared) exceeds `recycle_above` is replaced after its current batch.
    `memory_limit` cannot be exceeded: allocations fail, and if the worker and its child processes together exceed it,
    they are killed. `processes` limits the number of child processes. `cpus` are the CPUs that the worker runs on
    (empty: all). `nice` is added to the daemon's niceness.
    """

    recycle_above: Optional[int] = None
    memory_limit: Optional[int] = None
    open_files: Optional[int] = None
    processes: Optional[int] = None
    cpus: list[int] = []
    nice: int = 0


class WarmupTensor(msgspec.Struct, frozen=True):
    """One input of a warm-up request. `source` is where its values come from.

    `shape` excludes the batch axis. `npy` is the content of the user's file, for source "file".
    """

    name: str
    datatype: str
    shape: list[int]
    source: Literal["zero", "random", "file"]
    npy: bytes = b""


class Warmup(msgspec.Struct, frozen=True):
    """A request of `batch_size` rows, sent `count` times to a worker's callable while it loads."""

    name: str
    batch_size: int
    count: int
    inputs: list[WarmupTensor]


class PythonModel(msgspec.Struct, frozen=True):
    """A Triton Python model: a class `TritonPythonModel` with the interface of Triton's python backend.

    `folder` is the model's folder in a model repository, whose `VERSION/FILE` the worker imports; if empty,
    the payload is the class. `model_config` is Triton's full configuration (JSON), which `initialize` gets.
    `names`, `kinds` and `device_ids` are the `model_instance_name`, `model_instance_kind` and
    `model_instance_device_id` of each instance. With `streams`, responses may be sent after `execute` has
    returned, or between batches.
    """

    model_config: str
    folder: str = ""
    file: str = "model.py"
    names: list[str] = []
    kinds: list[str] = []
    device_ids: list[str] = []
    streams: bool = False


class Autoscale(msgspec.Struct, frozen=True):
    """How a model's number of instances follows its load: the bounds and the rules. Times are in seconds.

    The number stays between `least` and `most`, with a load of about `target` (a share) of the capacity. The model scales
    up once the number has been too low for `up_after_s`, and down once a lower number would have sufficed for
    `down_after_s`. If `least` is 0, all instances are removed after `idle_after_s` without requests. `concurrency` is how
    many batches or streams keep an instance busy. If the machine is too small for all models, instances are divided
    according to `weight`.
    """

    least: int = 1
    most: int = 1
    target: float = 0.7
    up_after_s: float = 2.0
    down_after_s: float = 60.0
    idle_after_s: float = 600.0
    concurrency: int = 1
    weight: float = 1.0


class OpenAICard(msgspec.Struct, frozen=True):
    """The parts of the OpenAI API that a model serves, and its entry in `/v1/models`.

    `serves` lists "chat", "completions", "responses" or "embeddings"; `aliases` are additional ids of the model.
    """

    serves: list[str]
    owned_by: str = "pytriton"
    context_length: Optional[int] = None
    description: str = ""
    aliases: list[str] = []


class WebRoute(msgspec.Struct, frozen=True):
    """The HTTP route of a typed function.

    `path` begins with a slash. `media_type` is the Content-Type of its responses; if `streams`, they are server-sent
    events. `operation` describes the route as an operation object of OpenAPI 3.1; `schemas` are the named JSON schemas
    that it refers to. If `put`, the route accepts PUT like POST.
    """

    path: str
    media_type: str
    streams: bool
    operation: dict[str, Any]
    schemas: dict[str, Any] = {}
    put: bool = False


class Lease(msgspec.Struct, frozen=True):
    """The lease of a provisional registration, which the daemon rolls back unless its client confirms it in time.

    A rollback restores the model that the registration replaced, if any. The client chooses `id`. The time limit starts
    with the answer to Register, and restarts with each RenewLease and each start of the daemon.
    `share` is the share of requests that load balancers should send to it; 0: the same as to any other node.
    """

    id: str
    duration_s: float = 30.0
    share: float = 0.0


class ModelSpec(msgspec.Struct, frozen=True):
    """The description of a model, without its callables.

    `config` is Triton's model configuration as JSON, without backend and instance group, which the
    dispatcher adds. Payload i of the Register message belongs to instance i; a single payload is used
    for all instances.
    """

    name: str
    version: int
    config: dict[str, Any]
    world: WorkerEnvironment
    instances: int = 1
    #: CUDA_VISIBLE_DEVICES for each instance; None leaves it unchanged.
    devices: list[Optional[str]] = []
    #: The payload is a factory: each worker calls it once, and serves the callable that it returns.
    factory: bool = False
    #: Outputs must have exactly the declared dtype and shape.
    strict: bool = False
    #: Maximum time for a worker to load its callable, in seconds.
    load_timeout_s: float = 600.0
    #: What to do with a batch whose worker exited: "retry" (once, in another worker) or "fail".
    on_crash: Literal["retry", "fail"] = "retry"
    #: What to do with a batch of several requests whose callable raises: "retry" (each alone) or "fail".
    on_error: Literal["retry", "fail"] = "retry"
    #: Standby workers beyond `instances`, loaded and idle.
    standby_workers: int = 0
    #: Maximum duration of a batch in seconds; a worker that exceeds it is replaced.
    execution_timeout_s: Optional[float] = None
    #: Number of batches after which a worker is replaced.
    max_batches: Optional[int] = None
    limits: Limits = Limits()
    #: The last payload is a function that gets the loaded callable, and raises an exception if it must not serve.
    check: bool = False
    #: BYTES inputs that are passed to the callable as str.
    text_inputs: list[str] = []
    #: Number of proxies per worker, each with its own lane: with two, the next batch is transferred while one runs.
    #: 0: the dispatcher chooses (dispatcher/workers/instances.py).
    max_inflight_batches: int = 1
    #: Number of batches or streams that an asynchronous callable processes concurrently in one worker; each batch needs
    #: a lane.
    max_concurrency: int = 64
    #: Inputs are read-only views of Triton's memory, valid until the batch is answered.
    zero_copy_inputs: bool = False
    #: "thread": the workers are threads of the registrant; payloads are empty then.
    isolation: Literal["process", "thread"] = "process"
    warmups: list[Warmup] = []
    #: The model is a Triton Python model, not an inference callable.
    python_model: Optional[PythonModel] = None
    #: All versions served, if there are several. Each version of a Python model has its own workers; for other models,
    #: each request names its version.
    versions: list[int] = []
    #: The model is also served by the daemon's OpenAI API.
    openai: Optional[OpenAICard] = None
    #: The model is a typed function with an HTTP route of its own.
    web: Optional[WebRoute] = None
    #: The number of instances follows the load within these bounds; None: it is fixed.
    autoscale: Optional[Autoscale] = None
    #: The model is loaded on its first request.
    lazy: bool = False
    #: Every request is written to the model's access log.
    access_log: bool = False
    #: Bytes that a worker needs, in total and on each of its GPUs; None: as measured.
    memory_request: Optional[int] = None
    gpu_memory_request: Optional[int] = None
    #: Workers complete `config` from the model's file when they load it, and report the result with WorkerReady.
    completed_by_workers: bool = False
    #: Set while the registration is provisional.
    lease: Optional[Lease] = None


# ── the digest of a registration, which does not depend on the number of instances ───────────────────

_encoder = msgspec.msgpack.Encoder()


def registration_digest(spec: ModelSpec, payloads: Sequence[bytes]) -> str:
    """Return the digest of a registration, ignoring its lease, and its instances and devices, which differ by node."""
    return digest_of(spec, payload_hashes(payloads))


def payload_hashes(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the hash of each payload. Slow for large payloads."""
    return [_sha256(payload).digest() for payload in payloads]


def digest_of(spec: ModelSpec, hashes: Sequence[bytes]) -> str:
    """Return the digest of a registration whose payloads have these hashes."""
    alike = msgspec.structs.replace(spec, instances=1, devices=[], autoscale=None, lease=None)
    return _sha256(_encoder.encode(alike) + b"".join(hashes)).hexdigest()


def _sha256(data: bytes) -> hashlib._Hash:
    import hashlib  # takes 4 ms, and workers need no digest

    return hashlib.sha256(data)
