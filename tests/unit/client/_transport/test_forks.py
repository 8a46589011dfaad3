"""Clients in forked processes, as with `multiprocessing` or preforking web servers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fakes.triton.fake_triton import MODEL, fake_triton

#: Sends requests, forks, and sends requests in both processes with the old client and a new one.
PROGRAM = """
import os, sys, warnings
import numpy as np
from pytriton.client import ModelClient

warnings.simplefilter("ignore")  # os.fork() warns where there are threads, as gevent's
url, model = sys.argv[1:]
x = np.ones(2, np.float32)
limits = {"init_timeout_s": 60, "inference_timeout_s": 60}
with ModelClient(url, model, **limits) as old:
    old.infer_sample(x)
    child = os.fork()
    with ModelClient(url, model, **limits) as new:
        answers = [client.infer_sample(x)["y"].tolist() for client in (new, old)]
    assert answers == [[1], [1]]
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.programs
def test_clients_over_http_work_after_a_fork() -> None:
    with fake_triton("http") as fake:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, fake.url, MODEL],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert fake.count("infer") == 5
        # Connections of the old client before the fork, of the new ones, and of the old one in the child: none is shared.
        assert len(fake.connections) == 4
