"""Creates the payload of a callable. Code that the worker can import is pickled by reference, other code by value.

The payload consists of a header (`pytriton._protocol.payload`) and a pickle by cloudpickle, in protocol 5, which every
supported Python can read. The header says whether the pickle contains code objects: only the minor version of Python that
pickled them can read these.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import inspect
import io
import linecache
import os
import sys
import threading
import tokenize
import warnings
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
import msgspec

from pytriton._callables import call_signature
from pytriton._protocol.arguments import with_article
from pytriton._protocol.control import MAX_FRAME_BYTES
from pytriton._protocol.env_variables import looks_secret
from pytriton._protocol.messages import sendable
from pytriton._protocol.payload import (
    BIT_GENERATORS,
    Definition,
    Header,
    Lines,
    MemoryModule,
    Source,
    make_bit_generator,
    memory_module,
    pack,
)
from pytriton._register.environment import (
    WorkerModules,
    find_spec,
    first_outside,
    globals_used,
    in_every_worker,
    is_installed,
)
from pytriton.exceptions import PicklingError

#: Protects cloudpickle's set of modules to pickle by value, which is global.
_registry_lock = threading.Lock()
PROTOCOL = 5
#: Position of the file name among the arguments of `types.CodeType`, in Python 3.8 and newer.
_FILE_NAME_INDEX = 10
#: Attributes of a module set by its import machinery.
_IMPORT_ATTRIBUTES = frozenset({"__builtins__", "__cached__", "__loader__", "__name__", "__spec__"})
#: Maximum size in bytes of one pickled definition, and of all definitions in a payload.
MAX_DEFINITION_BYTES = 256 << 10
MAX_DEFINITIONS_BYTES = 2 << 20
_TOO_LARGE = (
    f"over {MAX_DEFINITION_BYTES >> 10} KiB, or {MAX_DEFINITIONS_BYTES >> 20} MiB with all others"
)
#: Maximum number of characters in the source lines of a payload.
MAX_LINES_BYTES = 2 << 20
#: Maximum size in bytes and number of the source files in a payload. A larger project is probably a framework under
#: development.
MAX_SOURCES_BYTES = 2 << 20
MAX_SOURCE_FILES = 500
#: Placeholders for a file name in code compiled from a string, such as a dataclass's `__init__`.
_NAMELESS = ("<string>", "<stdin>")


def pack_callable(
    target: Callable[..., Any], imports: WorkerModules, model_name: str, *, is_check: bool = False
) -> bytes:
    """Pickle a callable and return its payload.

    Args:
        target: the callable to send
        imports: the modules that the worker can import
        model_name: name of the model, for error messages
        is_check: whether the callable is the check of the served callable; its functions then get globals of their own,
            so that they do not overwrite those of the served callable

    Raises:
        PicklingError: an object that the callable refers to cannot be pickled, or the payload is too large
    """
    buffer = io.BytesIO()
    with _registry_lock, _registering_by_value(imports) as (can_import, modules):
        pickler = Pickler(buffer, can_import, in_modules=not is_check)
        try:
            pickler.dump(target)
            if pickler.defined and not is_check:
                pickler.dump(pickler.defined)
        except Exception as error:  # anything that a user's __reduce__ raises
            offender, reason = find_offender(target, lambda part: _try_to_pickle(part, can_import))
            raise PicklingError.naming(
                describe(target), offender, str(reason or error), model_name=model_name
            ) from error
        folders = sorted(set(map(_folder, modules.sent.values())) - {""})
        imported = (name for code in pickler.codes for name in imported_by(code))
        named = {*modules.named, *imported}
        in_memory = {"__main__": sys.modules["__main__"], **modules.sent}
        defined = [] if is_check else definitions_of(in_memory.values(), can_import)
        sources = sources_of(
            named, imports.search_path, model_name, further=modules.named.difference(named)
        )
    version = (sys.version_info[0], sys.version_info[1])
    header = Header(
        version,
        by_reference=not pickler.codes,
        folders=folders,
        sources=sources,
        lines=lines_of_all(pickler.functions),
        modules=defined,
    )
    payload = pack(header, buffer.getvalue())
    if len(payload) > MAX_FRAME_BYTES:
        raise PicklingError(
            f"Cannot send {describe(target)}: its pickle has {len(payload):,} bytes, but the "
            f"daemon accepts at most {MAX_FRAME_BYTES:,}. Register a class or function that loads "
            "the model in the worker, with factory=True.",
            model_name=model_name,
        )
    return payload


def _folder(module: ModuleType) -> str:
    """Return the folder that must be on the search path to import a module; "" for `__main__` and modules without a file."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return ""
    parts = module.__name__.count(".") + (os.path.basename(file) == "__init__.py")
    return sendable(str(Path(os.path.abspath(file)).parents[parts]))


