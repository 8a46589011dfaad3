"""Builds the folder: our wheel, the packages it needs, and the libraries of Triton's core, in one archive.

gpu-check/
  run.sh              starts gpu_check.check with $PYTHON (python3)
  gpu_check/          the modules that run on the target
  bundle.json         what the archive is for
  bundle.tar.xz
    site/             pytriton-daemon and its dependencies, installed
    server/lib/       libtritonserver and the libraries that it, gRPC and TLS load
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from pytriton._host.install.cache import cache_dir
from pytriton._host.install.wheel import PINNED, install_wheel

ROOT = Path(__file__).parents[3]
#: Maximum size of the folder.
MAX_BYTES = 60_000_000
#: Packages beyond the dependencies of pytriton-daemon: NVML, and the server that throughput is compared with.
_EXTRA = ("nvidia-ml-py", "fastapi", "uvicorn")
#: The target has numpy. Environments for models and the OpenAI frontend, which need the others, are not checked.
_LEFT_OUT = ("numpy", "virtualenv", "distlib", "python-discovery", "uvloop")
#: The minor versions of glibc in the platform tags of wheels; pip accepts only the ones it is given.
_GLIBCS = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)
#: The libraries that the frontend loads, as they are named in the wheel of tritonserver.
_LOADED = ("libtritonserver*.so", "libnghttp2-*.so*", "libssl-*.so*", "libcrypto-*.so*")
#: Modules that only run where the folder is built.
_BUILDERS = ("__main__.py", "bundle.py")
_RUN = """\
#!/bin/sh
# Checks pytriton-daemon on this machine; see --help. PYTHON names another interpreter than python3.
exec "${PYTHON:-python3}" -B "$(dirname "$0")/gpu_check/check.py" "$@"
"""


class BundleError(Exception):
    """The folder cannot be built; the text says why."""


def build(out: Path, python: str, *, compress: bool = True) -> int:
    """Build the folder for a Python version, replacing an earlier one, and return its size in bytes.

    Args:
        out: the folder
        python: the version, e.g. "3.12"
        compress: False if tests need the folder soon, whatever its size

    Raises:
        BundleError: pip failed, or the folder is larger than `MAX_BYTES`.
    """
    if out.exists() and not (out / "bundle.json").is_file():
        raise BundleError(
            f"{out} exists and is no folder of scripts/gpu-check; remove it, or use --out"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gpu-check-", dir=out.parent) as work:
        draft, content = Path(work, "draft"), Path(work, "content")
        _install_packages(content / "site", python, Path(work))
        _copy_core(content / "server")
        shutil.copytree(
            Path(__file__).parent,
            draft / "gpu_check",
            ignore=shutil.ignore_patterns("__pycache__", *_BUILDERS),
        )
        (draft / "run.sh").write_text(_RUN)
        (draft / "run.sh").chmod(0o755)
        about = {"python": python, "triton": PINNED.triton_version, "glibc": PINNED.glibc}
        (draft / "bundle.json").write_text(json.dumps(about))
        _pack(content, draft / "bundle.tar.xz", compress)
        size = sum(file.stat().st_size for file in draft.rglob("*") if file.is_file())
        if compress and size > MAX_BYTES:
            raise BundleError(
                f"the folder would have {size / 1e6:.1f} MB, but may have {MAX_BYTES / 1e6:.0f}: leave out packages that "
                "no row imports (_LEFT_OUT in scripts/tools/gpu_check/bundle.py)"
            )
        shutil.rmtree(out, ignore_errors=True)
        draft.rename(out)
    return size


def _install_packages(site: Path, python: str, work: Path) -> None:
    """Install pytriton-daemon and its dependencies for another Python, without the ones that are left out."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(ROOT))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBCS]
    platforms += [
        "manylinux2014_x86_64",
        "manylinux2010_x86_64",
        "manylinux1_x86_64",
        "linux_x86_64",
    ]
    _pip(
        "install", "--only-binary=:all:", "--no-compile", "--target", str(site),
        "--python-version", python, "--implementation", "cp",
        *(f"--platform={platform}" for platform in platforms),
        *map(str, work.glob("pytriton_daemon-*.whl")), *_EXTRA,
    )  # fmt: skip
    for name in _LEFT_OUT:
        module = name.replace("-", "_")
        for found in [site / module, site / f"{module}.libs", *site.glob(f"{module}-*.dist-info")]:
            shutil.rmtree(found, ignore_errors=True)
    shutil.rmtree(site / "bin", ignore_errors=True)  # scripts with the path of this interpreter


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BundleError(f"pip {arguments[0]} failed:\n{last}")


def _copy_core(server: Path) -> None:
    tree = install_wheel(cache_dir(), lambda line: print(line, file=sys.stderr))
    folder, target = tree / "nvidia_pytriton.libs", server / "lib"
    target.mkdir(parents=True)
    for library in needed_libraries(folder, _LOADED):
        shutil.copyfile(library, target / library.name)
        (target / library.name).chmod(0o755)
    (server / "TRITON_VERSION").write_text(f"{PINNED.triton_version}\n")


def needed_libraries(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the libraries of a folder that match patterns, and those of the same folder that they need to load."""
    waiting = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    found: dict[str, Path] = {}
    while waiting:
        path = waiting.pop()
        if path.name not in found:
            found[path.name] = path
            waiting += [folder / name for name in _needs(path) if (folder / name).is_file()]
    return sorted(found.values())


def _needs(library: Path) -> Iterator[str]:
    with open(library, "rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        if isinstance(dynamic, DynamicSection):
            yield from (vars(tag)["needed"] for tag in dynamic.iter_tags("DT_NEEDED"))


def _pack(content: Path, archive: Path, compress: bool) -> None:
    # Preset 6 would save 9 MB, but takes seven times as long. Uncompressed, tarfile reads it whatever its name.
    with tarfile.open(archive, "w:xz", preset=0) if compress else tarfile.open(archive, "w") as tar:
        for path in sorted(content.iterdir()):
            tar.add(path, path.name)
