"""Define the pages of the Python API, which mkdocstrings generates from signatures and docstrings."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A page of the API: its title, its introduction, and its objects in order."""

    title: str
    about: str
    objects: tuple[str, ...]


PAGES = {
    "serving": Page(
        "Registering models",
        "The client of the daemon, and options of models.",
        (
            "pytriton.daemon.connect",
            "pytriton.daemon.DaemonClient",
            "pytriton.served_model.Model",
            "pytriton.foreground.serve",
            "pytriton.declaration.declare",
            "pytriton.limits.Limits",
            "pytriton.autoscale.Autoscale",
        ),
    ),
    "models": Page(
        "Tensors and model configuration",
        "Inputs, outputs and Triton configuration of a model.",
        (
            "pytriton.model_config.tensor.Tensor",
            "pytriton.model_config.common",
            "pytriton.model_config.model_config.ModelConfig",
        ),
    ),
    "callables": Page(
        "Inside a callable",
        "For use in callables: decorators, calls to other models, request ids, output buffers.",
        (
            "pytriton.decorators",
            "pytriton.calls.infer",
            "pytriton.calls.async_infer",
            "pytriton.calls.stream",
            "pytriton.calls.async_stream",
            "pytriton.proxy.types",
            "pytriton.buffers.empty_output",
            "pytriton.shared_weights.shared",
            "pytriton.request_ids",
        ),
    ),
    "typed": Page(
        "Typed functions",
        "For functions that are served as a web API.",
        ("pytriton.typed.markers", "pytriton.exceptions.HTTPError"),
    ),
    "clients": Page(
        "Clients",
        "Clients of models, over HTTP and gRPC.",
        (
            "pytriton.client.api_client",
            "pytriton.client.model_client.ModelClient",
            "pytriton.client.futures_client.FuturesModelClient",
            "pytriton.client.asyncio_client.AsyncioModelClient",
            "pytriton.client.decoupled_client.DecoupledModelClient",
            "pytriton.client.asyncio_decoupled_client.AsyncioDecoupledModelClient",
            "pytriton.client.options.RequestOptions",
            "pytriton.client.tls.TlsOptions",
            "pytriton.client.exceptions",
        ),
    ),
    "triton": Page(
        "The Triton class",
        "PyTriton's class for scripts and notebooks.",
        ("pytriton.triton",),
    ),
    "runner": Page(
        "The runner",
        "A model repository as a Python object.",
        ("pytriton.runner.runner.Runner",),
    ),
    "openai": Page(
        "OpenAI API",
        "Argument and result types of callables behind the OpenAI API.",
        ("pytriton.openai",),
    ),
    "fleet": Page(
        "Several machines",
        "A client for several daemons.",
        (
            "pytriton.fleet.client.FleetClient",
            "pytriton.fleet.canary.Canary",
            "pytriton.fleet.placement_status",
        ),
    ),
    "exceptions": Page(
        "Exceptions",
        "All exceptions except those of clients of models.",
        ("pytriton.exceptions",),
    ),
}


def pages() -> dict[str, str]:
    """Return the pages by their path in the site."""
    return {f"reference/python/{name}.md": _page(page) for name, page in PAGES.items()}


def _page(page: Page) -> str:
    directives = "\n\n".join(f"::: {one}" for one in page.objects)
    return f"# {page.title}\n\n{page.about}\n\n{directives}\n"