class _Modules(NamedTuple):
    """The modules that a pickler has encountered.

    Attributes:
        sent: name -> module, of modules pickled by value
        named: names of modules pickled by reference, which the worker imports
    """

    sent: dict[str, ModuleType]
    named: set[str]


@contextmanager
def _registering_by_value(
    imports: WorkerModules,
) -> Iterator[tuple[Callable[[ModuleType], bool], _Modules]]:
    """Yield a function that checks whether the worker can import a module, and a record of the modules that it has checked.

    Until the end of the `with` block, cloudpickle pickles modules that the worker cannot import by value.
    """
    met = _Modules({}, set())
    registered = []

    def can_import(module: ModuleType) -> bool:
        name = module.__name__
        if sys.modules.get(name) is not module:
            return False  # cloudpickle pickles a module that is not in sys.modules by value anyway
        if imports.finds(module):
            met.named.add(name)
            return True
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        met.sent[name] = module
        return False

    try:
        yield can_import, met
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


class _NullFile:
    """A file that discards everything written to it."""

    def write(self, data: Any) -> int:
        return len(data)


def _try_to_pickle(thing: Any, can_import: Callable[[ModuleType], bool]) -> Exception | None:
    try:
        Pickler(_NullFile(), can_import).dump(thing)
    except Exception as error:  # anything that a user's __reduce__ raises
        return error
    return None


# ── the pickler ─────────────────────────────────────────────────────────────────────────────────

_MSGSPEC_CACHE = "__msgspec_cache__"
_META = [name for name in dir(msgspec.Meta) if not name.startswith("_")]


