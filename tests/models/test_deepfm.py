from itertools import combinations
from typing import ClassVar

import pytest
import torch
from torch import nn

from feature_contract import FeatureContract
from mixdim.models import DeepFM
from model_samples import MIXED, PLAIN, normal


def written_out(model, samples, tables, weights):
    """Pair by pair and sample by sample: the oracle, in plain PyTorch."""
    numbers, found = model.first_order.standardized(samples.dense), []
    for ids, of_sample in zip(samples.ids.tolist(), numbers, strict=True):
        vectors = [table[i] for table, i in zip(tables, ids, strict=True)]
        logit = model.first_order.constant + of_sample @ model.first_order.dense[0]
        logit = logit + sum(table[i] for table, i in zip(weights, ids, strict=True))
        logit = logit + sum(model.of_pairs @ (a * b) for a, b in combinations(vectors, 2))
        x = torch.cat([*vectors, of_sample])
        linears = [module for module in model.mlp if isinstance(module, nn.Linear)]
        for linear in linears[:-1]:
            x = torch.relu(linear.weight @ x + linear.bias)
        found.append(logit + linears[-1].weight[0] @ x + linears[-1].bias[0])
    return torch.stack(found)


class TestDeepFM(FeatureContract):
    MODEL = DeepFM
    TRACED = ("bags",)
    OPTIONS: ClassVar = {"hidden": (20, 6)}
    WIDTH = 3 * 8 + 5
    OTHER_PARAMETERS = 8 + (WIDTH * 20 + 20) + (20 * 6 + 6) + (6 + 1) + (90 + 12 + 4) + 5

    def build(self, embeddings, generator):
        weights = self.first_order(embeddings, constant=-0.5)
        told = {"num_dense": self.NUM_DENSE, "generator": generator, **self.OPTIONS}
        return DeepFM(embeddings, first_order=weights, **told)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("drawn", [True, False])
    def test_it_is_its_formula(self, kind, drawn):
        model, samples = self.model(kind), self.samples(20)
        if drawn:
            normal(model)
        else:  # as it is at first, the pairs have the weight that they have in the paper
            nn.init.normal_(model.first_order.dense)
            assert torch.equal(model.of_pairs, torch.ones(8))
        model.first_order.standardize_by(torch.full([self.NUM_DENSE], 0.3), torch.tensor(2.0))
        layer, of_ids = model.embeddings, model.first_order.weights
        tables = (
            [layer.dense_weight(n) for n in self.ROWS] if kind == MIXED else [t.weight for t in layer]
        )
        weights = [of_ids.dense_weight(name)[:, 0] for name in of_ids.plan]
        expected = written_out(model, samples, tables, weights)
        torch.testing.assert_close(model(samples), expected, rtol=1e-5, atol=1e-5)


class TestDeepFMWithoutNumbers(TestDeepFM):
    TRACED = ("ids",)
    NUM_DENSE = 0
    OTHER_PARAMETERS = 8 + (24 * 20 + 20) + (20 * 6 + 6) + (6 + 1) + (90 + 12 + 4)
