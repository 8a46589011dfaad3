"""Which upgrades are refused, after which the daemon continues: with parts that do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.fake_worker import FakeWorker
from fakes.upgrade_parts import Parts

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.upgrade.coordinator import UpgradeCoordinator

NOW = messages.Upgrade(wait_s=0.0)


def interpreter(folder: Path, script: str) -> str:
    """Write an interpreter for the next version: a shell script."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return str(python)


def able(folder: Path) -> str:
    """The interpreter of a compatible version."""
    return interpreter(folder, """cat > /dev/null; echo '{"can": true, "version": "9.9"}'""")


def coordinator(parts: Parts) -> UpgradeCoordinator:
    upgrade = UpgradeCoordinator(parts, locks=(-1, -1), is_private=parts.is_private)  # type: ignore[arg-type]
    upgrade._state = dict  # type: ignore[assignment, method-assign]
    return upgrade


async def refusal(parts: Parts, wish: messages.Upgrade = NOW) -> RemoteFailure:
    """Return why an upgrade was refused."""
    with pytest.raises(RemoteFailure) as raised:
        await coordinator(parts).prepare(wish)
    await asyncio.sleep(0)  # models resume in a separate task
    return raised.value


def hosted(parts: Parts) -> None:
    spec = messages.ModelSpec("mine", 1, {}, messages.WorkerEnvironment("python"))
    parts.registry.append(SimpleNamespace(spec=spec, registrant=object()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda parts: setattr(parts.status, "phase", "draining"), "it is draining"),
        (lambda parts: setattr(parts.server, "can_hand_over", False), "need the native frontend"),
        (lambda parts: setattr(parts, "is_private", True), "belongs to a script"),
        (hosted, "in threads of their registrants: mine"),
    ],
)
async def test_an_upgrade_that_cannot_hand_over_is_refused(
    change: Callable[[Parts], None], why: str
) -> None:
    parts = Parts()
    change(parts)
    failure = await refusal(parts)
    assert failure.kind is ErrorKind.INVALID
    assert why in failure.text
    assert "pytriton-daemon restart" in failure.text
    assert parts.reported == [("upgrade_failed", failure.text)]
    assert not parts.held


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda parts: setattr(parts.control, "changing", 1), "a client is changing something"),
        (
            lambda parts: setattr(parts.server, "is_quiescent", False),
            "tritonserver is being started",
        ),
        (lambda parts: setattr(parts.openai, "is_quiescent", False), "the OpenAI frontend"),
        (
            lambda parts: setattr(parts.repository_models, "is_quiescent", False),
            "a model of a repository",
        ),
        (
            lambda parts: setattr(parts.client_bound_models, "ending", True),
            "a client-bound model is being",
        ),
        (lambda parts: setattr(parts.workers, "unreported", 1), "an unrecoverable error"),
        (lambda parts: setattr(parts.shutdown.requested, "is_set", lambda: True), "is stopping"),
        (lambda parts: parts.busy.append("model m is being registered"), "m is being registered"),
    ],
)
async def test_an_upgrade_that_times_out_is_reported(
    tmp_path: Path, change: Callable[[Parts], None], why: str
) -> None:
    parts = Parts()
    change(parts)
    failure = await refusal(parts, messages.Upgrade(able(tmp_path), wait_s=0.0))
    assert failure.kind is ErrorKind.UNAVAILABLE
    assert why in failure.text
    assert "Try again" in failure.text
    assert not parts.held
    assert not parts.registry.held


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("exit 1", "does not run, or does not support upgrades"),
        ("echo no JSON", "does not run, or does not support upgrades"),
        (
            """echo '{"can": false, "version": "9.9", "why": "form 99"}'""",
            "version 9.9 cannot take",
        ),
        ("kill -9 $$", "does not run, or does not support upgrades"),
    ],
)
async def test_an_incompatible_next_version_is_reported(
    tmp_path: Path, says: str, why: str
) -> None:
    parts = Parts()
    python = interpreter(tmp_path, f"cat > {tmp_path / 'document'}\n{says}")
    upgrade = coordinator(parts)
    for _ in range(2):  # it may be tried again
        with pytest.raises(RemoteFailure, match=why):
            await upgrade.prepare(messages.Upgrade(python))
    assert (tmp_path / "document").read_bytes().startswith(b"pytriton-hand-over ")
    assert [name for name, _ in parts.reported] == ["upgrade_failed", "upgrade_failed"]


async def test_once_the_next_version_is_compatible_changes_wait_and_no_worker_is_prestarted(
    tmp_path: Path,
) -> None:
    """Prestarted workers are not handed over."""
    parts = Parts()
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    parked = FakeWorker(1, spec)
    await parts.registry.prestarted.put("m", parked)
    upgrade = coordinator(parts)
    await upgrade.prepare(messages.Upgrade(able(tmp_path)))
    assert parts.held
    assert parts.registry.held
    assert not parked.alive
    late = FakeWorker(2, spec)
    await parts.registry.prestarted.put("m", late)  # nor is one that was being started
    assert not late.alive
    with pytest.raises(RemoteFailure, match="is already being upgraded"):
        await upgrade.prepare(NOW)
    assert parts.reported == []


@pytest.mark.parametrize("wait_s", [-1.0, float("nan"), float("inf"), 1e9])
async def test_an_invalid_time_changes_nothing(wait_s: float) -> None:
    parts = Parts()
    failure = await refusal(parts, messages.Upgrade(wait_s=wait_s))
    assert failure.kind is ErrorKind.INVALID
    assert "is not between 0 and" in failure.text
    assert parts.reported == []


async def test_a_missing_interpreter_is_reported() -> None:
    failure = await refusal(Parts(), messages.Upgrade("/no/python"))
    assert "/no/python: No such file" in failure.text


async def test_a_model_unregistered_during_the_check_does_not_prevent_the_upgrade(
    tmp_path: Path,
) -> None:
    """Its file is gone, so the check is repeated once changes wait."""
    seen = tmp_path / "seen"
    wish = messages.Upgrade(
        wait_s=0.0,
        python=interpreter(
            tmp_path,
            f"cat > /dev/null; can=true; [ -e {seen} ] || can=false; touch {seen}\n"
            """echo "{\\"can\\": $can, \\"version\\": \\"9.9\\", \\"why\\": \\"a file is missing\\"}\"""",
        ),
    )
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    served = SimpleNamespace(spec=spec, registrant=None, kept=True)
    parts = Parts()
    parts.registry.append(served)
    failure = await refusal(parts, wish)
    assert "cannot take over: a file is missing" in failure.text
    seen.unlink()
    parts = Parts()
    parts.registry.append(served)
    asyncio.get_running_loop().call_soon(parts.registry.clear)
    await coordinator(parts).prepare(wish)
    assert (parts.reported, parts.held) == ([], True)
