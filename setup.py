"""What pyproject.toml cannot say: a wheel brings the compiled proxy and the native frontend, if there is a C compiler.

They are for tritonserver, not for Python: the wheel is of one platform, but for every Python.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location(
    "proxy_compiler", HERE / "pytriton" / "_host" / "install" / "proxy_compiler.py"
)
assert _spec is not None
assert _spec.loader is not None
proxy_compiler = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(proxy_compiler)


class BuildWithPrograms(build_py):
    """Build the packages, and what is compiled beside its sources."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the daemon builds it for itself
            return
        root = Path(self.build_lib, "pytriton", "proxy_backend")
        try:
            for program in (
                proxy_compiler.PROXY,
                proxy_compiler.INTERPOSER,
                proxy_compiler.FRONTEND,
            ):
                target = root / program.folders[0] / program.file
                proxy_compiler.compile_program(program, root, target)
        except proxy_compiler.BuildError as error:
            self.warn(f"the wheel goes without the compiled proxy, or the native frontend: {error}")


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
    cmdclass={"build_py": BuildWithPrograms, "bdist_wheel": PlatformWheel},
)
