"""A program that pytest-xdist starts in the place of a process that runs tests: the reader forks one (preload.py).

Its arguments name the reader's socket. It hands over its own standard streams, and ends with the fork's exit code.
It imports next to nothing, since it runs once for each process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

if __name__ == "__main__":
    # Ctrl-C is for those who run tests; this process ends when its fork has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as reader:
        reader.connect(f"\0{sys.argv[1]}")
        socket.send_fds(reader, [b"fork"], [0, 1, 2])
        os.close(0)
        os.close(1)
        try:
            code = reader.recv(16)
        except ConnectionResetError:  # it has ended by a fault, which it has shown
            code = b""
    os._exit(int(code) & 255 if code else 1)
