"""Models of repositories in a cloud (s3://, gs://, as://): tritonserver alone reads their files."""

from __future__ import annotations

from pathlib import Path

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.formats import table


def explained(failure: RemoteFailure, backends: Path) -> RemoteFailure:
    """Return the failure of a load with what can be served from a cloud, and what to do for all else.

    Neither the daemon nor a worker sees the files, so which format the model has is not known here.

    Args:
        failure: what tritonserver said
        backends: the folder of the backends that tritonserver has
    """
    there = sorted({one.name for one in backends.iterdir()} - {BACKEND, NATIVE_BACKEND})
    formats = ", ".join(one.title for one in table.FORMATS)
    return RemoteFailure(
        failure.kind,
        f"{failure.text.rstrip()}\nModels in a cloud are served by tritonserver itself: those of the backends that it "
        f"has ({', '.join(there) or 'none'}), with a config.pbtxt. Workers serve {formats} models too, but only of "
        "folders on this machine: copy the repository to one (`aws s3 sync`, `gcloud storage rsync`, `azcopy sync`), "
        "and start the daemon with --model-repository FOLDER.",
        failure.traceback,
    )
