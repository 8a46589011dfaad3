"""A helper process that kills everything the daemon started if the daemon is killed.

The kernel kills tritonserver and the workers with their parent (PR_SET_PDEATHSIG), but not the processes that these
started: tritonserver's stubs notice the exit only between batches, and not at all while they wait for tritonserver and
hold the GIL. Nothing removes tritonserver's regions from /dev/shm either. The helper is a shell (1 MB) that reads the
list of process groups from its input. At end-of-file, for whatever reason, it kills them and removes the regions.
Resource trackers of `multiprocessing` may clean up first. Processes that left their group (`setsid`,
`start_new_session=True`) are found by an environment variable that all children of the daemon have and pass on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import structlog

_log = structlog.get_logger(__name__)

#: Set in the environment of everything that the daemon starts, to the helper's process id.
VARIABLE = "PYTRITON_KILL_ON_DEATH"

#: $1 is the prefix of the regions' paths. Lines are "+GROUP" and "-GROUP". In stat, the name is followed by the
#: process's state, parent and group. Trackers (child.py: `end_group`) get two seconds; a shell cannot wait for others'
#: children.
_SCRIPT = """
groups= trackers= with= others=
while read -r line; do
  case $line in
    +*) groups="$groups ${line#+}" ;;
    -*) left=
        for group in $groups; do [ "$group" = "${line#-}" ] || left="$left $group"; done
        groups=$left ;;
  esac
done
regions=$1
[ -n "$groups" ] && for process in /proc/[0-9]*; do
  stat= said=
  read -r stat <"$process/stat"
  read -r said <"$process/cmdline"
  set -- ${stat##*) }
  case " $groups " in *" ${3:-none} "*) ;; *) continue ;; esac
  case $said in
    *"resource_tracker import main"*) trackers="$trackers ${process#/proc/}" with="$with $3" ;;
    *) others="$others ${process#/proc/}:$3" ;;
  esac
done
for group in $groups; do
  case " $with " in *" $group "*) ;; *) kill -s KILL -- "-$group" ;; esac
done
for one in $others; do
  case " $with " in *" ${one#*:} "*) kill -s KILL "${one%:*}" ;; esac
done
rm -f -- "$regions"*
for look in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  left=
  for tracker in $trackers; do kill -s 0 "$tracker" && left=1; done
  [ -n "$left" ] || break
  sleep 0.1
done
for group in $with; do kill -s KILL -- "-$group"; done
for round in 1 2 3; do
  left=
  for path in $(grep -lsz "^PYTRITON_KILL_ON_DEATH=$$\\$" /proc/[0-9]*/environ); do
    process=${path#/proc/} left=1
    kill -s KILL "${process%/environ}"
  done
  [ -n "$left" ] || break
done
"""


class KillOnDeath:
    """The helper process and its list of process groups. The helper briefly outlives this process.

    Args:
        regions: the prefix of the paths in /dev/shm to remove
    """

    def __init__(self, regions: Path) -> None:
        process = subprocess.Popen(
            # Pass the script in the environment, because process lists show arguments.
            ["/bin/sh", "-c", 'eval "$SCRIPT"', "pytriton-kill-on-death", str(regions)],
            stdin=subprocess.PIPE,
            bufsize=0,  # a failed write must not be repeated at exit
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to our process group must not kill it
            env={"PATH": "/usr/bin:/bin", "SCRIPT": _SCRIPT},
            cwd="/",
        )
        assert process.stdin is not None  # a pipe
        self._input: IO[bytes] = process.stdin
        self.pid = process.pid
        process.returncode = 0  # `close` waits for it

    @classmethod
    def adopt(cls, pid: int, pipe: int) -> KillOnDeath:
        """Adopt the helper that a previous version of this process started."""
        one = cls.__new__(cls)
        one.pid, one._input = pid, os.fdopen(pipe, "wb", buffering=0)
        return one

    @property
    def pipe(self) -> int:
        """The descriptor of the helper's input."""
        return self._input.fileno()

    def mark(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a process that must end with this one, even if it leaves its group."""
        return {**environment, VARIABLE: str(self.pid)}

    def add(self, group: int) -> None:
        """Add a process group to the list."""
        self._send(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Remove a process group from the list: all of its processes have exited."""
        self._send(f"-{group}\n")

    def close(self) -> None:
        """Close the helper's input. It kills the remaining groups and the processes that left them, and exits."""
        self._input.close()
        with contextlib.suppress(ChildProcessError):  # already reaped
            os.waitpid(self.pid, 0)

    def _send(self, line: str) -> None:
        try:
            self._input.write(line.encode())
        except BrokenPipeError:
            _log.error(
                "pytriton-kill-on-death was killed: if this process is killed, too, its children may keep running"
            )
