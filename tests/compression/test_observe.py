"""Counting what a model asks for, and leaving it as it was."""

import numpy as np
import pytest
import torch
from torch import nn

import mixdim
from models_to_compress import Recommender, batch, batches, state_of


def test_counts_are_those_of_the_batches_without_padding():
    model, given = Recommender(), batches(4)
    stats = mixdim.observe(model, iter(given))
    users, items, tags = (torch.cat([one[column].reshape(-1) for one in given]) for column in range(3))
    for name, ids in {"user": users, "bias": users, "item": items, "tags": tags}.items():
        expected = np.bincount(ids, minlength=len(stats[name]))
        if name == "item":
            assert expected[0]
            expected[0] = 0
        assert (stats[name] == expected).all()
    assert (stats.batches, list(stats)) == (4, ["user", "item", "tags", "bias"])
    assert f"{users.numel():,}" in str(stats)


def test_a_batch_is_what_the_model_takes():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2)

        def forward(self, ids, other=None):
            assert other is None or other == "x"
            return self.table(ids["a"] if isinstance(ids, dict) else ids)

    ids = torch.tensor([4, 4])
    cases = [ids, (ids,), [ids, "x"], {"ids": ids, "other": "x"}, {"a": ids}, {"ids": {"a": ids}}]
    for one in cases:
        assert mixdim.observe(ByName(), [one])["table"].tolist() == [0, 0, 0, 0, 2]
    with_target = [(ids, torch.zeros(2), "target")]
    said = mixdim.observe(ByName(), with_target, call=lambda model, batch: model(batch[0]))
    assert said["table"].tolist() == [0, 0, 0, 0, 2]
    with pytest.raises(ValueError, match=r"does not take a batch as it is .*call=lambda model, batch"):
        mixdim.observe(ByName(), with_target)


def test_a_table_in_two_places_is_one():
    table = nn.Embedding(5, 2)
    model = nn.ModuleDict({"a": table, "b": table})
    model.forward = lambda ids: model["a"](ids) + model["b"](ids)
    assert {n: c.tolist() for n, c in mixdim.observe(model, [torch.tensor([1])]).items()} == {
        "a": [0, 2, 0, 0, 0]
    }


def test_the_model_is_as_it_was_also_after_an_error():
    model = Recommender().train()
    model.norm.eval()
    before = state_of(model)
    model(*batch())[0].backward()  # gradients that must stay
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    before = state_of(model)
    mixdim.observe(model, batches(2), loss=lambda output, batch: output.square().mean())
    assert state_of(model) == before

    def broken():
        yield batch()
        assert not model.training
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        mixdim.observe(model, broken())
    with pytest.raises(IndexError):
        mixdim.observe(model, [(torch.tensor([400]), torch.tensor([0]), torch.tensor([[0]]))])
    assert state_of(model) == before
    assert all(torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters())


def test_the_metric_is_the_mean_product_of_gradients():
    model, ids = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1)), torch.tensor([[0, 1], [1, 5]])
    stats = mixdim.observe(model, [ids, ids], loss=lambda output, batch: output.pow(3).sum())
    vectors = model[0](ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model[1](vectors).pow(3).sum(), vectors)
    rows = gradient.reshape(-1, 3).double()
    assert torch.allclose(stats.metrics["0"], rows.t() @ rows / 4)
    assert mixdim.observe(model, [ids]).metrics == {}
    with pytest.raises(ValueError, match=r"loss.* must return one number that depends on the tables"):
        mixdim.observe(model, [ids], loss=lambda output, batch: output)


def test_a_row_of_a_bag_is_felt_as_much_as_its_share_of_the_bag():
    ids, found = torch.tensor([[0, 1, 2, 3], [4, 5, 0, 1]]), {}
    for mode in ("sum", "mean", "max"):
        model = nn.Sequential(nn.EmbeddingBag(6, 3, mode=mode), nn.Linear(3, 1))
        nn.init.ones_(model[1].weight)
        stats = mixdim.observe(model, [ids], loss=lambda output, batch: output.sum())
        found[mode] = stats.metrics["0"]
    assert torch.equal(found["sum"], torch.ones(3, 3, dtype=torch.float64))
    assert torch.equal(found["mean"], found["sum"] / 16)
    assert torch.equal(found["max"], found["sum"] / 4)


def test_a_compiled_model_is_observed_as_what_was_compiled():
    model = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1))
    compiled, ids = torch.compile(model, backend="eager"), torch.tensor([[0, 1], [1, 5]])
    compiled(ids)
    loss = {"loss": lambda output, batch: output.pow(3).sum()}
    plain, found = (mixdim.observe(one, [ids], **loss) for one in (model, compiled))
    assert found["_orig_mod.0"].tolist() == plain["0"].tolist() == [1, 2, 0, 0, 0, 1]
    assert torch.equal(found.metrics["_orig_mod.0"], plain.metrics["0"])


@pytest.mark.parametrize(
    ("model", "given", "complaint"),
    [
        (Recommender(), [], "batches must have at least one batch, got none"),
        (
            Recommender(),
            torch.zeros(3),
            r"batches must be an iterable .*got Tensor: a single batch is \[",
        ),
        (Recommender(), 3, "batches must be an iterable of what the model takes, got int"),
        (nn.Linear(2, 2), [1], "must have an nn.Embedding or nn.EmbeddingBag, Linear has none"),
        ("model", [1], "model must be a torch.nn.Module, got str"),
    ],
)
def test_what_cannot_be_observed_is_said(model, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        mixdim.observe(model, given)
