"""The process of same_bits.py that does cases with one checkout, and writes numbers in canonical form.

    PYTHONPATH=CHECKOUT/src python same_bits_child.py --out FOLDER --work FOLDER CASE ...

Canonical: by feature and block, whatever parameters are called and however blocks share them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import mixdim
from same_bits_cases import CASES

Numbers = dict[str, np.ndarray]  # by "quantity/place"


class Watch:
    """Remembers the optimizers that are made, and the models that are called, while it is entered.

    So a command can run as it is, and nothing must be known about how it makes them. With `die_after`,
    the process is killed at that call of a model.
    """

    def __init__(self, die_after: int = 0) -> None:
        self.optimizers: list[Optimizer] = []
        self.called: dict[int, nn.Module] = {}
        self.calls = self.depth = 0
        self.die_after = die_after

    def __enter__(self) -> Self:
        self.originals = nn.Module.__call__, Optimizer.__init__
        original_call, original_init = self.originals

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and layers_of(module):
                self.called[id(module)] = module
                self.calls += 1
                if self.calls == self.die_after:
                    os.kill(os.getpid(), signal.SIGKILL)
            self.depth += 1
            try:
                return original_call(module, *args, **kwargs)
            finally:
                self.depth -= 1

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original_init(optimizer, *args, **kwargs)
            self.optimizers.append(optimizer)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        Optimizer.__init__ = init  # type: ignore[assignment,method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        nn.Module.__call__, Optimizer.__init__ = self.originals  # type: ignore[method-assign]

    @property
    def model(self) -> nn.Module:
        """The only model with a layer that was called."""
        (model,) = self.called.values()
        return model

    def trained(self) -> tuple[nn.Module, dict[Tensor, dict[str, Any]]]:
        """The model whose parameters have the most optimizer state, and that state by parameter."""
        state = {p: s for optimizer in self.optimizers for p, s in optimizer.state.items()}
        return max(
            self.called.values(), key=lambda model: sum(p in state for p in model.parameters())
        ), state


def run_command(arguments: Iterable[object]) -> str:
    """Run `mixdim` in this process; returns what it printed. An error has all of it."""
    from mixdim.__main__ import main

    given, code = list(map(str, arguments)), None
    sys.argv = ["mixdim", *given]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "printed"  # a file: commands want the number of their output
        with (
            path.open("w") as printed,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            try:
                main()
            except SystemExit as end:
                code = end.code
        text = path.read_text()
    if code:
        raise RuntimeError(f"mixdim {' '.join(given)} failed ({code}):\n{text}")
    return text


def layers_of(model: nn.Module) -> list[Any]:
    """The mixdim layers of a model, the widest first."""
    found = [m for m in model.modules() if hasattr(m, "dense_weight") and hasattr(m, "base_dim")]
    return sorted(found, key=lambda layer: -layer.base_dim)


def weights_of(model: nn.Module) -> Numbers:
    """The dense weight of every feature of every layer, and all other tensors of a model."""
    return {**dense_weights(layers_of(model)), **_others(model, model.state_dict(keep_vars=True))}


def dense_weights(layers: Iterable[Any]) -> Numbers:
    """By feature and width."""
    return {
        f"dense weights/{name} of {layer.base_dim}": layer.dense_weight(name).detach().numpy()
        for layer in layers
        for name in layer.plan
    }


def state_of(model: nn.Module, state: Mapping[Tensor, Mapping[str, Any]]) -> Numbers:
    """The state of an optimizer in canonical form: moments of blocks and of all else, and steps."""
    keys: dict[str, bool] = {}  # and whether it is as large as a parameter
    for parameter, of_one in state.items():
        for key, value in of_one.items():
            keys[key] = keys.get(key, False) or (
                isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
            )
    found: Numbers = {}
    for key, is_moment in keys.items():
        # A parameter without state has had no gradient: 0 says the same.
        values = {
            p: torch.as_tensor(state.get(p, {}).get(key, 0.0)).expand(p.shape)
            for p in model.parameters()
        }
        parts = _others(model, {name: (p, values[p]) for name, p in model.named_parameters()})
        for layer in layers_of(model):
            parts |= block_parts(layer, [values[p] for p in layer.parameters()])
        for place, part in parts.items():
            if is_moment:
                found[f"moments/{key} of {place}"] = part
            else:
                found[f"optimizer steps/{key} of {place}"] = np.unique(part)
    return found


def _others(model: nn.Module, tensors: Mapping[str, Any]) -> Numbers:
    """The tensors outside of layers, named by shape, in the model's order."""
    inside = {id(t) for layer in layers_of(model) for t in layer.state_dict(keep_vars=True).values()}
    found: Numbers = {}
    for entry in tensors.values():
        owner, values = entry if isinstance(entry, tuple) else (entry, entry)
        if id(owner) in inside:
            continue
        shape = "x".join(map(str, owner.shape)) or "scalar"
        number = sum(place.startswith(f"other tensors/{shape} #") for place in found)
        found[f"other tensors/{shape} #{number}"] = values.detach().numpy()
    return found


