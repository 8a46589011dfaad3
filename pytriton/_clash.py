"""Is `nvidia-pytriton` installed in this environment too? Both own the import name `pytriton`."""

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
    """Say what is wrong, and the two commands that mend it, if `nvidia-pytriton` is installed too.

    Returns None when all is well. Reads the metadata of one distribution: no module of either is
    imported, so this works however badly their files are mixed.
    """
    try:
        found = version(OTHER_DISTRIBUTION)
    except PackageNotFoundError:
        return None
    return _MESSAGE.format(other=OTHER_DISTRIBUTION, version=found)