class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """A pickler that pickles code by value if it belongs to a module that the worker cannot import.

    The worker creates a module of the same name (`pytriton.worker.memory_modules`), whose namespace the functions use as
    their globals. So they also find names that they look up at run time.

    Attributes:
        codes: code objects pickled by value; if there are any, only this minor version of Python can read the pickle
        functions: functions pickled by value
        defined: module -> name -> function or class, for those pickled by value that their module defines under their
            own name
    """

    def __init__(
        self, file: Any, can_import: Callable[[ModuleType], bool], *, in_modules: bool = True
    ) -> None:
        """Create a pickler.

        Args:
            file: the file to write the pickle to
            can_import: called with the module of each object; returns whether the worker can import it
            in_modules: whether functions use the namespaces of the worker's modules as their globals, instead of
                globals of their own
        """
        # Set before pickle's own __init__, which reads it.
        self.dispatch_table: ChainMap[type, Callable[[Any], Any]] = ChainMap(
            _of_numpy_random(), cloudpickle.CloudPickler.dispatch_table
        )
        super().__init__(file, protocol=PROTOCOL)
        self._can_import = can_import
        self._in_modules = in_modules
        self.codes: list[CodeType] = []
        self.functions: list[FunctionType] = []
        self.defined: dict[str, dict[str, Any]] = {}
        #: Functions that have been reduced, by the id of their code, which is reduced later.
        self._functions_by_code: dict[int, FunctionType] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object. pickle calls this for every object that is not of a basic type; see its documentation."""
        if isinstance(obj, CodeType):
            self.codes.append(obj)
            if id(obj) in self._functions_by_code:
                self.functions.append(self._functions_by_code.pop(id(obj)))
            return self._reduce_code(obj)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would pickle the file's content, without its name.
            raise TypeError("cannot pickle an open file: open it in the worker")
        if obj is dataclasses.MISSING:  # in the fields of a dataclass, which compare with `is`
            return "MISSING"
        if isinstance(obj, msgspec.Meta):  # of an annotation; msgspec does not pickle it
            set_ = {name: one for name in _META if (one := getattr(obj, name)) is not None}
            return functools.partial(msgspec.Meta, **set_), ()
        if isinstance(obj, _Namespace):
            return vars, (Named(obj["name"]),)
        if isinstance(obj, Named):
            return memory_module, (obj.module,)
        if isinstance(obj, ModuleType):
            if not self._can_import(obj) and self._in_modules and _is_current(obj):
                return _reduce_module(obj)
        elif isinstance(obj, (FunctionType, type)):
            module = sys.modules.get(_module_name(obj))
            if isinstance(module, ModuleType) and not self._can_import(module):
                self._define(module, obj)
            if isinstance(obj, FunctionType):
                self._functions_by_code[id(obj.__code__)] = obj
                self._share_namespace(obj)
            elif _MSGSPEC_CACHE in vars(obj):
                delattr(
                    obj, _MSGSPEC_CACHE
                )  # msgspec's notes about a class, which it makes again on the next use
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            # cloudpickle loses the qualified name of a nested class.
            reduced[2][0]["__qualname__"] = obj.__qualname__
        return reduced

    def _define(self, module: ModuleType, obj: Any) -> None:
        """Record a function or class that the worker's module must define, if the module has it under its qualified
        name.
        """
        if is_found_by_name(module, obj):
            self.defined.setdefault(module.__name__, {})[obj.__qualname__] = obj

    def _share_namespace(self, function: FunctionType) -> None:
        """If a function's module is pickled by value, make the worker's copy of that module the function's globals."""
        module = module_of_globals(function)
        if self._in_modules and module is not None and not self._can_import(module):
            # cloudpickle pickles this placeholder instead of the globals, for all functions of the module.
            self.globals_ref.setdefault(id(function.__globals__), _Namespace(name=module.__name__))

    def _reduce_code(self, code: CodeType) -> Any:
        """Reduce a code object as cloudpickle does, but keep its file name.

        Since 3.1.3, cloudpickle replaces the file name with "<dynamic-code>", and tracebacks would show neither files
        nor source lines.
        """
        make, arguments = self.dispatch_table[CodeType](code)
        if make is CodeType:
            after = _FILE_NAME_INDEX + 1
            arguments = (*arguments[:_FILE_NAME_INDEX], code.co_filename, *arguments[after:])
        return make, arguments


class Named:
    """A placeholder that is unpickled as the worker's module of that name."""

    def __init__(self, module: str) -> None:
        self.module = module


class _Namespace(dict[str, str]):
    """A placeholder that is unpickled as the `vars(module)` of one of the worker's modules."""


def module_of_globals(function: FunctionType) -> ModuleType | None:
    """Return the imported module whose namespace is a function's globals; None if there is none."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_own = isinstance(module, ModuleType) and vars(module) is function.__globals__
    return module if is_own else None


def is_found_by_name(module: ModuleType, obj: Any) -> bool:
    """Return True if a module has a function or class under the object's own name, as pickling by reference requires."""
    name = getattr(obj, "__qualname__", None)
    return isinstance(name, str) and vars(module).get(name) is obj


def _of_numpy_random() -> dict[type, Callable[[Any], Any]]:
    """Return reducers for numpy's random generators, so that every version of numpy can read their pickles."""
    random: Any = sys.modules.get("numpy.random")
    if random is None:
        return {}
    generators = (getattr(random, name, None) for name in BIT_GENERATORS)
    return {
        **{kind: _reduce_bit_generator for kind in generators if kind is not None},
        random.Generator: lambda one: (type(one), (one.bit_generator,)),
        random.RandomState: lambda one: (
            type(one),
            (one._bit_generator,),
            one.get_state(legacy=False),
        ),
    }


def _reduce_bit_generator(one: Any) -> Any:
    seed = getattr(one, "seed_seq", None) or getattr(one, "_seed_seq", None)
    return make_bit_generator, (type(one).__name__, seed, one.state)


def _is_current(module: ModuleType) -> bool:
    return sys.modules.get(module.__name__) is module


