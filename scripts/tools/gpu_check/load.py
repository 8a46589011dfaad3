"""Clients that send one request again and again, as a process: `python -m gpu_check.load URL BODY CLIENTS SECONDS [HEADER_LENGTH]`.

Prints the number of answers and the latencies as JSON. Several such processes share the clients, so that Python's global
lock does not limit them.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

_TIMEOUT_S = 30.0
_MAX_PROCESSES = 4
#: Clients warm up for this part of the time before answers are counted.
_WARM_UP = 0.25


class Client(threading.Thread):
    """One connection that sends requests until a moment."""

    def __init__(
        self, url: str, body: bytes, headers: dict[str, str], begin: float, end: float
    ) -> None:
        super().__init__(daemon=True)
        self._url, self._body, self._headers = urlsplit(url), body, headers
        self._begin, self._end = begin, end
        self.took: list[float] = []
        self.last = 0.0
        self.error = ""

    def run(self) -> None:
        """Send requests; an error ends the client and is reported."""
        assert self._url.hostname is not None
        connection = http.client.HTTPConnection(
            self._url.hostname, self._url.port, timeout=_TIMEOUT_S
        )
        try:
            # Slow models answer at least one counted request.
            while (sent := time.monotonic()) < self._end or not self.took:
                connection.request("POST", self._url.path, self._body, self._headers)
                response = connection.getresponse()
                answer = response.read()
                if response.status != 200:
                    self.error = f"{response.status}: {answer[:300]!r}"
                    return
                if sent >= self._begin:
                    self.last = time.monotonic()
                    self.took.append(self.last - sent)
        except OSError as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()


def main(url: str, body: str, clients: int, seconds: float, header_length: str = "") -> int:
    """Run clients in this process, and print what they have measured."""
    headers = {"Inference-Header-Content-Length": header_length} if header_length else {}
    begin = time.monotonic() + _WARM_UP * seconds
    running = [
        Client(url, Path(body).read_bytes(), headers, begin, begin + seconds)
        for _ in range(clients)
    ]
    for client in running:
        client.start()
    for client in running:
        client.join(seconds + 2 * _TIMEOUT_S)
    errors = [client.error for client in running if client.error]
    said = {
        "took": [took for client in running for took in client.took],
        "seconds": max([seconds, *(client.last - begin for client in running)]),
        "errors": errors,
    }
    print(json.dumps(said))
    return 0


def measure(
    url: str, body: Path, clients: int, seconds: float, header_length: int | None = None
) -> dict[str, float]:
    """Run clients in several processes; return requests per second, and latencies in milliseconds.

    Raises:
        RuntimeError: a client got an error, or no answer.
    """
    processes = max(1, min(_MAX_PROCESSES, clients, (os.cpu_count() or 1) // 2))
    shares = [clients // processes + (number < clients % processes) for number in range(processes)]
    last = [] if header_length is None else [str(header_length)]
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpu_check.load",
                url,
                str(body),
                str(share),
                str(seconds),
                *last,
            ],
            stdout=subprocess.PIPE,
        )
        for share in shares
    ]
    took: list[float] = []
    longest = seconds
    for said in [json.loads(process.communicate()[0]) for process in running]:
        if said["errors"]:
            raise RuntimeError(f"{url} with {clients} clients: {said['errors'][0]}")
        took += said["took"]
        longest = max(longest, said["seconds"])
    if not took:
        raise RuntimeError(f"{url} with {clients} clients: no answer within {longest:.0f} s")
    took.sort()
    return {
        "per_s": round(len(took) / longest, 1),
        "p50_ms": round(1000 * took[len(took) // 2], 2),
        "p99_ms": round(1000 * took[int(0.99 * len(took))], 2),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:]))
