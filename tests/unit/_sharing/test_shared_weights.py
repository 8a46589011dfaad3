"""Weights in shared memory: created by the first process, mapped by all, freed with the last, however it ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.weights import same, write_safetensors

import pytriton
from pytriton._protocol import linux
from pytriton._protocol.files import shared_entries
from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR, Holder, SharedEntry
from pytriton._sharing import segments
from pytriton.exceptions import PyTritonValidationError

#: Another process: it shares what the first line says, prints what it has, and lives until its input ends.
_OTHER = """
import sys, os, pathlib, numpy as np, pytriton
from pytriton._sharing import segments
def make():
    with open("made", "a") as file:
        file.write("x")
    if pathlib.Path("broken").exists():
        raise RuntimeError("no weights")
    return {"w": np.arange(1000, dtype=np.float32)}
shared = eval(sys.stdin.readline())
segment = next(iter(segments._segments.values()))
print(float(shared["w"].sum()), os.fstat(segment.fd).st_ino, flush=True)
sys.stdin.read()
"""
_KEYED = 'pytriton.shared(make, key="weights v1")'
_SUM = float(np.arange(1000).sum())


class Node:
    """A folder of entries, and processes that share through it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, source: str = _KEYED) -> subprocess.Popen[str]:
        process = self._stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _OTHER],
                cwd=self.folder,
                env={**os.environ, ENV_SHARED_DIR: str(self.folder / "shared")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(process.kill)
        assert process.stdin is not None
        process.stdin.write(source + "\n")
        process.stdin.flush()
        return process

    def said(self, process: subprocess.Popen[str]) -> tuple[float, int]:
        """Return the sum of a process's values, and the identity of their memory."""
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        total, inode = line.split()
        return float(total), int(inode)

    def made(self) -> int:
        return len((self.folder / "made").read_text())

    def entries(self) -> dict[str, SharedEntry]:
        return shared_entries.all_of(self.folder / "shared")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


# ── processes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.programs
def test_processes_that_start_together_build_the_memory_once(node: Node) -> None:
    others = [node.start() for _ in range(4)]
    said = {node.said(one) for one in others}
    assert len(said) == 1
    assert said.pop()[0] == _SUM
    assert node.made() == 1
    (entry,) = node.entries().values()
    assert (entry.label, entry.kind) == ("weights v1", "memory")
    assert {one.pid for one in entry.holders} == {one.pid for one in others}
    assert shared_entries.size_of_all(node.folder / "shared") == entry.size >= 4000


@pytest.mark.programs
def test_memory_outlives_its_builder_and_is_freed_with_the_last_user(node: Node) -> None:
    first = node.start()
    memory = node.said(first)
    second = node.start()
    assert node.said(second) == memory
    first.send_signal(signal.SIGKILL)
    first.wait()
    third = node.start()
    assert node.said(third) == memory
    assert node.made() == 1
    for one in (second, third):
        one.send_signal(signal.SIGKILL)
        one.wait()
    assert node.entries() == {}
    assert list((node.folder / "shared").iterdir()) == []
    assert node.said(node.start())[0] == _SUM
    assert node.made() == 2


@pytest.mark.programs
def test_a_killed_builder_leaves_the_work_to_the_next(node: Node) -> None:
    slow = node.start(
        'pytriton.shared(lambda: (print("making 1", flush=True), __import__("time").sleep(600)), key="weights v1")'
    )
    assert slow.stdout is not None
    assert slow.stdout.readline() == "making 1\n"
    waits = node.start()
    slow.send_signal(signal.SIGKILL)
    assert node.said(waits)[0] == _SUM


@pytest.mark.programs
def test_a_process_forked_during_a_build_blocks_nobody(node: Node) -> None:
    child = "(os.read(0, 1), os._exit(0))"
    node.said(node.start(f'pytriton.shared(lambda: (os.fork() or {child}) and make(), key="w")'))
    (path,) = (node.folder / "shared").glob("*.lock")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.programs
def test_a_failed_build_is_retried(node: Node) -> None:
    (node.folder / "broken").touch()
    failed = node.start()
    assert "RuntimeError: no weights" in failed.communicate()[1]
    (node.folder / "broken").unlink()
    assert node.said(node.start())[0] == _SUM
    assert node.made() == 2


@pytest.mark.programs
def test_a_changed_source_file_causes_a_rebuild(node: Node) -> None:
    file = node.folder / "weights.bin"
    file.write_bytes(b"one")
    source = 'pytriton.shared(make, key=pathlib.Path("weights.bin"))'
    first, second = node.said(node.start(source)), node.said(node.start(source))
    assert first == second
    file.write_bytes(b"another")
    assert node.said(node.start(source)) != first
    assert node.made() == 2


@pytest.mark.programs
def test_a_file_is_mapped_by_all(node: Node) -> None:
    write_safetensors(node.folder / "w.safetensors", {"w": np.arange(1000, dtype=np.float32)})
    source = 'pytriton.shared("w.safetensors")'
    said = {node.said(node.start(source)) for _ in range(2)}
    assert said == {(_SUM, os.stat(node.folder / "w.safetensors").st_ino)}
    (entry,) = node.entries().values()
    assert entry.kind == "file"
    assert entry.size == 0  # the kernel drops its pages when it needs them


def test_another_file_is_not_accepted_as_the_memory(own_folder: Path) -> None:
    pytriton.shared(lambda: np.zeros(1 << 20, np.uint8), key="k")
    digest = digest_of(own_folder)
    entry = shared_entries.read(own_folder, digest)
    assert entry is not None
    (holder,) = entry.holders
    with open(own_folder / "large", "wb") as large:
        large.write(bytes(4 << 20))
        large.flush()
        os.fsync(large.fileno())
        wrong = Holder(holder.pid, holder.started, large.fileno())
        replaced = msgspec.structs.replace(entry, holders=[wrong, holder])
        shared_entries.write(own_folder, digest, replaced)
        assert 1 << 20 <= shared_entries.size_of_all(own_folder) < 2 << 20


# ── what a hostile or broken process may have left ──────────────────────────────────────────────


def digest_of(folder: Path) -> str:
    (entry,) = folder.glob("*.json")
    return entry.stem


def test_changeable_memory_is_not_accepted(own_folder: Path) -> None:
    pytriton.shared(lambda: {"w": np.zeros(4)}, key="k")
    digest = digest_of(own_folder)
    segments._segments.clear()
    started = shared_entries.started_at(os.getpid())
    assert started is not None
    open_ = linux.memfd_create(f"pytriton-shared-{digest}")  # not sealed
    os.write(open_, b"rubbish")
    another = linux.memfd_create("pytriton-shared-of-another")
    linux.seal_for_good(another)
    holders = [Holder(os.getpid(), started, one) for one in (open_, another, 9999)]
    shared_entries.write(own_folder, digest, SharedEntry("k", "memory", 7, holders))
    assert pytriton.shared(lambda: {"w": np.ones(4)}, key="k")["w"].tolist() == [1.0] * 4
    os.close(open_)
    os.close(another)


def test_the_size_matches_the_kernel_s(own_folder: Path) -> None:
    pytriton.shared(lambda: np.zeros(1 << 20, np.uint8), key="k")
    digest = digest_of(own_folder)
    entry = shared_entries.read(own_folder, digest)
    assert entry is not None
    for lie in (-(1 << 40), 1 << 40):
        shared_entries.write(own_folder, digest, msgspec.structs.replace(entry, size=lie))
        assert 1 << 20 <= shared_entries.size_of_all(own_folder) < 1 << 21
    (holder,) = entry.holders
    nobodys = holder.__class__(holder.pid, holder.started, 9999)
    shared_entries.write(own_folder, digest, msgspec.structs.replace(entry, holders=[nobodys]))
    assert shared_entries.size_of_all(own_folder) == 0


@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", b'{"label": 1}', b"[" * 100_000])
def test_an_unreadable_entry_is_ignored(own_folder: Path, text: bytes) -> None:
    pytriton.shared(lambda: np.zeros(4), key="k")
    path = own_folder / f"{digest_of(own_folder)}.json"
    segments._segments.clear()
    path.write_bytes(text)
    assert pytriton.shared(lambda: np.ones(4), key="k").tolist() == [1.0] * 4


def test_shared_memory_is_immutable(own_folder: Path) -> None:
    array = pytriton.shared(lambda: np.zeros(4), key="k")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    (segment,) = segments._segments.values()
    with pytest.raises(OSError, match=r"permitted|permission|descriptor"):
        os.write(segment.fd, b"x")
    with pytest.raises(OSError, match="not permitted"):
        os.write(os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR), b"x")


def test_writes_to_a_private_mapping_stay_private(own_folder: Path) -> None:
    """torch tensors are views of it."""
    array = pytriton.shared(lambda: np.zeros(4), key="k")
    (segment,) = segments._segments.values()
    private = segment.private()
    assert private[:] == segment.read_only()[:]
    private[-1] = 7
    assert array.tolist() == [0.0] * 4
    assert segment.read_only()[-1] == 0


def test_a_folder_writable_by_others_is_refused(own_folder: Path) -> None:
    own_folder.mkdir()
    own_folder.chmod(0o777)
    with pytest.raises(PermissionError, match="no other user can access"):
        pytriton.shared(lambda: np.zeros(4), key="k")


def test_more_than_the_available_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"8,\d+ bytes, but only 1,000 bytes"):
        pytriton.shared(lambda: np.zeros(1000), key="k")


