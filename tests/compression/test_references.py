"""Who still holds old tables after a model was compressed, and what is done about it."""

import gc
import weakref

import pytest
import torch

import mixdim
from models_to_compress import Recommender, batch, batches

OPTIONS = {"budget": "1/4", "echo": None}


class Feature:
    def __init__(self, embed):
        self.name, self.embed = "user", embed


def test_references_in_the_model_are_found_with_what_to_do():
    model = Recommender()
    model.regularization_weight = [(list(model.user.parameters()), 0.0, 1e-5)]
    model.features = {"first": Feature(model.item)}
    model.weights_by_name = dict(model.named_parameters())
    result = mixdim.compress(model, mixdim.observe(model, batches()), **OPTIONS)
    assert set(result.stale) == {
        "model.regularization_weight[0][0][0] is the old weight of user: "
        "put model.get_submodule('user').parameters() there",
        "model.features['first'].embed is the old table of item: put model.get_submodule('item') there",
        *(
            f"model.weights_by_name['{name}.weight'] is the old weight of {name}: "
            f"put model.get_submodule('{name}').parameters() there"
            for name in ("user", "item", "tags")
        ),
    }
    assert all(line in str(result) for line in result.stale)


def test_what_refers_to_a_table_from_outside_is_told_and_nothing_else_keeps_it():
    model = Recommender()
    held = model.user
    gone = [weakref.ref(table.weight) for table in (model.item, model.tags)]
    result = mixdim.compress(model, mixdim.observe(model, batches()), **OPTIONS)
    assert result.stale == (
        "something outside of the model refers to the old table of user: it takes 25.6 kB until that "
        "variable or list lets it go",
    )
    assert held.weight.shape == (400, 16)
    assert [ref() for ref in gone] == [None, None]


def test_old_optimizers_are_found_wherever_they_are():
    model = Recommender()
    model.optim = torch.optim.Adagrad([model.user.weight])
    mine = [torch.optim.SGD(model.parameters(), lr=1.0), torch.optim.SGD(model.top.parameters(), lr=1.0)]
    result = mixdim.compress(model, mixdim.observe(model, batches()), **OPTIONS)
    mine = None
    assert len(result.optimizers) == 2
    (own,) = (line for line in result.optimizers if line.startswith("Adagrad (model.optim)"))
    assert "has the old weight of user and would train nothing" in own
    (other,) = (line for line in result.optimizers if line.startswith("SGD (one that you hold)"))
    assert "old weight of user, item, tags" in other
    assert result.stale == ()
    assert mine is None


def test_a_moved_optimizer_trains_the_new_tables_and_remembers_the_rest():
    model = Recommender()
    groups = [
        {"params": [model.user.weight, model.top.weight], "lr": 0.5},
        {"params": model.norm.parameters()},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    stats = mixdim.observe(model, batches())
    model(*batch()).sum().backward()
    optimizer.step()
    moments = optimizer.state[model.top.weight]["exp_avg"].clone()
    old = weakref.ref(model.user.weight)
    optimizer.zero_grad()
    result = mixdim.compress(model, stats, optimizers=[optimizer], **OPTIONS)
    assert (result.optimizers, result.moved) == ((), 1)
    gc.collect()
    assert old() is None
    held = [id(one) for one in optimizer.param_groups[0]["params"]]
    assert held == [*map(id, model.user.parameters()), id(model.top.weight)]
    assert torch.equal(optimizer.state[model.top.weight]["exp_avg"], moments)
    before = [parameter.clone() for parameter in model.user.parameters()]
    model(*batch()).sum().backward()
    optimizer.step()
    schedule.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.user.parameters(), strict=True))


def test_an_optimizer_that_cannot_go_on_is_refused_first():
    model = Recommender()
    sparse = torch.optim.SparseAdam([model.user.weight])
    with pytest.raises(
        ValueError, match=r"optimizers\[0\] is a SparseAdam, which takes no dense gradients"
    ):
        mixdim.compress(model, mixdim.observe(model, batches()), optimizers=[sparse], **OPTIONS)
    assert isinstance(model.user.weight, torch.nn.Parameter)
    (line,) = mixdim.compress(model, mixdim.observe(model, batches()), **OPTIONS).optimizers
    assert line.startswith("SparseAdam (one that you hold) has the old weight of user")
    assert line.endswith("make another one anew, projections have dense gradients")
