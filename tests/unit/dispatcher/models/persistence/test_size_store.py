"""Known memory sizes across restarts of the daemon: persisted, and measured again where that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.scaling.memory_policy import KnownSize

SIZES = {"a": KnownSize("1.5", 1000, 50, {"digest": 7}, lived=True), "b": KnownSize("2.5", 10)}


def test_written_values_are_read_back(tmp_path: Path) -> None:
    SizeStore(tmp_path).write(SIZES)
    kept = SizeStore(tmp_path)
    assert kept.read() == SIZES
    assert not kept.lacks(SIZES)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("now", "lacks"),
    [
        ({"a": KnownSize("1.5", 1000)}, False),
        ({"a": KnownSize("1.5", 1020)}, False),
        ({"a": KnownSize("1.5", 1021)}, True),
        ({"a": KnownSize("1.5", 979)}, True),
        ({"a": KnownSize("1.5", 1000, 1)}, True),
        ({"a": KnownSize("1.5", 1000, lived=True)}, True),
        ({"a": KnownSize("1.5", 1000, shared={"digest": 1})}, True),
        ({"a": KnownSize("9.5", 1000)}, True),
        ({}, True),
    ],
)
def test_small_differences_are_not_written(
    tmp_path: Path, now: dict[str, KnownSize], lacks: bool
) -> None:
    kept = SizeStore(tmp_path)
    kept.write({"a": KnownSize("1.5", 1000)})
    assert kept.lacks(now) is lacks


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00{",
        b'{"form": 1}',
        b'{"form": 2, "models": {}, "more": 1}',
        b'{"form": 2, "models": {"a": {"registration": "1.5", "memory": 1000}}}',
        b'{"form": 1, "models": {"a": {"registration": "1.5", "memory": "1000"}}}',
        b'{"form": 1, "models": {"a": {"registration": "1.5", "memory": -1}}}',
        b'{"form": 1, "models": {"a": {"registration": "1.5", "memory": 1, "shared": {"d": -1}}}}',
    ],
)
def test_an_unusable_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sizes.json").write_bytes(content)
    kept = SizeStore(tmp_path)
    assert kept.read() == {}
    kept.write(SIZES)
    assert SizeStore(tmp_path).read() == SIZES


def test_fields_of_other_versions_are_tolerated(
    tmp_path: Path,
) -> None:
    first = {"registration": "1.5", "memory": 1000}
    content = {"form": 1, "models": {"a": first, "b": {**first, "later": 1}}, "later": 1}
    (tmp_path / "sizes.json").write_bytes(msgspec.json.encode(content))
    assert SizeStore(tmp_path).read() == dict.fromkeys("ab", KnownSize("1.5", 1000))


def test_a_full_disk_loses_only_new_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SizeStore(tmp_path)
    kept.write({})

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        kept.write(SIZES)
    assert kept.lacks(SIZES)
    assert SizeStore(tmp_path).read() == {}
    kept.write(SIZES)
    assert SizeStore(tmp_path).read() == SIZES
