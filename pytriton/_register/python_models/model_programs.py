"""The registration message of a Triton Python model, built from its folder or its class.

folder ──▶ config.pbtxt ──▶ auto_complete_config ──▶ configuration for tritonserver (model_dir.py)
                 │                              └──▶ configuration for `initialize`
                 └──▶ EXECUTION_ENV_PATH ──▶ the workers' interpreter (environments.py)
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Union

from pytriton._control.connection import Report, step_reporter
from pytriton._host.bounded_run import run_bounded
from pytriton._protocol import messages
from pytriton._protocol.arguments import with_article
from pytriton._protocol.payload import Header, pack
from pytriton._register import environments
from pytriton._register.environment import (
    WorkerModules,
    select_interpreter,
    warn_of_missing,
    worker_environment,
)
from pytriton._register.python_models import model_dir
from pytriton.autoscale import autoscale_in, autoscale_of
from pytriton.declaration import validate_model_name
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats import table
from pytriton.run_options import (
    RegisterModelOptions,
    RegisterOptions,
    check_names,
    count_instances,
    default_lanes,
    device_list,
    merge_options,
    names_of,
    refuse_route,
    spec_fields,
)

#: A model's folder in a repository, or its class.
ModelSource = Union[str, "os.PathLike[str]", type]
#: A config.pbtxt: its path, its text, or its JSON form.
ConfigSource = Union[str, "os.PathLike[str]", Mapping[str, Any], None]

#: Names in the code of models that may respond after `execute` has returned: each such model uses one of them.
_STREAM_NAMES = re.compile(r"\b(get_response_sender|is_cancelled|MetricFamily|set_release_flags)\b")
_LIBRARY = Path(__file__).parents[2]  # the package pytriton
#: Maximum number of characters of a process's output in an error; the last ones are shown.
_MAX_SHOWN = 4000


@dataclass(frozen=True)
class _ProgramSource:
    """The source of a model: its folder or its class, and the Python code that could be read."""

    folder: Path | None
    cls: type | None
    text: str

    @property
    def completes(self) -> bool:
        """Return True if the model may define `auto_complete_config`."""
        name = "auto_complete_config"
        return name in self.text if self.cls is None else hasattr(self.cls, name)


def prepare_model(
    target: ModelSource,
    model_name: str | None,
    config: ConfigSource,
    version: int | None,
    given: Mapping[str, Any],
    report: Report | None,
) -> tuple[messages.Register, list[bytes]]:
    """Read a model, complete its configuration, and return the registration message and its payloads.

    Args:
        target: a model's folder in a repository, or a class
        model_name: name of the model; default: the one in the configuration, or that of the folder or class
        config: a config.pbtxt; default: the one in the folder
        version: the version to serve; default: those that the configuration's version policy selects
        given: values of `RegisterModelOptions`; None selects an option's default
        report: called with the progress of slow steps

    Raises:
        TypeError: an option does not exist
        PyTritonBadParameterError, PyTritonValidationError: an argument or a part of the model is missing or invalid
        PicklingError: the class cannot be pickled
    """
    check_names("register_model", given, names_of(RegisterModelOptions))
    options = merge_options(None, given)
    refuse_route(options)
    folder, cls = _located(target)
    said, where = _configuration(config, folder)
    file = said.default_model_filename or "model.py"
    name = model_name or said.name or (folder.name if folder else _own_name(cls))
    validate_model_name(name)
    said.name = name
    versions = (
        model_dir.chosen_versions(folder, file, said, version)
        if folder
        else [1 if version is None else version]
    )
    source = _ProgramSource(folder, cls, _text_of(folder, cls, versions))
    say = step_reporter(report)
    python: Any = options["python"] or model_dir.environment_of(said, folder)
    if python is not None and environments.is_archive(python):
        python = environments.unpack(python, say)
    python = select_interpreter(python, options["requirements"], say)
    world = worker_environment(python, options, say=say)
    if source.completes:  # with several versions, the newest one is used
        limit_s = options["load_timeout_s"]
        said = _completed(source, said, world, versions[-1], file, limit_s)
    _check(said, where)
    document = model_dir.config_for_triton(said, versions)
    places = _places(said, options)
    model = _python_model(source, said, places, file)
    spec = _spec(name, versions, document, world, options, places, model)
    if cls is None:
        payload = pack(Header((3, 9), by_reference=True), b"")
    else:
        # Imported here: the processes in which the daemon prepares folders do not need cloudpickle and pyzmq.
        from pytriton._register.pickling import pack_callable

        warn_of_missing(name, [cls], world.stayed)
        with closing(WorkerModules(world, own_interpreter=python is None)) as imports:
            payload = pack_callable(cls, imports, name)
    message = messages.Register(spec, bool(options["replace"]), bool(options["ephemeral"]))
    return message, [payload]


def backend_of(folder: Path) -> str:
    """Return the name of the Triton backend that serves a model's folder, or "an unknown backend".

    Raises:
        PyTritonBadParameterError: the configuration cannot be read
    """
    said, _ = _configuration(None, folder)
    files = [
        entry.name for one in folder.iterdir() if one.name.isdecimal() for entry in one.iterdir()
    ]
    return table.backend_of(model_dir.plain(said), files) or "an unknown backend"


def configuration_of(config: ConfigSource) -> dict[str, Any]:
    """Return the JSON form of the argument `config`; {} if it is None.

    Raises:
        PyTritonBadParameterError: it cannot be read
    """
    return model_dir.plain(_configuration(config, None)[0])


def names_environment(config: ConfigSource, folder: Path | None) -> bool:
    """Return True if a model's configuration sets EXECUTION_ENV_PATH, the environment to run in.

    Raises:
        PyTritonBadParameterError: the configuration cannot be read
    """
    return model_dir.ENVIRONMENT_PARAMETER in _configuration(config, folder)[0].parameters


def _spec(
    name: str,
    versions: list[int],
    document: dict[str, Any],
    world: messages.WorkerEnvironment,
    options: RegisterOptions,
    places: list[model_dir.InstancePlace],
    model: messages.PythonModel,
) -> messages.ModelSpec:
    devices = device_list(options["devices"])
    asked = options["instances"]
    autoscale = autoscale_of(asked) if asked is not None else autoscale_in(document)
    if asked is None and not devices:
        asked = len(model.kinds)
    streams = model.streams or document.get("model_transaction_policy", {}).get("decoupled")
    instances = max(1, autoscale.least) if autoscale else count_instances(asked, devices, None)
    fields = spec_fields(options)
    fields.update(
        name=name,
        version=versions[-1],
        versions=versions if len(versions) > 1 else [],
        config=document,
        world=world,
        instances=instances,
        autoscale=autoscale,
        devices=devices or model_dir.devices_of(places, instances),
        max_inflight_batches=options["max_inflight_batches"]
        or (1 if streams else default_lanes(document)),
        python_model=model,
    )
    return messages.ModelSpec(**fields)


def _places(said: Any, options: RegisterOptions) -> list[model_dir.InstancePlace]:
    """Return the name and device of each instance, from the option `devices`, else from the configuration."""
    return [
        model_dir.InstancePlace(
            f"{said.name}_0_{index}", "CPU" if device in (None, "") else "GPU", "0"
        )
        for index, device in enumerate(device_list(options["devices"]))
    ] or model_dir.places_of(said)


def _python_model(
    source: _ProgramSource, said: Any, places: list[model_dir.InstancePlace], file: str
) -> messages.PythonModel:
    return messages.PythonModel(
        model_config=model_dir.config_for_model(said),
        folder="" if source.folder is None else str(source.folder),
        file=file,
        names=[place.name for place in places],
        kinds=[place.kind for place in places],
        device_ids=["0" for _ in places],  # each worker only sees its own GPU, as number 0
        streams=_STREAM_NAMES.search(source.text) is not None,
    )


def _located(target: ModelSource) -> tuple[Path | None, type | None]:
    if inspect.isclass(target):
        return None, target
    if not isinstance(target, (str, os.PathLike)):
        raise PyTritonBadParameterError(
            f"register_model accepts a model's folder or class, got {with_article(type(target).__name__)}."
        )
    folder = Path(target).expanduser().absolute()
    if not folder.is_dir():
        raise PyTritonBadParameterError(
            f"The folder {folder} does not exist. Pass the folder of one model in a Triton model repository: the folder that contains "
            f"{model_dir.CONFIG_FILE}."
        )
    return folder, None


def _configuration(config: ConfigSource, folder: Path | None) -> tuple[Any, str]:
    """Return the configuration as a protobuf message, and its origin for error messages."""
    if isinstance(config, Mapping):
        return model_dir.config_of(config, "config="), "config="
    if isinstance(config, str) and ("\n" in config or ":" in config):
        return model_dir.parse_config(config, "config="), "config="
    if config is None and folder is None:
        return model_dir.parse_config("", "nothing"), "config="
    path = Path(config) if config is not None else Path(folder or "") / model_dir.CONFIG_FILE
    if config is None and not path.exists():  # auto_complete_config may set every field
        return model_dir.parse_config("", "nothing"), str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PyTritonBadParameterError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PyTritonBadParameterError(f"{path} cannot be read: {error}") from error
    return model_dir.parse_config(text, str(path)), str(path)


def _own_name(cls: type | None) -> str:
    assert cls is not None  # a folder has its own name
    if cls.__name__ == "TritonPythonModel":
        raise PyTritonValidationError(
            "The class name TritonPythonModel does not identify a model: pass model_name=."
        )
    return cls.__name__


def _text_of(folder: Path | None, cls: type | None, versions: Sequence[int]) -> str:
    """Return the Python code of all versions of a model, including its helper modules."""
    if folder is None:
        assert cls is not None
        try:
            return inspect.getsource(inspect.getmodule(cls) or cls)
        except (
            OSError,
            TypeError,
        ):  # created at run time, or in a notebook: assume that it may stream
            return " ".join(_STREAM_NAMES.pattern.split("|"))
    # Skip folders, and dangling links such as an editor's lock file ".#model.py".
    files = [
        file
        for one in versions
        for file in sorted((folder / str(one)).rglob("*.py"))
        if file.is_file()
    ]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def _completed(
    source: _ProgramSource,
    said: Any,
    world: messages.WorkerEnvironment,
    version: int,
    file: str,
    limit_s: float | None,
) -> Any:
    """Call the model's `auto_complete_config` and return the completed configuration."""
    full = json.loads(model_dir.config_for_model(said))
    for made_up in ("optimization", "version_policy", "instance_group"):
        if not model_dir.plain(said).get(made_up):
            full.pop(made_up, None)
    if source.cls is not None:
        from pytriton import pb_utils

        completed = source.cls.auto_complete_config(pb_utils.ModelConfig(full))  # type: ignore[attr-defined]
        if not isinstance(completed, pb_utils.ModelConfig):
            raise PyTritonValidationError(
                f"auto_complete_config of model {said.name!r} returned {type(completed).__name__}; it must return "
                "the configuration that was passed to it"
            )
        return model_dir.config_of(completed.as_dict(), "what auto_complete_config returned")
    question = {
        "folder": str(source.folder and source.folder / str(version)),
        "file": file,
        "sys_path": world.sys_path,
        "config": full,
    }
    answer = _ask_model(question, world, said.name, limit_s)
    return model_dir.config_of(answer, "what auto_complete_config returned")


