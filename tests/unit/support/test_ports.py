"""Ports given to tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import ports


def test_a_port_is_given_to_one_process(tmp_path: Path) -> None:
    port = ports.lasting_port()
    (tmp_path / "range").write_text(f"{port + 1} 60999")
    code = (
        "from pathlib import Path; from support import ports; "
        f"ports._LOWEST, ports._RANGE = {port}, Path({str(tmp_path / 'range')!r}); ports.lasting_port()"
    )
    folder = Path(ports.__file__).parents[1]
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "no port is free" in other.stderr
