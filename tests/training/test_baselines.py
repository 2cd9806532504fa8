"""Baselines equal what formulas, dense least squares and L-BFGS say; they depend on the data alone."""

import dataclasses
import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_folder import change_page
from torch.autograd import backward

from mixdim.data import Dataset
from mixdim.data.table import prepare_table
from mixdim.tasks import task_of
from mixdim.training import baselines, first_order
from mixdim.training.baselines import baselines_of
from mixdim.training.first_order import OPTIONS, Limited, fit_logistic
from mixdim.training.random_effects import effects_of
from training_data import clicks, clicks_with_bags, ratings


def targets_of(dataset, split):
    return dataset.rows(slice(*dataset.splits[split])).target.double().numpy()


def without(dataset, split, folder):
    """The same data with no rows in a split: the one before it has them."""
    shutil.copytree(dataset.path, folder)

    def change(page):
        before = {"validation": "train", "test": "validation"}[split]
        _, stop = page["splits"][split]
        page["splits"][split], page["splits"][before][1] = [stop, stop], stop

    change_page(folder, change)
    return Dataset(folder)


def test_the_constant_of_ratings_has_the_variance_and_the_bias_of_its_mean():
    found = baselines_of(ratings())["constant"]
    for split in ("validation", "test"):
        targets, mean = targets_of(ratings(), split), targets_of(ratings(), "train").mean()
        expected = targets.var() + (targets.mean() - mean) ** 2
        assert found[split]["mse"] == pytest.approx(expected, rel=1e-6)
        assert found[split]["rows"] == len(targets)


def test_the_constant_of_clicks_has_the_cross_entropy_of_the_two_shares():
    found = baselines_of(clicks())["constant"]
    guess = targets_of(clicks(), "train").mean()
    for split in ("validation", "test"):
        share = targets_of(clicks(), split).mean()
        entropy = -share * math.log(guess) - (1 - share) * math.log(1 - guess)
        assert found[split]["log_loss"] == pytest.approx(entropy, rel=1e-6)
        assert found[split]["auc"] == 0.5


def test_biases_are_the_random_effects_of_training_rows_alone():
    data, found = ratings(), baselines_of(ratings())["biases"]
    task, effects = task_of("rating"), effects_of(data)
    for split in ("validation", "test"):
        ids = data.rows(slice(*data.splits[split])).ids.numpy()
        predicted = data.mean_target + sum(
            own[column] for own, column in zip(effects.biases, ids.T, strict=True)
        )
        expected = task.measure(predicted, targets_of(data, split))
        assert found[split] == pytest.approx(expected)
    assert found["shrinkage"] == effects.shrinkages
    assert found["validation"]["mse"] < baselines_of(data)["constant"]["validation"]["mse"]
    assert found["train_rows"] == 800


def test_values_never_seen_have_the_biases_of_nobody(tmp_path):
    rows = [f"{n % 5},u{n % 7 if n < 80 else n},i{n}" for n in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["y,user,item", *rows]) + "\n")
    columns = {"target": "y", "categorical": ["user", "item"], "task": "rating", "split": "position"}
    prepare_table([tmp_path / "t.csv"], tmp_path / "data", **columns)
    found = baselines_of(Dataset(tmp_path / "data"))
    assert found["biases"]["test"] == pytest.approx(found["constant"]["test"])


def dense_optimum(dataset):
    """The least log loss on the training split of all first-order models, by L-BFGS on dense rows."""
    rows = dataset.rows(slice(*dataset.splits["train"]))
    sizes = dataset.cardinalities
    parts = [F.one_hot(column.long(), sizes[name]).double()
             for name, column in zip(dataset.single_valued, rows.ids.T, strict=True)]  # fmt: skip
    for name, (values, offsets) in rows.bags.items():
        bags = [values[a:b].long() for a, b in pairwise(offsets)]
        counts = torch.stack([torch.bincount(bag, minlength=sizes[name]) for bag in bags]).double()
        parts.append(counts / counts.sum(1, keepdim=True).clamp(min=1))
    design = torch.cat([*parts, rows.dense.double(), torch.ones(len(rows.target), 1)], dim=1)
    weights = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        return F.binary_cross_entropy_with_logits(design @ weights, rows.target.double())

    def step():
        optimizer.zero_grad()
        value = loss()
        backward([value])
        return value

    optimizer.step(step)
    return loss().item()


@dataclasses.dataclass
class _OfTraining:
    """Data that is measured on what is learnt from."""

    data: object

    def __getattr__(self, name):
        return getattr(self.data, name)

    @property
    def splits(self):
        return dict.fromkeys(self.data.splits, self.data.splits["train"])

    def batches(self, split, **order):
        return self.data.batches("train", **order)


def test_logistic_regression_with_bags_and_dense_columns_comes_to_the_optimum(monkeypatch):
    options = replace(OPTIONS, epochs=400, patience=None, lr=0.02)
    monkeypatch.setattr(first_order, "BATCHES", 1)
    found = fit_logistic(_OfTraining(clicks_with_bags()), 0.0, options=options).measured
    optimum = dense_optimum(clicks_with_bags())
    assert optimum - 1e-6 <= found["test"]["log_loss"] <= optimum + 2e-3
    assert optimum < math.log(2) - 0.05  # there was something to learn


