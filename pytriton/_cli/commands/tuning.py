"""Finds the numbers of instances and threads and the batch size with which a model serves the most requests.

Each combination is measured on a copy of the model, which a running daemon serves under another name until this process
exits. The copy's workers have a lower priority than those of the model, which is not changed.

    request_for       the request to send: the one given, or one made from the model's schema or tensors
    Tuner.run         measures: the current combination, then instances and threads, then batch sizes with the best of them
    best_of           picks a combination
    code_for          the arguments of `register` that set it
"""

from __future__ import annotations

import http.client
import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Optional
from urllib.parse import quote

import msgspec

from pytriton._host.ports import connection_to
from pytriton._protocol import linux, messages
from pytriton.exceptions import PyTritonError

if TYPE_CHECKING:
    from pytriton.daemon_client import DaemonClient

#: The variable that sets the number of compute threads; the libraries that have one of their own fall back to it.
_THREADS = "OMP_NUM_THREADS"
#: Added to the niceness of the copy's workers and of this process, so that they yield to what is served.
NICE = 10
#: How long a combination is loaded before it is measured, and how long it is measured, in seconds.
_WARM_UP_S, _MEASURE_S = 0.5, 2.0
#: Combinations whose throughput is lower by at most this share are considered equal.
_EQUAL = 0.05
#: Maximum number of instances that are tried.
_MAX_INSTANCES = 8
#: Batch sizes that are tried.
_BATCH_SIZES = (1, 4, 16, 64)
#: Share of the available memory that the copy may take.
_MEMORY_SHARE = 0.8
#: Maximum duration of the first connection to the HTTP endpoint, in seconds.
_CONNECT_S = 10.0
#: Values of a tensor's axis of any size.
_ANY_SIZE = 16
_TEXT = "The quick brown fox jumps over the lazy dog near the bank of the river."
_JSON = "application/json"


class NotTunable(Exception):
    """The model cannot be tuned. The text says why.

    Args:
        text: the reason
        needs_request: whether another request may help
    """

    def __init__(self, text: str, *, needs_request: bool = False) -> None:
        super().__init__(text)
        self.needs_request = needs_request


class Combination(NamedTuple):
    """The settings that are measured together.

    Attributes:
        instances: number of workers
        threads: number of compute threads in each worker
        max_batch_size: maximum number of requests in a batch; 0 without batching
    """

    instances: int
    threads: int
    max_batch_size: int


class Measurement(NamedTuple):
    """The measurement of one combination. If it was not measured, `problem` says why, and the figures are 0.

    Attributes:
        memory: private memory of all workers, in bytes
        failed: number of failed requests
        failure: why the first of them failed
    """

    combination: Combination
    requests_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    memory: int = 0
    failed: int = 0
    problem: str = ""
    failure: str = ""

    @property
    def counts(self) -> bool:
        """Whether the combination was measured without failures, and so can be recommended."""
        return not self.problem and not self.failed

    @property
    def failures(self) -> str:
        """How many requests failed, in words."""
        return f"{self.failed} request{'s' * (self.failed != 1)} failed"


class HttpRequest(NamedTuple):
    """The request that all clients repeat. `path` contains the model's name or route."""

    path: str
    body: bytes
    content_type: str = _JSON


# ── what is measured, and what is proposed ─────────────────────────────────────────────────────


def current_of(spec: messages.ModelSpec, threads: int, cores: int) -> Combination:
    """Return the combination with which a model is served.

    Args:
        spec: the model's declaration
        threads: number of threads that the daemon has chosen; 0 if the library or the user chooses
        cores: number of CPUs of a worker
    """
    own = spec.world.env.get(_THREADS, "")
    threads = threads or (int(own) if own.isdecimal() and int(own) else cores)
    return Combination(spec.instances, threads, spec.config.get("max_batch_size", 0))


