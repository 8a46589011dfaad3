"""A declared callable by its name, MODULE:ATTRIBUTE, as the command line takes it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from pytriton.declaration import declaration_of
from pytriton.exceptions import PyTritonBadParameterError


def load_target(text: str) -> Any:
    """Import MODULE and return its ATTRIBUTE (which may have dots).

    Raises:
        PyTritonBadParameterError: the text is malformed, or there is no such thing, or importing it failed, which
            is shown with its traceback.
    """
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        module = text.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        raise PyTritonBadParameterError(
            f"{text!r} is not MODULE:ATTRIBUTE: say which callable of the module is meant, such as "
            f"{module or 'mymodule'}:classify"
        )
    if "/" in module_name or module_name.endswith(".py"):
        folder, _, file = module_name.rpartition("/")
        where = f"in the folder {folder}, " if folder else ""
        raise PyTritonBadParameterError(
            f"{module_name!r} is a file, and MODULE is the name of a module: {where}"
            f"say {file.removesuffix('.py')}:{attribute}"
        )
    cwd = os.getcwd()
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    sys.argv[:] = [module_name]  # what it and its workers see are no arguments of ours
    found = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            what = (
                f"the module {module_name!r}" if found is sys.modules[module_name] else repr(found)
            )
            raise PyTritonBadParameterError(f"{what} has no attribute {part!r} (of {text})")
        found = getattr(found, part)
    return found


def check_declared(target: Any, text: str) -> None:
    """Check that a command, which ends at once, can register a callable with what it carries.

    Raises:
        PyTritonBadParameterError: it carries no declaration, or one that needs the process to stay.
    """
    declaration = declaration_of(target)
    if declaration is None:
        raise PyTritonBadParameterError(
            f"{text} carries no declaration of its inputs and outputs. Decorate it with "
            "@pytriton.declare(inputs=[...], outputs=[...]), or register it from Python with "
            "pytriton.connect().register(...)."
        )
    if declaration.options.get("isolation") == "thread":
        raise PyTritonBadParameterError(
            f"{text} is declared with isolation='thread', to run in the process that registers it, and "
            "this one ends at once. Register it from a program that stays: pytriton.connect().register(...)."
        )


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise PyTritonBadParameterError(
                f"there is no module {missing!r}; it is looked for in {os.getcwd()} and where "
                f"{sys.executable} looks"
            ) from None
        raise _import_failed(module_name) from None
    except Exception:
        raise _import_failed(module_name) from None


def _import_failed(module_name: str) -> PyTritonBadParameterError:
    error = sys.exc_info()[1]
    text = f"importing {module_name} failed: {type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"
    return PyTritonBadParameterError(text)
