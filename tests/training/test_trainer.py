from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import mixdim
from fitted_guesses import OPTIONS, Guess, journal, saved_steps
from mixdim.data import Dataset
from mixdim.tasks import RATING, TASKS
from mixdim.training import (
    Checkpoints,
    LocalLearner,
    Trainer,
    auto_options,
    evaluate,
    load_weights,
    trainer,
)
from training_data import OwnModel, clicks, clicks_with_bags, ratings, raw_bytes, small_model


def test_a_run_is_plain_gradient_descent_over_the_batches():
    dataset, model = ratings(), Guess()
    options = replace(OPTIONS, optimizer="sgd", shuffle=True, seed=5)
    fitted = mixdim.fit(model, dataset, options=options, lr=0.01)
    guess, targets = 0.0, dataset.rows(slice(0, 800)).target.numpy()
    for epoch in range(3):
        order = np.arange(800)
        np.random.Generator(np.random.Philox(key=[5, epoch])).shuffle(order)
        for batch in targets[order].reshape(8, 100):
            guess -= 0.01 * 2 * (guess - batch.mean())
    assert model.guess.item() == pytest.approx(guess, rel=1e-4)
    validation = dataset.rows(slice(800, 900)).target.numpy()
    assert fitted.validation["last"]["mse"] == pytest.approx(
        ((validation - guess) ** 2).mean(), rel=1e-3
    )
    assert (fitted.steps, fitted.epochs_run, fitted.stopped_early) == (24, 3, False)


def test_the_journal_tells_the_mean_loss_and_every_evaluation(tmp_path):
    mixdim.fit(
        Guess(), ratings(), options=OPTIONS, optimizer="sgd", evaluations_per_epoch=2, out=tmp_path
    )
    train, validation = journal(tmp_path, "train"), journal(tmp_path, "validation")
    assert [record["step"] for record in train] == list(range(1, 25))
    assert [(record["step"], record["epoch"]) for record in validation] == [
        (4 * i, i / 2) for i in range(1, 7)
    ]
    targets = ratings().rows(slice(0, 800)).target.numpy()
    order = np.arange(800)
    np.random.Generator(np.random.Philox(key=[0, 0])).shuffle(order)
    assert train[0]["loss"] == pytest.approx((targets[order[:100]] ** 2).mean(), rel=1e-4)
    assert len(journal(tmp_path, "test")) == 1


class Overfits(nn.Module):
    """Its validation loss falls for the first `turn` epochs and then rises."""

    def __init__(self, turn):
        super().__init__()
        self.weight, self.turn = nn.Parameter(torch.zeros(())), turn

    def forward(self, batch):
        # 8 steps an epoch, each moves the weight by lr = 1: distance 0 after `turn` epochs.
        distance = (self.weight.detach() / 8 + self.turn).abs()
        moving = self.weight - self.weight.detach()
        return batch.target + (0 * distance + moving if self.training else distance)


class Falling(torch.autograd.Function):
    """Passes numbers on and says that less is better."""

    @staticmethod
    def forward(ctx, outputs, targets):
        return outputs.mean() * 0 + 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient.new_full((100,), 0.01), None


@pytest.fixture
def overfitting(monkeypatch):
    """Training moves the weight of `Overfits` by exactly -1 a step."""
    monkeypatch.setitem(TASKS, "rating", replace(RATING, loss=Falling.apply))
    return replace(OPTIONS, optimizer="sgd", lr=1.0, epochs=9)


@pytest.mark.parametrize("with_folder", [True, False])
def test_patience_counts_evaluations_and_the_best_weights_are_kept(tmp_path, overfitting, with_folder):
    model = Overfits(turn=3)
    out = tmp_path if with_folder else None
    fitted = mixdim.fit(model, ratings(), options=overfitting, patience=2, out=out)
    assert (fitted.steps, fitted.epochs_run, fitted.stopped_early) == (40, 5, True)
    assert fitted.validation["best"]["step"] == 24
    assert fitted.validation["last"]["step"] == 40
    assert fitted.validation["best"]["mse"] == pytest.approx(0, abs=1e-9)
    assert fitted.validation["last"]["mse"] == pytest.approx(4)
    assert fitted.test["last"]["mse"] == pytest.approx(4)
    assert model.weight.item() == -24
    if with_folder:
        assert saved_steps(tmp_path, "best") == [24]
        assert saved_steps(tmp_path)[-1] == 40


