"""AMSGrad for tables whose gradient names a few rows. Knows nothing about layers or losses.

In plain PyTorch: `update_dense` and `update_rows` are the specification of every faster path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mixdim._util.arguments import real_number
from mixdim.kernels.backend import BringUpCall, StepCall, dispatch

# How many numbers of a parameter are in hand at once, so that no update allocates a table's size.
PIECE = 2**18
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OPTIONS = ("lr", "betas", "eps", "weight_decay")


@torch.no_grad()
def update_dense(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """Take one AMSGrad step in place, all tensors of one shape; `step` counts from 1.

    weight *= 1 - lr * weight_decay
    exp_avg = beta1 * exp_avg + (1 - beta1) * gradient
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient ** 2
    max_exp_avg_sq = max(max_exp_avg_sq, exp_avg_sq)
    denom = sqrt(max_exp_avg_sq) / sqrt(1 - beta2 ** step) + eps
    weight -= lr / (1 - beta1 ** step) * exp_avg / denom
    """
    beta1, beta2 = betas
    step_size, correction = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
    for w, g, m, v, most in _pieces(weight, gradient, exp_avg, exp_avg_sq, max_exp_avg_sq):
        if weight_decay:
            w.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        torch.maximum(most, v, out=most)
        w.addcdiv_(m, most.sqrt().div_(correction).add_(eps), value=-step_size)


@torch.no_grad()
def update_rows(
    weight: Tensor,
    rows: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """Take the step of `update_dense` in some rows of a table, and touch no other.

    So a row is decayed in the steps whose gradient names it, and only in those.
    `rows` (nnz,) has no row twice; `gradient` (nnz, width) belongs to them.
    """
    tables = (weight, exp_avg, exp_avg_sq, max_exp_avg_sq)
    for here, g in _pieces(rows, gradient):
        w, *moments = pieces = [table.index_select(0, here) for table in tables]
        update_dense(w, g, *moments, step=step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for table, piece in zip(tables, pieces, strict=True):
            table.index_copy_(0, here, piece)


@torch.no_grad()
def bring_up_rows(weight: Tensor, decayed_to: Tensor, rows: Tensor, now: float) -> None:
    """Multiply rows by exp(now - decayed_to) and note it; a row that comes twice is multiplied once.

    `decayed_to` (len(weight),) and `now` are sums of log(1 - lr * weight_decay) over steps.
    """
    if dispatch("bring_up", BringUpCall(weight, decayed_to, rows, now)) is not None:
        return
    before = decayed_to[rows]
    behind = (before != now).nonzero().squeeze(1)
    rows, kept = rows[behind], (now - before[behind].double()).exp_().to(weight.dtype)
    kept = kept.view(-1, *[1] * (weight.dim() - 1))
    weight.index_copy_(0, rows, weight.index_select(0, rows) * kept)
    decayed_to.index_fill_(0, rows, now)


class SparseAMSGrad(torch.optim.Optimizer):
    """AMSGrad (Reddi et al. 2018) for row-sparse and dense gradients, side by side in one optimizer.

    A table with a row-sparse gradient, as `sparse=True` layers give, has only the rows of that
    gradient read and written: the others keep their weights and their moments, as with
    `torch.optim.SparseAdam`. The bias is corrected by the steps of the whole parameter, not of the
    row. So when every step touches every row, and always for dense gradients, this is
    `torch.optim.Adam(amsgrad=True)` to float rounding. A parameter may change from one kind of
    gradient to the other.

    `weight_decay` is decoupled (Loshchilov & Hutter 2019): in a step, weights are first multiplied by
    1 - lr * weight_decay. Of a row-sparse gradient this too is for its rows alone: **a row is decayed in
    the steps whose batch asks for it**, as often as it is learnt. That needs no state, and is the
    penalty of each rating that matrix factorisation usually has. With every row touched it is
    `torch.optim.AdamW(amsgrad=True)`.

    A gradient that is not finite raises FloatingPointError before anything has changed. The error
    names the parameter, if the optimizer was given `named_parameters()`, and the row, by
    `parameter.describe_row(row)` if there is such an attribute.

    >>> table = torch.nn.Embedding(1000, 4, sparse=True)
    >>> optimizer = SparseAMSGrad(table.named_parameters(), lr=0.1)
    >>> before = table.weight.detach().clone()
    >>> table(torch.tensor([3, 7, 3])).sum().backward()
    >>> optimizer.step()
    >>> (table.weight != before).any(dim=1).nonzero().flatten().tolist()
    [3, 7]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with `lr`, `betas`, `eps` and `weight_decay` of their own where given."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a state; one from before there was `weight_decay` had none."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("weight_decay", 0.0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure`, if given, returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [
            self._prepare(group, parameter, _name(group, number, place))
            for number, group in enumerate(self.param_groups)
            for place, parameter in enumerate(group["params"])
            if parameter.grad is not None
        ]
        steps = [
            dispatch("describe_step", StepCall(u.parameter, u.rows, u.gradient, u.moments, u.options))
            for u in updates
        ]
        fast = [update for update, step in zip(updates, steps, strict=True) if step is not None]
        slow = [update for update, step in zip(updates, steps, strict=True) if step is None]
        # All gradients are checked before the first update, so that an error leaves all as it was.
        for update in slow:
            update.check()
        if fast:
            wrong = dispatch("take_steps", [step for step in steps if step is not None])
            if wrong >= 0:
                fast[wrong].check()
            elif wrong < -1:
                raise fast[-2 - wrong].wrong_rows()
            # Autograd does not see what the kernel writes; a graph made before must notice it.
            torch.autograd.graph.increment_version([update.parameter for update in fast])
        for update in slow:
            update.apply()
        for update in updates:
            update.state["step"] = update.options["step"]
            self.state[update.parameter] = update.state
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that was saved for parameters of the same shapes, or change nothing."""
        saved = [n for group in state_dict["param_groups"] for n in group["params"]]
        mine = [
            (parameter, _name(group, number, place))
            for number, group in enumerate(self.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        for number, (parameter, name) in zip(saved, mine, strict=False):  # PyTorch compares the numbers
            if state := state_dict["state"].get(number):
                _check_state(state, parameter, name)
        super().load_state_dict(state_dict)

    def _prepare(self, group: dict[str, Any], parameter: Tensor, name: str) -> _Update:
        """Put together what the next step of a parameter needs, without changing anything."""
        state = self.state.get(parameter)
        if not state:
            state = {"step": 0, **{key: torch.zeros_like(parameter) for key in MOMENTS}}
        _check_state(state, parameter, name)
        options = {"step": int(state["step"]) + 1, **{key: group[key] for key in OPTIONS}}
        assert parameter.grad is not None
        rows, gradient = _read(parameter.grad, name)
        shape = parameter.shape if rows is None else (len(rows), *parameter.shape[1:])
        if parameter.grad.shape != parameter.shape or gradient.shape != shape:
            raise ValueError(
                f"gradient of {name} has shape {tuple(parameter.grad.shape)}, "
                f"the parameter {tuple(parameter.shape)}: was its data replaced?"
            )
        return _Update(name, parameter, rows, gradient, state, options)


@dataclass(frozen=True, eq=False)
class _Update:
    """One parameter's next step."""

    name: str
    parameter: Tensor
    rows: Tensor | None  # (nnz,) each once, or None for a dense gradient
    gradient: Tensor
    state: dict[str, Any]
    options: dict[str, Any]

    @property
    def moments(self) -> tuple[Tensor, ...]:
        return tuple(self.state[key] for key in MOMENTS)

    def as_call(self) -> StepCall:
        """The step as a backend takes it."""
        return StepCall(self.parameter, self.rows, self.gradient, self.moments, self.options)

    def check(self) -> None:
        """Refuse a gradient that is not finite."""
        # The least and the most are finite only if all are, and need no mask of the gradient's size.
        if not self.gradient.numel() or all(map(math.isfinite, self.gradient.aminmax())):
            return
        first = (~self.gradient.isfinite()).nonzero()[0].tolist()  # (row, column), or () of a scalar
        row = next(iter(first), 0) if self.rows is None else int(self.rows[first[0]])
        described = getattr(self.parameter, "describe_row", "row {}".format)(row)
        raise FloatingPointError(f"gradient of {self.name} is not finite at {described}")

    def wrong_rows(self) -> IndexError:
        """What to say of a gradient whose rows are not rows of the parameter, ascending, each once."""
        assert self.rows is not None
        return IndexError(
            f"gradient of {self.name} must name rows 0 to {len(self.parameter) - 1} in ascending order, "
            f"each once, got rows {self.rows[:5].tolist()} ... {self.rows[-1:].tolist()}"
        )

    def apply(self) -> None:
        """Take the step in plain PyTorch."""
        if self.rows is None:
            update_dense(self.parameter, self.gradient, *self.moments, **self.options)
        else:
            update_rows(self.parameter, self.rows, self.gradient, *self.moments, **self.options)


def _check_state(state: dict[str, Any], parameter: Tensor, name: str) -> None:
    """Refuse the state of another optimizer, or of a parameter of another shape."""
    missing = [key for key in ("step", *MOMENTS) if key not in state]
    if missing:
        raise ValueError(f"state of {name} has no {', '.join(missing)}: it is of another optimizer")
    for key in MOMENTS:
        if not isinstance(state[key], Tensor) or state[key].shape != parameter.shape:
            shape = tuple(state[key].shape) if isinstance(state[key], Tensor) else state[key]
            raise ValueError(
                f"state of {name}: {key} has shape {shape}, the parameter {tuple(parameter.shape)}"
            )


def _read(gradient: Tensor, name: str) -> tuple[Tensor | None, Tensor]:
    """The rows of a gradient, each once, or None if it is dense, and its numbers."""
    if gradient.layout is torch.strided:
        return None, gradient
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        dims = f" with sparse_dim {gradient.sparse_dim()}" if gradient.is_sparse else ""
        wanted = "dense or torch.sparse_coo with sparse_dim 1"
        raise ValueError(f"gradient of {name} must be {wanted}, got {gradient.layout}{dims}")
    rows = gradient._indices()[0].contiguous()  # the kernel walks through them
    # Autograd forgets that the kernels' gradients are coalesced; looking is cheaper than sorting.
    if gradient.is_coalesced() or bool((rows[1:] > rows[:-1]).all()):
        return rows, gradient._values()
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


def _name(group: dict[str, Any], number: int, place: int) -> str:
    """What errors call a parameter: its name if it was given, otherwise its place and shape."""
    if "param_names" in group:
        return f"parameter {group['param_names'][place]!r}"
    shape = tuple(group["params"][place].shape)
    return f"parameter {place} of group {number} with shape {shape}"


def _check_group(group: dict[str, Any], number: int) -> None:
    """Hold the options of a group as floats within their bounds, and refuse parameters of odd kinds."""
    group["betas"] = tuple(real_number(beta, "betas") for beta in group["betas"])
    if len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"betas must be two numbers in [0, 1), got {group['betas']}")
    for option in ("lr", "eps", "weight_decay"):
        group[option] = real_number(group[option], option)
        if group[option] < 0:
            raise ValueError(f"{option} must be at least 0, got {group[option]}")
    for place, parameter in enumerate(group["params"]):
        if parameter.is_complex() or parameter.layout is not torch.strided:
            raise TypeError(
                f"{_name(group, number, place)} must be real and dense, "
                f"got {parameter.dtype} and {parameter.layout}"
            )


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut tensors of as many rows into the same pieces, of about PIECE numbers of the last one."""
    if tensors[-1].dim() == 0:
        return [tensors]
    size = max(1, PIECE // max(1, math.prod(tensors[-1].shape[1:])))
    return zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Do what `torch.nn.utils.clip_grad_norm_` does, for row-sparse gradients too; returns the norm.

    The norm is that of all gradients put together; if it is above `max_norm`, all are scaled down in
    place. PyTorch's own fails on row-sparse gradients, and so does Lightning's `gradient_clip_val`: call
    this in `configure_gradient_clipping` there.

    >>> table = torch.nn.Embedding(1000, 4, sparse=True)
    >>> table(torch.tensor([3, 7, 3])).sum().backward()
    >>> round(clip_grad_norm_(table.parameters(), max_norm=1.0).item(), 4)  # 4 ones and 4 twos
    4.4721
    >>> round(table.weight.grad.coalesce().values().norm().item(), 4)
    1.0
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse and not parameter.grad.is_coalesced():
            parameter.grad = parameter.grad.coalesce()  # a row that is there twice counts as their sum
        gradients.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    total = torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)  # as PyTorch's does
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total