def _reduce_module(module: ModuleType) -> Any:
    """Reduce a module that is pickled by value to its name and its content.

    `__main__` is reduced to its name alone, since a script may contain much that a worker does not need, or that cannot be
    pickled.
    """
    make = (memory_module, (module.__name__,))
    if module.__name__ == "__main__":
        return make
    return (
        *make,
        {name: value for name, value in vars(module).items() if name not in _IMPORT_ATTRIBUTES},
    )


def _module_name(thing: Any) -> str:
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else ""


# ── modules that the worker cannot import ───────────────────────────────────────────────────────
#
# At run time, a callable may look up names that it does not refer to: a pickled pipeline looks up
# `__main__.MyTransformer`, a process pool `__main__.square`. So every function and class of such a module is pickled
# separately, and the worker loads it when it is looked up. The global values that this code uses are sent, too, if they
# are small and do not look like secrets. Whatever the callable itself refers to is sent with the callable.


class _Refused(Exception):
    """Raised if a definition must not be sent; the text says why."""


def definitions_of(
    modules: Iterable[ModuleType], can_import: Callable[[ModuleType], bool]
) -> list[MemoryModule]:
    """Pickle the functions and classes of modules, and the small values that these use.

    Args:
        modules: modules that the worker cannot import
        can_import: as for `Pickler`

    Returns:
        each module with its definitions
    """
    left = MAX_DEFINITIONS_BYTES
    found = []
    for module in modules:
        definitions = list(_Definitions(module, can_import, left).all())
        left -= sum(len(one.pickled) for one in definitions)
        found.append(
            MemoryModule(
                module.__name__,
                sendable(getattr(module, "__file__", None) or ""),
                getattr(module, "__package__", None) or "",
                definitions,
            )
        )
    return found


class _Definitions:
    """The definitions of one module, each pickled separately."""

    def __init__(
        self, module: ModuleType, can_import: Callable[[ModuleType], bool], left: int
    ) -> None:
        self._module = module
        self._can_import = can_import
        self._left = left

    def all(self) -> Iterable[Definition]:
        """Yield a definition for every function and class of the module, and for every global that their code uses."""
        names = deque(
            name
            for name, value in list(vars(self._module).items())
            if _is_defined_in(self._module, value) and value.__qualname__ == name
        )
        seen = set(names)
        while names:
            definition = self._definition(names.popleft())
            yield definition
            fresh = [name for name in definition.uses if name not in seen]
            seen.update(fresh)
            names.extend(fresh)

    def _definition(self, name: str) -> Definition:
        value = vars(self._module)[name]
        buffer = _Bounded(min(MAX_DEFINITION_BYTES, self._left))
        pickler = _DefinitionPickler(buffer, self._can_import, self._module, value)
        try:
            if not isinstance(value, (FunctionType, BuiltinFunctionType, type, ModuleType)):
                _refuse_secret(name, value)
            pickler.dump(value)
        except Exception as error:  # anything that a user's __reduce__ raises
            why = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
            return Definition(name, missing=sendable(why[:300]))
        self._left -= buffer.tell()
        return Definition(name, buffer.getvalue(), sorted(pickler.uses))


class _DefinitionPickler(Pickler):
    """A pickler for one definition. It pickles other definitions of the module by reference, and omits the values of
    globals.

    Attributes:
        uses: names of the module's globals that the definition's code reads
    """

    def __init__(
        self, file: Any, can_import: Callable[[ModuleType], bool], module: ModuleType, root: Any
    ) -> None:
        super().__init__(file, can_import)
        self._module = module
        self._root = root
        self.uses: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object, as `Pickler.reducer_override` does."""
        if isinstance(obj, (FunctionType, type)):
            if obj is not self._root and _is_defined_in(self._module, obj):
                return getattr, (Named(self._module.__name__), obj.__qualname__)
            reduced = super().reducer_override(obj)
            if isinstance(obj, FunctionType) and module_of_globals(obj) is self._module:
                return self._without_globals(reduced)
            return reduced
        if isinstance(obj, ModuleType) and not self._can_import(obj):
            return memory_module, (obj.__name__,)
        # Arrays and tensors may copy all of their data to be pickled: check the size first.
        size = getattr(obj, "nbytes", 0)
        if isinstance(size, int) and size > MAX_DEFINITION_BYTES:
            raise _Refused(_TOO_LARGE)
        return super().reducer_override(obj)

    def _without_globals(self, reduced: Any) -> Any:
        """Remove the values of globals from a function's reduced state, and record their names."""
        if not isinstance(reduced, tuple):
            return reduced  # pickled by reference
        make, arguments, (attributes, slots), *more = reduced
        self.uses.update(slots["__globals__"])
        return make, arguments, (attributes, {**slots, "__globals__": {}}), *more


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    """Return True if a value is a function or class that a module defines under the value's own name."""
    is_either = isinstance(value, (FunctionType, type))
    own = is_either and getattr(value, "__module__", None) == module.__name__
    return own and is_found_by_name(module, value)


