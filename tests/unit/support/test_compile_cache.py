"""tests/support/compile_cache.py: an object is compiled again when something that it depends on has changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import compile_cache
from support.caching_compiler import caching_compiler

from pytriton._host.install.proxy_compiler import compiler


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pytriton-daemon-tests" / "objects"


def _says(folder: Path, *flags: str) -> str:
    """Compile the program as another run of the tests would; return its output."""
    compile_cache._digest.cache_clear()
    program = compile_cache.compile_program(folder / "program", flags, [folder / "main.c"], [])
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


_SOURCE = '#include <stdio.h>\n#include "word.h"\nint main(void) { puts(WORD); return 0; }\n'


def _checkout(folder: Path) -> Path:
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "word.h").write_text('#define WORD "one"\n')
    (folder / "room" / "main.c").write_text(_SOURCE)
    return folder


def test_an_object_is_kept_until_something_changes(cache: Path, tmp_path: Path) -> None:
    folder = _checkout(tmp_path / "a folder") / "room"
    assert _says(folder) == "one\n"
    (first,) = cache.glob("*.o")
    assert _says(folder) == "one\n"
    assert list(cache.glob("*.o")) == [first]

    (folder / "word.h").write_text('#define WORD "two"\n')  # in no folder of -I
    assert _says(folder) == "two\n"
    (folder / "main.c").write_text(_SOURCE.replace("WORD)", '"three")'))
    assert _says(folder) == "three\n"
    (folder / "main.c").write_text(_SOURCE.replace("WORD)", "GIVEN)"))
    assert _says(folder, '-DGIVEN="four"') == "four\n"
    assert _says(folder, '-DGIVEN="five"') == "five\n"

    for lists in cache.glob("*.json"):
        lists.write_text("{")  # its run was killed
    (folder / "main.c").write_text(_SOURCE)
    assert _says(folder) == "two\n"


def test_checkouts_share_objects(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While their sources are equal: none gets objects of another one's changes."""
    one, other = _checkout(tmp_path / "one"), _checkout(tmp_path / "other")
    monkeypatch.setattr(compile_cache, "_ROOT", one)
    assert _says(one / "room", f"-I{one}", "-g1") == "one\n"
    monkeypatch.setattr(compile_cache, "_ROOT", other)
    assert _says(other / "room", f"-I{other}", "-g1") == "one\n"
    (kept_object,) = cache.glob("*.o")
    assert os.fsencode(tmp_path) not in kept_object.read_bytes()
    (other / "room" / "word.h").write_text('#define WORD "two"\n')
    assert _says(other / "room", f"-I{other}", "-g1") == "two\n"
    monkeypatch.setattr(compile_cache, "_ROOT", one)
    assert _says(one / "room", f"-I{one}", "-g1") == "one\n"
    assert len(list(cache.glob("*.o"))) == 2


def test_a_build_compiles_only_changed_sources(cache: Path, tmp_path: Path) -> None:
    """The cache does not depend on the checkout's path, and failures are not cached."""
    folder = _checkout(tmp_path / "checkout")
    known = cache.parent / "built-objects"
    command = compiler()
    assert command is not None

    def says(*flags: str) -> str:
        script = caching_compiler(tmp_path / "cc", command, "-Werror", *flags)
        subprocess.run(
            [script, "-I.", "-c", "-o", tmp_path / "1.o", "room/main.c"], cwd=folder, check=True
        )
        subprocess.run([script, "-o", tmp_path / "program", tmp_path / "1.o"], check=True)
        return subprocess.run(
            [tmp_path / "program"], check=True, capture_output=True, text=True
        ).stdout

    assert says() == says() == "one\n"
    assert len(list(known.iterdir())) == 1
    folder = folder.rename(tmp_path / "copy")
    assert says() == "one\n"
    assert len(list(known.iterdir())) == 1
    (folder / "room" / "word.h").write_text('#define WORD "two"\n')
    assert says() == "two\n"
    assert says("-O1") == "two\n"
    assert len(list(known.iterdir())) == 3

    (folder / "room" / "main.c").write_text(_SOURCE.replace("puts", "int unused; puts"))
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            says("-Wunused")
    assert len(list(known.iterdir())) == 3
