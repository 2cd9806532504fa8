"""A device that is not the CPU, on a machine that has no other.

Its tensors hold their numbers, and operators compute with them; but a tensor that is elsewhere cannot
take part, as with a GPU. To PyTorch it is called "meta", the only name that needs no driver.
"""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

FAR = torch.device("meta")


class FarTensor(torch.Tensor):
    """Numbers on the far device."""

    is_meta = False  # `load_state_dict` would not copy

    @staticmethod
    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), dtype=numbers.dtype, device=FAR
        )

    def __init__(self, numbers):
        self.numbers = numbers

    def __repr__(self, **_):
        return f"FarTensor({self.numbers})"

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("can't convert a tensor on another device to numpy")
        return self.numbers.numpy(force=True)

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})


class FarDevice(TorchDispatchMode):
    """While it is entered, `.to("meta")` and `device="meta"` mean the far device."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})


def run(operator, args, kwargs):
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    inside = [tensor for tensor in tensors if isinstance(tensor, FarTensor)]
    device = kwargs.get("device", FAR if inside else torch.device("cpu"))
    copies = operator._schema.name in ("aten::_to_copy", "aten::copy_")
    if inside and not copies and any(t.dim() for t in tensors if not isinstance(t, FarTensor)):
        raise RuntimeError(f"{operator}: expected all tensors on {FAR}, found at least one on the CPU")
    held = {id(tensor.numbers): tensor for tensor in inside}
    args, kwargs = tree_map_only(FarTensor, lambda tensor: tensor.numbers, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    result = operator(*args, **kwargs)
    if device != FAR and not (operator._schema.name == "aten::copy_" and inside):
        return result
    # What an operator changed in place is the tensor that it was given.
    return tree_map_only(torch.Tensor, lambda t: held[id(t)] if id(t) in held else FarTensor(t), result)


def send(model: nn.Module) -> nn.Module:
    """Move a model to the far device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(FarTensor(parameter.detach()))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = FarTensor(buffer)
    return model
