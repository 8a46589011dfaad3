"""What `register MODULE:NAME` imports: from the working directory, with the traceback of a failing import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytriton._cli.errors import CliError
from pytriton._cli.register_target import RegisterCommand, load_target, register_target
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir


def test_a_target_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_target_one.py").write_text("class A:\n    b = 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_target("cli_target_one:A.b") == "found"
    assert sys.path[0] == str(tmp_path)


def test_in_process_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "import pytriton\n@pytriton.declare(isolation='thread')\ndef infer(requests): ...\n"
    (tmp_path / "cli_target_two.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(CliError, match="Register it from a program that keeps running") as caught:
        register_target(RegisterCommand("cli_target_two:infer", {}), RuntimeDir(tmp_path))
    assert caught.value.code is ExitCode.USAGE


def test_an_import_that_fails_is_shown_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_target_broken.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "cli_target_three.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module, reported in (
        ("cli_target_broken", "No module named 'no_such_thing_at_all'"),
        ("cli_target_three", "ZeroDivisionError"),
    ):
        with pytest.raises(CliError, match=reported) as caught:
            load_target(f"{module}:x")
        assert f"{module}.py" in str(caught.value)
        assert caught.value.code is ExitCode.USAGE