def test_patience_of_several_evaluations_an_epoch(overfitting):
    fitted = mixdim.fit(
        Overfits(turn=3), ratings(), options=overfitting, patience=2, evaluations_per_epoch=4
    )
    assert fitted.steps == 24 + 2 * 2


def test_without_patience_all_epochs_are_run(overfitting):
    fitted = mixdim.fit(Overfits(turn=3), ratings(), options=overfitting)
    assert (fitted.steps, fitted.validation["best"]["step"]) == (72, 24)


def test_a_start_that_is_measured_is_kept_where_training_only_harms(overfitting, tmp_path):
    model, options = Overfits(turn=0), replace(overfitting, patience=2)
    learner = LocalLearner(model, options)
    found = Trainer(learner, ratings(), options, out=tmp_path, measures_start=True).run()
    best = found.validation["best"]
    assert (found.steps, best["step"], best["epoch"], best["mse"]) == (16, 0, 0.0, 0.0)
    assert model.weight.item() == 0
    assert [record["step"] for record in journal(tmp_path, "validation")] == [0, 8, 16]
    options = replace(options, patience=3)  # to go on
    again = Trainer(LocalLearner(Overfits(turn=0), options), ratings(), options, out=tmp_path,
                    measures_start=True).run(resume=True)  # fmt: skip
    assert (again.steps, again.validation["best"]["step"]) == (24, 0)
    assert [record["step"] for record in journal(tmp_path, "validation")] == [0, 8, 16, 24]


def test_equal_evaluations_are_no_improvement(overfitting):
    fitted = mixdim.fit(Overfits(turn=0), ratings(), options=overfitting, patience=3, lr=1e-12)
    assert (fitted.steps, fitted.validation["best"]["step"]) == (32, 8)


@pytest.mark.parametrize(("name", "dataset"), [("dlrm", clicks), ("mf", ratings), ("ncf", ratings)])
def test_the_model_ends_with_the_best_weights_and_their_metrics(tmp_path, name, dataset):
    dataset, options = dataset(), replace(OPTIONS, epochs=6, lr=0.3)
    model = small_model(name, dataset)
    fitted = mixdim.fit(model, dataset, options=options, out=tmp_path)
    metric = {"binary": "log_loss", "rating": "mse"}[dataset.task]
    seen = {record["step"]: record["validation"][metric] for record in journal(tmp_path, "validation")}
    assert fitted.validation["best"]["step"] == min(seen, key=seen.get)
    assert fitted.validation["best"][metric] == min(seen.values())
    assert fitted.validation["best"]["step"] < fitted.validation["last"]["step"] == fitted.steps
    for which, checkpoint in (
        ("best", Checkpoints(tmp_path / "checkpoint").best()),
        ("last", Checkpoints(tmp_path / "checkpoint").newest()),
    ):
        again = small_model(name, dataset, seed=9)
        load_weights(again, checkpoint)
        assert (raw_bytes(again) == raw_bytes(model)) == (which == "best")
        measured = evaluate(again, dataset, "test", batch_size=100)
        assert {**measured, **fitted.test[which]} == fitted.test[which]


def test_the_same_run_without_a_folder_ends_with_the_same_bytes(tmp_path):
    models = [OwnModel(ratings()) for _ in range(2)]
    for model, out in zip(models, (None, tmp_path), strict=True):
        torch.manual_seed(3)
        mixdim.fit(model, ratings(), options=OPTIONS, out=out, checkpoint_every=2)
    assert raw_bytes(models[0]) == raw_bytes(models[1])


