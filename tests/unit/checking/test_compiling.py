"""tests/support/compiling.py: an object is made anew when something has changed that it was made from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import compiling, kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pytriton-daemon-tests" / "objects"


def _says(folder: Path, *flags: str) -> str:
    """Compile the program as another run of the tests would; return what it prints."""
    compiling._digest.cache_clear()
    program = compiling.compile_program(folder / "program", flags, [folder / "main.c"], [])
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_an_object_is_kept_until_something_changes(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "word.h").write_text('#define WORD "one"\n')
    source = '#include <stdio.h>\n#include "word.h"\nint main(void) { puts(WORD); return 0; }\n'
    (folder / "main.c").write_text(source)
    assert _says(folder) == "one\n"
    (kept_object,) = cache.glob("*.o")
    first = kept_object.stat().st_ino
    assert _says(folder) == "one\n"
    assert kept_object.stat().st_ino == first  # the same one

    (folder / "word.h").write_text('#define WORD "two"\n')  # in no folder of -I
    assert _says(folder) == "two\n"
    (folder / "main.c").write_text(source.replace("WORD)", '"three")'))
    assert _says(folder) == "three\n"
    (folder / "main.c").write_text(source.replace("WORD)", "GIVEN)"))
    assert _says(folder, '-DGIVEN="four"') == "four\n"
    assert _says(folder, '-DGIVEN="five"') == "five\n"

    kept_object.with_suffix(".json").write_text("{")  # its run was killed
    (folder / "main.c").write_text(source)
    assert _says(folder) == "two\n"


def test_what_no_run_has_used_for_a_month_goes(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "old", (0, 0))
    kept.remove_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
