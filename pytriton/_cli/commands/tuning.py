"""Finds the number of instances and threads, and the batch size, with which a model serves most requests.

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
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Optional
from urllib.parse import quote, urlsplit

import msgspec

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
    """The result of one combination. If `problem` says why it was not measured, the other figures are 0.

    Attributes:
        memory: private memory of all workers, in bytes
        failed: number of failed requests
    """

    combination: Combination
    requests_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    memory: int = 0
    failed: int = 0
    problem: str = ""

    @property
    def counts(self) -> bool:
        """Whether it can be proposed."""
        return not self.problem and not self.failed


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
    """Return the numbers of instances and threads to measure, the most promising ones first.

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
    """Return the batch sizes to measure with the best numbers of instances and threads so far.

    A batch cannot have more requests than there are clients.
    """
    if not current.max_batch_size:
        return []
    sizes = [size for size in _BATCH_SIZES if size < 2 * clients]
    return [best._replace(max_batch_size=size) for size in sizes if size != current.max_batch_size]


def best_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the measurement with the highest throughput; of those that are nearly as high, the one that costs least.

    The least cost is the least memory, then the lowest p99. The first measurement, of the current combination, is
    returned unless another one is better.
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
        config: Triton's configuration of the model, as loaded
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
    given = dict(_pair(word) for word in words)
    batched = config.get("max_batch_size", 0) > 0
    entries = config.get("input", [])
    unknown = given.keys() - {one["name"] for one in entries}
    if unknown:
        raise ValueError(
            f"there is no input {min(unknown)}; there are: {', '.join(one['name'] for one in entries)}"
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


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that fits a JSON schema. Members of objects that are not required are left out.

    Args:
        schema: the schema
        schemas: the schemas that it refers to, by name
        depth: how deeply the schema is nested in the outermost one

    Raises:
        NotTunable: a value depends on more than the schema's types, such as a file or a pattern
    """
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
            other = [one for one in schema[key] if one.get("type") != "null"]
            return example_of(other[0], schemas, depth + 1)
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
        item = example_of(schema.get("items", {}), schemas, depth + 1)
        return [item] * max(1, schema.get("minItems", 1))
    if kind == "string":
        if any(key in schema for key in ("contentEncoding", "pattern", "format")):
            raise NotTunable(
                "no example can be made from its schema: a value is a file, or text of a certain form",
                needs_request=True,
            )
        text = _TEXT * (schema.get("minLength", 1) // len(_TEXT) + 1)
        return text[: schema.get("maxLength", len(text))]
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return math.ceil(least) if kind == "integer" else float(least)
    return False if kind == "boolean" else None


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ValueError(f"{word!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _tensor(entry: Mapping[str, Any], given: Any, *, batched: bool) -> dict[str, Any]:
    """Return an input of KServe's JSON: the value given, or zeros."""
    datatype = str(entry["data_type"]).removeprefix("TYPE_")
    datatype = "BYTES" if datatype == "STRING" else datatype
    if datatype in ("FP16", "BF16") and given is None:
        text = f"no example can be made: its input {entry['name']} is of type {datatype}, which JSON cannot hold"
        raise NotTunable(text, needs_request=True)
    if given is None:
        dims = entry.get("reshape", entry).get("shape", entry["dims"])
        shape = [_ANY_SIZE if int(size) < 0 else int(size) for size in dims]
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


def check_tunable(spec: messages.ModelSpec, payloads: Sequence[bytes]) -> None:
    """Raise NotTunable if a copy of a model cannot be served and measured."""
    why = ""
    if spec.isolation == "thread":
        why = "its workers are threads of the process that registered it"
    elif "sequence_batching" in spec.config:
        why = "the requests of a sequence depend on each other"
    elif spec.config.get("model_transaction_policy", {}).get("decoupled", False):
        why = "its responses are streams"
    elif spec.openai is not None:
        why = "its clients use the OpenAI API, which serves it under one name only"
    elif not payloads and spec.python_model is None:
        why = "the daemon does not have its callable"
    if why:
        raise NotTunable(f"{spec.name} cannot be tuned: {why}")


def copy_of(
    spec: messages.ModelSpec, name: str, combination: Combination, load_timeout_s: float
) -> messages.ModelSpec:
    """Return the declaration of a copy with another name and these settings."""
    config = {**spec.config, "name": name, "max_batch_size": combination.max_batch_size}
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
        autoscale=None,
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
        self._worker_memory = 0
        status = client.status()
        server = urlsplit(status.server.http_url)
        self._address = (server.scheme == "https", server.hostname or "", server.port or 0)
        allowed = len(model.spec.limits.cpus) or len(os.sched_getaffinity(status.pid))
        self._cores = max(1, int(min(allowed, linux.usable_cpus())))
        info = client.model_info(model.spec.name, status.models)
        self.current = current_of(model.spec, info.threads, self._cores)

    def run(self) -> Iterator[Measurement]:
        """Measure, and yield each result. Raises NotTunable if the copy fails with the current combination."""
        spec = self._model.spec
        first = self._measure(self.current)
        yield first
        if first.problem:
            raise NotTunable(
                f"{spec.name} could not be measured: {first.problem}",
                needs_request=bool(first.failed),
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
                load = _Load(self._address, self._client.access_headers(), request, self._deadline)
                load.run(self._clients, _WARM_UP_S)
                latencies, seconds, refused = load.run(self._clients, _MEASURE_S)
                memory = self._memory(combination)
        except PyTritonError as error:
            return Measurement(combination, problem=str(error).splitlines()[0])
        self._took_s = max(self._took_s, time.monotonic() - began)
        if not latencies:
            problem = f"a request failed: {refused[0]}" if refused else "no request was answered"
            return Measurement(combination, failed=len(refused), problem=problem)
        p50, p99 = (1000 * latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
        return Measurement(combination, len(latencies) / seconds, p50, p99, memory, len(refused))

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

    def _memory(self, combination: Combination) -> int:
        own = [one for one in self._client.metrics().models if one.name == self._name]
        used = [
            max(0, (one.resident or 0) - (one.shared or 0))
            for model in own
            for one in model.instances
        ]
        self._worker_memory = max(self._worker_memory, sum(used) // combination.instances)
        return sum(used)

    def _lacks_memory(self, combination: Combination) -> str:
        """Describe why there is not enough memory for a copy; "" if there is, or if its size is not yet known."""
        needed = self._worker_memory * combination.instances
        free = int(linux.available_memory() * _MEMORY_SHARE)
        for budget in self._client.status().memory:
            if budget.resource == "memory":  # the daemon would suspend other models for the copy
                free = min(free, budget.budget - budget.used)
        if needed <= free:
            return ""
        return f"it needs {needed >> 20:,} MiB, and {max(0, free) >> 20:,} MiB are free"


class _Load:
    """Clients that send a request repeatedly over connections of their own, each in a thread."""

    def __init__(
        self,
        address: tuple[bool, str, int],
        headers: Mapping[str, str],
        request: HttpRequest,
        deadline: float,
    ) -> None:
        self._is_secure, self._host, self._port = address
        self._headers = {**headers, "Content-Type": request.content_type}
        self._request = request
        self._deadline = deadline
        self._stop = threading.Event()

    def run(self, clients: int, seconds: float) -> tuple[list[float], float, list[str]]:
        """Send requests for a while, at least one per client. Return sorted latencies, the duration, and the failures."""
        latencies: list[float] = []
        failures: list[str] = []
        began = time.perf_counter()
        threads = [
            threading.Thread(
                target=self._client, args=(began + seconds, latencies, failures), daemon=True
            )
            for _ in range(clients)
        ]
        for one in threads:
            one.start()
        try:
            for one in threads:
                one.join()
        finally:  # after Ctrl-C, the threads end with their current request
            self._stop.set()
        self._stop.clear()
        return sorted(latencies), time.perf_counter() - began, failures

    def _client(self, end: float, latencies: list[float], failures: list[str]) -> None:
        connection: Optional[http.client.HTTPConnection] = None
        try:
            while not self._stop.is_set():
                began = time.perf_counter()
                connection = connection or self._connection()
                connection.request("POST", self._request.path, self._request.body, self._headers)
                response = connection.getresponse()
                body = response.read()
                if response.status != 200:
                    failures.append(f"{response.status} {body[:500].decode(errors='replace')}")
                    return
                now = time.perf_counter()
                latencies.append(now - began)
                if now >= end:
                    return
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        timeout = max(0.1, self._deadline - time.monotonic())
        if self._is_secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
