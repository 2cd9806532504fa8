"""Small models such as people have, with popular and rare rows, and batches for them."""

import numpy as np
import torch
from torch import nn


class Recommender(nn.Module):
    """Two tables, one of them with a row for no id, a bag, and a number for each user."""

    def __init__(self, width=16, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.user = nn.Embedding(400, width)
        self.item = nn.Embedding(300, width, padding_idx=0)
        self.tags = nn.EmbeddingBag(200, width, mode="mean")
        self.bias = nn.Embedding(400, 1)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)
        self.top = nn.Linear(width, 1)
        for table in (self.user, self.item, self.tags):  # a spectrum that falls, as of what was learned
            with torch.no_grad():
                table.weight *= 0.7 ** torch.arange(width)

    def forward(self, user, item, tags):
        found = self.user(user) * self.item(input=item) + self.tags(tags)
        return self.top(self.dropout(self.norm(found)))[:, 0] + self.bias(user)[:, 0]


def batch(seed=0, size=200):
    draw = np.random.default_rng(seed)
    user, item = draw.zipf(1.3, size) * 7 % 400, draw.zipf(1.3, size) * 11 % 300
    return tuple(map(torch.from_numpy, (user, item, draw.zipf(1.3, (size, 3)) * 3 % 200)))


def batches(number=5):
    return [batch(seed) for seed in range(number)]


def state_of(model):
    """All that an error must leave as it was: modules, numbers, modes."""
    return (
        [(name, id(module), module.training) for name, module in model.named_modules()],
        {name: (id(value), value.tolist()) for name, value in model.named_parameters()},
        {name: value.tolist() for name, value in model.named_buffers()},
        {name: len(module._forward_hooks) for name, module in model.named_modules()},
    )


def changed(model, **modules):
    """A model with some of its modules replaced."""
    for name, module in modules.items():
        setattr(model, name, module)
    return model
