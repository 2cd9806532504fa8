"""Compiles the kernels when the package is built, into a temporary directory, for the wheel.

Without a compiler the package still installs: mixdim then runs on plain PyTorch, and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src" / "mixdim" / "kernels" / "native.cpp"
# One library for each level of the processor; mixdim.kernels.library picks one when it is imported.
FLAGS = {"_mixdim_avx2": ["-mavx2", "-mfma"], "_mixdim_generic": []}
COMMON = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]


def compile_kernels(directory: Path, extra: list[str] | None = None) -> list[Path]:
    """Compile the kernels for each level that the compiler knows; none if there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return []
    libraries = []
    for name, flags in FLAGS.items():
        compiled, library = directory / f"{name}.o", directory / f"{name}.so"
        # Linked without an OpenMP runtime: at run time it is PyTorch's own, with the same threads.
        steps = [
            [compiler, *COMMON, *flags, *(extra or []), "-c", str(SOURCE), "-o", str(compiled)],
            [compiler, "-shared", *(extra or []), str(compiled), "-o", str(library)],
        ]
        if all(subprocess.run(step, capture_output=True, check=False).returncode == 0 for step in steps):
            libraries.append(library)
    return libraries


class KernelBuildHook(BuildHookInterface):
    """Puts the compiled kernels beside the package, in a wheel and in an editable install alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is assembled."""
        if self.target_name != "wheel":
            return
        self.compiled = Path(tempfile.mkdtemp(prefix="mixdim-kernels-"))
        libraries = compile_kernels(self.compiled)
        if not libraries:
            self.app.display_warning(
                "mixdim: no C++ compiler was found, so the fast kernels are left out: mixdim will run "
                "on plain PyTorch. Install g++ and reinstall mixdim to have them."
            )
            return
        include = "force_include_editable" if version == "editable" else "force_include"
        build_data[include].update({str(library): library.name for library in libraries})
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel now."""
        shutil.rmtree(getattr(self, "compiled", ""), ignore_errors=True)


if __name__ == "__main__":  # python hatch_build.py DIRECTORY [FLAG ...]: compile by hand
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for library in compile_kernels(target, sys.argv[2:]):
        print(library)