# ── values ───────────────────────────────────────────────────────────────────────────────────────

_ARRAYS = st.sampled_from(
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.array(3.5, np.float16),
        np.empty((0, 4), np.uint8),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.arange(3, dtype=">i4"),
        np.array([1 + 2j]),
    ]
)
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3))
_TREES = st.recursive(
    st.one_of(_ARRAYS, _PLAIN),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(60))
@given(_TREES)
def test_a_value_survives_a_round_trip(tree: Any) -> None:
    value = {"one": np.arange(3), "tree": tree}
    same(pytriton.shared(value)["tree"], tree)


def test_without_a_key_equal_contents_share_one_memory(own_folder: Path) -> None:
    for _ in range(2):
        pytriton.shared({"w": np.arange(5)})
    pytriton.shared({"w": np.arange(6)})
    assert len(segments._segments) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([None]), "value is an array of object"),
        (np.zeros(2, [("a", "i4")]), "value is an array of"),
        ({"a": np.ma.masked_array([1.0], [True])}, "value['a'] is a masked array"),
        ({"a": [np.zeros(2), {1, 2}]}, "value['a'][1] is of type set"),
        ({1: np.zeros(2)}, "a dictionary with a key 1 that is not a string"),
        ({"a": 1}, "the value contains no array"),
    ],
)
def test_unshareable_values_are_reported(value: Any, text: str) -> None:
    with pytest.raises(PyTritonValidationError) as error:
        pytriton.shared(value)
    assert text in str(error.value)


def test_a_function_that_shares_something_under_a_key_is_refused() -> None:
    for inner in "ba":
        with pytest.raises(PyTritonValidationError, match=f"creates 'a' itself shares '{inner}'"):
            pytriton.shared(lambda: pytriton.shared(lambda: np.zeros(2), key=inner), key="a")  # noqa: B023
    assert pytriton.shared(lambda: np.zeros(2), key="b").tolist() == [0, 0]
    assert pytriton.shared(lambda: pytriton.shared(np.ones(2)), key="a").tolist() == [1, 1]


def test_wrong_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PyTritonValidationError, match="a function requires a key"):
        pytriton.shared(lambda: np.zeros(2))
    with pytest.raises(PyTritonValidationError, match="framework must be 'numpy' or 'torch'"):
        pytriton.shared(np.zeros(2), framework="jax")
    with pytest.raises(FileNotFoundError):
        pytriton.shared(tmp_path / "nothing.npy")
    (tmp_path / "w.bin").write_bytes(b"x")
    with pytest.raises(PyTritonValidationError, match=r"neither a \.safetensors nor a \.npy file"):
        pytriton.shared(tmp_path / "w.bin")
