"""What training will need of the machine's memory, and what there is. Knows nothing about files."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from mixdim.planning.budget import format_bytes
from mixdim.training.optimizers import OPTIMIZERS, sparse_parameters

RUNTIME = 350_000_000  # Python, PyTorch and its libraries, once a model has been trained a little
STATUS, MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
CGROUPS = (  # limit and use of a container, in version 2 and 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
CACHED_FILES = ("inactive_file", "active_file")  # in memory.stat: in use, and given back when needed


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes that a run will need at its peak, by what they are for."""

    parameters: int
    optimizer_state: int
    gradients: int
    activations: int
    data: int
    runtime: int = RUNTIME

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = (f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in vars(self).items())
        return f"{format_bytes(self.total)} ({', '.join(parts)})"

    def share_of(self, available: int) -> str:
        """Say how much of the available bytes it is: "71% of the 23.0 GB free"."""
        return f"{self.total / max(available, 1):.0%} of the {format_bytes(available)} free"


def forecast_memory(
    model: nn.Module,
    *,
    optimizer: str,
    batch_size: int,
    num_ids: int,
    num_dense: int,
    train_rows: int,
    evaluation_rows: int,
    dropout_ids: int = 0,
    decay_by_time: bool = False,
) -> MemoryForecast:
    """Forecast what training a model takes; on the "meta" device it needs no weights for that.

    - Parameters: with buffers, such as the rank of each id.
    - Optimizer state: with decay by time, 4 bytes more for each row of a table.
    - Gradients: of dense parameters as large as they are; of row-sparse tables at most one row for each
      id of a batch, or several where rows are sums (`gradient_rows_per_id`), held twice for a moment.
    - Activations: of each linear layer its input and output, each with a gradient; of embeddings a
      vector for each id with its gradient.
    - Data: a shuffled epoch's order (4 bytes a training row), the prefetched batches, and in an
      evaluation outputs, targets, ids and their sorted copies (64 bytes a row); with unknown dropout
      the chance of each of so many ids (4 bytes). The arrays on disk are mapped: the machine may drop
      them at any time.
    """
    sparse = sparse_parameters(model)
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    tables = {name: p for name, p in model.named_parameters() if name in sparse}
    touched = 0
    for name, table in tables.items():
        row = table.shape[1] * table.element_size()
        if (rows_per_id := getattr(table, "gradient_rows_per_id", None)) is None:
            touched += min(sizes[name], batch_size * num_ids * row)
        else:  # rows come as often as they are looked up, each with its number
            touched += batch_size * num_ids * rows_per_id * (row + 8)
    widths = [getattr(m, "embedding_dim", getattr(m, "base_dim", 0)) for m in model.modules()]
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    numbers = sum(2 * (layer.in_features + layer.out_features) for layer in layers)
    numbers += 2 * num_ids * max(widths, default=0)
    batches = 24 * batch_size * (num_ids + num_dense + 1)
    return MemoryForecast(
        parameters=sum(sizes.values()) + sum(buffer.nbytes for buffer in model.buffers()),
        optimizer_state=OPTIMIZERS[optimizer].copies * sum(sizes.values())
        + 4 * decay_by_time * sum(map(len, tables.values())),
        gradients=sum(size for name, size in sizes.items() if name not in sparse) + 2 * touched,
        activations=4 * batch_size * numbers,
        data=4 * train_rows + batches + 64 * evaluation_rows + 4 * dropout_ids,
    )


def available_memory() -> int:
    """Bytes that a process can still take, within the limits of its container."""
    free = [_meminfo()] if MEMINFO.exists() else [_physical_memory()]
    for limit, used in CGROUPS:
        if limit.exists() and used.exists() and limit.read_text().strip() != "max":
            cached = _cached_files(limit.with_name("memory.stat"))
            free.append(int(limit.read_text()) - int(used.read_text()) + cached)
    return max(0, min(free))


def peak_memory() -> int:
    """The most memory that this process has had at any time, in bytes."""
    if STATUS.exists():  # not ru_maxrss: Linux starts that at the peak of the process before this one
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    try:
        import resource  # Windows has none
    except ImportError:
        _warn("the peak memory is recorded as 0", "/proc nor the module resource")
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cached_files(stat: Path) -> int:
    """Bytes of files that a container's use includes though the machine may drop them at any time."""
    lines = stat.read_text().splitlines() if stat.exists() else []
    return sum(int(size) for name, size in map(str.split, lines) if name in CACHED_FILES)


def _meminfo() -> int:
    line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def _physical_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows has none
        _warn("whether the memory suffices is not checked", "/proc nor os.sysconf")
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _warn(what: str, missing: str) -> None:
    warnings.warn(f"{what}: this system has neither {missing}", RuntimeWarning, stacklevel=3)
