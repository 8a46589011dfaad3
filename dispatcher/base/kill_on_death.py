"""A small helper process that ends all that the daemon started when the daemon is killed.

The kernel ends tritonserver and the workers with their parent (PR_SET_PDEATHSIG), but not what these
started: tritonserver's stubs notice such an end only between batches, and not at all while they wait
for tritonserver with Python's lock held; and nothing removes tritonserver's regions from /dev/shm.
It is a shell (1 MB) that reads which process groups there are, and at the end of its
input, however that comes, kills them and removes the regions.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)

#: $1 is the beginning of the regions' paths. Lines are "+GROUP" and "-GROUP".
_SCRIPT = """
groups=
while read -r line; do
  case $line in
    +*) groups="$groups ${line#+}" ;;
    -*) left=
        for group in $groups; do [ "$group" = "${line#-}" ] || left="$left $group"; done
        groups=$left ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
rm -f -- "$1"*
"""


class KillOnDeath:
    """Knows the process groups of this process's children; outlives this process for a moment.

    Args:
        regions: the beginning of the paths in /dev/shm that are to be removed
    """

    def __init__(self, regions: Path) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "pytriton-kill-on-death", str(regions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # whoever kills our group shall not kill it
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
        )

    def add(self, group: int) -> None:
        """Put a process group on the list of those to kill."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Take a process group off the list: all of its processes have ended."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Close the helper's input: it kills the process groups that are left, if any, and ends."""
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # a pipe
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            _log.error(
                "somebody has killed pytriton-kill-on-death: if this process is killed, others may stay"
            )
