"""Which files of the registrant's project are stored with a registration."""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol.payload import Source, unpack
from pytriton._register import pickling
from pytriton._register.environment import WorkerModules, capture_environment
from pytriton._register.pickling import imported_by, pack_callable, sources_of

Project = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Create files of a project that this process can import; forget its modules at the end."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def make(**texts: str) -> Path:
        for name, text in texts.items():
            file = tmp_path / f"{name.replace('__dot__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        importlib.invalidate_caches()
        return tmp_path

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def kept(target: Any) -> list[Source]:
    """Return the sources in the payload of a callable."""
    with closing(WorkerModules(capture_environment(), own_interpreter=True)) as imports:
        return unpack(pack_callable(target, imports, "m"))[0].sources


def names(sources: list[Source]) -> list[str]:
    return [one.name for one in sources]


def test_a_module_is_sent_with_its_project_imports(project: Project) -> None:
    folder = project(
        pj_model="import json, numpy\nfrom pj_part import K\n\ndef infer(x):\n    import pj_late\n",
        pj_part="K = 1\nimport pj_package.inner as inner\n",
        pj_late="",
        pj_package__dot____init__="from . import beside\n",
        pj_package__dot__inner="from .beside import *\nif not K:\n    from ..too_far import this\n",
        pj_package__dot__beside="import pj_model\nK = 1\n",
        pj_unused="",
    )
    found = kept(importlib.import_module("pj_model").infer)
    assert names(found) == [
        "pj_model", "pj_late", "pj_part", "pj_package", "pj_package.inner", "pj_package.beside",
    ]  # fmt: skip
    text = (folder / "pj_part.py").read_bytes()
    assert found[2] == Source("pj_part", str(folder / "pj_part.py"), text)


def test_code_sent_by_value_includes_its_lazy_imports(project: Project) -> None:
    project(pj_one="", pj_two__dot__inner="", pj_three="def part(): pass\n")
    part = importlib.import_module("pj_three").part
    source = "def target(x):\n    import pj_one\n    from pj_two import inner\n    return part()\n"
    here: dict[str, Any] = {"part": part, "__name__": "__main__"}
    exec(source, here)
    assert sorted(names(kept(here["target"]))) == ["pj_one", "pj_three", "pj_two.inner"]


@pytest.mark.filterwarnings("error")
def test_import_warnings_are_not_repeated(project: Project) -> None:
    project(pj_odd="import pj_even\nWORDS = '\\d'\n", pj_even="")
    assert names(sources_of(["pj_odd"], sys.path, "m")) == ["pj_odd", "pj_even"]


def test_installed_packages_are_not_captured(project: Project) -> None:
    assert kept(json.dumps) == []
    assert kept(pytest.importorskip("msgspec").json.encode) == []
    assert kept(sources_of) == []  # the daemon has its own


def test_packages_installed_into_a_target_folder_are_not_captured(project: Project) -> None:
    folder = project(pj_mine="import pj_theirs\n\ndef infer(x): pass\n", theirs__dot__pj_theirs="")
    (folder / "theirs" / "pj_theirs-1.0.dist-info").mkdir()
    sys.path.append(str(folder / "theirs"))
    assert names(kept(importlib.import_module("pj_mine").infer)) == ["pj_mine"]


def test_packages_of_other_environments_are_not_captured(project: Project) -> None:
    """With `python=` and `sys_path=`, the worker's search path has folders that this process's lacks."""
    folder = project(
        pj_user="import pj_package\nimport pj_library\nimport pj_beside\n\ndef infer(x): pass\n",
        code__dot__pj_beside="",
        other__dot__os="",
        other__dot__pj_library="",
        **{
            "other/site-packages/pj_package/__init__": "from . import part",
            "other/site-packages/pj_package/part": "",
        },
    )
    library = folder / "other"
    search = [str(folder), str(folder / "code"), str(library), str(library / "site-packages")]
    assert names(sources_of(["pj_user"], search, "m")) == ["pj_user", "pj_beside"]


def test_modules_without_source_text_are_not_sent(project: Project) -> None:
    project(pj_broken="def infer(x):\n    import pj_other\n", pj_other="")
    infer = importlib.import_module("pj_broken").infer
    project(pj_broken="def infer(x\n")
    assert names(kept(infer)) == ["pj_broken"]  # the worker reports what is wrong with it
    made = types.ModuleType("pj_made")
    sys.modules["pj_made"] = made
    assert sources_of(["pj_made", "pj_nowhere", "sys"], sys.path, "m") == []


@pytest.mark.parametrize(("name", "most"), [("MAX_SOURCE_FILES", 2), ("MAX_SOURCES_BYTES", 40)])
def test_only_a_limited_number_of_files_is_sent(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(pickling, name, most)
    project(pj_a="import pj_b\n", pj_b="import pj_c\n", pj_c="import pj_d  # and more\n", pj_d="")
    with pytest.warns(
        UserWarning, match="import 'pj_c' and the rest from their current files"
    ) as warned:
        assert names(sources_of(["pj_a"], sys.path, "m")) == ["pj_a", "pj_b"]
    assert os.path.samefile(warned[0].filename, __file__)


def test_names_used_in_code() -> None:
    code = compile("import a.b\nfrom c import d, e\nf.g()\n", "", "exec")
    assert sorted(set(imported_by(code))) == ["a.b", "c", "c.d", "c.e"]
