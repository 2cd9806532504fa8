"""Which compiled kernels this process uses, and why. Knows nothing about what they compute."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

SWITCH = "MIXDIM_KERNELS"
LEVELS = {"avx2": ("AVX2", "AVX512"), "generic": None}  # the processor levels that each build needs
INTERFACE = 12  # of native.cpp: a build of another version of mixdim reads other structs

P = ParamSpec("P")
R = TypeVar("R")


class Loaded(NamedTuple):
    """The library, if there is one, and a sentence about it."""

    library: ctypes.CDLL | None
    reason: str


ON, OFF = ("", "on", "1", "yes", "true"), ("off", "0", "no", "false")


def switched_off() -> bool:
    """Whether the environment forces the plain PyTorch path: MIXDIM_KERNELS=off."""
    return os.environ.get(SWITCH, "on").strip().lower() in OFF


def _load() -> Loaded:
    """Load the best build for this processor."""
    own_build = os.environ.get(SWITCH, "")
    if "/" in own_build:  # a library compiled by hand, such as one with a sanitizer
        return _open("own", own_build)
    if own_build.strip().lower() not in (*ON, *OFF):
        warnings.warn(
            f"{SWITCH} must be on, off or the path of a library, got {own_build!r}: taken for on",
            RuntimeWarning,
            stacklevel=2,
        )
    level = torch.backends.cpu.get_cpu_capability()
    for name, needed in LEVELS.items():
        spec = importlib.util.find_spec(f"_mixdim_{name}")
        if spec is None or spec.origin is None or (needed is not None and level not in needed):
            continue
        return _open(name, spec.origin)
    return Loaded(None, "mixdim was installed without a C++ compiler; install g++, then mixdim again")


def _open(name: str, path: str) -> Loaded:
    try:
        _share_openmp()
        library = ctypes.CDLL(path)
    except OSError as error:
        return Loaded(None, f"the {name} build does not load: {error}")
    try:
        interface = library.mixdim_interface(ctypes.c_int64(0))
    except AttributeError:
        interface = None
    if interface != INTERFACE:
        return Loaded(
            None, f"the {name} build, {path}, is of another version of mixdim: install it again"
        )
    return Loaded(library, f"the {name} build, {path}")


def _share_openmp() -> None:
    """Make the OpenMP runtime that PyTorch has loaded visible: one set of threads serves both."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    ctypes.CDLL(str(bundled[0]) if bundled else "libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


LOADED = _load()
COMPILED = LOADED.library is not None
if not COMPILED and not switched_off():
    warnings.warn(
        f"mixdim runs on plain PyTorch, several times slower: {LOADED.reason} "
        f"({SWITCH}=off silences this)",
        RuntimeWarning,
        stacklevel=2,
    )


def call(name: str, *arguments: int | np.ndarray | Tensor | None) -> int:
    """Call a kernel with integers and the addresses of arrays, then PyTorch's number of threads."""
    function = getattr(LOADED.library, name)
    if function.argtypes is None:
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_int64] * (len(arguments) + 1)
    return function(*map(address, arguments), torch.get_num_threads())


def address(value: int | np.ndarray | Tensor | None) -> int:
    """Where an array begins; a number is itself, nothing is null."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, np.ndarray):
        return value.ctypes.data  # of structs, __array_interface__ would spell out every field
    return value or 0


def outside_of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile out of a function and of what it calls: in a graph there are no addresses.

    `torch.compiler.disable` would do, but imports the compiler, for more than a second, at once.
    """

    @cache
    def disabled() -> Callable[P, R]:
        return torch.compiler.disable(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        loaded = "torch._dynamo" in sys.modules
        return (disabled() if loaded else function)(*args, **kwargs)

    return run
