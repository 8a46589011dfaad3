"""tests/support/forked_shell.py: commands of a shell run in forks, and look as if they did not."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.forked_shell import ForkedShell

pytestmark = pytest.mark.programs

_SCRIPT = """
import os, signal, sys
print(sys.argv, "supervisor" in sys.modules, os.path.basename(os.getcwd()), os.environ["WORD"], sys.path[0])
print("to stderr", file=sys.stderr)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


def test_a_script_runs_in_a_fork_where_it_can() -> None:
    with tempfile.TemporaryDirectory(prefix="ptd-") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "script.py").write_text(_SCRIPT)
        with ForkedShell(folder / "bin", "supervisor") as shell:

            def said(command: str) -> tuple[str, int]:
                path = os.pathsep.join([str(shell.folder), os.environ["PATH"]])
                done = subprocess.run(
                    ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "WORD": "w"},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                return done.stdout, done.returncode

            line = f"['script.py', '{{}}'] {{}} {folder.name} w {folder}"
            assert said("python script.py 3") == (f"{line.format(3, True)}\nto stderr\n", 3)
            assert said("python script.py killed")[1] == 137
            # Of these, only what the shell itself starts has two places to write to.
            assert said("python script.py 4 2>&1 >/dev/null") == ("to stderr\n", 4)
            assert said("python script.py 0 2>/dev/null | cat") == (f"{line.format(0, False)}\n", 0)
            assert said("python -c 'print(1)'") == ("1\n", 0)
            assert "no daemon runs" in said("pytriton-daemon status --runtime-dir none")[0]
