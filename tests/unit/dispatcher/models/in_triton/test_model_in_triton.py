"""A model in tritonserver whose proxies break, and one that tritonserver refuses."""

from __future__ import annotations

from functools import partial

from fakes.simulated_daemon import SimulatedDaemon
from fakes.triton.fake_server import Obstacle

from pytriton._protocol.parameters import MENDED_PARAMETER
from pytriton.dispatcher.models.in_triton.model_in_triton import _LOAD_AGAIN_S
from pytriton.dispatcher.models.registration import Registration


def registered(sim: SimulatedDaemon) -> Registration:
    sim.served(sim.client.register("m", instances=2))
    return sim.loop.ask(lambda: sim.services.registry.served.by_name("m"))


def loads(sim: SimulatedDaemon) -> int:
    return sim.server.history.count("load m")


def attached(sim: SimulatedDaemon, registration: Registration, proxy: str) -> int:
    """Attach a proxy that is a process; return its pid."""
    pid = sim.processes.start()
    sim.loop.ask(lambda: registration.proxies.watch(proxy, pid))
    return pid


def test_a_proxy_that_exits_silently_causes_a_reload(sim: SimulatedDaemon) -> None:
    """The configuration changes, so tritonserver restarts all proxies; those that stay are detached."""
    registration = registered(sim)
    workers = sim.alive("m")
    pid = attached(sim, registration, "broken")
    sim.server.hold_proxies = True
    former = set(sim.server.models["m"].proxies)
    sim.processes.end(pid)
    sim.settle()
    parameters = sim.server.models["m"].config["parameters"]
    assert parameters[MENDED_PARAMETER] == {"string_value": "1"}
    assert sim.is_served("m")
    assert former <= registration.proxies.names()
    sim.advance(sim.config.grace_period_s + 1.0)
    assert registration.proxies.names() == set(sim.server.models["m"].proxies)
    assert sim.alive("m") == workers


def test_a_proxy_that_breaks_while_tritonserver_is_down_is_replaced_once(
    sim: SimulatedDaemon,
) -> None:
    registration = registered(sim)
    pid = attached(sim, registration, "broken")
    sim.server.end()
    sim.processes.end(pid)
    sim.advance(10.0)
    assert sim.is_served("m")
    assert loads(sim) == 1  # the next one had it before it opened its ports


def test_a_load_refused_by_tritonserver_is_retried(sim: SimulatedDaemon) -> None:
    """Periodically, and immediately when a worker becomes ready."""
    registration = registered(sim)
    pid = attached(sim, registration, "broken")
    sim.server.obstacles["m"] = Obstacle("refuse", 5)
    sim.processes.end(pid)
    sim.settle()
    assert sim.state_of("m") == "not_ready"
    before = loads(sim)
    sim.advance(3 * _LOAD_AGAIN_S)
    assert loads(sim) == before + 3
    sim.alive("m")[0].end()
    sim.settle()
    assert loads(sim) > before + 3
    sim.advance(3 * _LOAD_AGAIN_S)
    assert sim.state_of("m") == "ready"
    assert sim.is_served("m")


def test_clients_that_load_and_unload_it_leave_nothing(sim: SimulatedDaemon) -> None:
    registration = registered(sim)

    def tasks() -> int:
        return len(registration.in_triton._tasks)

    before = tasks()
    for loaded in (False, True) * 3:
        sim.loop.ask(partial(registration.in_triton.sync_with_index, loaded))
        sim.settle()
    assert tasks() == before
