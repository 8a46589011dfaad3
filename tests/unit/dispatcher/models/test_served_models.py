"""Looking up registrations and workers: what is missing is reported with the alternatives and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content, Entry
from pytriton.dispatcher.models.served_models import ServedModels


def registration(name: str, *workers: str, registrant: object = None) -> Any:
    pool = SimpleNamespace(
        ready_workers=lambda: list(workers), worker={one: f"worker {one}" for one in workers}.get
    )
    return SimpleNamespace(spec=SimpleNamespace(name=name), pool=pool, registrant=registrant)


@pytest.fixture
def served(tmp_path: Path) -> ServedModels:
    """Two serving models, one of which is being replaced, and one that waits for its restore."""
    entry = Entry(
        1, 0.0, messages.ModelSpec("late", 1, {}, messages.WorkerEnvironment("python")), [b""]
    )
    (tmp_path / "native").symlink_to(tmp_path)
    one = ServedModels(tmp_path, Restorer(Content([entry], [])))
    old, new, other = (
        registration("m", "w1", "w2"),
        registration("m", "w3"),
        registration("n", "w4", registrant="process 7"),
    )
    one.names.update(m=old, n=other)
    one.keys.update({"m#1": old, "m#2": new, "n#1": other})
    return one


def test_existing_models_are_found(served: ServedModels) -> None:
    assert [one.spec.name for one in served] == ["m", "n"]
    assert ("m" in served, "late" in served) == (True, False)
    assert served.get("late") is None
    assert served.by_name("m") is served.by_key("m#1")
    assert served.by_key("m#2") is not served.by_key("m#1")
    assert served.workers_of("m") == ["w1", "w2"]
    assert served.workers_of("late") == []
    found: tuple[object, object] = served.worker("w3")
    assert found == (served.keys["m#2"], "worker w3")
    assert served.hosts("process 7")  # type: ignore[arg-type]
    assert not served.hosts("process 8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda one: one.by_key("m#9"), "registration m#9 is gone"),
        (lambda one: one.worker("w9"), "this daemon has no worker w9"),
        (lambda one: one.by_name("x"), "no model 'x' is registered; registered models: m, n"),
        (lambda one: one.by_name("late"), "model 'late' is not served yet: it is being restored"),
        (lambda one: one.by_name("native"), "(pytriton-daemon repository unload native)"),
        (lambda one: one.by_name("\0"), "is registered; registered models: m, n"),
    ],
)
def test_missing_models_are_reported(
    served: ServedModels, look: Callable[[ServedModels], object], words: str
) -> None:
    with pytest.raises(RemoteFailure, match=re.escape(words)) as caught:
        look(served)
    assert caught.value.kind is ErrorKind.NOT_FOUND


def test_without_any_model_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(RemoteFailure, match="registered models: none"):
        ServedModels(tmp_path, Restorer(Content([], []))).by_name("m")


def test_a_model_restored_while_others_are_listed_is_left_out() -> None:
    specs = [
        messages.ModelSpec(name, 1, {}, messages.WorkerEnvironment("python")) for name in "abc"
    ]
    entries = [Entry(serial, 0.0, spec, [b""]) for serial, spec in enumerate(specs, 1)]
    restorer = Restorer(Content(entries, []))
    listed = restorer.infos(set())
    assert next(listed).name == "a"
    restorer.restored("b")
    assert [one.name for one in listed] == ["c"]
