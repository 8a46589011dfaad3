"""Ray's `runtime_env` of a registration: what is refused, what workers get, and how long holders live."""

from __future__ import annotations

import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.fake_dispatcher import FakeDispatcher
from fakes.fleet.ray import Fleet

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton._register.message import plan
from pytriton.exceptions import PyTritonBadParameterError, PyTritonDaemonError
from pytriton.fleet.on_ray import NAMESPACE
from pytriton.fleet.on_ray.actors import NodeActor
from pytriton.fleet.on_ray.environments import VARIABLE, Environments, registered_as, without_mark
from pytriton.fleet.on_ray.runtime_env import check, digest_with, split, with_environment
from pytriton.model_config import Tensor

A, B = "aaaa", "bbbb"
NAMES = "fleet-f/environment-n-"
URI = "gcs://_ray_pkg_1.zip"


class SetupError(Exception):
    """Ray's error."""


class FakeRay:
    """Creates each environment immediately: a process with its variables, and a folder on its path."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=SetupError)
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(
                NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft)
            ),
            list_named_actors=lambda all_namespaces: [
                {"name": name, "namespace": NAMESPACE} for name in self.actors
            ],
        )
        self.packages: dict[bytes, bytes] = {}
        self.experimental = SimpleNamespace(
            internal_kv=SimpleNamespace(
                _pin_runtime_env_uri=lambda uri, expiration_s: None,
                _internal_kv_exists=lambda uri: uri in self.packages,
                _internal_kv_put=self.packages.__setitem__,
            )
        )
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda _: None)
        self.actors: dict[str, Any] = {}
        self.refuses = False
        self.asked: list[dict[str, Any]] = []

    def remote(self, _: type) -> Any:
        def options(name: str, runtime_env: dict[str, Any], **more: Any) -> Any:
            def made() -> Any:
                self.asked.append({"runtime_env": runtime_env, **more})
                reported = SimpleNamespace(remote=lambda: runtime_env)
                self.actors[name] = SimpleNamespace(name=name, describe=reported)
                return self.actors[name]

            return SimpleNamespace(remote=made)

        return SimpleNamespace(options=options)

    def get(self, runtime_env: dict[str, Any]) -> Any:
        if self.refuses:
            raise SetupError("no such package")
        env = {**os.environ, **runtime_env.get("env_vars", {}), "RAY_JOB_ID": "1", "SHLVL": "9"}
        return "/venv/bin/python", ["/modules", "/lib"], "/folder", env

    def get_actor(self, name: str, namespace: str) -> Any:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart
        self.actors.pop(actor.name, None)


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def environments(ray: FakeRay) -> Environments:
    return Environments(NAMES, "n", ray)


def spec(name: str = "m", **world: Any) -> messages.ModelSpec:
    return messages.ModelSpec(name, 1, {}, messages.WorkerEnvironment("/py", **world))


def encoded(**runtime_env: Any) -> bytes:
    return msgspec.json.encode(runtime_env)


# ── what a registrant may say ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("runtime_env", "options", "words"),
    [
        (
            {"image_uri": "x", "pip": []},
            {},
            "runtime_env contains image_uri, .* not support containers",
        ),
        ({"worker_process_setup_hook": "m.f"}, {}, "not support .*hooks"),
        (["torch"], {}, "must be a dict"),
        ({"pip": ["torch"]}, {"python": "/py"}, "python and runtime_env's pip set the same thing"),
        ({"uv": ["torch"]}, {"requirements": ["torch"]}, "requirements and runtime_env's uv"),
        ({"working_dir": "/d"}, {"cwd": "/d"}, "cwd and runtime_env's working_dir"),
        ({"env_vars": {"A": "1"}}, {"env": {"A": "2"}}, r"env \(A\) and runtime_env's env_vars"),
        ({"env_vars": {"A": "1"}}, {"env": ["A"]}, r"env \(A\) and runtime_env's env_vars"),
    ],
)
def test_unsupported_runtime_env_fields_are_refused(
    runtime_env: Any, options: Any, words: str
) -> None:
    with pytest.raises(PyTritonBadParameterError, match=words):
        check(runtime_env, options)


def test_none_values_are_ignored() -> None:
    assert check({"pip": None, "env_vars": {"A": "1"}}, {"env": {"B": "2"}}) == {
        "env_vars": {"A": "1"}
    }
    assert check(None, {}) == {}


def test_interpreter_paths_are_not_forwarded_to_another_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("PLAIN", "1")
    tensors = [Tensor(name="x", dtype=float, shape=(1,))]
    options: Any = {"env": {"PYTHONHASHSEED": "1"}, "sys_path": ["/first"]}
    planned = plan(len, "m", tensors, tensors, None, options)
    assert with_environment(planned, {"env_vars": {"A": "1"}}, options) is planned
    world = with_environment(planned, {"pip": ["torch"]}, options).message.spec.world
    assert world.sys_path == ["/first"]
    assert "PYTHONPATH" not in world.env
    assert (world.env["PYTHONHASHSEED"], world.env["PLAIN"]) == ("1", "1")


# ── what workers get ─────────────────────────────────────────────────────────────────────────────


def test_workers_get_the_environment_and_keep_everything_else(ray: FakeRay) -> None:
    made = environments(ray)
    registered = spec(env={"OWN": "1", "COLOUR": "red"}, sys_path=["/mine"], cwd="/there")
    one = encoded(env_vars={"COLOUR": "blue", "A_TOKEN": "t"}, working_dir=URI)
    with made.create(registered, one, {URI: b"zip"}, "digest") as inside:
        world = inside.world
    assert (world.python, world.cwd) == ("/py", "/folder")
    assert world.sys_path == ["/modules", "/lib", "/mine"]
    mark = world.env[VARIABLE]
    assert mark.startswith("digest ")
    assert world.env == {"OWN": "1", "COLOUR": "blue", "A_TOKEN": "t", VARIABLE: mark}
    assert ray.packages == {URI.encode(): b"zip"}
    (asked,) = ray.asked
    assert asked["scheduling_strategy"] == ("n", False)
    assert asked["num_cpus"] == 0
    assert registered_as(messages.KeptRegistration(inside, "own")) == (
        "digest", mark.partition(" ")[2]
    )  # fmt: skip
    assert registered_as(messages.KeptRegistration(registered, "own")) == ("own", "")
    assert without_mark(inside).world.env == {
        key: value for key, value in world.env.items() if key != VARIABLE
    }


def test_an_interpreter_of_its_own_replaces_the_registrants(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytriton.fleet.on_ray.environments.worker_packages", lambda python: f"{python}+"
    )
    made = environments(ray)
    with made.create(spec(sys_path=["/said"]), encoded(pip=["x"]), {}, "d") as inside:
        world = inside.world
    assert (world.python, world.cwd) == ("/venv/bin/python", "/")
    assert world.sys_path == ["/said", "/modules", "/lib"]
    assert world.env["PYTRITON_WORKER_PACKAGES"] == "/venv/bin/python+"


def test_an_interpreter_with_an_unknown_path_gets_folders_by_pythonpath(ray: FakeRay) -> None:
    with environments(ray).create(spec(), encoded(py_modules=[URI]), {URI: b""}, "d") as inside:
        assert inside.world.sys_path == []
        assert inside.world.env["PYTHONPATH"] == "/modules:/lib"


# ── how long holders live ────────────────────────────────────────────────────────────────────────


def _used(made: Environments, environment: bytes) -> str:
    with made.create(spec(), environment, {}, "d") as inside:
        return inside.world.env[VARIABLE].partition(" ")[2]


def test_a_holder_lives_as_long_as_a_registration_needs_it(ray: FakeRay) -> None:
    made = environments(ray)
    one, two = (_used(made, encoded(env_vars={"A": value})) for value in "12")
    assert _used(made, encoded(env_vars={"A": "1"})) == one
    assert len(ray.actors) == 2  # it is shared
    made.keep({one, two}, made.mark())
    assert len(ray.actors) == 2
    made.keep({two}, made.mark())
    assert [name[len(NAMES) :].partition("-")[0] for name in ray.actors] == [two]
    made.close()
    assert ray.actors == {}


def test_a_holder_used_during_a_cleanup_stays(ray: FakeRay) -> None:
    made = environments(ray)
    before = made.mark()
    key = _used(made, encoded(env_vars={"A": "1"}))  # registered after the daemon was asked
    made.keep(set(), before)
    assert len(ray.actors) == 1
    mark = made.mark()
    with made.create(spec(), encoded(env_vars={"A": "1"}), {}, "d"):
        made.keep(set(), mark)
        assert len(ray.actors) == 1
    made.keep({key}, made.mark())
    made.keep(set(), made.mark())
    assert ray.actors == {}


def test_a_restarted_actor_adopts_its_holders(ray: FakeRay) -> None:
    key = _used(environments(ray), encoded(env_vars={"A": "1"}))
    twin = SimpleNamespace(name=f"{NAMES}{key}-twin")
    ray.actors[twin.name] = twin  # of a node's actor that died in between
    ray.actors["fleet-f/environment-other-1-2"] = other = SimpleNamespace(name="of another node")
    again = environments(ray)
    assert len(ray.actors) == 2
    again.keep({key}, again.mark())
    assert len(ray.actors) == 2
    again.keep(set(), again.mark())
    assert list(ray.actors.values()) == [other]


def test_a_failure_is_reported_with_rays_text_and_leaves_nothing(ray: FakeRay) -> None:
    made = environments(ray)
    ray.refuses = True
    with pytest.raises(PyTritonDaemonError, match="create the runtime_env: no such package"):
        _used(made, encoded(pip=["x"]))
    assert ray.actors == {}
    ray.refuses = False
    _used(made, encoded(env_vars={"A": "1"}))
    assert len(ray.actors) == 1


def test_only_missing_packages_are_uploaded_again(ray: FakeRay) -> None:
    ray.packages[URI.encode()] = b"there"
    with environments(ray).create(spec(), encoded(working_dir=URI), {URI: b"mine"}, "d"):
        pass
    assert ray.packages == {URI.encode(): b"there"}


# ── on their way ─────────────────────────────────────────────────────────────────────────────────


def test_a_nodes_actor_registers_with_the_environment_under_the_fleets_digest(ray: FakeRay) -> None:
    daemon = FakeDispatcher()
    info = messages.ModelInfo("m", 1, "ready", [])
    daemon.answers[messages.Register] = lambda _: [messages.Registered(info)]
    actor = NodeActor(str(daemon.rundir.path), [], NAMES, "n", ray)
    environment = encoded(working_dir=URI)
    payloads = [b"callable", b"zip"]
    digest = digest_with(registration_digest(spec(), payloads), environment)
    register = partial(actor.register, msgspec.msgpack.encode(spec()), payloads, 2, [], False)
    with pytest.raises(PyTritonDaemonError, match="damaged"):
        register(digest, encoded(working_dir=URI, env_vars={"A": "1"}))
    register(digest, environment)
    sent = next(one for one in daemon.heard if isinstance(one, messages.Register))
    assert daemon.payloads[daemon.heard.index(sent)] == [b"callable"]
    assert sent.spec.world.cwd == "/folder"
    world = msgspec.structs.replace(sent.spec.world, python=sys.executable)
    registered = msgspec.structs.replace(sent.spec, world=world)
    kept = [messages.KeptRegistration(registered, "the daemon's own")]
    daemon.answers[messages.GetRegistrations] = lambda asked: [
        messages.Registrations(kept, "one" if kept else "none")
    ]
    assert msgspec.msgpack.decode(actor.report_state()[2] or b"")[1] == {"m": [digest, 2]}
    assert len(ray.actors) == 1
    kept.clear()
    actor.report_state()
    assert ray.actors == {}
    daemon.close()


def test_each_version_of_a_model_has_its_own_environment() -> None:
    fleet = Fleet(A, B)
    fleet.register(environment=b'{"a":1}')
    fleet.steps(30)
    assert fleet.cluster.environments[A] == {"m": b'{"a":1}'}
    again = fleet.stored_state().models["m"]
    assert (again.environment, again.digest) == (b'{"a":1}', fleet.cluster.served[A]["m"][0])
    # The same callable in another environment is another version.
    assert fleet.register(replace=True, environment=b'{"a":2}', request="r") == ""
    fleet.steps(30)
    assert [one["m"] for one in fleet.cluster.environments.values()] == [b'{"a":2}'] * 2
    fleet.controller.rollback("m")
    fleet.steps(30)
    assert [one["m"] for one in fleet.cluster.environments.values()] == [b'{"a":1}'] * 2
    fleet.register(b"other", replace=True, request="s")
    fleet.steps(1)
    fleet.controller.withdraw("m", "s")
    fleet.steps(30)
    assert [one["m"] for one in fleet.cluster.environments.values()] == [b'{"a":1}'] * 2


def test_a_registrant_in_a_fleets_worker_does_not_forward_its_own_marker() -> None:
    fleet = Fleet(A, B)
    marked = spec(env={VARIABLE: "another registration", "OWN": "1"})
    fleet.controller.register(msgspec.msgpack.encode(marked), [b"p"], {}, False)
    assert fleet.controller._state.models["m"].spec.world.env == {"OWN": "1"}


def test_environment_packages_come_after_the_callables_modules() -> None:
    other = "gcs://_ray_pkg_2.zip"
    environment = encoded(working_dir=URI, py_modules=[other, URI, "https://h/x.zip"])
    assert split([b"c", b"check", b"1", b"2"], environment) == (
        [b"c", b"check"], {URI: b"1", other: b"2"}
    )  # fmt: skip
    assert split([b"c"], b"") == ([b"c"], {})
