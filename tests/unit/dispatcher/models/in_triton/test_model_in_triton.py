"""A model in tritonserver whose proxies break, and one that tritonserver does not take."""

from __future__ import annotations

from functools import partial

from support.fakes.brain import Brain
from support.fakes.triton.fake_server import Obstacle

from pytriton._protocol.parameters import MENDED_PARAMETER
from pytriton.dispatcher.models.in_triton.model_in_triton import _LOAD_AGAIN_S
from pytriton.dispatcher.models.registration import Registration


def registered(brain: Brain) -> Registration:
    brain.served(brain.client.register("m", instances=2))
    return brain.loop.ask(lambda: brain.daemon.registry.by_name("m"))


def loads(brain: Brain) -> int:
    return brain.server.history.count("load m")


def attached(brain: Brain, registration: Registration, proxy: str) -> int:
    """Have a proxy attach that is a process; return its pid."""
    pid = brain.processes.start()
    brain.loop.ask(lambda: registration.proxies.seen(proxy, pid))
    return pid


def test_a_proxy_that_ends_without_a_word_has_the_model_loaded_anew(brain: Brain) -> None:
    """With another configuration, so that tritonserver starts all proxies anew; those that stay are let go."""
    registration = registered(brain)
    workers = brain.alive("m")
    pid = attached(brain, registration, "broken")
    brain.server.hold_proxies = True
    former = set(brain.server.models["m"].proxies)
    brain.processes.end(pid)
    brain.settle()
    parameters = brain.server.models["m"].config["parameters"]
    assert parameters[MENDED_PARAMETER] == {"string_value": "1"}
    assert brain.is_served("m")
    assert former <= registration.proxies.names()
    brain.advance(brain.config.grace_period_s + 1.0)
    assert registration.proxies.names() == set(brain.server.models["m"].proxies)
    assert brain.alive("m") == workers


def test_one_that_breaks_while_tritonserver_is_down_is_not_mended_twice(brain: Brain) -> None:
    registration = registered(brain)
    pid = attached(brain, registration, "broken")
    brain.server.end()
    brain.processes.end(pid)
    brain.advance(10.0)
    assert brain.is_served("m")
    assert loads(brain) == 1  # the next one had it before it opened its ports


def test_what_tritonserver_does_not_take_is_loaded_again_and_again(brain: Brain) -> None:
    """Every now and then, and at once when a worker has come."""
    registration = registered(brain)
    pid = attached(brain, registration, "broken")
    brain.server.obstacles["m"] = Obstacle("refuse", 5)
    brain.processes.end(pid)
    brain.settle()
    assert brain.state_of("m") == "unready"
    before = loads(brain)
    brain.advance(3 * _LOAD_AGAIN_S)
    assert loads(brain) == before + 3
    brain.alive("m")[0].end()
    brain.settle()
    assert loads(brain) > before + 3
    brain.advance(3 * _LOAD_AGAIN_S)
    assert brain.state_of("m") == "ready"
    assert brain.is_served("m")


def test_clients_that_load_and_unload_it_leave_nothing(brain: Brain) -> None:
    registration = registered(brain)

    def tasks() -> int:
        return len(registration.in_triton._tasks)

    before = tasks()
    for loaded in (False, True) * 3:
        brain.loop.ask(partial(registration.in_triton.seen, loaded))
        brain.settle()
    assert tasks() == before
