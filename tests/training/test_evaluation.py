from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from mixdim.tasks import task_of
from mixdim.training import evaluate
from mixdim.training.evaluation import Interrupted, feature_to_slice_by, outputs_of
from training_data import OwnModel, clicks, clicks_with_bags, ratings, small_model


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_outputs_are_those_of_the_model_on_all_rows_at_once(split):
    dataset = clicks()
    model = small_model("dlrm", dataset)
    found = outputs_of(model, dataset, split, batch_size=17, with_ids_of="C3")
    whole = dataset.rows(slice(*dataset.splits[split]))
    with torch.no_grad():
        np.testing.assert_allclose(found.outputs, model(whole).numpy(), rtol=1e-5, atol=1e-6)
    assert (found.targets == whole.target.numpy()).all()
    assert (found.ids == whole.ids[:, dataset.single_valued.index("C3")].numpy()).all()


@pytest.mark.parametrize(("name", "dataset"), [("dlrm", clicks), ("mf", ratings)])
def test_metrics_and_slices_are_those_of_the_rows_in_each_third(name, dataset):
    dataset = dataset()
    model = small_model(name, dataset)
    feature = {"dlrm": "C3", "mf": "user"}[name]
    found = evaluate(model, dataset, "validation", batch_size=50, slice_by=feature)
    rows = outputs_of(model, dataset, "validation", batch_size=50, with_ids_of=feature)
    slices = found.pop("slices")
    assert found == task_of(dataset.task).measure(rows.outputs, rows.targets)
    # By hand: ids are ranks of popularity, so the mass before an id is a running sum.
    counts = dataset.counts[feature]
    before = np.cumsum(counts) - counts
    third_of_id = np.array([int(3 * b >= counts.sum()) + int(3 * b >= 2 * counts.sum()) for b in before])
    for third, label in enumerate(("popular", "middle", "rare")):
        chosen = third_of_id[rows.ids] == third
        assert slices[label] == task_of(dataset.task).measure(rows.outputs[chosen], rows.targets[chosen])
    assert sum(slices[label]["rows"] for label in slices) == found["rows"]


def test_metrics_are_cut_by_the_wanted_feature_or_item_or_the_largest():
    assert feature_to_slice_by(ratings()) == "item"
    assert feature_to_slice_by(ratings(), "user") == "user"
    largest = max(clicks().cardinalities.items(), key=lambda entry: entry[1])[0]
    assert feature_to_slice_by(clicks()) == largest
    with pytest.raises(ValueError, match=r"slice_by must be a single-valued .*user, item.*'movie'"):
        feature_to_slice_by(ratings(), "movie")


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_measured_without_dropout_and_left_in_its_mode(training):
    model = OwnModel(ratings()).train(training)
    first, second = (evaluate(model, ratings()) for _ in range(2))
    assert first == second
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


class Staying(OwnModel):
    """Counts how often it is told that its weights stay, and whether they do while it is called."""

    entered, stays = 0, False

    @contextmanager
    def frozen(self):
        self.entered += 1
        self.stays = True
        try:
            yield
        finally:
            self.stays = False

    def forward(self, batch):
        assert self.stays
        return super().forward(batch)


def test_layers_are_told_once_that_their_weights_stay_and_that_it_is_over():
    dataset = ratings()
    model = nn.Sequential(Staying(dataset))
    outputs_of(model, dataset, "validation", batch_size=50)
    assert (model[0].entered, model[0].stays) == (1, False)
    with pytest.raises(Interrupted):
        outputs_of(model, dataset, "validation", batch_size=50, stopped=lambda: True)
    assert (model[0].entered, model[0].stays) == (2, False)


def test_a_stop_is_noticed_between_two_batches_and_the_mode_restored():
    model = small_model("mf", ratings()).train()
    done = []
    with pytest.raises(Interrupted):
        outputs_of(
            model,
            ratings(),
            "train",
            batch_size=100,
            progress=lambda stage, *numbers: done.append((stage, *numbers)),
            stopped=lambda: len(done) == 2,
        )
    assert done == [("measuring train", 100, 800, ""), ("measuring train", 200, 800, "")]
    assert model.training


class Column(nn.Module):
    def forward(self, batch):
        return batch.target[:, None]


def test_a_column_instead_of_one_number_per_sample_is_refused():
    with pytest.raises(ValueError, match=r"one number per sample, shape \(64,\), got \(64, 1\)"):
        evaluate(Column(), ratings(), batch_size=64)


class PartlyInfinite(nn.Module):
    def forward(self, batch):
        return torch.where(batch.target > 3, torch.inf, batch.target)


def test_outputs_that_are_not_finite_are_counted():
    targets = ratings().rows(slice(*ratings().splits["test"])).target
    wrong = int((targets > 3).sum())
    assert 0 < wrong < 100
    with pytest.raises(
        FloatingPointError, match=f"{wrong} of 100 outputs on the test split are not fin"
    ):
        evaluate(PartlyInfinite(), ratings())


def test_an_unknown_split_is_answered_with_the_choices():
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        evaluate(Column(), ratings(), "dev")


class SizeOfItsBatch(nn.Module):
    def forward(self, batch):
        return torch.full_like(batch.target, len(batch.target))


@pytest.mark.parametrize("dataset", [clicks, clicks_with_bags])
def test_the_first_rows_are_measured_as_if_the_split_ended_there(dataset):
    dataset = dataset()
    head = dataset.head(25)
    assert list(head.splits.values()) == [(0, 25), (25, 25), (25, 25)]
    sizes = outputs_of(SizeOfItsBatch(), head, "train", batch_size=10).outputs
    assert sizes.tolist() == [10] * 20 + [5] * 5
    found = outputs_of(SizeOfItsBatch(), head, "train", batch_size=10, with_ids_of=head.single_valued[0])
    rows = dataset.rows(slice(0, 25))
    assert (found.targets == rows.target.numpy()).all()
    assert (found.ids == rows.ids[:, 0].numpy()).all()
    assert all((head.counts[name] == dataset.counts[name]).all() for name in dataset.counts)


def test_more_first_rows_than_there_are_leave_all_as_it_is():
    assert ratings().head(10**9).splits == ratings().splits
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        ratings().head(0)
