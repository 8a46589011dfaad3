"""An interpreter that does not run is named, with the reason, when a model is registered with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._registering import environments
from pytriton.exceptions import PyTritonBadParameterError


@pytest.mark.programs
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF, of another kind of machine", r"Exec format error$"),
        (b"#!/no/such/program\n", r"No such file or directory$"),
        (b"#!/bin/sh\nexit 7\n", r"it ends with 7$"),
        (b"#!/bin/sh\nprintf 'caf\\351' >&2; exit 1\n", r"caf\\xe9$"),
    ],
)
def test_one_that_does_not_run_is_told_with_the_reason(
    tmp_path: Path, content: bytes, said: str
) -> None:
    python = tmp_path / "python"
    python.write_bytes(content)
    python.chmod(0o755)
    with pytest.raises(PyTritonBadParameterError, match=said):
        environments.lacking(str(python), ["numpy"])
