"""Detects `nvidia-pytriton` in the same environment: both distributions install the package `pytriton`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OTHER_DISTRIBUTION = "nvidia-pytriton"

_MESSAGE = """\
The distribution {other} {version} is installed in the same environment as pytriton-daemon.
Both own the import package `pytriton`, so files of one have overwritten files of the other.
Keep one of them. To keep pytriton-daemon, run these two commands with the same Python:
    python -m pip uninstall -y {other} pytriton-daemon
    python -m pip install WHAT
where WHAT is what it was installed from: a wheel file of a release, or the folder of a checkout."""


def clashing_distribution() -> str | None:
    """Return an error message with the commands that repair the environment if `nvidia-pytriton` is installed, too.

    Return None if it is not installed. Only metadata is read and no module is imported, so this works even if the two
    distributions have overwritten each other's files.
    """
    try:
        found = version(OTHER_DISTRIBUTION)
    except PackageNotFoundError:
        return None
    return _MESSAGE.format(other=OTHER_DISTRIBUTION, version=found)
