"""A C compiler that caches objects, so that builds started by tests compile only what changed.

An object is reused for the same compiler, arguments, source, headers below the working directory and system headers.
Failures are not cached.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from support.file_cache import cache_folder, remove_unused

#: Runs for each source: it takes a few milliseconds, the compiler a hundred.
_SCRIPT = """#!/bin/sh
before= out= object= words=
for word; do
  [ "$before" = -o ] && out=$word || words="$words $word"
  [ "$word" = -c ] && object=yes
  before=$word
done
[ "$object" ] && [ "$out" ] || exec {command} "$@"
headers=$(find . -name '*.h' | sort)
key=$({{ echo {system} {command} "$words" "$headers"; cat "$word" $headers; }} | sha256sum)
kept={folder}/${{key%% *}}.o
if [ -f "$kept" ]; then
  touch "$kept"
else
  {command} "$@" || exit
  cp "$out" "$kept.$$" && exec mv "$kept.$$" "$kept"
fi
exec cp "$kept" "$out"
"""


def caching_compiler(script: Path, command: str, *flags: str) -> Path:
    """Write a program that compiles like `command` with `flags`; the source must be its last argument."""
    folder = cache_folder("built-objects")
    remove_unused(folder)
    whole = " ".join([command, *flags])
    script.write_text(_SCRIPT.format(command=whole, folder=folder, system=_system(command)))
    script.chmod(0o755)
    return script


def _system(command: str) -> str:
    """Return what identifies the compiler and the system's headers."""
    digest = hashlib.sha256()
    said = subprocess.run(
        [command, "-E", "-v", "-x", "c", os.devnull], check=True, capture_output=True, text=True
    ).stderr
    digest.update(said.encode())
    searched = said.partition("search starts here:\n")[2].rpartition("End of search list")[0]
    for line in searched.splitlines():
        for folder, _, names in os.walk(line.strip()):
            for name in sorted(name for name in names if name.endswith(".h")):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
