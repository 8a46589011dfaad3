"""Serves the model with Ray Serve. Requests and responses are raw bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import work

HERE = str(Path(__file__).parent)
OCTETS = "application/octet-stream"

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["PYTHONPATH"] = HERE  # where the replicas find `work`


def application(model: dict[str, Any]) -> Any:
    """Return the deployment."""
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse

    @serve.deployment(
        num_replicas=model["instances"],
        max_ongoing_requests=256,
        ray_actor_options={"num_cpus": 0},
    )
    class Deployed:
        def __init__(self) -> None:
            self.compute: Any = None if model["decoupled"] else work.function(model)

        @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
        async def batched(self, arrays: list[Any]) -> list[Any]:
            return list(await asyncio.to_thread(self.compute, np.stack(arrays)))

        async def __call__(self, request: Request) -> Any:
            if model["decoupled"]:
                return StreamingResponse(self.stream(), media_type=OCTETS)
            x = work.decode(model, await request.body())
            y = await self.batched(x) if model["work"] == "nap" else self.compute(x)
            return Response(work.encode(model, y), media_type=OCTETS)

        async def stream(self) -> AsyncIterator[bytes]:
            for token in work.tokens(model):
                yield work.encode(model, token)

    # Ray resolves Starlette's types by name, and the names are local here.
    deployment: Any = Deployed
    deployment.func_or_class.__call__.__annotations__["request"] = Request
    return deployment.bind()


def main() -> None:
    """Serve until the process is stopped."""
    import ray
    from ray import serve

    spec = work.spec()
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=f"{spec['folder']}/ray",
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": spec["http_port"]})
    serve.run(application(spec["model"]), route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    sys.stdout.flush()
    os._exit(0)  # the reaper kills the remaining processes


if __name__ == "__main__":
    main()
