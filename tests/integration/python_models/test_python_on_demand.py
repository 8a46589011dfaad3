"""tritonserver has a Python only if a model needs it: the compiled proxy serves all others without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.forks.prefork import command
from support.models import repositories
from support.models.inference import Inference
from support.real_daemon import RunningDaemon

from pytriton._host.install.cache import cache_dir
from pytriton._host.install.proxy_compiler import PROXY
from pytriton._host.install.server_runtime import ServerChoice, find_or_install_server
from pytriton.decorators import batch
from pytriton.exceptions import RegistrationError
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(4,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(4,))]


@pytest.mark.slow
@pytest.mark.timeout(600)  # an environment is made by pip, if this machine has none yet
def test_the_python_is_installed_when_a_model_first_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has none, and at first the machine cannot download one."""
    made = find_or_install_server(ServerChoice(proxy="native", python_backend=True), print)
    assert made.python is not None
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("server", "native-proxy", "native-frontend"):
        (cache / name).symlink_to(cache_dir() / name)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    repositories.add_multiplier(tmp_path / "models", "stock", {1: 3})
    settings = {"model_repository": (str(tmp_path / "models"),), "python_backend_model": ("stock",)}
    with RunningDaemon.start(
        cache_dir=str(cache), proxy="native", model_control_mode="explicit", **settings
    ) as daemon:
        client = daemon.client
        model = client.register(batch(lambda x: {"y": x + 1}), "plus", X, Y, progress=False)
        inference = Inference("grpc", daemon.grpc)
        try:
            ones = np.ones((1, 4), np.float32)
            assert inference.infer("plus", {"x": ones})["y"].tolist() == [[2.0] * 4]
            assert not (cache / "proxy-env").exists()

            with pytest.raises(
                RegistrationError,
                match=r"(?s)stock needs.*whose Python could not be installed: pip",
            ):
                client.load_model("stock")
            assert inference.infer("plus", {"x": ones})["y"].tolist() == [[2.0] * 4]

            environments = cache / "proxy-env"
            for left in environments.iterdir():  # nothing but a lock
                left.unlink()
            environments.rmdir()
            environments.symlink_to(made.python.environment.root.parent)
            client.load_model("stock")
            assert inference.infer("stock", {"x": ones})["y"].tolist() == [[3.0] * 4]
            model.unregister()
        finally:
            inference.close()


def test_install_server_reports_the_existing_installation() -> None:
    def install(*flags: str) -> dict[str, str]:
        done = command("install-server", *flags)
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    usual, with_python = install(), install("--python-backend")
    assert Path(usual["tritonserver"]).name == "tritonserver"
    assert Path(usual["proxy"], PROXY.file).is_file()
    assert set(usual) == {"tritonserver", "proxy"}
    assert Path(with_python.pop("proxy Python")).is_relative_to(cache_dir() / "proxy-env")
    assert with_python == usual
