"""Records of a repository's models, and how tritonserver's index may change them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content
from pytriton.dispatcher.repository.model_records import TRITONSERVER, WORKERS, ModelRecords


def registered(name: str, *, ready: bool = True, unloaded: bool = False) -> Any:
    spec = SimpleNamespace(name=name)
    state = "unloaded" if unloaded else "ready"
    in_triton = SimpleNamespace(unloaded=unloaded)
    return SimpleNamespace(spec=spec, ready=ready, in_triton=in_triton, state=state)


class Registered(list[Any]):
    """The registrations, none of which is being restored."""

    restoring = Restorer(Content([], []))

    @property
    def served(self) -> Registered:
        return self

    def get(self, name: str) -> Any:
        return next((one for one in self if one.spec.name == name), None)


class Known:
    """A model served by tritonserver, an ensemble of it and of a worker's model, and a failed model."""

    def __init__(self) -> None:
        self.server = SimpleNamespace(ready=True)
        self.workers = registered("workers")
        self.registry = Registered([self.workers])
        parts: Any = (self.server, self.registry)
        self.records = ModelRecords(*parts)
        for name, served_by, state in (
            ("own", TRITONSERVER, "ready"),
            ("pair", TRITONSERVER, "ready"),
            ("workers", WORKERS, "ready"),
            ("failed", "", "failed"),
        ):
            record = self.records.of(name)
            record.served_by, record.state, record.loaded_at = served_by, state, 1.0
        self.records.of("own").versions = [1, 3]
        self.records.of("pair").steps = ["workers", "own", "own"]
        self.records.of("workers").registration = self.workers

    def states(self) -> dict[str, str]:
        infos = self.records.infos("http://h:1")
        return {info.name: info.state for info in infos if info.served_by}


@pytest.fixture
def known() -> Known:
    return Known()


def test_a_record_is_created_on_first_access(known: Known) -> None:
    assert known.records.of("new") is known.records.of("new")
    assert known.records.state_of("new") == "unloaded"
    assert known.records.parts("new") == []


def test_owners_of_names(known: Known) -> None:
    names = ("own", "workers", "failed", "unknown")
    assert [known.records.serves(name) for name in names] == [True, True, False, False]
    known.registry.clear()  # somebody has unregistered it
    assert not known.records.serves("workers")


def test_versions_served_by_tritonserver(known: Known) -> None:
    names = ("own", "pair", "workers", "failed", "unknown")
    versions = [known.records.versions_in_tritonserver(name) for name in names]
    assert versions == [[1, 3], [], None, None, None]
    known.records.of("own").state = "unloading"
    assert known.records.versions_in_tritonserver("own") is None


def test_a_failure_without_a_previous_version_counts_as_failed(known: Known) -> None:
    assert known.records.failed
    known.records.of("failed").served_by = TRITONSERVER  # until it ended
    assert known.records.failed
    known.records.of("failed").state = "ready"  # the previous one keeps serving
    assert not known.records.failed


def test_status_of_tritonservers_own_models(known: Known) -> None:
    known.records.of("failed").reason = "no such backend"
    (own, pair, failed) = known.records.infos("http://h:1")
    assert (failed.state, failed.served_by, failed.error) == ("failed", "", "no such backend")
    assert (own.error, pair.error) == (None, None)
    assert (own.name, own.version, own.versions) == ("own", 3, [1, 3])
    assert (own.url, pair.url) == ("http://h:1/v2/models/own", "http://h:1/v2/models/pair")
    assert next(iter(known.records.infos(""))).url == ""
    assert known.records.parts("pair") == ["own", "workers"]


def test_an_ensemble_is_as_ready_as_its_steps(known: Known) -> None:
    assert known.states() == {"own": "ready", "pair": "ready"}
    known.workers.ready = False
    assert known.states() == {"own": "ready", "pair": "not_ready"}
    known.workers.ready = True
    known.server.ready = False
    assert set(known.states().values()) == {"not_ready"}
    known.server.ready, known.records.server_lost = True, True
    assert set(known.states().values()) == {"not_ready"}


def test_a_model_of_workers_has_the_state_of_its_registration(known: Known) -> None:
    assert known.records.state_of("workers") == "ready"
    known.records.of("workers").registration = registered("workers", unloaded=True)
    assert known.records.state_of("workers") == "unloaded"


def test_the_index_lists_tritonserver_s_own_models(known: Known) -> None:
    marks = {
        name: (mark, before, on_state) for mark, before, on_state, name in known.records.marks()
    }
    assert {name: before for name, (_, before, _) in marks.items()} == {
        "own": ("ready", 1.0),
        "pair": ("ready", 1.0),
        "workers": None,
        "failed": None,
    }
    mark, _, on_state = marks["own"]
    on_state(True)
    assert known.records.of("own").state == "ready"
    on_state(False)
    assert known.records.of("own").state == "unloaded"
    assert mark() == ("unloaded", 1.0)
    known.records.of("own").state = "loading"
    assert mark() is None
    known.workers.ready = False  # tritonserver unloads an ensemble that lacks a step
    assert marks["pair"][0]() is None
    known.workers.ready, known.records.server_lost = True, True
    assert marks["pair"][0]() is None
