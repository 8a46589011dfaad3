"""The rows: each gets the machine, records numbers, and returns one sentence; exceptions are failures."""

from __future__ import annotations

import base64
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_check import cuda, models
from gpu_check.load import measure
from gpu_check.machine import MIB, Daemon, Machine, check, settle_gpu, wait_for
from pytriton.autoscale import Autoscale
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

Numbers = dict[str, Any]
RowFunction = Callable[[Machine, Numbers], str]

_HOLDER_OUTPUTS = [
    Tensor(name="pid", dtype=np.int64, shape=(1,)),
    Tensor(name="gpus", dtype=np.int64, shape=(1,)),
    Tensor(name="uuid", dtype=np.uint8, shape=(16,)),
]
_X = [Tensor(name="x", dtype=np.float32, shape=(64,))]
_Y = [
    Tensor(name="y", dtype=np.float32, shape=(10,)),
    Tensor(name="pid", dtype=np.int64, shape=(1,)),
]
_TRIGGER = [Tensor(name="x", dtype=np.float32, shape=(1,))]
_ONE = np.zeros(1, np.float32)
#: Largest difference between results of the GPU and of the CPU, for values of about 1.
_TOLERANCE = 1e-4
#: Growth of GPU memory that is not a leak: the driver rounds allocations up.
_SLACK = 64 * MIB


def _register_holder(
    daemon: Daemon, name: str, size: int, machine: Machine, **options: Any
) -> None:
    daemon.client.register(
        models.holder(size, gpu=machine.has_gpu), name, _TRIGGER, _HOLDER_OUTPUTS, ModelConfig(batching=False),
        factory=True, progress=False, **options,
    )  # fmt: skip


def server(machine: Machine, numbers: Numbers) -> str:
    """Start the daemon; both protocols answer, and the frontend is the native one."""
    import tritonclient.grpc
    import tritonclient.http

    before = cuda.used() if machine.has_gpu else 0
    with machine.daemon() as daemon:
        numbers["start_s"] = round(daemon.start_s, 2)
        for triton, address in ((tritonclient.http, daemon.http), (tritonclient.grpc, daemon.grpc)):
            with triton.InferenceServerClient(address) as client:
                check(client.is_server_ready(), f"{triton.__name__}: the server is not ready")
        _register_holder(daemon, "holder", MIB, machine)
        said = daemon.infer("holder", x=_ONE)
        check(
            int(said["pid"][0]) in daemon.pids("holder"),
            "the answer names another process than the worker's",
        )
        daemon.client.unregister("holder")
        text = f"ready after {daemon.start_s:.1f} s, answers HTTP and gRPC"
        if machine.has_gpu:
            server_bytes = cuda.used() - before
            numbers["server_gpu_bytes"] = server_bytes
            text += f"; tritonserver itself uses {server_bytes // MIB} MiB of GPU memory"
    return text


def devices(machine: Machine, numbers: Numbers) -> str:
    """Two workers on one device, and what each sees."""
    with machine.daemon() as daemon:
        _register_holder(daemon, "two", MIB, machine, devices=[machine.device, machine.device])
        pids = daemon.pids("two")
        check(len(pids) == 2, f"two workers were expected, there are {pids}")
        seen: dict[int, tuple[int, str]] = {}

        def both_answered() -> bool:
            for said in daemon.infer_many("two", [_ONE] * 32):
                seen[int(said["pid"][0])] = (
                    int(said["gpus"][0]),
                    said["uuid"].astype(np.uint8).tobytes().hex(),
                )
            return len(seen) == 2

        wait_for(both_answered, lambda: f"both workers answer; only {sorted(seen)} did")
        check(sorted(seen) == pids, f"{sorted(seen)} answered, but the workers are {pids}")
        expected = (1, machine.facts["gpu"]["uuid"]) if machine.has_gpu else (0, bytes(16).hex())
        for pid, found in seen.items():
            check(
                found == expected,
                f"worker {pid} sees {found[0]} GPUs, the first is {found[1]}; expected {expected}",
            )
    numbers["devices"] = [machine.device] * 2
    return f"devices=[{machine.device!r}, {machine.device!r}]: workers {pids} see {expected[0]} GPU each"


def _batches() -> list[NDArray[np.float32]]:
    random_numbers = np.random.default_rng(7)
    return [
        random_numbers.standard_normal((1 + number % 3, 64), np.float32) for number in range(96)
    ]


