"""Check that two builds of a commit give the same bytes."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from release import builder
from release.tool_runner import ReleaseError


def _sdist(path: Path, *, mtime: int, owner: str, names: list[str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = 1, mtime, owner, 0o664
            if name.endswith(".sh"):
                member.mode = 0o775
            tar.addfile(member, io.BytesIO(b"x"))


def test_sdists_with_the_same_content_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    _sdist(first, mtime=1, owner="me", names=["p/b", "p/a", "p/run.sh"])
    _sdist(second, mtime=2, owner="you", names=["p/run.sh", "p/a", "p/b"])
    for one in (first, second):
        builder.repack_sdist(one, one.with_suffix(".clean"), 1_700_000_000)
    packed = first.with_suffix(".clean").read_bytes()
    assert packed == second.with_suffix(".clean").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
        members = tar.getmembers()
    assert [(one.name, one.mode, one.mtime, one.uname) for one in members] == [
        ("p/a", 0o644, 1_700_000_000, ""),
        ("p/b", 0o644, 1_700_000_000, ""),
        ("p/run.sh", 0o755, 1_700_000_000, ""),
    ]


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    files = [tmp_path / one / name for one in "ab" for name in ("p.tar.gz", "p.whl")]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text("same" if file.name == "p.tar.gz" else str(number))
    first = builder.Built(files[0], (files[1],))
    assert builder.differing(first, first) == []
    assert builder.differing(first, builder.Built(files[2], (files[3],))) == ["p.whl"]


def test_an_export_has_the_released_version(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\nname = "p"\n')
    git = ["git", "-C", str(root), "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    (root / "more.txt").write_text("not committed")
    builder.export(builder.commit_of(root, "HEAD", "0.2.0"), tmp_path / "out")
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["pyproject.toml"]
    assert '\nversion = "0.2.0"\n' in (tmp_path / "out" / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text("[project]\n")
    subprocess.run([*git, "commit", "--quiet", "-am", "second"], check=True)
    with pytest.raises(ReleaseError, match="no line version"):
        builder.export(builder.commit_of(root, "HEAD", "0.2.0"), tmp_path / "other")


def test_the_wheel_for_a_machine(tmp_path: Path) -> None:
    wheels = tuple(
        tmp_path / f"p-1-py3-none-{one}.whl"
        for one in (*(target.platform for target in builder.TARGETS), "any")
    )
    built = builder.Built(tmp_path / "p-1.tar.gz", wheels)
    assert built.wheel_for("aarch64") == wheels[1]
    assert built.wheel_for("riscv64") == wheels[2]
