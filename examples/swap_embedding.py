"""Swap nn.Embedding for mixed dimensions in a recommender: the lines marked <--. Synthetic data."""

import tempfile

import torch
from torch import nn

import mixdim.data
from mixdim.lab.synthetic.generate import generate_movielens_like


class Recommender(nn.Module):
    """A model as it may exist already: two tables and a small MLP."""

    def __init__(self, users: nn.Module, items: nn.Module) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.mlp = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: mixdim.data.Batch) -> torch.Tensor:
        """Return the rating of each sample: (batch,)."""
        user, item = batch.ids.unbind(1)
        return 3.5 + self.mlp(torch.cat([self.users(user), self.items(item)], dim=1)).squeeze(1)


def train_and_report(name: str, model: nn.Module, dataset: mixdim.data.Dataset) -> None:
    """Train and test a model; a training loop of your own would do as well as `mixdim.fit`."""
    fitted = mixdim.fit(model, dataset, epochs=20, batch_size=4096, lr=3e-3)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: {parameters:,} parameters, test MSE {fitted.test['best']['mse']:.4f}")


def main(rows: int = 100_000) -> None:
    """Train the recommender before and after the swap."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        generate_movielens_like(f"{folder}/ratings", rows=rows, scale=0.005)
        dataset = mixdim.data.open(f"{folder}/ratings")

        users, items = (nn.Embedding(n, 32) for n in dataset.cardinalities.values())  # <-- before
        for table in (users, items):
            nn.init.xavier_uniform_(table.weight)  # as mixdim does: then only the widths differ
        train_and_report("nn.Embedding", Recommender(users, items), dataset)

        plan = mixdim.plan(dataset, temperature=0.3, base_dim=32, bands=8)
        users, items = (mixdim.MixedDimEmbedding(plan[name]) for name in plan)  # <-- after
        train_and_report("mixed dimensions", Recommender(users, items), dataset)


if __name__ == "__main__":
    main()
