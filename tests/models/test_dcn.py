from typing import ClassVar

import pytest
import torch
from torch import nn

from feature_contract import FeatureContract
from mixdim.models import DCN
from model_samples import MIXED, PLAIN, SomeSamples, normal

WIDTH = 3 * 8 + 5  # three features of base_dim 8, and five numbers


def written_out(model, samples, tables):
    """x_{l+1} = x_0 * (W x_l + b) + x_l sample by sample, then the MLP: the oracle, in plain PyTorch."""
    found = []
    for ids, numbers in zip(samples.ids.tolist(), samples.dense, strict=True):
        first = torch.cat([*(table[i] for table, i in zip(tables, ids, strict=True)), numbers])
        x = first
        for layer in model.cross:
            *narrow, last = layer
            matrix = last.weight if not narrow else last.weight @ narrow[0].weight
            x = first * (matrix @ x + last.bias) + x
        linears = [module for module in model.mlp if isinstance(module, nn.Linear)]
        for linear in linears[:-1]:
            x = torch.relu(linear.weight @ x + linear.bias)
        found.append(linears[-1].weight[0] @ x + linears[-1].bias[0])
    return torch.stack(found)


class TestDCN(FeatureContract):
    MODEL = DCN
    TRACED = ("ids",)
    OPTIONS: ClassVar = {"cross_layers": 2, "cross_rank": 0, "hidden": (20,)}
    OTHER_PARAMETERS = 2 * (WIDTH * WIDTH + WIDTH) + (WIDTH * 20 + 20) + (20 + 1)

    def build(self, embeddings, generator):
        return DCN(embeddings, num_dense=self.NUM_DENSE, generator=generator, **self.OPTIONS)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_it_is_its_formula(self, kind):
        model, samples = normal(self.model(kind), std=0.2), self.samples(20)
        layer = model.embeddings
        tables = (
            [layer.dense_weight(n) for n in self.ROWS] if kind == MIXED else [t.weight for t in layer]
        )
        expected = written_out(model, samples, tables)
        torch.testing.assert_close(model(samples), expected, rtol=1e-5, atol=1e-5)


class TestDCNOfLowRank(TestDCN):
    TRACED = ()
    OPTIONS: ClassVar = {"cross_layers": 3, "cross_rank": 4, "hidden": (20,)}
    OTHER_PARAMETERS = 3 * (2 * WIDTH * 4 + WIDTH) + (WIDTH * 20 + 20) + (20 + 1)


class TestDCNWithFirstOrderWeightsAndWithoutNumbers(FeatureContract):
    MODEL = DCN
    TRACED = ("bags",)
    NUM_DENSE = 0
    OPTIONS: ClassVar = {"cross_layers": 1, "cross_rank": 4, "hidden": (8, 4), "first_order": True}
    OTHER_PARAMETERS = (
        (2 * 24 * 4 + 24) + (24 * 8 + 8) + (8 * 4 + 4) + (4 + 1) + sum(FeatureContract.ROWS.values())
    )

    def build(self, embeddings, generator):
        told = {**self.OPTIONS, "first_order": self.first_order(embeddings)}
        return DCN(embeddings, num_dense=0, generator=generator, **told)


def test_a_rank_that_would_save_nothing_gives_whole_matrices():
    tables = [nn.Embedding(9, 4), nn.Embedding(7, 4)]
    for rank, shapes in {0: [(8, 8)], 3: [(3, 8), (8, 3)], 4: [(8, 8)], 99: [(8, 8)]}.items():
        model = DCN(tables, num_dense=0, cross_layers=1, cross_rank=rank, hidden=())
        assert [tuple(linear.weight.shape) for linear in model.cross[0]] == shapes


def test_without_cross_layers_it_is_an_mlp_and_wrong_numbers_of_layers_are_refused():
    tables = [nn.Embedding(9, 4), nn.Embedding(7, 4)]
    model = DCN(tables, num_dense=1, cross_layers=0, hidden=(5,))
    samples = SomeSamples(torch.tensor([[8, 6], [0, 1]]), torch.ones(2, 1))
    columns = [table(ids) for table, ids in zip(tables, samples.ids.t(), strict=True)]
    expected = model.mlp(torch.cat([*columns, samples.dense], dim=1))[:, 0]
    torch.testing.assert_close(model(samples), expected)
    for name in ("cross_layers", "cross_rank"):
        with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
            DCN(tables, num_dense=1, **{name: -1})
