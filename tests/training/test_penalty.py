"""The penalty equals its formula, and its gradient that of autograd through the dense matrices."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import mixdim
from mixdim.models import MODELS, MatrixFactorization
from mixdim.storages import Hashed, QuotientRemainder, Robe
from mixdim.training import LocalLearner, Trainer, preset
from mixdim.training.penalty import Penalty, rows_of_ids
from mixdim.training.random_effects import effects_of
from resumed_runs import OPTIONS, assert_same, fit_anew
from training_data import OwnModel, clicks, ratings, small_model

ROWS, BASE_DIM = {"user": 30, "item": 20}, 6
COUNTS = {name: np.arange(rows, 0, -1) ** 2 for name, rows in ROWS.items()}
STORAGES = [None, Hashed(3, buckets=7), QuotientRemainder(3, buckets=4), Robe(3, 40)]


def samples_of(batch=50):
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randint(n, (batch,), generator=generator) for n in ROWS.values()]
    return SimpleNamespace(ids=torch.stack(columns, dim=1))


def model_with(storage, *, dtype, **options):
    plan = mixdim.plan(ROWS, counts=COUNTS, bands=3, temperature=0.5, base_dim=BASE_DIM)
    if storage is not None:
        for name in ROWS:
            plan = plan.with_storage(name, storage)
    generator = torch.Generator().manual_seed(1)
    sides = [
        mixdim.MixedDimEmbedding(plan[name], dtype=dtype, generator=generator, **options)
        for name in plan
    ]
    model = MatrixFactorization(*sides, mean=3.5, biases=True).to(dtype)
    for bias in model.biases.parameters():
        nn.init.normal_(bias, generator=generator)
    return model


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_the_gradient_is_that_of_the_formula_on_the_dense_matrices(storage, sparse):
    model, samples = model_with(storage, dtype=torch.float64, sparse=sparse), samples_of()
    weights = [[torch.rand(n).double() for n in ROWS.values()] for _ in range(2)]
    seen = Penalty(*weights).of_batch(samples.ids)
    ratings_of_batch = model(samples, seen)
    torch.testing.assert_close(ratings_of_batch, model(samples))
    seen.total.mean().backward()
    found = {name: p.grad.to_dense() for name, p in model.named_parameters()}
    model.zero_grad()
    expected = 0.0
    sides = (model.user_embedding, model.item_embedding)
    for side, bias, ids, of_vectors, of_biases in zip(
        sides, model.biases.values(), samples.ids.T, *weights, strict=True
    ):
        vectors, own = side.dense_weight()[ids], bias.dense_weight()[ids, 0]
        expected = expected + (of_vectors[ids] * vectors.norm(dim=1) ** 2).mean()
        expected = expected + (of_biases[ids] * own**2).mean()
    torch.testing.assert_close(seen.total.mean(), expected)
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad.to_dense(), msg=name)


@pytest.mark.parametrize("name", ["mf", "ncf"])
def test_a_model_says_the_same_of_samples_whether_it_tells_what_it_looks_up_or_not(name):
    dataset = ratings()
    model, batch = small_model(name, dataset), dataset.rows(slice(0, 64))
    weights = [torch.ones(rows) for rows in dataset.cardinalities.values()]
    seen = Penalty(weights, weights).of_batch(batch.ids)
    torch.testing.assert_close(model(batch, seen), model(batch), rtol=1e-5, atol=1e-5)
    sides = zip((model.user_embedding, model.item_embedding), batch.ids.T, strict=True)
    squares = sum(side.dense_weight()[ids].square().sum(1) for side, ids in sides)
    torch.testing.assert_close(seen.total, squares, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [False, True])
def test_weights_are_those_of_the_formula_with_the_rows_that_training_has(dropout):
    data = ratings()
    effects, penalty = effects_of(data), Penalty.of(data, 1.3, unknown_dropout=dropout)
    for column, name in enumerate(data.single_valued):
        n = data.counts[name].astype(float)
        if dropout:
            kept = n - n / (1 + n)
            kept[data.unknown_ids[name]] += (n / (1 + n)).sum()
            n = kept
        occurs = n > 0
        of_vectors = 1.3 * np.sqrt(effects.noise) / np.sqrt(n[occurs])
        of_biases = effects.noise / effects.variances[column] / n[occurs]
        np.testing.assert_allclose(penalty.of_vectors[column][occurs], of_vectors, rtol=1e-5)
        np.testing.assert_allclose(penalty.of_biases[column][occurs], of_biases, rtol=1e-5)
        assert not penalty.of_vectors[column][~occurs].any()


def test_rows_under_unknown_dropout_are_those_that_batches_have():
    data, epochs = ratings(), 30
    for column, name in enumerate(data.single_valued):
        found = np.zeros(data.cardinalities[name])
        for epoch in range(epochs):
            for batch in data.batches("train", batch_size=400, epoch=epoch, unknown_dropout=True):
                np.add.at(found, batch.ids[:, column].numpy(), 1 / epochs)
        expected = rows_of_ids(data.counts[name], data.unknown_ids[name])
        assert expected.sum() == pytest.approx(data.counts[name].sum())
        np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(expected.max() / epochs))


def test_the_loss_that_is_told_is_without_the_penalty_and_a_strong_one_shrinks_vectors(tmp_path):
    def norm_after(penalty):
        torch.manual_seed(0)
        model = small_model("mf", ratings())
        before = LocalLearner(model, OPTIONS).forward(
            next(iter(ratings().batches("train", batch_size=150)))
        )
        first = (before - next(iter(ratings().batches("train", batch_size=150))).target).square().mean()
        told = replace(OPTIONS, penalty=penalty, shuffle=False)
        trainer = Trainer(LocalLearner(model, told), ratings(), told)
        trainer.step(trainer.schedule.batches(ratings(), after=0))
        assert trainer.last_loss == pytest.approx(first.item(), rel=1e-5)
        trainer.run()
        return sum(side.dense_weight().square().sum().item() for side in model.sides)

    assert norm_after(1000.0) < 0.5 * norm_after(0.0)


def test_with_a_penalty_a_kill_changes_nothing(tmp_path):
    dataset = ratings()
    options = replace(OPTIONS, penalty=1.3, schedule="linear", unknown_dropout=True)

    def make():
        return small_model("mf", dataset)

    straight = fit_anew(make, dataset, tmp_path / "straight", options=options)
    assert fit_anew(make, dataset, tmp_path / "run", kill_at=6, options=options) is None
    resumed = fit_anew(make, dataset, tmp_path / "run", resume=True, options=options)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")


def test_what_cannot_have_a_penalty_is_refused_in_a_line():
    options = replace(preset("paper-cf"), penalty=1.3, epochs=1)
    for dataset, model, message in [
        (ratings(), OwnModel(ratings()), "penalty needs a model that tells what it looks up"),
        (clicks(), small_model("dlrm", clicks()), "penalty is for ratings, .* is 'binary'"),
    ]:
        with pytest.raises(ValueError, match=message):
            mixdim.fit(model, dataset, options=options)
    with pytest.raises(ValueError, match="penalty must be at least 0, got -1"):
        replace(options, penalty=-1)
    assert {name for name, model in MODELS.items() if model.shows_vectors} == {"mf", "ncf"}
