"""The state directory: written entries are read back in order, despite damage or a crash at any point."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from pytriton._protocol import messages
from pytriton.dispatcher.models.persistence.state_dir import (
    DamagedEntry,
    Entry,
    Store,
    StoreError,
    decode,
    encode,
)

WORLD = messages.WorkerEnvironment("/usr/bin/python3", env={"A": "ä"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.close()


def spec(name: str, version: int = 1) -> messages.ModelSpec:
    return messages.ModelSpec(name, version, {"input": [{"name": "x"}]}, WORLD)


def keep(store: Store, name: str, payload: bytes = b"payload", version: int = 1) -> None:
    store.write(spec(name, version), [payload], 1.5).finish()


def previous_payloads(store: Store, name: str) -> list[bytes]:
    previous = store.previous(name)
    assert previous is not None
    return list(previous.payloads)


def reopened(store: Store, folder: Path) -> Store:
    store.close()
    return Store(folder)


def test_registrations_are_read_in_order(tmp_path: Path) -> None:
    """A replaced one keeps its place, and a removed one leaves no gap."""
    store = Store(tmp_path / "state")
    for name in ("c", "a", "b"):
        keep(store, name)
    keep(store, "a", b"other", 2)
    store.remove("b")
    keep(store, "d")
    store = reopened(store, tmp_path / "state")
    entries, problems = store.read()
    assert [(entry.spec.name, entry.spec.version, entry.payloads) for entry in entries] == [
        ("c", 1, [b"payload"]),
        ("a", 2, [b"other"]),
        ("d", 1, [b"payload"]),
    ]
    assert problems == []
    previous = store.previous("a")
    assert previous is not None
    assert (previous.spec, previous.payloads) == (spec("a"), [b"payload"])
    assert store.previous("c") is None
    keep(store, "e")
    assert [entry.spec.name for entry in store.read().entries] == ["c", "a", "d", "e"]
    store.close()


def test_everything_is_private_to_the_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "state")
        keep(store, "m")
        store.close()
    finally:
        os.umask(before)
    paths = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert [str(path) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a_folder_is_used_by_one_daemon(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(
        StoreError, match=r"another daemon is using the state directory .*--state-dir"
    ):
        Store(tmp_path)
    reopened(store, tmp_path).close()


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file.*--state-dir.*--ephemeral"):
        Store(tmp_path / "file" / "state")


ENTRY = Entry(7, 1.5, spec("m"), [b"payload", b""])
DATA = encode(ENTRY)


@given(st.data())
def test_any_damage_is_noticed(data: st.DataObject) -> None:
    """A changed byte, a truncated file, appended bytes."""
    assert decode(DATA) == ENTRY
    place = data.draw(st.integers(0, len(DATA) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != DATA[place]))
    for damaged in (
        DATA[:place] + bytes([other]) + DATA[place + 1 :],
        DATA[:place],
        DATA + bytes([other]),
    ):
        with pytest.raises(DamagedEntry):
            decode(damaged)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(20),
)
@given(damage=st.sampled_from([b"", DATA[:40], DATA[:-1], DATA.replace(b" 1 ", b" x ", 1), DATA]))
def test_a_damaged_file_is_set_aside(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes
) -> None:
    """The others are read, and the damaged one is kept for inspection; the last one contains another model."""
    folder = tmp_path_factory.mktemp("state")
    store = Store(folder)
    keep(store, "a")
    keep(store, "b")
    (folder / "models" / "a.registration").write_bytes(damage)
    entries, problems = store.read()
    assert [entry.spec.name for entry in entries] == ["b"]
    (problem,) = problems
    (aside,) = (folder / "set-aside").iterdir()
    assert "a.registration" in problem
    assert str(aside) in problem
    assert aside.read_bytes() == damage
    assert store.read().problems == []
    store.close()


def test_an_unreadable_file_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later read may succeed: a temporary lack of descriptors must not lose a model."""
    keep(store, "m", b"old")
    keep(store, "m", b"new")

    def fail(path: Path) -> bytes:
        raise OSError(24, "Too many open files", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        entries, problems = store.read()
        assert entries == []
        (problem,) = problems
        assert "m.registration cannot be read: Too many open files. It is left in place" in problem
        with pytest.raises(StoreError, match=r"m.previous cannot be read: Too many open files"):
            store.previous("m")
        with pytest.raises(
            StoreError, match="cannot determine whether model m has replaced another one"
        ):
            store.is_first("m")
    assert [entry.payloads for entry in store.read().entries] == [[b"new"]]
    assert previous_payloads(store, "m") == [b"old"]


def test_a_file_records_whether_it_replaced_another(store: Store, tmp_path: Path) -> None:
    """Even after changes, without the file that it replaced, and despite leftovers of an older one."""
    keep(store, "m", b"old")
    assert store.is_first("m")
    keep(store, "m", b"new")
    (entry,) = store.read().entries
    store.amend(entry, {"instances": 3}).finish()
    (tmp_path / "models" / "m.previous").unlink()
    assert not store.is_first("m")
    with pytest.raises(StoreError, match=r"m.previous is missing.*--replace"):
        store.previous("m")
    (tmp_path / "models" / "m.registration").rename(tmp_path / "models" / "m.previous")
    keep(store, "m", b"another")
    assert store.is_first("m")


@pytest.mark.parametrize("first", [False, True])
def test_entries_of_earlier_versions_take_precedence_over_older_files(
    store: Store, tmp_path: Path, first: bool
) -> None:
    for suffix in [".registration"] if first else [".registration", ".previous"]:
        (tmp_path / "models" / f"linear{suffix}").write_bytes(FIRST.read_bytes())
    assert store.is_first("linear") is first
    assert (store.previous("linear") is None) is first


def test_a_change_modifies_the_stored_registration(store: Store, tmp_path: Path) -> None:
    """The copy in memory is used only if the file is gone."""
    keep(store, "m", b"older")
    keep(store, "m", b"old")
    (entry,) = store.read().entries
    memory = msgspec.structs.replace(
        entry, serial=0, spec=msgspec.structs.replace(entry.spec, instances=7)
    )
    store.amend(memory, {"access_log": True}).finish()
    (amended,) = store.read().entries
    spec = msgspec.structs.replace(entry.spec, access_log=True)
    assert amended == msgspec.structs.replace(entry, spec=spec)
    assert previous_payloads(store, "m") == [b"older"]
    (tmp_path / "models" / "m.registration").write_bytes(b"damaged")
    store.amend(memory, {"access_log": True}).finish()
    (amended,) = store.read().entries
    assert (amended.spec.instances, amended.payloads) == (7, [b"old"])


#: Kept by the first version with form 1, which is that of today.
FIRST = Path(__file__).with_name("linear-1.registration")


def test_entries_of_earlier_versions_are_read(tmp_path: Path) -> None:
    entry = decode(FIRST.read_bytes())
    assert (entry.serial, entry.registered_at, entry.payloads) == (3, 1.5, [b"payload"])
    assert entry.spec == msgspec.structs.replace(spec("linear"), instances=2, devices=["0", "1"])


@pytest.mark.parametrize("kind", ["another form", "another field"])
def test_entries_of_newer_versions_are_left_alone(tmp_path: Path, kind: str) -> None:
    """After a downgrade, the user is told what to do, and the newer version finds them again."""
    store = Store(tmp_path / "state")
    keep(store, "mine")
    path = tmp_path / "state" / "models" / "theirs.registration"
    content = msgspec.msgpack.encode(
        {"serial": 1, "registered_at": 1.0, "spec": {"name": 7}, "payloads": []}
    )
    form = b"2" if kind == "another form" else b"1"
    checksum = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(b"pytriton-registration " + form + b" " + checksum + b"\n" + content)
    before = path.read_bytes()
    entries, problems = reopened(store, tmp_path / "state").read()
    assert [entry.spec.name for entry in entries] == ["mine"]
    (problem,) = problems
    assert "was written by a newer version" in problem
    assert "start that version, or register the model again" in problem
    assert path.read_bytes() == before
    assert list((tmp_path / "state" / "set-aside").iterdir()) == []


def test_an_unfinished_write_leaves_the_old_entry(tmp_path: Path) -> None:
    """Whether it was discarded or the daemon exited; nothing of it is left."""
    store = Store(tmp_path)
    keep(store, "m", b"old")
    store.write(spec("m"), [b"new"], 2.0).discard()
    store.write(spec("m"), [b"new"], 2.0)
    store = reopened(store, tmp_path)
    assert [entry.payloads for entry in store.read().entries] == [[b"old"]]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m.registration"]
    store.close()


@pytest.mark.parametrize("step", ["link", "replace"])
def test_a_crash_during_the_replacement_leaves_the_old_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """At each of its steps."""
    store = Store(tmp_path)
    keep(store, "m", b"older")
    keep(store, "m", b"old")
    unfinished = store.write(spec("m"), [b"new"], 2.0)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, step, crash)
        with pytest.raises(KeyboardInterrupt):
            unfinished.finish()
    store = reopened(store, tmp_path)
    assert [entry.payloads for entry in store.read().entries] == [[b"old"]]
    assert previous_payloads(store, "m") == [b"older"]
    keep(store, "m", b"newer")
    assert previous_payloads(store, "m") == [b"old"]
    store.close()


def test_a_full_disk_leaves_the_old_entry(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the fix; the old entry stays, and nothing is left of the new one."""
    keep(store, "m", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StoreError, match=r"model m cannot be persisted: .*No space left.*--ephemeral"
    ):
        store.write(spec("m"), [b"new"], 2.0)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m.registration"]


def test_a_folder_writable_by_others_is_refused(tmp_path: Path) -> None:
    """Its contents are executed."""
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match=r"writable by users other than its owner.*chmod 700"):
        Store(folder)
    folder.chmod(0o755)
    Store(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # a folder that was there stays as it was


def test_a_damaged_previous_version_is_reported(store: Store, tmp_path: Path) -> None:
    keep(store, "m", b"old")
    keep(store, "m", b"new")
    (tmp_path / "models" / "m.previous").write_bytes(DATA[:-1])
    (tmp_path / "models" / "stray.unfinished").mkdir()
    with pytest.raises(StoreError, match=r"m.previous cannot be used: its checksum is wrong"):
        store.previous("m")
    assert [entry.payloads for entry in store.read().entries] == [[b"new"]]
