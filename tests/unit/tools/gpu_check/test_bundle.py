"""Which libraries the folder of the GPU check contains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpu_check import bundle
from gpu_check.bundle import BundleError, build, needed_libraries

pytestmark = pytest.mark.programs


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """liba needs libb, which needs libc of the system; nothing needs libunused."""
    for name, needs in (("unused", []), ("b", []), ("a", ["-L.", "-lb"])):
        (tmp_path / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
        command = ["cc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", f"lib{name}.so"]
        subprocess.run([*command, f"{name}.c", *needs], cwd=tmp_path, check=True)
    return tmp_path


def test_a_library_brings_what_it_needs_and_nothing_else(libraries: Path) -> None:
    found = needed_libraries(libraries, ["liba*.so"])
    assert [one.name for one in found] == ["liba.so", "libb.so"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="is no folder of scripts/gpu-check"):
        build(tmp_path, "3.12")
    assert (tmp_path / "file").exists()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was built without packages and without tritonserver's core."""
    monkeypatch.setattr(
        bundle, "_install_packages", lambda site, python, work: site.mkdir(parents=True)
    )
    monkeypatch.setattr(bundle, "_copy_core", lambda server: server.mkdir())
    out = tmp_path / "out"
    assert build(out, "3.12") == sum(one.stat().st_size for one in out.rglob("*") if one.is_file())
    return out


def test_a_folder_above_the_limit_is_refused_and_the_earlier_one_kept(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (built / "earlier").touch()
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    with pytest.raises(BundleError, match=r"may have 0: leave out packages"):
        build(built, "3.12")
    assert (built / "earlier").exists()
    assert [one.name for one in built.parent.iterdir()] == ["out"]


def test_the_modules_that_build_the_folder_are_not_in_it(built: Path) -> None:
    names = {one.name for one in (built / "gpu_check").iterdir()}
    assert {"check.py", "rows.py", "models.py"} <= names
    assert not names & {"bundle.py", "__main__.py", "__pycache__"}
