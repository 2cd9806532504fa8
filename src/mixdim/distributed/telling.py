"""What ranks tell each other between steps: tensors, words, and whether any of them says so.

Knows nothing about what it is for. Every rank must call these in the same order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor) -> Tensor:
    """What rank 0 has, on every rank."""
    sent = tensor.to(_device(), copy=True)
    dist.broadcast(sent, src=0)
    return sent.to(tensor.device)


def broadcast_text(text: str) -> str:
    """What rank 0 says, on every rank."""
    content = text.encode()
    length = int(broadcast(torch.tensor([len(content)])))
    padded = content[:length].ljust(length, b"\0")
    sent = torch.tensor(list(padded), dtype=torch.uint8)
    return bytes(broadcast(sent).tolist()).decode()


def any_says(*flags: bool) -> list[bool]:
    """Whether any rank says so, of each."""
    said = torch.tensor([float(flag) for flag in flags], device=_device())
    dist.all_reduce(said, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in said.tolist()]


def summed(number: Tensor) -> float:
    """The sum of all ranks' numbers."""
    total = number.detach().clone()
    dist.all_reduce(total)
    return float(total)


def _device() -> torch.device:
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
