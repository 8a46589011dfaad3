"""Unpickles objects from a registrant with a different major version of numpy.

`numpy._core` in numpy 2 is `numpy.core` in numpy 1, and a pickled array refers to functions in it.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
from typing import Any

#: The same modules under the names of numpy 2 and of numpy 1.
_CORES = ("numpy._core", "numpy.core")
#: The function that cloudpickle uses to refer to a module; a function is pickled with the modules that its code names.
_SUBIMPORT = ("cloudpickle.cloudpickle", "subimport")


class Unpickler(pickle.Unpickler):
    """An unpickler that maps names to the installed version of numpy.

    Raises:
        pickle.UnpicklingError: the object does not exist in this numpy.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return the object that a pickle refers to."""
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
    """Return the unpickled object."""
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
    """Return the name of a numpy module in the installed numpy."""
    ours, theirs = _CORES if _is_numpy_2() else reversed(_CORES)
    is_theirs = module == theirs or module.startswith(f"{theirs}.")
    return ours + module[len(theirs) :] if is_theirs else module


@functools.lru_cache(maxsize=1)
def _is_numpy_2() -> bool:
    numpy = importlib.import_module("numpy")
    return int(numpy.__version__.partition(".")[0]) >= 2


def _attribute(path: str) -> Any:
    """Return an attribute of numpy that is not a module in every version, such as `numpy.rec` before numpy 2."""
    numpy = importlib.import_module("numpy")
    found: Any = numpy
    try:
        for part in path.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError:
        raise pickle.UnpicklingError(
            f"the callable contains an object that needs {path}, which numpy {numpy.__version__} of the worker's "
            "environment does not have. Install the registrant's version of numpy there, or create the object in the "
            "worker, with factory=True."
        ) from None
    return found
