"""The faults. Each is a function that breaks something once; the daemon has to recover by itself."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from support.real_daemon import eventually
from support.task_groups import task_group

from chaos import models
from chaos.load import Asker, AskError, GrpcAsker, HttpAsker, ask_guilty, ask_once
from pytriton.exceptions import RegistrationError

if TYPE_CHECKING:
    from chaos.run import Target

#: How long /dev/shm stays full.
_FULL_S = 2.0


@dataclass(frozen=True)
class Fault:
    """`free`: no request of the load may fail because of it, except as many as it `costs` each time."""

    inject: Callable[[Target, random.Random], None]
    free: bool
    costs: int = 0
    #: It ends the daemon or tritonserver: then nothing can be served for a moment.
    heavy: bool = False


def _worker_pids(target: Target, names: list[str]) -> list[int]:
    infos = [info for info in target.daemon.client.status().models if info.name in names]
    return [one.pid for info in infos for one in info.instances if one.pid and one.state == "ready"]


def _kill(pids: list[int]) -> None:
    """Kill processes, and wait until their parents have noticed, so that the daemon's status shows it."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
            processes[-1].kill()
    psutil.wait_procs(processes, timeout=10)


def kill_worker(target: Target, chance: random.Random) -> None:
    """Kill any worker, whatever it is doing."""
    _kill([chance.choice(_worker_pids(target, list(models.SALTS)))])


def kill_all_workers(target: Target, chance: random.Random) -> None:
    """Kill all workers of one model at once."""
    _kill(_worker_pids(target, [chance.choice(list(models.SALTS))]))


def stop_worker(target: Target, chance: random.Random) -> None:
    """SIGSTOP a worker, which then neither responds nor exits. Only the model with a time limit can notice."""
    pid = chance.choice(_worker_pids(target, ["timed"]))
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: pid not in _worker_pids(target, ["timed"]), "it is replaced", 60)


def _provoke(target: Target, model: str, what: int) -> None:
    """Send one request that makes a callable misbehave and is answered nevertheless."""
    asker = GrpcAsker(target.daemon.grpc)
    with contextlib.suppress(AskError):
        asker.ask(model, 1, what)
    asker.close()


def _asker(target: Target, chance: random.Random) -> Asker:
    if chance.random() < 0.5:
        return HttpAsker(target.daemon.http)
    return GrpcAsker(target.daemon.grpc)


def _together(target: Target, chance: random.Random, model: str, whats: list[int]) -> None:
    """Send requests concurrently, so that they form one batch; those that misbehave have to fail."""
    start = threading.Barrier(len(whats))

    def ask(what: int, asker: Asker, number: int) -> None:
        start.wait()
        if what == models.ANSWER:
            ask_once(target.ledger, asker, model, number)
        else:
            ask_guilty(target.ledger, asker, model, what)
        asker.close()

    chance.shuffle(whats)
    with ThreadPoolExecutor(len(whats)) as threads:
        asked = [
            threads.submit(ask, what, _asker(target, chance), chance.randrange(10**9))
            for what in whats
        ]
    for one in asked:
        one.result()


def hang_worker(target: Target, chance: random.Random) -> None:
    """Send a request from which a callable does not return, with others in its batch."""
    _together(target, chance, "timed", [models.HANG, *[models.ANSWER] * chance.randrange(4)])


def poison(target: Target, chance: random.Random) -> None:
    """Send requests that crash every worker that gets them: more in a row than the restart limit."""
    model = chance.choice(["single", "double", "spared"])
    for _ in range(4):
        _together(target, chance, model, [models.DIE])


def poison_among_others(target: Target, chance: random.Random) -> None:
    """Send one or two of them in a batch with others, or in batches that a worker has merged."""
    model = chance.choice(["batched", "merged", "double"])
    guilty = [models.DIE] * chance.choice([1, 2])
    _together(target, chance, model, [*guilty, *[models.ANSWER] * 5])


def huge_output(target: Target, chance: random.Random) -> None:
    """Request an output larger than the memory, with others in the batch: tritonserver and the worker survive."""
    before = target.daemon.client.status().server.pid
    model = chance.choice(["batched", "double"])
    _together(target, chance, model, [models.HUGE, *[models.ANSWER] * 3])
    assert target.daemon.client.status().server.pid == before, "tritonserver has ended"


def kill_loading_workers(target: Target, chance: random.Random) -> None:
    """Kill a worker, and then each that is loaded to replace it: a crash loop."""
    seen: set[int] = set()

    def fresh() -> int | None:
        info = target.daemon.client.model("slow").info()
        return next((one.pid for one in info.instances if one.pid and one.pid not in seen), None)

    for _ in range(chance.randrange(4, 8)):
        pid = eventually(fresh, "another worker is loaded", 60)
        seen.add(pid)
        _kill([pid])


def leak_memory(target: Target, chance: random.Random) -> None:
    """Call a callable that leaks memory beyond the soft limit of its worker."""
    for _ in range(3):
        _provoke(target, "bounded", models.LEAK)


def kill_proxy(target: Target, chance: random.Random) -> None:
    """Kill a stub of tritonserver, whose batches are lost; compiled proxies have none."""
    stubs = target.daemon.stubs()
    if stubs:
        _kill([chance.choice(stubs).pid])


