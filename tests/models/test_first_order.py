"""The sum of a model and a logistic regression, against the formula written out."""

import copy

import pytest
import torch
from torch import nn

import mixdim
from mixdim.data import Batch
from mixdim.models import DLRM, WithFirstOrder
from mixdim.runs.models import build_model
from mixdim.runs.train import plan_of
from training_data import clicks, clicks_with_bags, small_config


class Nothing(nn.Module):
    def forward(self, samples):
        self.seen = samples.dense
        return torch.zeros(len(samples.dense))


def test_it_is_the_model_plus_a_weight_for_each_id_and_number_and_the_mean_of_a_bag():
    sizes = {"user": 3, "tags": 4, "item": 2}
    plan = mixdim.plan(sizes, temperature=0, base_dim=1)
    weights = mixdim.FeatureEmbeddings(plan, sparse=True, pooling="mean")
    model = WithFirstOrder(Nothing(), weights, num_dense=2, constant=-1.0)
    assert model.num_first_order == 9
    assert all(not weights.dense_weight(name).any() for name in sizes)
    for name, rows in zip(sizes, torch.arange(9.0)[:, None].split(list(sizes.values())), strict=True):
        weights.load_blocks(name, [rows / 8], [None])
    with torch.no_grad():
        model.dense.copy_(torch.tensor([[0.5, -2.0]]))
    model.standardise_by(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 4.0]))
    tags = torch.tensor([3, 1, 0]), torch.tensor([0, 2, 2, 3])
    dense = torch.tensor([[1.0, 4.0], [3.0, 0.0], [5.0, 8.0]])
    ids = torch.tensor([[0, 1], [2, 0], [1, 1]], dtype=torch.int32)
    found = model(Batch(ids=ids, dense=dense, bags={"tags": tags}, target=torch.zeros(3)))
    user, item, mean_tag = torch.tensor([0, 2, 1]), torch.tensor([8, 7, 8]), [(6 + 4) / 2, 0, 3]
    expected = (user + item + torch.tensor(mean_tag)) / 8 - 1
    expected += torch.tensor([0.0 * 0.5 - 2 * 1, 1 * 0.5 - 2 * 0, 2 * 0.5 - 2 * 2])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model.deep.seen, torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]))


def test_at_the_start_it_is_dlrm_plus_the_constant_and_its_numbers_are_kept_in_the_state():
    for dataset in (clicks(), clicks_with_bags()):
        config = small_config("dlrm", dataset, first_order=True)
        model = build_model(config, plan_of(config, dataset), num_dense=dataset.num_dense, mean=-0.7)
        assert isinstance(model, WithFirstOrder)
        assert isinstance(model.deep, DLRM)
        batch = dataset.rows(slice(0, 20))
        torch.testing.assert_close(model(batch), model.deep(batch) - 0.7)
        if dataset.num_dense:
            model.standardise_by(torch.full([dataset.num_dense], 0.3), torch.tensor(2.0))
        other = copy.deepcopy(model)
        other.standardise_by(torch.tensor(0.0), torch.tensor(1.0))
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(batch), model(batch))


def test_its_weights_are_a_layer_of_width_1():
    plan = mixdim.plan({"user": 3}, temperature=0, base_dim=2)
    for wrong in (nn.Linear(2, 2), mixdim.FeatureEmbeddings(plan)):
        with pytest.raises(ValueError, match=r"weights must be a mixdim.FeatureEmbeddings of width 1"):
            WithFirstOrder(Nothing(), wrong, num_dense=0, constant=0.0)
