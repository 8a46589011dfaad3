"""The number of a model's workers: readiness without any, scaling, replacing, and checks that refuse a bad version."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any
from urllib import request as urlrequest
from urllib.error import HTTPError

import numpy as np
import pytest
from support.load.under_load import under_load
from support.misbehaving_model import KILL, MisbehavingModel, Serve, refused
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.autoscale import Autoscale
from pytriton.exceptions import PyTritonValidationError, RegistrationError
from pytriton.model_config import ModelConfig


def is_ready(daemon: RunningDaemon, name: str) -> bool:
    try:
        urlrequest.urlopen(f"http://{daemon.http}/v2/models/{name}/ready", timeout=60).close()
    except HTTPError as error:
        error.close()
        return False
    return True


def adder(step: float) -> Any:
    return lambda requests: [{"y": request["x"] + step} for request in requests]


# ── readiness ────────────────────────────────────────────────────────────────────────────────────


def test_readiness_follows_the_workers(tmp_path: Path) -> None:
    """Without a worker the model is not ready and requests fail at once; with a new worker it is ready again."""
    gate = tmp_path / "gate"
    gate.touch()

    def factory() -> Any:
        while not gate.exists():
            time.sleep(0.02)
        return lambda requests: [{"y": request["x"]} for request in requests]

    with RunningDaemon.start(not_ready_after_s=0.3) as daemon:
        model = daemon.client.register(factory, "gated", X, Y, factory=True, progress=False)
        assert is_ready(daemon, "gated")
        gate.unlink()
        pid = model.instances[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_ready(daemon, "gated"), "the model is not ready")
        assert model.info().state == "not_ready"
        inference = Inference("grpc", daemon.grpc)
        with pytest.raises(InferenceServerException, match="gated"):
            inference.infer("gated", {"x": ONES}, client_timeout=100)
        gate.touch()
        eventually(lambda: is_ready(daemon, "gated"), "the model is ready again")
        model.wait_ready()
        assert inference.infer("gated", {"x": ONES})["y"].tolist() == ONES.tolist()
        inference.close()


def test_a_model_at_its_restart_limit_is_not_ready_and_can_be_unregistered(tmp_path: Path) -> None:
    """At once, since no worker will come. A new registration can replace it."""
    marker = tmp_path / "loaded"

    def factory() -> Any:
        if marker.exists():
            raise RuntimeError("no second time")
        marker.touch()
        return MisbehavingModel(tmp_path)

    with RunningDaemon.start(
        worker_restart_limit=2, worker_backoff_s=0.01, not_ready_after_s=1000
    ) as daemon:
        model = daemon.client.register(factory, "once", X, Y, factory=True, progress=False)
        inference = Inference("grpc", daemon.grpc)
        with pytest.raises(
            InferenceServerException, match=r"has reached its restart limit.*no second time"
        ):
            inference.infer("once", {"x": ONES * KILL}, client_timeout=100)
        eventually(lambda: not is_ready(daemon, "once"), "the model is not ready")
        assert model.info().state == "not_ready"
        (instance,) = model.instances
        assert (instance.state, "no second time" in (instance.last_exit or "")) == ("failed", True)
        assert (instance.exits[0].signal, instance.exits[0].in_batch) == ("SIGKILL", True)
        marker.unlink()
        daemon.client.register(factory, "once", X, Y, factory=True, replace=True, progress=False)
        assert inference.infer("once", {"x": ONES})["y"].tolist() == ONES.tolist()
        daemon.client.unregister("once")
        assert daemon.client.models() == []
        inference.close()


def test_a_crash_loop_is_reported_until_a_worker_loads(tmp_path: Path) -> None:
    """Restarts continue: the status gives cause and next attempt, requests get the error, and scaling fails."""
    missing = tmp_path / "missing"

    def factory() -> Any:
        if missing.exists():
            raise RuntimeError("no weights")
        return MisbehavingModel(tmp_path)

    # Long enough for what is asked in between, and far shorter than what tests wait for.
    pause_s = 3.0
    with RunningDaemon.start(
        worker_backoff_s=pause_s, worker_backoff_max_s=pause_s, not_ready_after_s=1000
    ) as daemon:
        model = daemon.client.register(
            factory, "loops", X, Y, factory=True, instances=2, progress=False
        )
        missing.touch()
        for instance in model.instances:
            assert instance.pid is not None
            os.kill(instance.pid, signal.SIGKILL)
        inference = Inference("grpc", daemon.grpc)
        reported = "instance [01] is in a crash loop: .*RuntimeError: no weights"
        with pytest.raises(InferenceServerException, match=reported):
            # It waited for a worker till then.
            inference.infer("loops", {"x": ONES}, client_timeout=100)
        eventually(lambda: not is_ready(daemon, "loops"), "the model is not ready")
        eventually(
            lambda: any(re.search(reported, text) for text in daemon.client.status().problems),
            lambda: f"status tells: {daemon.client.status().problems}",
        )
        eventually(
            lambda: all(one.next_try_at or one.state != "backoff" for one in model.instances),
            lambda: f"the next try has its time: {model.instances}",
        )
        with pytest.raises(RegistrationError, match="no weights"):
            model.scale(3)  # a new one cannot be loaded either
        with pytest.raises(
            RegistrationError, match=r"now has 2 instances, but instance .*no weights"
        ):
            model.scale(2)
        missing.unlink()
        model.scale(2)
        assert [one.state for one in model.instances] == ["ready", "ready"]
        assert is_ready(daemon, "loops")
        assert inference.infer("loops", {"x": ONES})["y"].tolist() == ONES.tolist()
        assert daemon.client.status().problems == []
        inference.close()


# ── scaling, checks ──────────────────────────────────────────────────────────────────────────────


def test_invalid_scaling_is_refused(daemon: RunningDaemon, serve: Serve) -> None:
    """With a reason, and without a change."""
    model = serve([lambda r: r, lambda r: r])
    with pytest.raises(RegistrationError, match="a list of 2 callables"):
        model.scale(3)
    with pytest.raises(
        PyTritonValidationError, match="instances has to be a whole number of 1 or more"
    ):
        model.scale(0)
    assert [i.state for i in model.instances] == ["ready", "ready"]


def test_a_check_keeps_a_bad_replacement_out(
    daemon: RunningDaemon, inference: Inference, serve: Serve
) -> None:
    """The worker calls it with the loaded callable."""

    def check(infer: Any) -> None:
        (answer,) = infer([{"x": np.ones((1, 1), np.float32)}])
        if answer["y"][0, 0] != 2:
            raise ValueError(f"1 became {answer['y'][0, 0]}")

    serve(adder(1), check=check)
    with pytest.raises(RegistrationError, match="ValueError: 1 became 6"):
        daemon.client.register(
            adder(5), "model", X, Y, ModelConfig(max_batch_size=8), replace=True, check=check,
            progress=False,
        )  # fmt: skip
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES + 1).tolist()


# ── replacing ────────────────────────────────────────────────────────────────────────────────────


def test_replace_fails_no_request(
    daemon: RunningDaemon, inference: Inference, serve: Serve
) -> None:
    """Under load, either the old or the new callable answers every request."""
    serve(adder(1))
    with under_load(daemon) as load:
        load.wait(20)
        daemon.client.register(
            adder(2), "model", X, Y, ModelConfig(max_batch_size=8), replace=True, progress=False
        )
        load.wait(20)
    assert set(load.answers) == {2.0, 3.0}
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES + 2).tolist()


def test_a_failed_replacement_leaves_the_old_model(
    daemon: RunningDaemon, inference: Inference, serve: Serve
) -> None:
    """Whatever is wrong with the new one."""

    def no_weights() -> Any:
        raise RuntimeError("the weights are not there")

    model = serve(adder(1))
    pid = model.instances[0].pid
    with pytest.raises(RegistrationError, match="the weights are not there"):
        daemon.client.register(
            no_weights, "model", X, Y, factory=True, replace=True, progress=False
        )
    with pytest.raises(RegistrationError, match="tritonserver did not load"):
        daemon.client.register(adder(9), "model", X, Y, refused(), replace=True, progress=False)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES + 1).tolist()
    assert model.instances[0].pid == pid


# ── as many as the load takes ────────────────────────────────────────────────────────────────────


def slow(requests: Any) -> Any:
    time.sleep(0.02)
    return [{"y": request["x"] + 1} for request in requests]


def test_instances_follow_the_load_without_a_failed_request(
    daemon: RunningDaemon, serve: Serve
) -> None:
    model = serve(
        slow, instances=Autoscale(max=3, up_after=1.0, down_after=2.0), max_inflight_batches=1
    )
    assert len(model.instances) == 1
    first = model.instances[0].pid
    with under_load(daemon, model.name, clients=6) as load:
        eventually(lambda: len(model.instances) > 1, lambda: f"more: {model.info().scaling}")
        load.wait(50)
    assert "1 to 3 instances" in model.info().scaling
    eventually(lambda: len(model.instances) == 1, lambda: f"fewer: {model.info().scaling}")
    assert model.instances[0].pid == first
    assert set(load.answers) == {2.0}