def vanish(target: Target, chance: random.Random) -> None:
    """Disconnect clients within their requests."""
    host, _, port = target.daemon.http.rpartition(":")
    for model in models.SALTS:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            body = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"INT64","data":[1,0]}]}'
            head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            whole = head.encode() + body
            connection.sendall(whole[: chance.randrange(len(head), len(whole) + 1)])


def replace(target: Target, chance: random.Random) -> None:
    """Replace a model by itself, with new workers."""
    models.register(target.daemon.client, chance.choice(list(models.SALTS)), replace=True)


def roll_back(target: Target, chance: random.Random) -> None:
    """Replace a model, and roll back."""
    name = chance.choice(list(models.SALTS))
    models.register(target.daemon.client, name, replace=True)
    target.daemon.client.rollback(name)


def scale(target: Target, chance: random.Random) -> None:
    """Scale a model up, and back down."""
    name = chance.choice(["single", "double"])
    before = len(target.daemon.client.model(name).instances)
    target.daemon.client.scale(name, 3)
    target.daemon.client.scale(name, before)


def kill_server(target: Target, chance: random.Random) -> None:
    """Kill tritonserver with SIGKILL."""
    pid = target.daemon.client.status().server.pid
    assert pid is not None
    _kill([pid])
    _another_server(target, pid)


def stop_server(target: Target, chance: random.Random) -> None:
    """SIGSTOP tritonserver; the daemon has to detect it."""
    pid = target.daemon.client.status().server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    _another_server(target, pid)


def crash_server_often(target: Target, chance: random.Random) -> None:
    """Kill tritonserver, and each that is started to replace it, more often than any restart limit."""
    seen: set[int] = set()

    def fresh() -> int | None:
        pid = target.daemon.client.status().server.pid
        return pid if pid not in seen else None

    for _ in range(7):
        pid = eventually(fresh, "another tritonserver has been started", 60)
        seen.add(pid)
        _kill([pid])


def _another_server(target: Target, former: int) -> None:
    eventually(
        lambda: target.daemon.client.status().server.pid not in (None, former),
        "another tritonserver has been started",
        60,
    )


def restart_daemon(target: Target, chance: random.Random) -> None:
    """Restart the daemon in order; it restores its models."""
    target.restart(signal.SIGTERM)


def kill_daemon(target: Target, chance: random.Random) -> None:
    """Kill the daemon with SIGKILL; the next one restores its models."""
    target.restart(signal.SIGKILL)


def fail_to_load(target: Target, chance: random.Random) -> None:
    """Register models that cannot be loaded or whose warm-up raises: new ones, and replacements."""
    before = target.daemon.client.status().server.pid
    for warms_up in (False, True):
        for name in ("unloadable", chance.choice(["single", "double"])):
            with contextlib.suppress(RegistrationError):
                models.register_broken(target.daemon.client, name, warms_up=warms_up)
                raise AssertionError(f"{name} was registered though it cannot be loaded")
    assert target.daemon.client.status().server.pid == before, "tritonserver has ended"


def limit_tasks(target: Target, chance: random.Random) -> None:
    """Allow a few more tasks than exist, and register models until one is refused (see scripts/tools/chaos)."""
    client = target.daemon.client
    before, registered = client.status().server.pid, []
    with task_group() as group:
        group.add([psutil.Process(target.daemon.process.pid), *target.daemon.children()])
        group.limit(group.tasks + chance.randrange(2, 30))
        with contextlib.suppress(RegistrationError):
            for number in range(30):
                name = f"many{number}"
                models.register_plain(client, name, instances=chance.choice([1, 2, 3]))
                registered.append(name)
            raise AssertionError("no registration was refused")
        group.limit(None)
    assert client.status().server.pid == before, "tritonserver has ended"
    for name in registered:
        client.unregister(name)


def fill_shm(target: Target, chance: random.Random) -> None:
    """Fill /dev/shm for a while (in its own namespace, see scripts/tools/chaos)."""
    path = f"/dev/shm/chaos-{os.getpid()}"
    with open(path, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        threading.Event().wait(_FULL_S)
    os.unlink(path)


FAULTS: dict[str, Fault] = {
    "kill-worker": Fault(kill_worker, free=True),
    "kill-all-workers": Fault(kill_all_workers, free=True),
    # One that stands still with a single request is taken to hang in it, and that is not tried again.
    "stop-worker": Fault(stop_worker, free=True, costs=1),
    "leak-memory": Fault(leak_memory, free=True),
    "vanish": Fault(vanish, free=True),
    "replace": Fault(replace, free=True),
    "roll-back": Fault(roll_back, free=True),
    "scale": Fault(scale, free=True),
    "hang-worker": Fault(hang_worker, free=True),
    "poison": Fault(poison, free=True),
    "poison-among-others": Fault(poison_among_others, free=True),
    "huge-output": Fault(huge_output, free=True),
    "fail-to-load": Fault(fail_to_load, free=True),
    "limit-tasks": Fault(limit_tasks, free=True),
    "kill-loading": Fault(kill_loading_workers, free=False),
    "kill-proxy": Fault(kill_proxy, free=False),
    "fill-shm": Fault(fill_shm, free=False),
    "kill-server": Fault(kill_server, free=False, heavy=True),
    "stop-server": Fault(stop_server, free=False, heavy=True),
    "crash-server-often": Fault(crash_server_often, free=False, heavy=True),
    "restart-daemon": Fault(restart_daemon, free=False, heavy=True),
    "kill-daemon": Fault(kill_daemon, free=False, heavy=True),
}