def _compare(daemon: Daemon, machine: Machine, numbers: Numbers, model: str) -> str:
    """Send requests to a model of `small_net`, and compare the results with the CPU's."""
    import torch

    net, batches = models.small_net(), _batches()
    answers = daemon.infer_many(model, batches, clients=32)
    worst, pids = 0.0, set()
    for batch, answer in zip(batches, answers):
        with torch.inference_mode():
            expected = net(torch.from_numpy(batch)).numpy()
        check(
            answer["y"].shape == expected.shape,
            f"an answer has the shape {answer['y'].shape}, expected {expected.shape}",
        )
        worst = max(worst, float(np.abs(answer["y"] - expected).max()))
        pids.update(answer["pid"].reshape(-1).tolist())
    numbers.update(worst_difference=worst, requests=len(batches), workers=len(pids))
    check(worst <= _TOLERANCE, f"results differ from the CPU's by up to {worst:g}")
    check(
        len(daemon.pids(model)) == 2, f"two workers were expected, there are {daemon.pids(model)}"
    )
    (work,) = (one.work for one in daemon.client.metrics().models if one.name == model)
    numbers["batches"] = work.calls
    check(
        work.calls < work.requests,
        f"{work.calls} batches for {work.requests} requests: none had more than one",
    )
    return (
        f"on {machine.torch_device}: {len(batches)} requests in {numbers['batches']} batches by {len(pids)} workers differ from "
        f"the CPU's by at most {worst:.1e}"
    )


def register(machine: Machine, numbers: Numbers) -> str:
    """A torch model that is registered as a callable."""
    with machine.daemon() as daemon:
        daemon.client.register(
            models.served(models.small_net, machine.torch_device), "net", _X, _Y,
            ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
            factory=True, progress=False, devices=[machine.device] * 2,
        )  # fmt: skip
        return _compare(daemon, machine, numbers, "net")


_CONFIG = """\
name: "net"
backend: "python"
max_batch_size: 16
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 64 ] }}]
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ 10 ] }},
  {{ name: "pid" data_type: TYPE_INT64 dims: [ 1 ] }}
]
instance_group [{{ kind: {kind} count: 2 }}]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
"""
_MODEL_PY = """\
import os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from gpu_check import models


class TritonPythonModel:
    def initialize(self, args):
        on_gpu = args["model_instance_kind"] == "GPU" and torch.cuda.is_available()
        self.device = "cuda:" + args["model_instance_device_id"] if on_gpu else "cpu"
        self.net = models.small_net().to(self.device)

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            with torch.inference_mode():
                y = self.net(torch.from_numpy(x.copy()).to(self.device)).cpu().numpy()
            pid = np.full((len(x), 1), os.getpid(), np.int64)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y), pb_utils.Tensor("pid", pid)]))
        return answers
"""


def model_py(machine: Machine, numbers: Numbers) -> str:
    """The same network in a model.py, with an instance group."""
    folder = machine.folder / "models" / "net"
    (folder / "1").mkdir(parents=True)
    kind = "KIND_GPU" if machine.torch_device == "cuda" else "KIND_CPU"
    (folder / "config.pbtxt").write_text(_CONFIG.format(kind=kind))
    (folder / "1" / "model.py").write_text(_MODEL_PY)
    # KIND_GPU means this many instances on each GPU: all rows use only one of them.
    if machine.has_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(machine.device)
    with machine.daemon() as daemon:
        daemon.client.register_model(folder, progress=False)
        return _compare(daemon, machine, numbers, "net")


def suspend(machine: Machine, numbers: Numbers) -> str:
    """A model without requests is suspended; a request resumes it."""
    size = machine.gpu_unit if machine.has_gpu else 64 * MIB
    with machine.daemon() as daemon:
        idle = cuda.used() if machine.has_gpu else 0
        _register_holder(
            daemon, "rare", size, machine, devices=[machine.device],
            instances=Autoscale(min=0, max=1, idle_after=1.0),
        )  # fmt: skip
        first = int(daemon.infer("rare", x=_ONE)["pid"][0])
        loaded = cuda.used() - idle if machine.has_gpu else size
        check(
            loaded >= size,
            f"the model uses {loaded // MIB} MiB of the GPU, expected at least {size // MIB}",
        )
        wait_for(
            lambda: daemon.client.events("rare", kinds=["suspended"]), "the idle model is suspended"
        )
        wait_for(lambda: not os.path.exists(f"/proc/{first}"), f"worker {first} exits")
        left = settle_gpu(idle + _SLACK, "after the suspension") - idle if machine.has_gpu else 0
        began = time.monotonic()
        second = int(daemon.infer("rare", x=_ONE)["pid"][0])
        resume_s = time.monotonic() - began
        check(second != first, "the same process answered after the suspension")
    numbers.update(loaded_bytes=loaded, left_bytes=left, resume_s=round(resume_s, 3))
    what = f"{loaded // MIB} MiB of the GPU" if machine.has_gpu else "its process"
    return f"suspending freed {what}, the next request was answered after {resume_s:.2f} s"


