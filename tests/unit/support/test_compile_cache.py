"""An object is compiled again when something that it depends on has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import compile_cache
from support.caching_compiler import caching_compiler

from pytriton._host.install.proxy_compiler import compiler

pytestmark = pytest.mark.programs

_SOURCE = '#include <stdio.h>\n#include "word.h"\nint main(void) { puts(WORD); return 0; }\n'


@pytest.mark.parametrize("kind", ["programs of the tests", "builds that tests start"])
def test_a_changed_header_source_or_flag_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    command = compiler()
    assert command is not None
    main, header, program = tmp_path / "main.c", tmp_path / "word.h", tmp_path / "program"

    def says(*flags: str) -> str:
        """Compile the program as another run of the tests would; return its output."""
        if kind == "programs of the tests":
            compile_cache._digest.cache_clear()
            compile_cache.compile_program(program, flags, [main], [])
        else:
            script = caching_compiler(tmp_path / "cc", command, *flags)
            subprocess.run([script, "-c", "-o", "main.o", "main.c"], check=True)
            subprocess.run([script, "-o", program, "main.o"], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout

    main.write_text(_SOURCE)
    header.write_text('#define WORD "one"\n')
    assert says() == says() == "one\n"
    assert len(list((tmp_path / "cache").rglob("*.o"))) == 1
    header.write_text('#define WORD "two"\n')
    assert says() == "two\n"
    main.write_text(_SOURCE.replace("WORD)", '"three")'))
    assert says() == "three\n"
    main.write_text(_SOURCE.replace("WORD)", 'GIVEN ? "four" : "five")'))
    assert says("-DGIVEN=1") == "four\n"
    assert says("-DGIVEN=0") == "five\n"
