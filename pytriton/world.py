"""The registrant's world: interpreter, module search path, working directory and environment that travel with a callable."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.ipc.messages import World

#: Environment variables that travel by default: what makes imports, libraries and devices work. Others stay at
#: home, for they may be secrets; `env=` names those that shall travel, too.
TRAVELLING = frozenset(
    "PATH LD_LIBRARY_PATH LD_PRELOAD HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR VIRTUAL_ENV SSL_CERT_FILE "
    "SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy "
    "https_proxy no_proxy all_proxy TOKENIZERS_PARALLELISM PYTHONHASHSEED PYTHONUTF8 PYTHONWARNINGS "
    "PYTHONIOENCODING PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX".split()
)
#: And those that begin so.
TRAVELLING_PREFIXES = tuple(
    "LC_ XDG_ CONDA_ CUDA_ NVIDIA_ NCCL_ OMP_ MKL_ OPENBLAS_ BLIS_ NUMBA_ NUMEXPR_ TORCH PYTORCH_ HF_ "
    "TRANSFORMERS_ JAX_ XLA_ TF_ ORT_ ONNX".split()
)
#: Of those, a token is a token.
_SECRET_PARTS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")

Environment = Union[Mapping[str, str], Sequence[str], None]
PathLike = Union[str, "os.PathLike[str]"]


def capture_world(
    *,
    python: PathLike | None = None,
    env: Environment = None,
    cwd: PathLike | None = None,
    sys_path: Sequence[PathLike] | None = None,
) -> World:
    """Return the world of this process with what is overridden.

    Args:
        python: an interpreter, or the folder of a virtual or conda environment; default: this one
        env: variables to set in the worker, or names of this process's variables to copy
        cwd: the worker's working directory; default: this process's
        sys_path: the worker's module search path; default: this process's or, with `python`, the interpreter's own

    Raises:
        PyTritonBadParameterError: something named does not exist.
    """
    folder = _working_directory(cwd)
    if sys_path is not None:
        search = [os.path.join(folder, os.fspath(entry)) for entry in sys_path]
    elif python is not None:
        search = []
    else:
        search = _search_path(folder)
    return World(
        python=sys.executable if python is None else _interpreter(python),
        sys_path=search,
        cwd=folder,
        env=_environment(env),
    )


def _working_directory(cwd: PathLike | None) -> str:
    try:
        folder = os.path.abspath(os.fspath(cwd)) if cwd is not None else os.getcwd()
    except FileNotFoundError:
        raise PyTritonBadParameterError(
            "the working directory of this process does not exist any more; give the worker one with cwd="
        ) from None
    if not os.path.isdir(folder):
        raise PyTritonBadParameterError(f"cwd={folder!r} is not a folder on this machine")
    return folder


def _search_path(folder: str) -> list[str]:
    """Return sys.path with absolute entries that exist; "" means the working directory."""
    entries = [os.path.join(folder, entry) if entry else folder for entry in sys.path]
    return [entry for entry in dict.fromkeys(entries) if os.path.exists(entry)]


def _interpreter(python: PathLike) -> str:
    """Return the interpreter that `python` names: a file, or an environment's folder."""
    path = Path(os.path.abspath(os.path.expanduser(os.fspath(python))))
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.exists():
            raise PyTritonBadParameterError(
                f"python={str(python)!r} is a folder without bin/python: name an interpreter, or the folder of a "
                "virtual or conda environment"
            )
        path = inside
    if not os.access(path, os.X_OK):
        raise PyTritonBadParameterError(
            f"python={str(python)!r} is not an interpreter that this user can run on this machine"
        )
    return str(path)


def _environment(env: Environment) -> dict[str, str]:
    chosen = {name: value for name, value in os.environ.items() if _travels(name)}
    if isinstance(env, str):
        raise PyTritonBadParameterError(f"env={env!r}: a dict of variables, or a list of their names")
    if isinstance(env, Mapping):
        chosen.update({str(name): str(value) for name, value in env.items()})
    else:
        for name in env or ():
            if name not in os.environ:
                raise PyTritonBadParameterError(
                    f"env names the variable {name!r}, which is not set in this process"
                )
            chosen[name] = os.environ[name]
    return chosen


def _travels(name: str) -> bool:
    if any(part in name for part in _SECRET_PARTS):
        return False
    return name in TRAVELLING or name.startswith(TRAVELLING_PREFIXES)