def block_parts(layer: Any, values: Iterable[Tensor]) -> Numbers:
    """Values beside the parameters of a layer, by feature, block and part: stored rows, projection.

    Where each number of a block lies is found by loading numbers that count into a copy of the layer:
    so no name and no layout of a parameter is known here.
    """
    from same_bits_names import load_blocks, stored_shape

    flat = torch.cat([value.detach().reshape(-1) for value in values]).numpy()
    marked, next_mark = copy.deepcopy(layer), 1
    for parameter in marked.parameters():
        parameter.data.zero_()
    first_marks: dict[str, tuple[int, tuple[int, ...]]] = {}
    for feature in layer.plan.features:
        loaded: dict[str, list[Any]] = {"rows": [], "projection": []}
        for number, block in enumerate(feature.blocks):
            shape = stored_shape(block, layer.base_dim)
            shapes = {"rows": shape, "projection": (block.storage.dim, layer.base_dim)}
            if block.storage.dim in (0, layer.base_dim):
                loaded["projection"].append(None)
                del shapes["projection"]
            for part, of_part in shapes.items():
                size = int(np.prod(of_part))
                loaded[part].append(torch.arange(next_mark, next_mark + size).view(of_part))
                first_marks[f"{feature.name} of {layer.base_dim}, block {number}, {part}"] = (
                    next_mark,
                    of_part,
                )
                next_mark += size
        load_blocks(marked, feature.name, loaded["rows"], loaded["projection"])
    assert next_mark < 2**24, "float32 counts no further"
    marks = torch.cat([p.detach().reshape(-1) for p in marked.parameters()]).to(torch.int64).numpy()
    place = np.full(next_mark, -1)
    place[marks] = np.arange(len(marks))
    found: Numbers = {}
    for name, (first, shape) in first_marks.items():
        places = place[first : first + int(np.prod(shape))]
        if (places < 0).all():
            continue  # the array of Robe, which a later block shares and has marked again
        assert (places >= 0).all(), f"{name} is in no parameter"
        found[name] = flat[places].reshape(shape)
    return found


def gradients_of(layer: Any) -> Numbers:
    """The gradients of a layer's parameters, in canonical form."""
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in layer.parameters()
    ]
    return block_parts(layer, gradients)


def plan_words(plan: Any) -> np.ndarray:
    """A plan in words that no renaming changes, a line a block."""
    from same_bits_names import storage_words

    lines = [f"base_dim {plan.base_dim}, {plan.nbytes()} bytes"]
    for feature in plan.features:
        lines += [
            f"{feature.name} {b.start} {b.size} {storage_words(b.storage)}" for b in feature.blocks
        ]
    lines += [f"order of {name}: {np.asarray(o).tolist()}" for name, o in plan.orders.items()]
    return np.array(lines)


def under(quantity: str, found: Mapping[str, np.ndarray]) -> Numbers:
    """Numbers, all of one quantity."""
    return {f"{quantity}/{place}": values for place, values in found.items()}


def check_checkout() -> None:
    """Fail where another mixdim is imported, or its kernels are not those that are meant."""
    source, wanted = (
        Path(mixdim.__file__).parents[1],
        Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]),
    )
    if source.resolve() != wanted.resolve():
        raise RuntimeError(f"mixdim comes from {source}, not from {wanted}")
    line = next(line for line in run_command(["doctor"]).splitlines() if line.startswith("kernels"))
    if ("not in use" in line) != (os.environ["MIXDIM_KERNELS"] == "off"):
        raise RuntimeError(f"with MIXDIM_KERNELS={os.environ['MIXDIM_KERNELS']}: {line}")


def main() -> None:
    """Do each case; write its numbers, or what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--die-after", type=int, default=0, help="calls of a model by a command")
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    if options.die_after:  # the cases are a command
        with Watch(options.die_after):
            run_command(options.cases)
        return
    import same_bits_layers
    import same_bits_runs

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    check_checkout()
    for name in options.cases:
        case, start = CASES[name], time.perf_counter()
        work = getattr(same_bits_runs, case.work, None) or getattr(same_bits_layers, case.work)
        try:
            found = work(case, options.work, name)
            np.savez(options.out / f"{name}.npz", **found)
        except Exception:
            (options.out / f"{name}.error").write_text(traceback.format_exc())
        print(f"{name} {time.perf_counter() - start:.1f}", flush=True)


if __name__ == "__main__":
    sys.modules["same_bits_child"] = sys.modules["__main__"]  # for those that import it by name
    main()