def splits(current: Combination, cores: int, *, fixed_instances: bool) -> list[Combination]:
    """Return the combinations of instances and threads to measure, the most promising ones first.

    Cores are either divided among the instances, or each instance uses one. More threads than cores are not tried: they
    only compete.
    """
    counts = [current.instances]
    if not fixed_instances:
        powers = (1 << shift for shift in range(_MAX_INSTANCES.bit_length()))
        counts = [*dict.fromkeys([*(n for n in powers if n < cores), min(cores, _MAX_INSTANCES)])]
    shares = [(count, max(1, cores // count)) for count in reversed(counts)]
    single = [(count, 1) for count in counts]
    found = [current._replace(instances=i, threads=t) for i, t in [*shares, *single]]
    return [one for one in dict.fromkeys(found) if one != current]


def batch_sizes(best: Combination, current: Combination, clients: int) -> list[Combination]:
    """Return the batch sizes to measure with the best instance and thread counts so far.

    A batch cannot have more requests than there are clients.
    """
    if not current.max_batch_size:
        return []
    sizes = [size for size in _BATCH_SIZES if size < 2 * clients]
    return [best._replace(max_batch_size=size) for size in sizes if size != current.max_batch_size]


def best_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the best measurement whose requests all succeeded; None if there is none.

    All within 5 % of the highest throughput are considered equal. Of those, it takes the one with the fewest instances,
    then with the lowest p99. The first measurement, of the current combination, is preferred to others with as many
    instances.
    """
    good = [one for one in measurements if one.counts]
    if not good:
        return None
    highest = max(one.requests_s for one in good)
    near = [one for one in good if one.requests_s >= highest * (1 - _EQUAL)]
    fewest = min(one.combination.instances for one in near)
    near = [one for one in near if one.combination.instances == fewest]
    first = measurements[0]
    return first if first in near else min(near, key=lambda one: (one.p99_ms, one.memory))


def code_for(best: Combination, current: Combination, *, is_typed: bool) -> str:
    """Return the line of code that sets a combination."""
    arguments = [f"instances={best.instances}", f'env={{"{_THREADS}": "{best.threads}"}}']
    if best.max_batch_size == current.max_batch_size:
        return f"client.register(..., {', '.join(arguments)})"
    if is_typed:
        return (
            f"client.register(..., {', '.join(arguments)})  "
            f"# and @pytriton.batchable(max_batch_size={best.max_batch_size})"
        )
    config = f"config=ModelConfig(max_batch_size={best.max_batch_size})"
    return f"client.register(..., {', '.join([*arguments, config])})"


# ── the request ────────────────────────────────────────────────────────────────────────────────


def request_for(
    spec: messages.ModelSpec, config: Mapping[str, Any], words: Sequence[str]
) -> HttpRequest:
    """Return the request to send to a model.

    Args:
        spec: the model's declaration
        config: Triton's configuration of the model, as loaded; empty if it is not loaded
        words: NAME=VALUE, or @FILE with the whole body, as for the command `call`; if empty, an example is made

    Raises:
        NotTunable: no example can be made
        ValueError: the words are invalid
    """
    if spec.web is not None:
        return _typed_request(spec.web, words)
    path = f"/v2/models/{quote(spec.name)}/infer"
    if len(words) == 1 and words[0].startswith("@") and "=" not in words[0]:
        with open(words[0][1:], "rb") as file:
            return HttpRequest(path, file.read())
    if not config and spec.completed_by_workers:
        raise NotTunable(
            f"the inputs of {spec.name} are known only once it is loaded: send it a request first"
        )
    config = config or spec.config
    given = dict(_pair(word) for word in words)
    batched = config.get("max_batch_size", 0) > 0
    entries = config.get("input", [])
    unknown = given.keys() - {one["name"] for one in entries}
    if unknown:
        raise ValueError(
            f"there is no input {min(unknown)}; the inputs are: {', '.join(one['name'] for one in entries)}"
        )
    tensors = [
        _tensor(one, given.get(one["name"]), batched=batched)
        for one in entries
        if one["name"] in given or not one.get("optional", False)
    ]
    return HttpRequest(path, json.dumps({"inputs": tensors}).encode())


def _typed_request(web: messages.WebRoute, words: Sequence[str]) -> HttpRequest:
    from pytriton._cli.commands.call import read_arguments
    from pytriton.client.api_client import encode_body

    if words:
        body, given = read_arguments(words, web.operation, web.schemas)
        return HttpRequest(web.path, *encode_body(body, given))
    content = web.operation.get("requestBody", {}).get("content", {})
    if _JSON not in content:
        raise NotTunable(
            "no example can be made from its schema, since its body is not JSON", needs_request=True
        )
    value = example_of(content[_JSON].get("schema", {}), web.schemas)
    return HttpRequest(web.path, json.dumps(value).encode())


def example_of(schema: Mapping[str, Any] | bool, schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that matches a JSON schema. Optional members of objects are left out.

    Args:
        schema: the schema
        schemas: the schemas that it refers to, by name
        depth: how deeply the schema is nested in the outermost one

    Raises:
        NotTunable: a value depends on more than the schema's types, such as a file or a pattern
    """
    if schema is True:  # any value fits
        return None
    if not isinstance(schema, Mapping):
        raise NotTunable(
            "no example can be made from its schema: no valid value was found for part of it",
            needs_request=True,
        )
    if depth > 20:
        raise NotTunable(
            "no example can be made from its schema, which refers to itself", needs_request=True
        )
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return example_of(schemas.get(name, {}), schemas, depth + 1)
    for key in ("example", "default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            other = [one for one in schema[key] if not _is_null(one)]
            return example_of(other[0], schemas, depth + 1) if other else None
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), None)
    if kind == "object":
        required = schema.get("required", ())
        members = schema.get("properties", {})
        return {name: example_of(members.get(name, {}), schemas, depth + 1) for name in required}
    if kind == "array":
        if "prefixItems" in schema:
            return [example_of(one, schemas, depth + 1) for one in schema["prefixItems"]]
        size = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", math.inf))
        return [example_of(schema.get("items", {}), schemas, depth + 1)] * size if size else []
    if kind == "string":
        if any(key in schema for key in ("contentEncoding", "pattern", "format")):
            raise NotTunable(
                "no example can be made from its schema: a value must be a file, or text in a specific format",
                needs_request=True,
            )
        text = _TEXT * (schema.get("minLength", 1) // len(_TEXT) + 1)
        return text[: schema.get("maxLength", len(text))]
    if kind in ("integer", "number"):
        return _number_of(schema, is_integer=kind == "integer")
    return False if kind == "boolean" else None


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _number_of(schema: Mapping[str, Any], *, is_integer: bool) -> float:
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    # Fractions of the decimal text are exact: 0.3 is a multiple of 0.1.
    limits = {
        key: Fraction(str(schema[key])) for key in keys if type(schema.get(key)) in (int, float)
    }
    least, above, most, below, multiple = (limits.get(key) for key in keys)
    step = multiple or Fraction(1)
    if is_integer:
        step = Fraction(step.numerator)  # integers that are multiples of a/b are multiples of a
    near = [one for one in (least, above, Fraction(1), most, below) if one is not None]
    found = [step * (one // step + offset) for one in near for offset in (0, 1, -1)]
    if not is_integer and multiple is None:
        found += [(one + other) / 2 for one in near for other in near]
    for value in found:
        if (
            (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
            and (below is None or value < below)
        ):
            return int(value) if is_integer else float(value)
    raise NotTunable(
        "no example can be made from its schema: no number fits its limits", needs_request=True
    )


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ValueError(f"{word!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _tensor(entry: Mapping[str, Any], given: Any, *, batched: bool) -> dict[str, Any]:
    """Return an input in KServe's JSON format, with the given value, or with zeros if there is none."""
    datatype = str(entry["data_type"]).removeprefix("TYPE_")
    datatype = "BYTES" if datatype == "STRING" else datatype
    if datatype in ("FP16", "BF16") and given is None:
        text = f"no example can be made: its input {entry['name']} is of type {datatype}, which JSON cannot hold"
        raise NotTunable(text, needs_request=True)
    if given is None:
        shape = [_ANY_SIZE if int(size) < 0 else int(size) for size in entry["dims"]]
        shape = [1, *shape] if batched else shape
        values = {"BYTES": _TEXT, "BOOL": False}
        data = [values.get(datatype, 0)] * math.prod(shape)
        return {"name": entry["name"], "datatype": datatype, "shape": shape, "data": data}
    import numpy as np

    shape = list(np.shape(given)) or [1]
    shape = [1, *shape] if batched and len(shape) == len(entry["dims"]) else shape
    data = np.ravel(np.asarray(given, dtype=object)).tolist()
    return {"name": entry["name"], "datatype": datatype, "shape": shape, "data": data}


# ── the copy of the model ──────────────────────────────────────────────────────────────────────


def check_tunable(
    info: messages.ModelInfo, kept: Sequence[messages.KeptRegistration]
) -> messages.KeptRegistration:
    """Return the persisted registration of a model. Raise NotTunable if no copy of it can be served and measured."""
    why = ""
    if info.isolation == "thread":
        why = "its workers are threads of the process that registered it"
    elif not kept:
        why = "the daemon does not persist it, because it is ephemeral or belongs to a model repository"
    elif kept[0].spec.autoscale is not None:
        why = (
            "its number of instances follows the load: register it under another name with a fixed number of instances, "
            "and tune that"
        )
    elif "sequence_batching" in kept[0].spec.config:
        why = "the requests of a sequence depend on each other"
    elif kept[0].spec.config.get("model_transaction_policy", {}).get("decoupled", False):
        why = "its responses are streams"
    elif kept[0].spec.openai is not None:
        why = "its clients use the OpenAI API, which serves it under one name only"
    if why:
        raise NotTunable(f"{info.name} cannot be tuned: {why}")
    return kept[0]


def copy_of(
    spec: messages.ModelSpec, name: str, combination: Combination, load_timeout_s: float
) -> messages.ModelSpec:
    """Return the declaration of a copy with another name and these settings."""
    config = {**spec.config, "name": name, "max_batch_size": combination.max_batch_size}
    config.pop("response_cache", None)  # the callable would get the first request only
    batcher = dict(config.get("dynamic_batching", {}))
    batcher.pop("preferred_batch_size", None)  # they may not exceed the batch size
    if "dynamic_batching" in config:
        config["dynamic_batching"] = batcher
    devices = [spec.devices[i % len(spec.devices)] for i in range(combination.instances)] if spec.devices else []  # fmt: skip
    web = spec.web
    if web is not None:
        web = msgspec.structs.replace(web, path=f"/{name}")
    return msgspec.structs.replace(
        spec,
        name=name,
        config=config,
        web=web,
        instances=combination.instances,
        devices=devices,
        standby_workers=0,
        lazy=False,
        access_log=False,
        lease=None,
        load_timeout_s=min(spec.load_timeout_s, load_timeout_s),
        world=msgspec.structs.replace(
            spec.world, env={**spec.world.env, _THREADS: str(combination.threads)}
        ),
        limits=msgspec.structs.replace(spec.limits, nice=min(19, spec.limits.nice + NICE)),
    )


class Tuner:
    """Measures combinations on copies of one model.

    Args:
        client: the daemon
        model: the model, with its payloads
        request: the request that clients send to it
        clients: number of clients that send requests at the same time
        limit_s: maximum duration of all measurements, in seconds

    Attributes:
        measurements: the results so far, that of the current combination first
    """

    def __init__(
        self,
        client: DaemonClient,
        model: messages.KeptRegistration,
        request: HttpRequest,
        *,
        clients: int,
        limit_s: float,
    ) -> None:
        self.measurements: list[Measurement] = []
        self._client = client
        self._model = model
        self._request = request
        self._clients = clients
        self._deadline = time.monotonic() + limit_s
        self._name = f"{model.spec.name}-tune-{os.getpid()}"
        self._took_s = 0.0
        self._has_refused = False  # whether a response had a status other than 200
        status = client.status()
        self._url = status.server.http_url
        check_reachable(self._url)
        allowed = len(model.spec.limits.cpus) or len(os.sched_getaffinity(status.pid))
        self._cores = max(1, int(min(allowed, linux.usable_cpus())))
        # The highest use of a worker so far: at first, that of the model's own.
        self._worker_memory = self._worker_gpu = 0
        self._memory(model.spec.name)
        info = client.model_info(model.spec.name, status.models)
        self.current = current_of(model.spec, info.threads, self._cores)

    def run(self) -> Iterator[Measurement]:
        """Measure, and yield each result. Raises NotTunable if the copy fails with the current combination."""
        spec = self._model.spec
        first = self._measure(self.current)
        yield first
        if not first.counts:
            why = first.problem or f"{first.failures}: {first.failure}"
            raise NotTunable(
                f"{spec.name} could not be measured: {why}", needs_request=self._has_refused
            )
        several = len(self._model.payloads) - spec.check > 1
        for one in splits(self.current, self._cores, fixed_instances=several or bool(spec.devices)):
            yield self._measure(one)
        best = best_of(self.measurements)
        own_config = spec.python_model is not None or spec.completed_by_workers
        is_batched = self.current.max_batch_size > 1 and not own_config
        if best is not None and is_batched:
            for one in batch_sizes(best.combination, self.current, self._clients):
                yield self._measure(one)

    def _measure(self, combination: Combination) -> Measurement:
        measurement = self._measured(combination)
        self.measurements.append(measurement)
        return measurement

    def _measured(self, combination: Combination) -> Measurement:
        left = self._deadline - time.monotonic()
        if left < self._took_s:
            return Measurement(combination, problem="the time limit would be exceeded")
        why = self._lacks_memory(combination)
        if why:
            return Measurement(combination, problem=why)
        began = time.monotonic()
        try:
            with self._served(combination, left):
                request = self._request._replace(path=self._path())
                load = _Load(self._url, self._client.access_headers(), request, self._deadline)
                load.run(self._clients, _WARM_UP_S)
                latencies, seconds, failures = load.run(self._clients, _MEASURE_S)
                memory = self._memory(self._name)
        except PyTritonError as error:
            return Measurement(combination, problem=str(error).splitlines()[0])
        self._took_s = max(self._took_s, time.monotonic() - began)
        failed, failure = len(failures), failures[0].text if failures else ""
        self._has_refused = any(one.status for one in failures)
        if not latencies:
            problem = f"all requests failed: {failure}" if failures else "no request was answered"
            return Measurement(combination, failed=failed, problem=problem, failure=failure)
        p50, p99 = (1000 * latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
        rate = len(latencies) / seconds
        return Measurement(combination, rate, p50, p99, memory, failed, failure=failure)

    def _path(self) -> str:
        is_typed = self._model.spec.web is not None
        return f"/{self._name}" if is_typed else f"/v2/models/{quote(self._name)}/infer"

    @contextmanager
    def _served(self, combination: Combination, left_s: float) -> Iterator[None]:
        """Serve a copy of the model. The daemon also unregisters it when this process exits."""
        spec = copy_of(self._model.spec, self._name, combination, max(1.0, left_s))
        message = messages.Register(spec, ephemeral=True)
        try:
            self._client.register_prepared(message, self._model.payloads)
            yield
        finally:
            with suppress(PyTritonError):  # it could not be registered, or the daemon has exited
                self._client.unregister(self._name)

    def _memory(self, name: str) -> int:
        """Return the memory of a model's workers, and remember how much one worker uses."""
        workers = [
            worker
            for model in self._client.metrics().models
            if model.name == name
            for worker in model.instances
        ]
        used = [max(0, (one.resident or 0) - (one.shared or 0)) for one in workers]
        self._worker_memory = max(self._worker_memory, *used, 0)
        self._worker_gpu = max([self._worker_gpu, *(one.gpu or 0 for one in workers)])
        return sum(used)

    def _lacks_memory(self, combination: Combination) -> str:
        """Describe why there is not enough memory for a copy; "" if there is.

        A model whose workers are not running, because it is suspended or loaded on demand, is measured once before its
        memory is known. GPU memory is compared with the budgets only, as if all workers used each GPU.
        """
        free = {"memory": int(linux.available_memory() * _MEMORY_SHARE)}
        for budget in self._client.status().memory:
            # If the copy exceeded the budget, the daemon would suspend other models.
            left = budget.budget - budget.used
            free[budget.resource] = min(free.get(budget.resource, left), left)
        for resource, available in free.items():
            worker = self._worker_memory if resource == "memory" else self._worker_gpu
            needed = worker * combination.instances
            if needed > available:
                left = max(0, available)
                where = "" if resource == "memory" else f" of {resource}"
                return f"it needs {needed >> 20:,} MiB, and {left >> 20:,} MiB{where} are free"
        return ""


class _Failure(NamedTuple):
    """Why a request failed. `status` is 0 if there was no response."""

    status: int
    text: str


class _Load:
    """Clients that send a request repeatedly, each in its own thread and over its own connection."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        request: HttpRequest,
        deadline: float,
    ) -> None:
        self._url = url
        self._headers = {**headers, "Content-Type": request.content_type}
        self._request = request
        self._deadline = deadline
        self._stop = threading.Event()

    def run(self, clients: int, seconds: float) -> tuple[list[float], float, list[_Failure]]:
        """Send requests for a while, at least one per client. Return sorted latencies, the duration, and the failures."""
        latencies: list[float] = []
        failures: list[_Failure] = []
        began = time.perf_counter()
        threads = [
            threading.Thread(
                target=self._client, args=(began + seconds, latencies, failures), daemon=True
            )
            for _ in range(clients)
        ]
        try:
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        finally:  # after Ctrl-C, the threads end with their current request
            self._stop.set()
        self._stop.clear()
        return sorted(latencies), time.perf_counter() - began, failures

    def _client(self, end: float, latencies: list[float], failures: list[_Failure]) -> None:
        connection: Optional[http.client.HTTPConnection] = None
        try:
            while not self._stop.is_set():
                began = time.perf_counter()
                connection = connection or self._connection()
                connection.request("POST", self._request.path, self._request.body, self._headers)
                response = connection.getresponse()
                body = response.read()
                if response.status != 200:
                    text = f"{response.status} {body[:500].decode(errors='replace')}"
                    failures.append(_Failure(response.status, text))
                    return
                now = time.perf_counter()
                latencies.append(now - began)
                if now >= end:
                    return
        except (OSError, http.client.HTTPException) as error:
            failures.append(_Failure(0, f"{type(error).__name__}: {error}"))
        finally:
            if connection is not None:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return connection_to(self._url, max(0.1, self._deadline - time.monotonic()))


def check_reachable(url: str) -> None:
    """Raise NotTunable if the clients cannot connect to the daemon's HTTP endpoint, whose URL is "" if it is disabled."""
    if not url:
        raise NotTunable(
            "requests are sent over HTTP, which the daemon does not serve: set allow_http=true"
        )
    connection = connection_to(url, _CONNECT_S)
    try:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        # With TLS 1.3, a server refuses a client without a certificate after the handshake: as a TLS error or a reset.
        needs = ". If http_client_authorities is set: tune has no client certificate"
        why = f"{type(error).__name__}: {error}{needs if url.startswith('https') else ''}"
        raise NotTunable(f"no request can be sent to {url}: {why}") from None
    finally:
        connection.close()
