"""First-order weights, against the formula written out."""

import copy

import pytest
import torch
from torch import nn

import mixdim
from mixdim.models import FirstOrder
from model_samples import SomeSamples, first_order

SIZES = {"user": 3, "tags": 4, "item": 2}


def test_they_add_a_weight_for_each_id_and_number_and_the_mean_of_a_bag():
    part = first_order(SIZES, 2, sparse=True, constant=-1.0)
    assert part.num_weights == 9
    assert all(not part.weights.dense_weight(name).any() for name in SIZES)
    for name, rows in zip(SIZES, torch.arange(9.0)[:, None].split(list(SIZES.values())), strict=True):
        part.weights.load_blocks(name, [rows / 8], [None])
    with torch.no_grad():
        part.dense.copy_(torch.tensor([[0.5, -2.0]]))
    part.standardize_by(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 4.0]))
    numbers = part.standardized(torch.tensor([[1.0, 4.0], [3.0, 0.0], [5.0, 8.0]]))
    torch.testing.assert_close(numbers, torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]))
    tags = torch.tensor([3, 1, 0]), torch.tensor([0, 2, 2, 3])
    ids = torch.tensor([[0, 1], [2, 0], [1, 1]], dtype=torch.int32)
    found = part(torch.tensor([0.0, 10.0, 20.0]), numbers, SomeSamples(ids, numbers, {"tags": tags}))
    user, item, mean_tag = torch.tensor([0, 2, 1]), torch.tensor([8, 7, 8]), [(6 + 4) / 2, 0, 3]
    expected = (user + item + torch.tensor(mean_tag)) / 8 - 1 + torch.tensor([0.0, 10.0, 20.0])
    expected += torch.tensor([0.0 * 0.5 - 2 * 1, 1 * 0.5 - 2 * 0, 2 * 0.5 - 2 * 2])
    torch.testing.assert_close(found, expected)


def test_at_the_start_they_add_the_constant_and_their_numbers_are_kept_in_the_state():
    part, ids = first_order(SIZES, 1, constant=-0.7), torch.tensor([[2, 3, 1], [0, 0, 0]])
    samples = SomeSamples(ids, torch.ones(2, 1))
    torch.testing.assert_close(part(torch.ones(2), samples.dense, samples), torch.full([2], 0.3))
    part.standardize_by(torch.tensor([0.3]), torch.tensor(2.0))
    other = copy.deepcopy(part)
    other.standardize_by(torch.tensor([0.0]), torch.tensor(1.0))
    other.load_state_dict(part.state_dict())
    assert torch.equal(other.standardized(samples.dense), part.standardized(samples.dense))


def test_its_weights_are_a_layer_of_width_1():
    plan = mixdim.plan({"user": 3}, temperature=0, base_dim=2)
    for wrong in (nn.Linear(2, 2), mixdim.FeatureEmbeddings(plan)):
        with pytest.raises(ValueError, match=r"weights must be a mixdim.FeatureEmbeddings of width 1"):
            FirstOrder(wrong, num_dense=0)
