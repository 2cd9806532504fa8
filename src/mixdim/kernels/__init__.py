"""The fast path of the layer, the optimizer and the interactions on a CPU, compiled from C++.

The plain PyTorch path is the specification, and takes over on other devices, for other types, and
where nothing is compiled. `MIXDIM_KERNELS=off` forces it.
"""

from __future__ import annotations

import torch

from mixdim.kernels.library import COMPILED, LOADED, SWITCH, switched_off


def available() -> bool:
    """Whether the compiled kernels are in use."""
    return COMPILED and not switched_off()


def tracing() -> bool:
    """Whether torch.jit.trace is at work, which knows none of our operators."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # torch's types forgot it


def exporting() -> bool:
    """Whether a graph is being made that may run without mixdim: by torch.export, also for ONNX."""
    return torch.compiler.is_exporting() or tracing()


def status() -> str:
    """Whether the compiled kernels are in use, and which or why not."""
    return ("in use: " if available() else "not in use: ") + reason()


def reason() -> str:
    """A sentence that says which kernels are in use, or why none are."""
    return f"switched off by {SWITCH}" if switched_off() else LOADED.reason
