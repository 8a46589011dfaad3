"""Models in cloud repositories (s3://, gs://, as://), whose files only tritonserver can read."""

from __future__ import annotations

from pathlib import Path

from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.server.own_repository import BACKEND
from pytriton.formats import table


def explained(failure: RemoteFailure, backends: Path) -> RemoteFailure:
    """Add to the failure of a load what can be served from a cloud, and what to do for other models.

    Neither the daemon nor a worker sees the files, so the model's format is unknown here.

    Args:
        failure: tritonserver's error
        backends: the directory of tritonserver's backends
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