def metrics(machine: Machine, numbers: Numbers) -> str:
    """The daemon's metrics show what each worker has allocated."""
    size = machine.gpu_unit
    with machine.daemon() as daemon:
        _register_holder(daemon, "two", size, machine, devices=[machine.device] * 2)
        url = daemon.client.status().management_urls[0]
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    found = re.findall(
        r'^pytriton_worker_gpu_bytes\{[^}]*model="two"[^}]*\} (\S+)$', text, re.MULTILINE
    )
    numbers["gpu_bytes"] = [float(value) for value in found]
    check(len(found) == 2, f"two values of pytriton_worker_gpu_bytes were expected: {found}")
    for value in numbers["gpu_bytes"]:
        check(
            size <= value <= 8 * size,
            f"a worker that holds {size // MIB} MiB has {value / MIB:.0f} MiB in the metrics",
        )
    return f"workers with {size // MIB} MiB each: " + ", ".join(
        f"{value / MIB:.0f} MiB" for value in numbers["gpu_bytes"]
    )


def out_of_memory(machine: Machine, numbers: Numbers) -> str:
    """A request that needs more memory than the GPU has fails; the other worker answers all the time."""
    from tritonclient.utils import InferenceServerException

    outputs = [
        Tensor(name="y", dtype=np.float64, shape=(1,)),
        Tensor(name="pid", dtype=np.int64, shape=(1,)),
    ]
    inputs = [Tensor(name="x", dtype=np.float64, shape=(1,))]
    with machine.daemon() as daemon:
        daemon.client.register(
            models.eater("cuda"), "eater", inputs, outputs, ModelConfig(batching=False),
            factory=True, progress=False, devices=[machine.device] * 2,
        )  # fmt: skip
        before = daemon.pids("eater")
        small, large = np.array([1024.0]), np.array([2.0 * machine.facts["gpu"]["total"]])
        over, errors, answered = threading.Event(), [], [0]

        def ask() -> None:
            while not over.is_set():
                try:
                    daemon.infer("eater", x=small)
                    answered[0] += 1
                except InferenceServerException as error:
                    errors.append(str(error))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            said = ""
            try:
                daemon.infer("eater", x=large)
            except InferenceServerException as error:
                said = str(error)
            numbers["error"] = said[:1000]
            check("out of memory" in said.lower(), f"the error does not name the reason: {said!r}")
            wait_for(
                lambda: len(daemon.pids("eater")) == 2 and daemon.pids("eater") != before,
                lambda: (
                    f"the worker that ran out of memory is recycled; the workers are {daemon.pids('eater')}, as before"
                ),
                40.0,
            )
        finally:
            over.set()
            asking.join()
        after = daemon.pids("eater")
        numbers.update(other_requests=answered[0], other_errors=errors[:5])
        check(not errors, f"{len(errors)} of {answered[0]} other requests failed: {errors[:1]}")
        check(
            len(set(before) & set(after)) == 1,
            f"the neighbour was replaced, too: {before}, now {after}",
        )
    return f"the request failed with {said.splitlines()[-1][:120]!r}; {answered[0]} other requests were answered; {before} became {after}"


