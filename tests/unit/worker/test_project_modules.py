"""Modules of a registrant's project are imported as registered, whatever happened to the files."""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol.payload import Source
from pytriton.worker import project_modules


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(file: Path, text: str) -> Source:
    """Write a file of a project; return it as it is sent."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return Source("", str(file), text.encode())


def registered(root: Path, **texts: str) -> None:
    """Write these files, and register the project with them."""
    sources = []
    for name, text in texts.items():
        parts = name.split("__dot__")
        file = root.joinpath(*parts[:-1], f"{parts[-1]}.py")
        module = ".".join(part for part in parts if part != "__init__")
        sources.append(Source(module, write(file, text).file, text.encode()))
    project_modules.use(sources)
    importlib.invalidate_caches()


def test_a_changed_file_is_imported_as_registered(tmp_path: Path) -> None:
    registered(
        tmp_path, pm_one="import pm_two\nWORD = pm_two.WORD + ' one'\n", pm_two="WORD = 'old'\n"
    )
    write(tmp_path / "pm_two.py", "WORD = 'new'\n")
    assert importlib.import_module("pm_one").WORD == "old one"
    assert sys.modules["pm_two"].__file__ == str(tmp_path / "pm_two.py")


def test_an_unchanged_file_is_imported_normally(tmp_path: Path) -> None:
    registered(tmp_path, pm_same="WORD = 'same'\n")
    module = importlib.import_module("pm_same")
    assert module.WORD == "same"
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_deleted_files_and_folders_are_imported(tmp_path: Path) -> None:
    """With packages, including those without `__init__.py`, and relative imports."""
    registered(
        tmp_path / "gone",
        pm_pack__dot____init__="from .part import WORD\n",
        pm_pack__dot__part="WORD = 'gone'\n",
        pm_space__dot__deep__dot__part="from ..other import WORD\n",
        pm_space__dot__other="WORD = 'space'\n",
    )
    shutil.rmtree(tmp_path / "gone")
    assert importlib.import_module("pm_pack").WORD == "gone"
    assert importlib.import_module("pm_space.deep.part").WORD == "space"


def test_a_module_that_became_a_package_is_imported_as_registered(tmp_path: Path) -> None:
    registered(tmp_path, pm_grown="WORD = 'module'\n")
    (tmp_path / "pm_grown.py").unlink()
    write(tmp_path / "pm_grown" / "__init__.py", "WORD = 'package'\n")
    importlib.invalidate_caches()
    assert importlib.import_module("pm_grown").WORD == "module"


def test_modules_found_by_the_worker_take_precedence(tmp_path: Path) -> None:
    """As in Ray's `working_dir`: a package of the same name without any registered part."""
    registered(
        tmp_path / "registrant",
        pm_both="WORD = 'registered'\n",
        pm_pair__dot____init__="",
        pm_pair__dot__part="WORD = 'registered'\n",
    )
    write(tmp_path / "pm_both.py", "WORD = 'sent along'\n")
    write(tmp_path / "pm_pair" / "__init__.py", "")
    assert importlib.import_module("pm_both").WORD == "sent along"
    with pytest.raises(ImportError):
        importlib.import_module("pm_pair.part")


def test_tracebacks_show_the_lines_that_ran(tmp_path: Path) -> None:
    registered(tmp_path, pm_fails="def infer():\n    raise ValueError('as registered')\n")
    write(tmp_path / "pm_fails.py", "# another first line\n\n\n")
    infer: Any = importlib.import_module("pm_fails").infer
    with pytest.raises(ValueError, match="as registered") as caught:
        infer()
    assert "raise ValueError('as registered')" in "".join(traceback.format_tb(caught.tb))
    assert inspect.getsource(infer).startswith("def infer()")