def _ask_model(
    question: Mapping[str, Any], world: messages.WorkerEnvironment, name: str, limit_s: float | None
) -> dict[str, Any]:
    """Run worker/python_model/complete_config.py in the workers' environment and return the completed configuration.

    Args:
        question: the program's input
        world: the workers' environment
        name: name of the model, for error messages
        limit_s: time limit in seconds; None: unlimited

    Raises:
        PyTritonValidationError: the model's `auto_complete_config` failed, or exceeded the limit
    """
    program = str(_LIBRARY / "worker" / "python_model" / "complete_config.py")
    # Files instead of pipes: a process that the model starts may keep a pipe open indefinitely.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        answer: Any
        try:
            done = run_bounded(
                [world.python, program, str(_LIBRARY)],
                timeout_s=limit_s,
                text=json.dumps({**question, "parent": os.getpid()}) + "\n",
                cwd=world.cwd,
                # No bytecode of another Python version in this environment.
                env={**world.env, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=said,
                stderr=printed,
            )
        except subprocess.TimeoutExpired:
            answer = {
                "error": f"it did not return within {limit_s:g} s (load_timeout_s)",
                "traceback": _content(printed)[-_MAX_SHOWN:],
            }
        else:
            answer = _answer_of(_content(said), done.returncode, _content(printed))
    if "error" in answer:
        raise PyTritonValidationError(
            f"auto_complete_config of model {name!r} failed: {answer['error']}\n{answer['traceback'].rstrip()}"
        )
    config: dict[str, Any] = answer["config"]
    return config


def _answer_of(said: str, code: int, printed: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return {
            "error": f"its process exited with status {code}",
            "traceback": printed[-_MAX_SHOWN:],
        }


def _content(file: IO[bytes]) -> str:
    """Return the content of a file; bytes that are not UTF-8 are escaped, since a model may print anything."""
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")


def _check(said: Any, where: str) -> None:
    if said.backend not in ("", "python"):
        raise PyTritonBadParameterError(
            f'{where} has backend: {said.backend!r}. register_model serves Python models (backend: "python"); '
            "models of other backends must be in one of the daemon's model repositories."
        )
    if said.sequence_batching.state:
        raise PyTritonValidationError(
            f"Model {said.name!r} has implicit state (sequence_batching.state in {where}). Python models cannot update "
            "it, not even in Triton's python backend: each request would get the initial state. Keep the state in the "
            "model, keyed by request.correlation_id(), and omit `state`."
        )
    if not said.output:
        raise PyTritonValidationError(
            f"Model {said.name!r} has no output: {where} does not declare any. Add outputs there, or define "
            "auto_complete_config in the model."
        )