def _refuse_secret(name: str, value: Any) -> None:
    """Raise if a value that the callable does not use looks like a secret, which must not be stored on disk."""
    if looks_secret(name, value if isinstance(value, str) else ""):
        raise _Refused("it looks like a secret, and the callable does not use it")


class _Bounded(io.BytesIO):
    """An in-memory file with a maximum size."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        """Write, or raise `_Refused` if the file would become too large."""
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise _Refused(_TOO_LARGE)
        return super().write(data)


# ── source files of modules ─────────────────────────────────────────────────────────────────────
#
# Source files change, disappear, or differ on another machine. But workers that start later, also after `rollback`, must
# run the code that was registered. So the source files of the registrant's own modules are sent with the callable, and a
# worker imports these (`pytriton.worker.project_modules`). Installed packages are not included.


def sources_of(
    roots: Iterable[str],
    search: Sequence[str],
    model_name: str,
    *,
    further: Iterable[str] = (),
) -> list[Source]:
    """Return the source files of modules and, recursively, of the modules that they import, nearest first.

    Args:
        roots: names of the modules that the callable uses
        search: the worker's module search path, for modules that this process has not imported; []: unknown
        model_name: name of the model, for the warning about too many files
        further: names of modules that the callable itself does not use, included if the limits allow it
    """
    packages = _folders_of_packages(search)
    found: dict[str, Source] = {}
    is_whole, name = _collect(roots, search, packages, found)
    if not is_whole:
        _warn_of_limit(name, model_name)
    else:
        _collect(further, search, packages, found)
    return list(found.values())


def _collect(
    roots: Iterable[str], search: Sequence[str], packages: Sequence[str], found: dict[str, Source]
) -> tuple[bool, str]:
    """Add source files to `found`; return whether all fit into the limits, and the last module examined."""
    waiting = deque(one for root in sorted(set(roots)) for one in _with_parents(root))
    seen = {*waiting, *found}
    size = sum(len(source.text) for source in found.values())
    name = ""
    while waiting:
        name = waiting.popleft()
        if name in found:
            continue
        source = _source(name, search, packages)
        if source is None:
            continue
        size += len(source.text)
        if size > MAX_SOURCES_BYTES or len(found) == MAX_SOURCE_FILES:
            return False, name
        found[name] = source
        for more in _imports_of(source):
            for one in _with_parents(more):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
    return True, name


def imported_by(code: CodeType) -> Iterator[str]:
    """Yield the names that a code object imports, relative ones without their package. Not all of them are modules."""
    base = ""
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            base = str(one.argval)
            yield base
        elif one.opname == "IMPORT_FROM":
            yield f"{base}.{one.argval}"


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folders_of_packages(search: Sequence[str]) -> list[str]:
    """Return the folders on the search paths of this process and the worker that contain installed packages."""
    folders = {one for one in (*sys.path, *search) if isinstance(one, str) and one}
    return [os.path.realpath(one) + os.sep for one in folders if _holds_packages(Path(one))]


def _holds_packages(folder: Path) -> bool:
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return (folder / "os.py").exists() or any(folder.glob("*.dist-info"))  # the standard library


def _source(name: str, search: Sequence[str], packages: Sequence[str]) -> Source | None:
    """Return a module's source; None if it is installed, does not exist, or has no Python source file."""
    if in_every_worker(name) or name == "__main__":
        return None
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        file = getattr(module, "__file__", None)
    else:
        spec = find_spec(name, search) if search else None
        file = spec.origin if spec is not None and spec.has_location else None
    if not isinstance(file, str) or not file.endswith(".py") or is_installed(file):
        return None
    if os.path.realpath(file).startswith(tuple(packages)):
        return None
    path = os.path.abspath(file)
    try:
        with open(path, "rb") as opened:
            return Source(name, path, opened.read(MAX_SOURCES_BYTES + 1))
    except OSError:
        return None  # in an archive, or removed: the worker imports it, or reports that it cannot


