"""The program that pytest-xdist starts in place of a test process: it asks the reader for a fork (preload.py).

Its argument is the reader's socket. It passes its standard streams on, and exits with the fork's exit code. It imports
next to nothing, since it runs once for each process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

if __name__ == "__main__":
    # Ctrl-C is handled by the fork; this process ends after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as reader:
        reader.connect(f"\0{sys.argv[1]}")
        socket.send_fds(reader, [b"fork"], [0, 1, 2])
        os.close(0)
        os.close(1)
        try:
            code = reader.recv(16)
        except ConnectionResetError:  # it crashed, and has reported the error
            code = b""
    os._exit(int(code) & 255 if code else 1)