def kill(machine: Machine, numbers: Numbers) -> str:
    """Killed workers leave no memory on the GPU."""
    size = machine.gpu_unit
    with machine.daemon() as daemon:
        idle = cuda.used()
        _register_holder(daemon, "two", size, machine, devices=[machine.device] * 2)
        loaded = cuda.used()
        check(
            loaded - idle >= 2 * size,
            f"two workers use {(loaded - idle) // MIB} MiB, expected {2 * size // MIB} at least",
        )
        for _ in range(3):
            _kill_one(daemon, "two")
        after = settle_gpu(loaded + _SLACK, "after three kills")
        daemon.client.unregister("two")
        left = settle_gpu(idle + _SLACK, "after the model was unregistered")
    numbers.update(
        idle_bytes=idle, loaded_bytes=loaded, after_kills_bytes=after, left_bytes=left - idle
    )
    return (
        f"two workers use {(loaded - idle) // MIB} MiB, after three kills {(after - idle) // MIB} MiB, "
        f"unregistered {(left - idle) // MIB} MiB"
    )


def _kill_one(daemon: Daemon, model: str) -> None:
    """Kill a worker, and wait for its replacement."""
    killed = daemon.pids(model)[0]
    os.kill(killed, signal.SIGKILL)

    def is_replaced() -> bool:
        pids = daemon.pids(model)
        return len(pids) == 2 and killed not in pids

    wait_for(is_replaced, f"worker {killed} is replaced")


def budget(machine: Machine, numbers: Numbers) -> str:
    """Three models take turns in a budget for two."""
    size = machine.gpu_unit
    with machine.daemon() as daemon:
        idle = cuda.used()
        _register_holder(daemon, "alone", size, machine, devices=[machine.device])
        each = cuda.used() - idle
    limit = round(2.5 * each)
    highest, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            highest[0] = max(highest[0], cuda.used())

    second = Machine(machine.facts, machine.folder / "budget")
    second.folder.mkdir()
    with second.daemon(gpu_memory_budget=limit, suspend_any_idle_model="true") as daemon:
        idle = cuda.used()
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for name in "abc":
                _register_holder(
                    daemon, name, size, machine, devices=[machine.device], lazy=True, gpu_memory_request=each,
                )  # fmt: skip
            for name in "abcabcbca":
                daemon.infer(name, x=_ONE)
        finally:
            over.set()
            watching.join()
        suspended = [
            event for name in "abc" for event in daemon.client.events(name, kinds=["suspended"])
        ]
    numbers.update(budget=limit, each=each, highest=highest[0] - idle, suspensions=len(suspended))
    check(suspended, "no model was suspended, although only two fit into the budget")
    check(
        highest[0] - idle <= limit + _SLACK,
        f"the models used up to {(highest[0] - idle) // MIB} MiB, but the budget is {limit // MIB} MiB",
    )
    return (
        f"each needs {each // MIB} MiB, the budget is {limit // MIB}, used at most {(highest[0] - idle) // MIB}; "
        f"{len(suspended)} suspensions"
    )


# ── CUDA shared memory ────────────────────────────────────────────────────────────────────────────

#: The driver puts allocations below 2 MiB into one block, which an IPC handle stands for as a whole.
_BYTES = 2 * MIB
_FLOATS = _BYTES // 4


def _double(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"y": 2 * one["x"]} for one in requests]


def cuda_shm(machine: Machine, numbers: Numbers) -> str:
    """Inputs and outputs of clients in GPU memory, over HTTP and gRPC; handles that are none."""
    import tritonclient.grpc
    import tritonclient.http

    x, y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy")
    source, target = cuda.allocate(_BYTES), cuda.allocate(_BYTES)
    done: list[str] = []
    # By default, clients need the access token to register shared memory.
    with machine.daemon(restricted_endpoints="trace") as daemon:
        daemon.client.register(
            _double, "double", [x], [y], ModelConfig(batching=False), progress=False
        )
        server_pid = daemon.client.status().server.pid
        for triton, address in ((tritonclient.http, daemon.http), (tritonclient.grpc, daemon.grpc)):
            kind = triton.__name__.rpartition(".")[2]
            with triton.InferenceServerClient(address) as client:
                _infer_in_gpu_memory(triton, client, source, target)
                refused = _refuse_hostile_handles(triton, client, source)
                check(client.is_server_live(), f"{kind}: the server is not live any more")
                _infer_in_gpu_memory(triton, client, source, target)
                numbers[f"{kind}_refusals"] = refused
                done.append(f"{kind}: {len(refused)} hostile registrations refused")
            numbers["tritonclient_utils"] = _use_tritonclients_module(triton, address)
        check(
            daemon.client.status().server.pid == server_pid,
            "tritonserver has exited and was restarted",
        )
    return f"inputs and outputs in GPU memory are right; {', '.join(done)}; {numbers['tritonclient_utils']}"


