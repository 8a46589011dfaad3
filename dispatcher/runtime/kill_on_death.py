"""A small helper process that ends all that the daemon started when the daemon is killed.

The kernel ends tritonserver and the workers with their parent (PR_SET_PDEATHSIG), but not what these
started: tritonserver's stubs notice such an end only between batches, and not at all while they wait
for tritonserver with Python's lock held; and nothing removes tritonserver's regions from /dev/shm.
It is a shell (1 MB) that reads which process groups there are, and at the end of its
input, however that comes, kills them and removes the regions. Resource trackers of `multiprocessing` may clean
up first. What has left its process group (`setsid`, `start_new_session=True`) is found by a variable that all children
of the daemon have in their environment, and hand on to what they start.
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

#: Of the environment of all that the daemon starts: the helper's process id.
VARIABLE = "PYTRITON_KILL_ON_DEATH"

#: $1 is the beginning of the regions' paths. Lines are "+GROUP" and "-GROUP". In stat, what follows the name are a
#: process's state, parent and group. Trackers (process_group.py) get two seconds; a shell cannot wait for others' children.
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
    """Knows the process groups of this process's children; outlives this process for a moment.

    Args:
        regions: the beginning of the paths in /dev/shm that are to be removed
    """

    def __init__(self, regions: Path) -> None:
        process = subprocess.Popen(
            # The script comes with the environment: lists of processes show arguments.
            ["/bin/sh", "-c", 'eval "$SCRIPT"', "pytriton-kill-on-death", str(regions)],
            stdin=subprocess.PIPE,
            bufsize=0,  # what could not be told is not told again at the end
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # whoever kills our group shall not kill it
            env={"PATH": "/usr/bin:/bin", "SCRIPT": _SCRIPT},
            cwd="/",
        )
        assert process.stdin is not None  # a pipe
        self._input: IO[bytes] = process.stdin
        self.pid = process.pid
        process.returncode = 0  # who waits for it is `close`

    @classmethod
    def adopt(cls, pid: int, pipe: int) -> KillOnDeath:
        """Return the one whose helper was started by a former version of this process."""
        one = cls.__new__(cls)
        one.pid, one._input = pid, os.fdopen(pipe, "wb", buffering=0)
        return one

    @property
    def pipe(self) -> int:
        """The descriptor on which the helper is told."""
        return self._input.fileno()

    def mark(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process that is to be ended with this one, also if it leaves its group."""
        return {**environment, VARIABLE: str(self.pid)}

    def add(self, group: int) -> None:
        """Put a process group on the list of those to kill."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Take a process group off the list: all of its processes have ended."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Close the helper's input: it kills the process groups that are left, and what has left them, and ends."""
        self._input.close()
        with contextlib.suppress(ChildProcessError):  # somebody has waited for it
            os.waitpid(self.pid, 0)

    def _tell(self, line: str) -> None:
        try:
            self._input.write(line.encode())
        except BrokenPipeError:
            _log.error(
                "somebody has killed pytriton-kill-on-death: if this process is killed, others may stay"
            )