@pytest.mark.parametrize("sparse", [True, False])
def test_an_own_model_with_plain_tables_learns(sparse):
    model = OwnModel(ratings(), sparse=sparse)
    before = evaluate(model, ratings(), "train")["mse"]
    seen = []
    fitted = mixdim.fit(
        model, ratings(), options=OPTIONS, epochs=10, progress=lambda *told: seen.append(told)
    )
    assert evaluate(model, ratings(), "train")["mse"] < 0.6 * before
    assert fitted.slice_feature == "item"
    training = [told for told in seen if told[0] == "training"]
    assert [told[1] for told in training] == list(range(100, 8001, 100))
    assert all(told[2] == 8000 for told in training)
    assert training[-1][3].startswith("epoch 10/10, loss ")


def test_data_with_bags_goes_through_dlrm(tmp_path):
    dataset = clicks_with_bags()
    model = small_model("dlrm", dataset)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    mixdim.fit(model, dataset, options=OPTIONS, batch_size=10, out=tmp_path)
    assert all(not torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_a_model_that_returns_a_column_is_refused():
    class Column(OwnModel):
        def forward(self, batch):
            return super().forward(batch)[:, None]

    with pytest.raises(
        ValueError, match=r"must return one number per sample, shape \(100,\), got \(100"
    ):
        mixdim.fit(Column(ratings()), ratings(), options=OPTIONS)


def test_if_nothing_is_said_the_options_are_chosen_from_the_data():
    fitted = mixdim.fit(Guess(), clicks(), epochs=2)
    assert fitted.steps == 2 * 27  # 857 rows in batches of 32, not one batch of 4096


@pytest.mark.parametrize("wanted", [True, False])
def test_only_training_batches_have_ids_that_became_unknown(monkeypatch, wanted):
    told, batches = [], Dataset.batches

    def spied(self, split, **options):
        told.append((split, options.get("unknown_dropout")))
        return batches(self, split, **options)

    monkeypatch.setattr(Dataset, "batches", spied)
    mixdim.fit(Guess(3.5), ratings(), options=replace(OPTIONS, unknown_dropout=wanted))
    # Not said at all if it is off: data of one's own may know nothing of it.
    assert set(told) == {("train", True if wanted else None), ("validation", None), ("test", None)}


def test_data_gets_unknown_dropout_by_default_and_data_of_ones_own_does_not(monkeypatch):
    seen = []
    monkeypatch.setattr(trainer, "Schedule", lambda rows, options: seen.append(options) or 1 / 0)
    own = SimpleNamespace(**{name: getattr(clicks(), name) for name in ("task", "splits", "counts")})
    own.single_valued = clicks().single_valued
    for data in (clicks(), own):
        with pytest.raises(ZeroDivisionError):
            mixdim.fit(Guess(), data)
    chosen = auto_options("binary", 857)
    assert seen == [replace(chosen, unknown_dropout=True), chosen]


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    mixdim.fit(Guess(), ratings(), options=OPTIONS, out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match="holds a run already; resume=True continues it"):
        mixdim.fit(Guess(), ratings(), options=OPTIONS, out=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resume_needs_a_folder():
    with pytest.raises(ValueError, match="resume needs out"):
        mixdim.fit(Guess(), ratings(), resume=True)


def test_best_weights_do_not_pile_up_between_checkpoints(tmp_path):
    seen = []

    def progress(stage, done, total, note):
        seen.append(saved_steps(tmp_path, "best"))

    options = replace(OPTIONS, optimizer="sgd", lr=0.01, epochs=6)  # every evaluation is the best so far
    mixdim.fit(Guess(), ratings(), options=options, out=tmp_path, progress=progress)
    assert max(map(len, seen)) == 1
    assert saved_steps(tmp_path, "best") == [48]


@pytest.mark.parametrize("every", [None, 5])
def test_checkpoints_come_every_so_many_steps_or_minutes(tmp_path, monkeypatch, every):
    written = []
    monkeypatch.setattr(trainer, "SECONDS_BETWEEN_CHECKPOINTS", 1e9 if every else 0.0)
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, *told: written.append(told[:2]) or save(self, *told)
    )
    mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=1, checkpoint_every=every, out=tmp_path)
    steps = [step for kind, step in written if kind == "step"]
    assert steps == ([0, 5, 8] if every else list(range(9)))
