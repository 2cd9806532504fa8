"""Layers trained with it: saved and copied states, schedulers, groups, closures."""

import copy
import io

import pytest
import torch
from torch import nn

import mixdim
from mixdim.optim import SparseAMSGrad
from row_gradients import MOMENTS, assert_unchanged, generator_of, snapshot, table_of
from strategies import random_ids


def layer_of(**options):
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}
    sizes = {"day": 3, "item": 10, "user": 90}
    plan = mixdim.plan(sizes, counts=counts, bands={"item": 4}, temperature=0.4, base_dim=16)
    return mixdim.FeatureEmbeddings(plan, generator=generator_of(0), dtype=torch.float64, **options)


def train(layer, optimizer, steps, first=0):
    losses = []
    for number in range(first, first + steps):
        ids = random_ids(layer.plan, 16, generator_of(number % 3))
        optimizer.zero_grad()
        loss = (layer(ids) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_tables_and_projections_train_in_one_optimizer():
    layer = layer_of(sparse=True)
    optimizer = SparseAMSGrad(layer.parameters(), lr=0.05)
    losses = train(layer, optimizer, 30)
    assert {p.grad.layout for p in layer.parameters()} == {torch.sparse_coo, torch.strided}
    assert losses[-1] < 0.2 * losses[0]


def test_the_layer_trains_as_with_adam_when_all_rows_are_looked_up():
    layers = [layer_of(sparse=True), layer_of(sparse=False)]
    optimizers = [
        SparseAMSGrad(layers[0].parameters(), lr=0.05),
        torch.optim.Adam(layers[1].parameters(), lr=0.05, amsgrad=True),
    ]
    rows = torch.arange(90)
    ids = torch.stack([rows % feature.rows for feature in layers[0].plan.features], dim=1)
    for _ in range(20):
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            (layer(ids) - 1).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(layers[0].dense_weight(), layers[1].dense_weight())


@pytest.mark.parametrize("named", [False, True])
def test_a_saved_state_goes_on_exactly(named):
    layer = layer_of(sparse=True)
    optimizer = SparseAMSGrad(layer.named_parameters() if named else layer.parameters(), lr=0.05)
    train(layer, optimizer, 5)
    file = io.BytesIO()
    torch.save([layer.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other = layer_of(sparse=True)
    other.load_state_dict(weights)
    again = SparseAMSGrad(other.named_parameters() if named else other.parameters())
    again.load_state_dict(state)
    assert_unchanged(again, snapshot(optimizer))
    assert train(layer, optimizer, 5, first=5) == train(other, again, 5, first=5)
    assert_unchanged(again, snapshot(optimizer))
    assert {state["step"] for state in again.state.values()} == {10}


def test_a_deep_copy_of_layer_and_optimizer_goes_on_exactly():
    layer = layer_of(sparse=True)
    optimizer = SparseAMSGrad(layer.parameters(), lr=0.05)
    train(layer, optimizer, 3)
    other, again = copy.deepcopy((layer, optimizer))
    before = snapshot(again)
    losses = train(layer, optimizer, 3, first=3)
    assert_unchanged(again, before)
    assert train(other, again, 3, first=3) == losses


def test_each_moment_has_an_array_of_its_own():
    layer = layer_of(sparse=True)
    optimizer = SparseAMSGrad(layer.parameters())
    train(layer, optimizer, 1)
    for parameter in layer.parameters():
        moments = [optimizer.state[parameter][moment] for moment in MOMENTS]
        assert all(moment.shape == parameter.shape for moment in moments)
        assert len({tensor.data_ptr() for tensor in [parameter, *moments]}) == 4


def test_a_scheduler_sets_the_learning_rate():
    mine, theirs = table_of(4, 2), table_of(4, 2)
    optimizers = [SparseAMSGrad([mine], lr=0.1), torch.optim.Adam([theirs], lr=0.1, amsgrad=True)]
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.1) for o in optimizers]
    for seed in range(7):
        theirs.grad = table_of(4, 2, seed).detach()
        mine.grad = theirs.grad.to_sparse(1)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4)
    torch.testing.assert_close(mine, theirs)


def test_groups_have_options_of_their_own():
    fast, slow, frozen = (table_of(4, 2) for _ in range(3))
    groups = [{"params": [fast], "betas": (0.5, 0.5), "eps": 1e-3}, {"params": [slow], "lr": 0.01}]
    optimizer = SparseAMSGrad(groups, lr=0.1)
    optimizer.add_param_group({"params": frozen, "lr": 0})
    references = [
        torch.optim.Adam([table_of(4, 2)], amsgrad=True, lr=lr, betas=betas, eps=eps)
        for lr, betas, eps in [(0.1, (0.5, 0.5), 1e-3), (0.01, (0.9, 0.999), 1e-8)]
    ]
    for seed in range(3):
        gradient = table_of(4, 2, seed).detach()
        for reference in references:
            reference.param_groups[0]["params"][0].grad = gradient
            reference.step()
        fast.grad = slow.grad = frozen.grad = gradient
        optimizer.step()
    for mine, reference in zip([fast, slow], references, strict=True):
        torch.testing.assert_close(mine, reference.param_groups[0]["params"][0])
    assert torch.equal(frozen, table_of(4, 2))


def test_a_state_from_before_weight_decay_has_none():
    table, gradient = table_of(3, 2), table_of(3, 2, seed=1).detach()
    optimizer = SparseAMSGrad([table])
    table.grad = gradient
    optimizer.step()
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["weight_decay"]
    other = nn.Parameter(table.detach().clone())
    again = SparseAMSGrad([other], weight_decay=0.5)
    again.load_state_dict(copy.deepcopy(saved))
    other.grad = gradient
    optimizer.step()
    again.step()
    assert torch.equal(table, other)


def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = SparseAMSGrad(table.parameters(), lr=0.1)
    before = table.weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = table(torch.tensor([1, 1, 4])).square().sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert loss.item() == pytest.approx(before[[1, 1, 4]].square().sum().item())
    assert (table.weight != before).any(1).tolist() == [False, True, False, False, True]
    assert optimizer.step() is None
