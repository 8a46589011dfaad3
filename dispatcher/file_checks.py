"""Checks before a start or an upgrade that a daemon can use the files and directories it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.files.rundir import RuntimeDir, RuntimeDirError
from pytriton.dispatcher.models.persistence import state_dir
from pytriton.dispatcher.models.persistence.state_dir import StoreError
from pytriton.dispatcher.telemetry.events.webhooks import WebhookError, read_hooks
from pytriton.dispatcher.telemetry.http.management import CertificateError, tls_context

#: Errors in files and directories that prevent a start.
FileErrors = (RuntimeDirError, StoreError, WebhookError, CertificateError)


def check_files(config: DaemonConfig, models: Sequence[str]) -> None:
    """Check that a daemon with these settings can use its files and directories. Nothing is changed.

    Args:
        config: the settings
        models: names of models that the state directory must contain

    Raises:
        RuntimeDirError, StoreError, WebhookError, CertificateError: one of them cannot be used.
    """
    RuntimeDir(Path(config.runtime_dir)).check()
    read_hooks(config.webhooks)
    tls_context(config)
    state_dir.check(config.state_path, models)