def _infer_in_gpu_memory(triton: Any, client: Any, source: int, target: int) -> None:
    x = np.random.default_rng().standard_normal(_FLOATS, np.float32)
    cuda.write(source, x.tobytes())
    cuda.write(target, bytes(_BYTES))
    for name, address in (("in", source), ("out", target)):
        client.register_cuda_shared_memory(
            name, base64.b64encode(cuda.ipc_handle(address)), 0, _BYTES
        )
    _infer_in_regions(triton, client)
    got = np.frombuffer(cuda.read(target, _BYTES), np.float32)
    check(np.array_equal(got, 2 * x), "the output in GPU memory is not twice the input")
    for name in ("in", "out"):
        client.unregister_cuda_shared_memory(name)
    status = client.get_cuda_shared_memory_status()
    check(
        not (status if isinstance(status, list) else status.regions), f"regions are left: {status}"
    )


def _infer_in_regions(triton: Any, client: Any) -> None:
    """Send a request whose input is in the region "in", and whose output goes to the region "out"."""
    sent, wanted = triton.InferInput("x", [_FLOATS], "FP32"), triton.InferRequestedOutput("y")
    sent.set_shared_memory("in", _BYTES)
    wanted.set_shared_memory("out", _BYTES)
    client.infer("double", [sent], outputs=[wanted])


def _refuse_hostile_handles(triton: Any, client: Any, source: int) -> dict[str, str]:
    """Try to register what no client should; return what the server answered."""
    from tritonclient.utils import InferenceServerException

    dice = random.Random(7)
    freed_address = cuda.allocate(_BYTES)
    freed, good = cuda.ipc_handle(freed_address), cuda.ipc_handle(source)
    cuda.free(freed_address)
    hostile = {
        "random": (dice.randbytes(64), 0, _BYTES),
        "zeros": (bytes(64), 0, _BYTES),
        "short": (good[:32], 0, _BYTES),
        "empty": (b"", 0, _BYTES),
        "long": (good + bytes(64), 0, _BYTES),
        "damaged": (
            bytes(dice.randrange(256) if at % 5 == 0 else byte for at, byte in enumerate(good)),
            0,
            _BYTES,
        ),
        "freed": (freed, 0, _BYTES),
        "too large": (good, 0, 1 << 40),
        "no such GPU": (good, 99, _BYTES),
        "negative GPU": (good, -1, _BYTES),
    }
    answers: dict[str, str] = {}
    for name, (handle, device, size) in hostile.items():
        try:
            client.register_cuda_shared_memory(name, base64.b64encode(handle), device, size)
        except InferenceServerException as error:
            answers[name] = str(error)[:200]
    # A damaged handle may stand for other memory that exists: nothing tells the server that it was damaged.
    accepted = sorted(set(hostile) - set(answers) - {"damaged"})
    client.unregister_cuda_shared_memory()
    check(not accepted, f"{triton.__name__}: accepted {', '.join(accepted)}")
    return answers


def _use_tritonclients_module(triton: Any, address: str) -> str:
    """Do the same with tritonclient's own module, which needs NVIDIA's cuda-python."""
    try:
        import tritonclient.utils.cuda_shared_memory as shm
    except ImportError as error:
        return f"tritonclient.utils.cuda_shared_memory not tried: {error}"
    x = np.arange(_FLOATS, dtype=np.float32)
    regions = [shm.create_shared_memory_region(name, _BYTES, 0) for name in ("in", "out")]
    try:
        shm.set_shared_memory_region(regions[0], [x])
        with triton.InferenceServerClient(address) as client:
            for name, region in zip(("in", "out"), regions):
                client.register_cuda_shared_memory(name, shm.get_raw_handle(region), 0, _BYTES)
            _infer_in_regions(triton, client)
            got = shm.get_contents_as_numpy(regions[1], np.float32, [_FLOATS])
            check(
                np.array_equal(got, 2 * x),
                "tritonclient's module reads another output than twice the input",
            )
            client.unregister_cuda_shared_memory()
    finally:
        for region in regions:
            shm.destroy_shared_memory_region(region)
    return "tritonclient.utils.cuda_shared_memory works"


# ── copies ────────────────────────────────────────────────────────────────────────────────────────

_COPY_SIZES = (1 * MIB, 16 * MIB, 128 * MIB)
_COPIES = 20


