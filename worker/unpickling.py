"""Unpickle what a registrant has pickled, whichever major version of numpy each side has.

numpy 2 calls `numpy._core` what numpy 1 calls `numpy.core`, and a pickle of an array names functions in there.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
from typing import Any

#: The same modules by the names of numpy 2 and of numpy 1.
_CORES = ("numpy._core", "numpy.core")
#: The function that cloudpickle names for a module; a function takes along the modules that its code names.
_SUBIMPORT = ("cloudpickle.cloudpickle", "subimport")


class Unpickler(pickle.Unpickler):
    """An unpickler that finds what another version of numpy has under another name.

    Raises:
        pickle.UnpicklingError: numpy has no such thing here.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what a pickle names."""
        if (module_name, global_name) == _SUBIMPORT:
            return _import_module
        if module_name.partition(".")[0] != "numpy":
            return super().find_class(module_name, global_name)
        name = _own_name(module_name)
        try:
            return super().find_class(name, global_name)
        except (ImportError, AttributeError):
            return _attribute(f"{name}.{global_name}")


def unpickle(pickled: bytes) -> Any:
    """Return what is in a pickle."""
    return Unpickler(io.BytesIO(pickled)).load()


def _import_module(name: str) -> Any:
    if name.partition(".")[0] != "numpy":
        return importlib.import_module(name)
    name = _own_name(name)
    try:
        return importlib.import_module(name)
    except ImportError:
        return _attribute(name)


def _own_name(module: str) -> str:
    """Return the name of a module of numpy in the numpy that is here."""
    ours, theirs = _CORES if _is_numpy_2() else reversed(_CORES)
    is_theirs = module == theirs or module.startswith(f"{theirs}.")
    return ours + module[len(theirs) :] if is_theirs else module


@functools.lru_cache(maxsize=1)
def _is_numpy_2() -> bool:
    numpy = importlib.import_module("numpy")
    return int(numpy.__version__.partition(".")[0]) >= 2


def _attribute(path: str) -> Any:
    """Return what numpy has as an attribute only: `numpy.rec` is no module before numpy 2."""
    numpy = importlib.import_module("numpy")
    found: Any = numpy
    try:
        for part in path.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError:
        raise pickle.UnpicklingError(
            f"the callable holds an object that needs {path}, which numpy {numpy.__version__} of the worker's "
            "environment does not have. Install the numpy there that the registrant has, or make the object in the "
            "worker, with factory=True."
        ) from None
    return found
