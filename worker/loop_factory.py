"""Creates the main loop that a worker's model needs. Loops that few models need are imported on demand."""

from __future__ import annotations

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.loop import Loop
from pytriton.worker.model import WorkerModel
from pytriton.worker.stream_loop import StreamLoop
from pytriton.worker.worker_limits import Allowance


def create_loop(
    model: WorkerModel,
    spec: messages.ModelSpec,
    stats: WorkerStatsPage,
    control: ControlClient,
    worker: str,
    lane_path: str,
) -> Loop:
    """Create the main loop of a worker. From now on, the loop listens for proxies at `lane_path`."""
    return _loop_class(model)(model, Allowance(spec), stats, control, worker, lane_path)


def _loop_class(model: WorkerModel) -> type[Loop]:
    if model.streams:
        from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop

        return DecoupledModelLoop
    if model.asynchronous and model.decoupled:
        from pytriton.worker.async_stream_loop import AsyncStreamLoop

        return AsyncStreamLoop
    if model.asynchronous:
        from pytriton.worker.async_loop import AsyncLoop

        return AsyncLoop
    return StreamLoop if model.decoupled else Loop
