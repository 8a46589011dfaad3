"""What pyproject.toml cannot say: a wheel brings the compiled proxy along, if there is a C compiler where it is built.

The library is for tritonserver, not for Python: the wheel is of one platform, but for every Python.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location(
    "proxy_compiler", HERE / "dispatcher" / "install" / "proxy_compiler.py"
)
assert _spec is not None
assert _spec.loader is not None
proxy_compiler = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(proxy_compiler)


class BuildWithNativeProxy(build_py):
    """Build the packages, and the library beside its sources."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the daemon builds it for itself
            return
        folder = Path(self.build_lib, "pytriton", "proxy_backend", "native")
        try:
            proxy_compiler.compile_library(folder, folder / proxy_compiler.LIBRARY)
        except proxy_compiler.BuildError as error:
            self.warn(f"the wheel goes without the compiled proxy: {error}")


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and every Python, where the library can be built."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


class PlatformDistribution(Distribution):
    """Packages with a library among them."""

    def has_ext_modules(self) -> bool:
        return proxy_compiler.compiler() is not None


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithNativeProxy, "bdist_wheel": PlatformWheel},
)