@functools.lru_cache(maxsize=MAX_SOURCE_FILES)
def _imports_of(source: Source) -> list[str]:
    return sorted(set(_imported(source)))


def _imported(source: Source) -> Iterator[str]:
    """Yield the names that a source file imports anywhere. Not all of them are modules."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # already shown when the module was imported
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # written for another Python version
    is_package = os.path.basename(source.file) == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = source.name.split(".")
            package = package[: len(package) - node.level + is_package] if node.level else []
            base = ".".join([*package, *filter(None, [node.module])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _warn_of_limit(name: str, model_name: str) -> None:
    warnings.warn(
        f"Model {model_name!r}: its modules exceed the limits of a registration ({MAX_SOURCE_FILES} files, "
        f"{MAX_SOURCES_BYTES >> 20} MiB). Each worker will import {name!r} and the rest from their current files when it "
        "starts, even after a rollback. Do not change these files, or install them as packages.",
        stacklevel=first_outside(),
    )


# ── source lines of functions, for tracebacks in the worker ─────────────────────────────────────


def lines_of_all(functions: Iterable[FunctionType]) -> list[Lines]:
    """Return the source lines of functions, where available, until the maximum size is reached."""
    found: list[Lines] = []
    size = 0
    for function in functions:
        lines = _lines_of(function)
        if lines is None:
            continue
        size += len(lines.text)
        if size > MAX_LINES_BYTES:
            break
        found.append(lines)
    return found


def _lines_of(function: FunctionType) -> Lines | None:
    code = function.__code__
    file, first = code.co_filename, code.co_firstlineno
    if file in _NAMELESS or is_installed(file):
        return None
    # The globals contain the module's loader, which reads the source of a module in an archive.
    lines = linecache.getlines(file, function.__globals__)[max(0, first - 1) :]
    if not lines:
        return None
    # The block includes lines without code, such as the end of a call, but may be incomplete for a lambda within a
    # statement. So use the longer of the block and the lines that have code.
    count = max(_length_of_block(lines), max(_numbers(code)) - first + 1)
    return Lines(sendable(file), first, sendable("".join(lines[:count])))


def _length_of_block(lines: list[str]) -> int:
    try:
        return len(inspect.getblock(lines))
    except (SyntaxError, tokenize.TokenError):  # the first line is not the start of a statement
        return 1


def _numbers(code: CodeType) -> Iterator[int]:
    """Yield the line numbers of a code object and of its nested code objects."""
    yield code.co_firstlineno
    yield from (number for _, number in dis.findlinestarts(code) if number is not None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _numbers(constant)


# ── the object that cannot be pickled, for the error ────────────────────────────────────────────


#: Maximum length of the path to the object; a longer one would not help the user.
_MAX_DEPTH = 12
_Part = tuple[str, Any]
#: Tries to pickle an object; returns the exception, or None on success.
TryToPickle = Callable[[Any], "Exception | None"]


def find_offender(thing: Any, try_to_pickle: TryToPickle) -> tuple[str, Exception | None]:
    """Return a description of the smallest part of `thing` that cannot be pickled, and the exception that it raises.

    The search descends from each object into the first of its parts that cannot be pickled.
    """
    words = [describe(thing)]
    reason: Exception | None = None
    seen = {id(thing)}
    for _ in range(_MAX_DEPTH):
        for label, part in _parts(thing):
            if id(part) in seen:
                continue
            error = try_to_pickle(part)
            if error is not None:
                words += [label] if label else []
                seen.add(id(part))
                thing, reason = part, error
                break
        else:
            break
    kind = f" {_kind(thing)}" if len(words) > 1 else ""
    return " of ".join(reversed(words)) + kind, reason


def describe(thing: Any) -> str:
    """Return a description of a callable: its kind, its name, and where it is defined."""
    if isinstance(thing, functools.partial):
        return f"functools.partial of {describe(thing.func)}"
    if inspect.ismethod(thing):
        return f"method {thing.__qualname__}{_location(thing.__func__)}"
    if inspect.isclass(thing):
        return f"class {thing.__module__}.{thing.__qualname__}"
    if inspect.isroutine(thing):
        name = getattr(thing, "__name__", repr(thing))
        what = "lambda" if name == "<lambda>" else f"function {name}"
        return f"{what}{_location(thing)}"
    return f"object {_kind(thing)}"


def _location(function: Any) -> str:
    # Unwrapped: the user does not know the code of a decorator.
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    return f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _kind(thing: Any) -> str:
    if inspect.isroutine(thing) or inspect.isclass(thing):
        return f"({describe(thing)})"
    kind = type(thing)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"({with_article(name)})"


def _parts(thing: Any) -> Iterator[_Part]:
    """Yield the labels and values of the parts that are pickled with an object."""
    if inspect.ismethod(thing):
        yield "the object", thing.__self__
        yield "the function", thing.__func__
    elif inspect.isfunction(thing):
        yield from _function_parts(thing)
    elif inspect.ismodule(thing):
        yield from ((f"`{name}`", part) for name, part in vars(thing).items() if name[:2] != "__")
    elif inspect.isclass(thing):
        yield from ((f"base class {base.__qualname__}", base) for base in thing.__bases__)
        skipped = ("__dict__", "__weakref__", "__module__", "__doc__")
        yield from (
            (f"class attribute `{name}`", part)
            for name, part in vars(thing).items()
            if name not in skipped
        )
    elif isinstance(thing, (staticmethod, classmethod)):
        yield "the function", thing.__func__
    elif type(thing) in (list, tuple, set, frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(thing))
    elif type(thing) is dict:
        yield from _dict_parts("item", thing)
    else:
        yield from _object_parts(thing)


def _function_parts(function: Any) -> Iterator[_Part]:
    if hasattr(function, "__wrapped__"):
        yield "", function.__wrapped__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f"closure variable `{name}`", cell.cell_contents
    for name in sorted(globals_used(function.__code__)):
        if name in function.__globals__:
            yield f"global variable `{name}`", function.__globals__[name]
    defaults = {
        name: parameter.default
        for name, parameter in call_signature(function, follow_wrapped=False).parameters.items()
        if parameter.default is not parameter.empty
    }
    yield from _dict_parts("default of parameter", defaults)
    yield from _dict_parts("attribute", vars(function))


def _object_parts(thing: Any) -> Iterator[_Part]:
    """Yield the parts that the object's __reduce_ex__ returns, since pickle does not see other attributes."""
    try:
        reduced = thing.__reduce_ex__(5)
    except Exception:  # the object itself cannot be pickled, so it is the smallest part
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, items, pairs = (*reduced[:5], None, None, None)[:5]
    if isinstance(thing, functools.partial):
        yield "the function", thing.func
        yield from ((f"argument {index}", part) for index, part in enumerate(thing.args))
        yield from _dict_parts("argument", thing.keywords)
    # A state is a dict, or with __slots__ a pair of dicts.
    for layer in state if isinstance(state, tuple) else (state,):
        if isinstance(layer, dict):
            yield from _dict_parts("attribute", layer)
        elif layer is not None:
            yield "the state", layer
    yield from (
        ("the class", part) if part is type(thing) else (f"constructor argument {index}", part)
        for index, part in enumerate(arguments or ())
    )
    yield from ((f"item {index}", part) for index, part in enumerate(items or ()))
    yield from ((f"item {key!r:.40}", part) for key, part in pairs or ())


def _dict_parts(what: str, parts: dict[Any, Any]) -> Iterator[_Part]:
    for key, part in parts.items():
        name = f"`{key}`" if isinstance(key, str) else f"{key!r:.40}"
        yield f"{what} {name}", part
