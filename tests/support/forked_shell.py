"""A folder for PATH whose `python` and `pytriton-daemon` run in forks of a process that has preloaded their imports.

A shell command that runs a script spends seconds on imports: scikit-learn alone takes two of CPU time. Here a small
program of the same name asks the test process, which runs the script in a fork (prefork.py), and exits as the fork
does. Everything that is not a script, `pytriton-daemon start`, and a command with separate files for output and errors
start normally.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

from support.forks.prefork import Forking

_LARGEST = 1 << 17  #: bytes of a wish: arguments and variables
_BIN = Path(sys.executable).parent
#: The program sends its arguments, folder, variables and output; without an answer it starts normally.
_PROGRAM = """#!{python} -IS
import json, os, socket, sys
def ask():
    if not {fits} or not os.path.sameopenfile(1, 2):
        return b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect({address!r})
        wish = [{words}, os.getcwd(), dict(os.environ)]
        socket.send_fds(asking, [json.dumps(wish).encode()], [1])
        return asking.recv(64)
code = ask()
if code:
    os._exit(int(code) & 255)
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


class ForkedShell:
    """The folder, and the thread that serves its programs; processes still running at close are killed.

    Args:
        folder: an empty folder
        modules: what scripts import, as far as it is installed
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        self.folder = folder
        self._forking = Forking(
            "pytriton._cli.app", "pytriton._cli.daemon_connection", "warm_commands", *modules
        )
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen()
        self._running: set[subprocess.Popen[bytes]] = set()
        command = str(_BIN / "pytriton-daemon")
        # Daemons start normally, as for users.
        runs_on = 'sys.argv[1:2] not in (["start"], ["restart"], ["serve"])'
        self._write(command, runs_on, f"[{command!r}, *sys.argv[1:]]")
        self._write(str(_BIN / "python"), '"".join(sys.argv[1:2]).endswith(".py")', "sys.argv[1:]")
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ForkedShell:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for process in [*self._running]:
            process.kill()
        self._forking.close()

    def _write(self, real: str, fits: str, words: str) -> None:
        program = self.folder / Path(real).name
        address = str(self.folder / "socket")
        text = _PROGRAM.format(
            python=sys.executable, fits=f"({fits})", words=words, address=address, real=real
        )
        program.write_text(text)
        program.chmod(0o755)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                asking, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        with asking:
            data, (output,), _, _ = socket.recv_fds(asking, _LARGEST, 1)
            (script, *arguments), cwd, env = json.loads(data)
            with open(output, "wb") as file:
                process = self._forking.start_script(
                    Path(script), arguments, Path(cwd), env, output=file
                )
            if process is None:
                return
            self._running.add(process)
            code = process.wait()
            asking.send(str(code if code >= 0 else 128 - code).encode())
            self._running.remove(process)