def copy(machine: Machine, numbers: Numbers) -> str:
    """Copies to the GPU from the memory of a lane, as it is and registered with CUDA, and from torch's pinned memory."""
    import torch

    from pytriton._protocol.lanes.arena import Arena

    arena = Arena("gpu-check")
    arena.allocate(max(_COPY_SIZES))
    shared = np.frombuffer(arena.writable(), np.uint8)[: max(_COPY_SIZES)]
    shared[:] = 1
    target = torch.empty(max(_COPY_SIZES), dtype=torch.uint8, device="cuda")

    def rates(source: Any) -> list[float]:
        found = []
        for size in _COPY_SIZES:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            target[:size].copy_(source[:size], non_blocking=True)
            torch.cuda.synchronize()
            begin.record()
            for _ in range(_COPIES):
                target[:size].copy_(source[:size], non_blocking=True)
            end.record()
            end.synchronize()
            found.append(round(_COPIES * size / begin.elapsed_time(end) / 1e6, 2))
        return found

    numbers["pageable_gb_s"] = rates(torch.from_numpy(shared))
    runtime = torch.cuda.cudart()
    began = time.monotonic()
    code = runtime.cudaHostRegister(shared.ctypes.data, shared.nbytes, 0)
    numbers["register_ms"] = round(1000 * (time.monotonic() - began), 2)
    check(int(code) == 0, f"cudaHostRegister of a lane's arena failed: {code}")
    try:
        numbers["registered_gb_s"] = rates(torch.from_numpy(shared))
    finally:
        runtime.cudaHostUnregister(shared.ctypes.data)
    numbers["pinned_gb_s"] = rates(torch.ones(max(_COPY_SIZES), dtype=torch.uint8).pin_memory())
    numbers["sizes"] = list(_COPY_SIZES)
    check(bool((target == 1).all().item()), "the copies on the GPU differ from their source")
    sizes = "/".join(str(size // MIB) for size in _COPY_SIZES)
    texts = [
        f"{kind} {'/'.join(map(str, numbers[f'{kind}_gb_s']))}"
        for kind in ("pageable", "registered", "pinned")
    ]
    return f"GB/s for {sizes} MiB: {', '.join(texts)}; registering took {numbers['register_ms']} ms"


# ── throughput ────────────────────────────────────────────────────────────────────────────────────

#: On a CPU, a batch takes seconds, and the numbers mean little.
_CLIENTS = {"cuda": (1, 8, 32), "cpu": (1, 2)}
#: How long each number of clients sends requests.
_MEASURE_S = 3.0


def _throughput(
    machine: Machine, numbers: Numbers, name: str, row: NDArray[Any], outputs: int
) -> str:
    body = machine.folder / "row"
    body.write_bytes(row.tobytes())
    numbers_of_clients = _CLIENTS[machine.torch_device]
    with ExitStack() as stack:
        fastapi = stack.enter_context(_fastapi(machine, name, row))
        daemon = stack.enter_context(machine.daemon())
        _register_network(daemon, machine, name, row, outputs, instances=1)
        ours = _url_of(machine, daemon, name, row)
        # Alternate, so that both see the same neighbours on the machine.
        for clients in numbers_of_clients:
            numbers[f"fastapi_{clients}"] = measure(f"{fastapi}/infer", body, clients, _MEASURE_S)
            numbers[f"pytriton_{clients}"] = measure(ours[0], ours[1], clients, _MEASURE_S, ours[2])
    texts = []
    for system in ("fastapi", "pytriton"):
        rates = "/".join(
            f"{numbers[f'{system}_{clients}']['per_s']:.1f}" for clients in numbers_of_clients
        )
        texts.append(f"{system} {rates}")
    return f"on {machine.torch_device}, requests/s with {'/'.join(map(str, numbers_of_clients))} clients: {', '.join(texts)}"


def _register_network(
    daemon: Daemon, machine: Machine, name: str, row: NDArray[Any], outputs: int, instances: int
) -> None:
    daemon.client.register(
        models.served(getattr(models, name), machine.torch_device), name,
        [Tensor(name="x", dtype=row.dtype.type, shape=row.shape)],
        [Tensor(name="y", dtype=np.float32, shape=(outputs,)), Tensor(name="pid", dtype=np.int64, shape=(1,))],
        ModelConfig(max_batch_size=32, batcher=DynamicBatcher()),
        factory=True, progress=False, devices=[machine.device] * instances,
    )  # fmt: skip


def _url_of(
    machine: Machine, daemon: Daemon, name: str, row: NDArray[Any]
) -> tuple[str, Path, int]:
    """Return URL, file of the body and length of its JSON header for one binary request."""
    import tritonclient.http as triton
    from tritonclient.utils import np_to_triton_dtype

    tensor = triton.InferInput("x", [1, *row.shape], np_to_triton_dtype(row.dtype))
    tensor.set_data_from_numpy(row[np.newaxis])
    wanted = [triton.InferRequestedOutput("y", binary_data=True)]
    content, header = triton.InferenceServerClient.generate_request_body([tensor], outputs=wanted)
    file = machine.folder / "triton-request"
    file.write_bytes(content)
    return f"http://{daemon.http}/v2/models/{name}/infer", file, header


@contextmanager
def _fastapi(machine: Machine, name: str, row: NDArray[Any]) -> Iterator[str]:
    """Serve a network with FastAPI and uvicorn, and yield its URL."""
    socket_file = machine.folder / "fastapi-port"
    env = {
        **os.environ,
        "GPU_CHECK_MODEL": name,
        "GPU_CHECK_DEVICE": machine.torch_device,
        "GPU_CHECK_INPUT": ",".join(map(str, (row.dtype.name, *row.shape))),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_check.web_app", str(socket_file)], env=env
    )
    try:

        def port() -> str:
            check(
                process.poll() is None,
                f"FastAPI's server exited with {process.poll()} (see the log)",
            )
            return socket_file.read_text() if socket_file.exists() else ""

        yield f"http://127.0.0.1:{wait_for(port, 'FastAPI is ready', 40.0)}"
    finally:
        process.kill()
        process.wait()


def minilm(machine: Machine, numbers: Numbers) -> str:
    """Sentences of 128 tokens through a network of the size of MiniLM."""
    row = np.random.default_rng(7).integers(0, 30522, 128, np.int32)
    return _throughput(machine, numbers, "minilm", row, 384)


def resnet(machine: Machine, numbers: Numbers) -> str:
    """Images of 224 x 224 pixels through a network of the size of ResNet-50."""
    row = np.random.default_rng(7).integers(0, 256, (3, 224, 224), np.uint8)
    return _throughput(machine, numbers, "resnet", row, 1000)


def mps(machine: Machine, numbers: Numbers) -> str:
    """Two instances on one GPU: CUDA alternates between processes, MPS runs their kernels side by side."""
    row = np.random.default_rng(7).integers(0, 30522, 128, np.int32)

    def rate(kind: str) -> None:
        one = Machine(machine.facts, machine.folder / kind)
        one.folder.mkdir()
        with one.daemon() as daemon:
            _register_network(daemon, one, "minilm", row, 384, instances=2)
            url, body, header = _url_of(one, daemon, "minilm", row)
            numbers[kind] = measure(url, body, 32, _MEASURE_S, header)

    rate("without")
    with _mps_control(machine):
        rate("with")
    return "two instances, 32 clients, requests/s: {:.0f} without MPS, {:.0f} with it".format(
        numbers["without"]["per_s"], numbers["with"]["per_s"]
    )


@contextmanager
def _mps_control(machine: Machine) -> Iterator[None]:
    """Run MPS for this process and those it starts."""
    for name in ("pipe", "log"):
        (machine.folder / name).mkdir()
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(machine.folder / "pipe")
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(machine.folder / "log")
    program = machine.facts["mps"]["path"]
    # In the foreground, so that it is killed with this row.
    process = subprocess.Popen([program, "-f"], stdin=subprocess.DEVNULL)

    def listens() -> bool:
        check(process.poll() is None, f"{program} exited with {process.poll()} (see the log)")
        return (machine.folder / "pipe" / "control").exists()

    try:
        wait_for(listens, "MPS runs")
        yield
    finally:
        subprocess.run([program], input="quit\n", text=True, check=False, timeout=20)
        process.kill()
        process.wait()


ROW_FUNCTIONS: dict[str, RowFunction] = {
    one.__name__: one
    for one in (
        server, devices, register, model_py, suspend, metrics, out_of_memory, kill, budget, cuda_shm, copy, minilm,
        resnet, mps,
    )
}  # fmt: skip
