"""The description of a model in its registration: all but its callables."""

from __future__ import annotations

from typing import Any, Literal, Optional

import msgspec


class World(msgspec.Struct, frozen=True):
    """The surroundings a worker runs in: by default those of the process that registers.

    `python` is an interpreter; `sys_path` is its module search path in order (empty: the
    interpreter's own); `cwd` the working directory; `env` the variables set on top of the daemon's
    own environment; `argv` what the worker's `sys.argv` is, by default as in Triton's python backend. `stayed`
    names the registrant's variables that were not sent.
    """

    python: str
    sys_path: list[str] = []
    cwd: str = "/"
    env: dict[str, str] = {}
    argv: list[str] = msgspec.field(default_factory=lambda: [""])
    stayed: list[str] = []


class Limits(msgspec.Struct, frozen=True):
    """The resource limits of one worker; None is no limit. Sizes are bytes.

    `memory` is what its own memory (resident, not shared) may grow to before it is replaced, after
    the batch at hand. `memory_hard` is what it cannot pass: allocations fail, and with all that it
    started it is ended. `processes` counts what it starts. `cpus` are the CPUs it runs on (empty:
    all), `nice` is added to the daemon's niceness.
    """

    memory: Optional[int] = None
    memory_hard: Optional[int] = None
    open_files: Optional[int] = None
    processes: Optional[int] = None
    cpus: list[int] = []
    nice: int = 0


class WarmupTensor(msgspec.Struct, frozen=True):
    """One input of a warm-up request: `source` says where its values come from.

    `shape` is without the batch axis; `npy` is the content of the user's file (source "file").
    """

    name: str
    datatype: str
    shape: list[int]
    source: Literal["zero", "random", "file"]
    npy: bytes = b""


class Warmup(msgspec.Struct, frozen=True):
    """A request of `batch_size` rows that a worker's callable is given `count` times while it loads."""

    name: str
    batch_size: int
    count: int
    inputs: list[WarmupTensor]


class PythonModel(msgspec.Struct, frozen=True):
    """A Triton Python model: a class `TritonPythonModel` with the interface of Triton's python backend.

    `folder` is the model's folder in a model repository, whose `VERSION/FILE` is imported in the
    worker; empty: the payload is the class. `model_config` is Triton's configuration in full, JSON,
    as `initialize` gets it. `names`, `kinds` and `device_ids` say for each instance what it gets as
    `model_instance_name` and so on. `streams`: answers may come after `execute`
    has returned, or between batches.
    """

    model_config: str
    folder: str = ""
    file: str = "model.py"
    names: list[str] = []
    kinds: list[str] = []
    device_ids: list[str] = []
    streams: bool = False


class Autoscale(msgspec.Struct, frozen=True):
    """The bounds of a model whose number of instances follows its load, and how it follows. Times are seconds.

    There are from `least` to `most`; a number is right when the load is `target` of it. More come when that has been
    too few for `up_after_s`, and some go when fewer would have done for `down_after_s`. With `least` 0, all go when
    nothing was asked of the model for `idle_after_s`. `concurrency` is how many batches, or streams, keep an instance
    busy. Where the machine has not enough for all, each model gets instances by its `weight`.
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
    """The part of the OpenAI API that a model serves, and what `/v1/models` says of it.

    `serves` has "chat", "completions", "responses" or "embeddings"; `aliases` further ids of the model.
    """

    serves: list[str]
    owned_by: str = "pytriton"
    context_length: Optional[int] = None
    description: str = ""
    aliases: list[str] = []


class Trial(msgspec.Struct, frozen=True):
    """A registration that is taken back by the daemon itself unless its client says in time that it is to stay.

    Nothing is left of it then: what it has replaced serves again, or nothing of its name does. `id` is the client's
    own. Time begins with the answer to Register, and anew with each RenewTrial and each start of the daemon. `share` of
    the requests is what balancers are to send where it serves; 0: as many as anywhere else.
    """

    id: str
    lease_s: float = 30.0
    share: float = 0.0


class ModelSpec(msgspec.Struct, frozen=True):
    """The description of a model: all but its callables.

    `config` is Triton's model configuration in its JSON form, without backend and instance group,
    which the dispatcher adds. `payloads[i]` of the Register message belongs to instance i, or the
    only one to all.
    """

    name: str
    version: int
    config: dict[str, Any]
    world: World
    instances: int = 1
    #: One entry per instance: what CUDA_VISIBLE_DEVICES is set to; None leaves it alone.
    devices: list[Optional[str]] = []
    #: The payload is called once in the worker and returns the callable to serve.
    factory: bool = False
    #: Outputs must have exactly the declared dtype and shape.
    strict: bool = False
    #: Seconds a worker may take to load its callable.
    load_timeout_s: float = 600.0
    #: What becomes of the batch that a worker had when it ended: "retry" (once, in another worker)
    #: or "fail".
    on_crash: Literal["retry", "fail"] = "retry"
    #: What becomes of a batch of several requests whose callable raises: "retry" (each alone) or "fail".
    on_error: Literal["retry", "fail"] = "retry"
    #: Workers beyond `instances`, loaded and idle.
    spares: int = 0
    #: Seconds a batch may run; a worker over it is replaced.
    execution_timeout_s: Optional[float] = None
    #: Batches after which a worker is replaced.
    max_batches: Optional[int] = None
    limits: Limits = Limits()
    #: The last payload is a function that is called with the loaded callable and raises when that
    #: must not serve.
    check: bool = False
    #: Inputs of BYTES that the callable gets as str.
    text_inputs: list[str] = []
    #: Proxies that feed one worker, each over a lane of its own: with two, the next batch is on its
    #: way while one runs.
    lanes: int = 1
    #: Batches, or streams, that an asynchronous callable has under way in one worker; of batches, each has a lane.
    max_concurrency: int = 64
    #: Inputs are read-only views of Triton's memory, valid until the batch is answered.
    zero_copy_inputs: bool = False
    #: "thread": the workers are threads of the registrant; payloads are empty then.
    isolation: Literal["process", "thread"] = "process"
    warmups: list[Warmup] = []
    #: What is served is a Triton Python model and no inference callable.
    python_model: Optional[PythonModel] = None
    #: All versions that are served, when there are several. Of a Python model each has workers of its own;
    #: of any other, each request says which one it is for.
    versions: list[int] = []
    #: It is served by the daemon's OpenAI front, too.
    openai: Optional[OpenAICard] = None
    #: Its number of instances follows its load, within these bounds; None: it is as somebody said.
    autoscale: Optional[Autoscale] = None
    #: It is not loaded before the first request for it.
    lazy: bool = False
    #: Each of its requests is written to its access log.
    access_log: bool = False
    #: Bytes that a worker takes, and takes on each of its GPUs; None: what is seen.
    memory: Optional[int] = None
    gpu_memory: Optional[int] = None
    #: Workers complete `config` from the model's file when they load it, and report the result with WorkerReady.
    completed_by_workers: bool = False
    #: It serves, but is not there to stay yet.
    trial: Optional[Trial] = None
