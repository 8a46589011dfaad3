"""Helper process that kills everything the daemon has started if the daemon itself is killed.

The kernel kills tritonserver and the workers together with the daemon (PR_SET_PDEATHSIG), but not the processes that
these have started: tritonserver's stubs notice the exit only between batches, and never while they wait for
tritonserver with the GIL held. Nor does the kernel remove tritonserver's regions from /dev/shm.

The helper is a shell (1 MB) that reads a list of process groups from its input. At end-of-file, it kills these groups
and removes the regions. Resource trackers of `multiprocessing` may clean up first. The helper finds processes that have
left their group (`setsid`, `start_new_session=True`) by an environment variable that all descendants of the daemon
inherit.
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

#: Environment variable of everything that the daemon starts: the pid of the helper.
VARIABLE = "PYTRITON_KILL_ON_DEATH"

#: Input lines: "+GROUP" adds a process group, "-GROUP" removes one. $1 is the prefix of the paths of the regions. In
#: /proc/PID/stat, the name is followed by the process's state, parent and group. Resource trackers (see `end_group` in
#: child.py) clean up once all processes that use them have exited, even those that have left the group, so these are
#: killed first. The kernel may need many seconds to free a large process; the trackers have a minute. The shell polls
#: them, since it cannot wait for processes that are not its children.
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
    *"resource_tracker import main"*) trackers="$trackers ${process#/proc/}:$3" with="$with $3" ;;
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
for round in 1 2 3; do
  left=
  for path in $(grep -lsz "^PYTRITON_KILL_ON_DEATH=$$\\$" /proc/[0-9]*/environ); do
    process=${path#/proc/} process=${process%/environ}
    case " $trackers" in *" $process:"*) continue ;; esac
    left=1
    kill -s KILL "$process"
  done
  [ -n "$left" ] || break
done
look=0
while [ -n "$trackers" ] && [ "$look" -lt 600 ]; do
  left=
  for tracker in $trackers; do
    said=
    read -r said <"/proc/${tracker%:*}/cmdline"
    [ -z "$said" ] || left="$left $tracker"
  done
  trackers=$left look=$((look + 1))
  [ -z "$trackers" ] || sleep 0.1
done
for tracker in $trackers; do kill -s KILL -- "-${tracker#*:}"; done
"""


class KillOnDeath:
    """Helper process that kills the registered process groups when this process exits.

    Args:
        regions: prefix of the paths of the shared memory to remove
    """

    def __init__(self, regions: Path) -> None:
        process = subprocess.Popen(
            # Pass the script in the environment, because process lists show arguments.
            ["/bin/sh", "-c", 'eval "$SCRIPT"', "pytriton-kill-on-death", str(regions)],
            stdin=subprocess.PIPE,
            bufsize=0,  # unbuffered, so that a failed write is not repeated at exit
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that signals to our process group do not kill the helper
            env={"PATH": "/usr/bin:/bin", "SCRIPT": _SCRIPT},
            cwd="/",
        )
        assert process.stdin is not None  # a pipe
        self._input: IO[bytes] = process.stdin
        self.pid = process.pid
        process.returncode = 0  # keeps subprocess from waiting for it: `close` does

    @classmethod
    def adopt(cls, pid: int, pipe: int) -> KillOnDeath:
        """Adopt the helper of the previous version of this process, given the helper's pid and the pipe to it."""
        one = cls.__new__(cls)
        one.pid, one._input = pid, os.fdopen(pipe, "wb", buffering=0)
        return one

    @property
    def pipe(self) -> int:
        """Descriptor of the pipe to the helper."""
        return self._input.fileno()

    def mark(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return `environment` plus the variable that lets the helper find processes that have left their group."""
        return {**environment, VARIABLE: str(self.pid)}

    def add(self, group: int) -> None:
        """Register a process group to be killed."""
        self._send(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Unregister a process group whose processes have all exited."""
        self._send(f"-{group}\n")

    def close(self) -> None:
        """Make the helper kill all processes that are still running, and wait until the helper exits."""
        self._input.close()
        with contextlib.suppress(ChildProcessError):  # already reaped
            os.waitpid(self.pid, 0)

    def _send(self, line: str) -> None:
        try:
            self._input.write(line.encode())
        except BrokenPipeError:
            _log.error(
                "the helper pytriton-kill-on-death was killed; if the daemon is killed as well, its children may keep running"
            )