def test_a_logit_is_the_sum_of_the_weights_of_ids_and_the_mean_of_those_of_a_bag():
    model = first_order.LogisticRegression(
        {"user": 9, "tags": 6, "item": 5},
        ["user", "item"],
        constant=-1.0,
        means=torch.zeros(2),
        deviations=torch.ones(2),
    )
    with torch.no_grad():
        model.weights.weight[:, 0] = torch.arange(20.0)
    batch = clicks_with_bags().rows(np.array([0, 1, 2]))
    user, item = batch.ids.T
    values, offsets = batch.bags["tags"]
    bags = [values[a:b].float() + 9 for a, b in pairwise(offsets)]
    means = torch.stack([bag.mean() if len(bag) else torch.zeros(()) for bag in bags])
    torch.testing.assert_close(model(batch), -1.0 + user + (15 + item) + means)


def test_dense_columns_are_standardised_so_their_scale_does_not_matter():
    data = clicks_with_bags()
    before = fit_logistic(data, 0.0).measured
    scaled = Limited(data, 70)
    scaled = _Scaled(scaled, torch.tensor([1e6, 1e-3]), torch.tensor([-1e6, 5.0]))
    assert fit_logistic(scaled, 0.0).measured["test"]["log_loss"] == pytest.approx(
        before["test"]["log_loss"], rel=1e-3
    )


@dataclasses.dataclass
class _Scaled:
    """Data whose dense columns are in other units."""

    data: object
    factor: torch.Tensor
    shift: torch.Tensor

    def __getattr__(self, name):
        return getattr(self.data, name)

    def batches(self, *arguments, **options):
        for batch in self.data.batches(*arguments, **options):
            yield batch._replace(dense=batch.dense * self.factor + self.shift)


def test_large_data_is_learnt_in_parts_each_epoch_another(monkeypatch):
    monkeypatch.setattr(first_order, "ROWS_AN_EPOCH", 200)
    assert fit_logistic(clicks(), 0.0).measured["rows_an_epoch"] == 200
    limited, order = Limited(clicks(), 200), {"batch_size": 64, "shuffle": True}
    first, second = (list(limited.batches("train", epoch=epoch, **order)) for epoch in (0, 1))
    assert len(first) == len(limited.batches("train", **order)) == 4
    assert not torch.equal(first[0].ids, second[0].ids)
    whole = limited.batches("test", batch_size=64)
    assert sum(len(batch.target) for batch in whole) == len(targets_of(clicks(), "test"))


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("dataset", [clicks, ratings])
def test_an_empty_split_has_no_metrics(dataset, split, tmp_path):
    found = baselines_of(without(dataset(), split, tmp_path / "data"))
    objective, other = task_of(dataset().task).objective, {"validation": "test", "test": "validation"}
    assert len(found) == 2
    for one in found.values():
        assert one[split][objective] is None
        assert one[other[split]][objective] > 0


@pytest.mark.parametrize("dataset", [clicks, ratings])
def test_baselines_depend_on_the_data_alone(dataset):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = baselines_of(dataset())
    torch.manual_seed(2)
    assert json.loads(json.dumps(found)) == baselines_of(dataset())
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_logistic_regression_that_diverges_is_left_out_with_a_word(monkeypatch, caplog):
    def diverges(*arguments, **options):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(baselines, "fit_logistic", diverges)
    assert list(baselines_of(clicks())) == ["constant"]
    assert "no logistic regression to compare with: the loss is nan" in caplog.text


def test_the_loss_of_dense_columns_alone_is_that_of_a_regression_without_ids():
    """By Newton's method on the training split."""
    data = clicks_with_bags()
    train, judge = (data.rows(slice(*data.splits[split])) for split in ("train", "validation"))
    design, weights = F.pad(train.dense.double(), (0, 1), value=1.0), torch.zeros(3).double()
    for _ in range(20):
        chances = torch.sigmoid(design @ weights)
        hessian = design.t() @ (design * (chances * (1 - chances))[:, None])
        weights += torch.linalg.solve(hessian, design.t() @ (train.target - chances))
    logits = F.pad(judge.dense.double(), (0, 1), value=1.0) @ weights
    expected = F.binary_cross_entropy_with_logits(logits, judge.target.double()).item()
    measured = fit_logistic(data, 0.0).measured
    assert measured["dense_alone"] == pytest.approx(expected, rel=1e-4)


def test_the_weight_decay_of_the_logistic_regression_is_the_best_in_validation():
    data, losses = clicks(), {}
    for decay in first_order.DECAYS:
        found = fit_logistic(data, 0.0, decays=[decay]).measured
        losses[decay] = found["validation"]["log_loss"]
    tuned = fit_logistic(data, 0.0).measured
    rises = next(n for n, (a, b) in enumerate(pairwise([*losses.values(), math.inf])) if b > a)
    best = first_order.DECAYS[rises]  # of a path that ends there
    assert (tuned["weight_decay"], tuned["validation"]["log_loss"]) == (best, losses[best])
