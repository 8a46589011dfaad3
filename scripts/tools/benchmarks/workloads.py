"""The workloads: models, the load on each, and the request that every client sends.

The description of a model fits all systems; each system in `systems/` serves it in its own way. By default, the input
is `x` and the output is `y`.
"""

from __future__ import annotations

import base64
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

#: Default maximum of rows in a batch, for workloads with batching.
MAX_BATCH = 64
#: Numbers of elements in a tensor.
SMALL = 16
IMAGE = 150_528  #: float32: 602,112 bytes, an image of 224 x 224 x 3
LARGE = 1_500_000  #: float32: 6 MB
TOKENS = 100
#: Models with a model.py, which are served unchanged.
EXAMPLES = Path(__file__).parents[3] / "examples" / "model_py"


@dataclass(frozen=True)
class Model:
    """One model, served by every system.

    Args:
        name: its name, also in URLs
        work: which function of servers/work.py it runs
        dtype: Triton's name of the type of all tensors: FP32 or BYTES
        max_batch_size: maximum number of requests in one call; 0: no batching
        instances: copies that compute at the same time
        amount: depends on the work: turns of a loop, seconds of sleep, elements or tokens
        decoupled: whether a request has any number of responses
        inputs, outputs: names of the tensors; the value of an input is that of the first plus its index
        folder: serve this folder in Triton's layout, with a model.py, instead of a callable
    """

    name: str
    work: str
    dtype: str = "FP32"
    max_batch_size: int = 0
    instances: int = 1
    amount: float = 0.0
    decoupled: bool = False
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    folder: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the model as the scripts in servers/ read it."""
        return asdict(self)


@dataclass(frozen=True)
class Payload:
    """The request that all clients of a workload repeat, and the correct response.

    Args:
        floats: number of float32 to send: 0, 1, 2, … modulo 1024
        strings: instead: that many strings of 100 bytes
        text: instead: a text for a typed function
        image_bytes: instead: an image of that size for a typed function
        answer: number of elements in the response; None: the response is the request
        responses: number of responses
    """

    floats: int = 0
    strings: int = 0
    text: str = ""
    image_bytes: int = 0
    answer: int | None = None
    responses: int = 1


@dataclass(frozen=True)
class Workload:
    """One model with several numbers of clients."""

    key: str  #: e.g. "C2"
    group: str  #: selects several workloads together, e.g. "C" or "typed"
    title: str
    model: Model
    payload: Payload
    clients: tuple[int, ...]
    quick_clients: tuple[int, ...]
    least_seconds: float = 0.0  #: minimum duration of a measurement, if one request takes long
    warm_up_s: float = (
        1.0  #: maximum duration of a warm-up, which is otherwise never longer than the measurement
    )


_IDENTITY = Model("identity", "identity", max_batch_size=MAX_BATCH)
_SPIN = Model("spin", "spin")
_PREDICT = Model("predict", "typed")
_ADD_SUB = Model(
    "add_sub", "add_sub", inputs=("INPUT0", "INPUT1"), outputs=("OUTPUT0", "OUTPUT1"),
    folder=str(EXAMPLES / "add_sub"),
)  # fmt: skip


def _workload(
    key: str,
    title: str,
    model: Model,
    payload: Payload,
    clients: tuple[int, ...],
    quick: tuple[int, ...],
    least_seconds: float = 0.0,
) -> Workload:
    group = key[0] if key[0].isupper() else "typed" if key.startswith("typed_") else key
    return Workload(key, group, title, model, payload, clients, quick, least_seconds)


def _model_workload(name: str, title: str, text: str, size: int) -> Workload:
    """Return a workload with a real model, whose libraries need some seconds to start their threads."""
    clients = (1, 8, 32)
    return Workload(
        f"models_{name}", "models", title, Model(name, "model"), Payload(text=text, answer=size), clients, clients,
        warm_up_s=6.0,
    )  # fmt: skip


WORKLOADS: tuple[Workload, ...] = (
    _workload("A", "identity of 16 float32", _IDENTITY, Payload(floats=SMALL), (1, 8, 32, 128), (1, 8, 32)),
    _workload("B", "identity of 602 KB", _IDENTITY, Payload(floats=IMAGE), (1, 4, 16), (1, 4)),
    _workload("C1", "5 ms of Python, 1 instance", _SPIN, Payload(floats=SMALL), (8,), (8,)),
    _workload(
        "C2", "5 ms of Python, 2 instances", replace(_SPIN, instances=2), Payload(floats=SMALL), (8,), (8,)
    ),
    _workload(
        "D", "5 ms sleep per batch of up to 32", Model("nap", "nap", max_batch_size=32, amount=0.005),
        Payload(floats=SMALL), (64,), (64,),
    ),
    _workload(
        "E1", "identity of 1 string of 100 bytes", replace(_IDENTITY, dtype="BYTES"),
        Payload(strings=1), (8,), (8,),
    ),
    _workload(
        "E1000", "identity of 1,000 strings of 100 bytes", replace(_IDENTITY, dtype="BYTES"),
        Payload(strings=1000), (8,), (8,),
    ),
    _workload(
        "F", "stream of 100 responses", Model("tokens", "tokens", amount=TOKENS, decoupled=True),
        Payload(floats=1, answer=1, responses=TOKENS), (1, 8), (1, 8), least_seconds=3.0,
    ),
    _workload(
        "G", "16 B in, 6 MB out", Model("table", "table", amount=LARGE),
        Payload(floats=4, answer=LARGE), (4,), (4,), least_seconds=3.0,
    ),
    _workload(
        "H", "one copy that sleeps 2 ms, 602 KB in, no batching", Model("device", "device", amount=0.002),
        Payload(floats=IMAGE, answer=4), (2, 4, 8), (4,),
    ),
    _workload("add_sub", "examples/model_py/add_sub, a model.py", _ADD_SUB, Payload(floats=4), (1, 8, 32), (1, 8, 32)),
    _workload("typed_small", "typed function, JSON of 42 bytes", _PREDICT, Payload(text="to be or not to be"), (1, 8, 32), (8,)),
    _workload("typed_text", "typed function, JSON with 1 KB of text", _PREDICT, Payload(text=("to be or not to be " * 54)[:1024]), (1, 8, 32), (8,)),
    _workload("typed_image", "typed function, upload of 200 KB", Model("measure", "typed"), Payload(image_bytes=200_000), (1, 8, 32), (8,)),
    _model_workload("minilm", "a BERT of the size of all-MiniLM-L6-v2, 16 tokens", "to be or not to be that is the question whether tis nobler in", 384),
    _model_workload("resnet50", "ResNet-50, an image of 150 KB", base64.b64encode(bytes(range(256)) * 588).decode(), 1000),
    _model_workload("lightgbm", "LightGBM, 300 rounds, 3 classes", " ".join(str(one / 10) for one in range(30)), 3),
    _model_workload("pipeline", "scikit-learn: scaler, polynomials, forest", " ".join(str(one / 10) for one in range(8)), 3),
)  # fmt: skip
#: For figures that do not depend on the workload.
PLAIN = WORKLOADS[0]

#: Workloads that are not a load on every system: name -> what it measures.
EXTRAS = {
    "runner": "pytriton.runner compared with tritonclient",
    "footprint": "start-up times, memory, idle CPU",
    "models100": "the same for a daemon with 100 models",
    "openai": "the OpenAI API: streams and embeddings",
    "sockets": "memory of idle connections, unix sockets compared with TCP",
}


def split(names: str | None, quick: bool) -> tuple[list[Workload], set[str]]:
    """Return the workloads and the extras in a list of names.

    For None, all of them, but in a quick run not 100 models, the OpenAI API, sockets, typed functions and real models.

    Raises:
        ValueError: a name is unknown. The text lists the known ones.
    """
    if names is None:
        if not quick:
            return select(None), set(EXTRAS)
        loads = [one for one in WORKLOADS if one.group not in ("typed", "models")]
        return loads, set(EXTRAS) - {"models100", "openai", "sockets"}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    extras = {name.lower() for name in wanted} & EXTRAS.keys()
    return select(",".join(name for name in wanted if name.lower() not in extras)), extras


def calibrated(workload: Workload, turns: int) -> Workload:
    """Return the workload with the number of turns of `spin` that takes 5 ms on this machine."""
    if workload.model.work != "spin":
        return workload
    return replace(workload, model=replace(workload.model, amount=turns))


def select(names: str | None) -> list[Workload]:
    """Return the workloads in a list of groups and keys such as "a,C,E1"; for None, all of them.

    Raises:
        ValueError: a name is unknown. The text lists the known ones.
    """
    if names is None:
        return list(WORKLOADS)
    wanted = {name.strip().lower() for name in names.split(",") if name.strip()}
    known = {one.key for one in WORKLOADS} | {one.group for one in WORKLOADS}
    unknown = wanted - {name.lower() for name in known}
    if unknown:
        raise ValueError(
            f"no workload {min(unknown)!r}; there are: {', '.join(sorted(known) + list(EXTRAS))}"
        )
    return [one for one in WORKLOADS if {one.key.lower(), one.group.lower()} & wanted]


def copy_name(name: str, index: int) -> str:
    """Return the name of a copy of a model. The first copy has the model's own name."""
    return f"{name}{index or ''}"


def percentile(values: list[float], share: float) -> float:
    """Return the quantile (0 to 1) of sorted values; NaN if there are none."""
    if not values:
        return math.nan
    return values[min(len(values) - 1, int(share * len(values)))]
