import numpy as np
import pytest
import torch

import mixdim
from mixdim import Hashed, Rows
from mixdim.storages.hashing import hash_rows
from mixdim.training.memory import forecast_memory
from storage_contract import BASE_DIM, StorageContract


class TestHashed(StorageContract):
    storages = (
        Hashed(2, buckets=5),
        Hashed(BASE_DIM, 4),
        Hashed(3, 7, hashes=3),
        Hashed(1, 1, hashes=1),
    )


def murmur(number):
    """The finaliser of MurmurHash3, in Python's whole numbers."""
    number ^= number >> 16
    number = number * 0x85EBCA6B % 2**32
    number ^= number >> 13
    number = number * 0xC2B2AE35 % 2**32
    return number ^ number >> 16


def test_the_hash_is_the_one_that_is_documented():
    ranks = [0, 1, 2, 12345, 2**31, 2**32 - 1, 2**32, 2**40 + 17]
    expected = [
        [murmur((rank ^ rank >> 32 ^ k * 0x9E3779B9) % 2**32) for k in range(4)] for rank in ranks
    ]
    assert hash_rows(torch.tensor(ranks), 4).tolist() == expected


def test_rows_are_spread_evenly_and_the_two_hashes_differ():
    buckets = (hash_rows(torch.arange(100_000), 2) % 100).numpy()
    for column in buckets.T:
        counts = np.bincount(column, minlength=100)
        # Chi-squared with 99 degrees of freedom: beyond 160 once in ten thousand.
        assert ((counts - 1000) ** 2 / 1000).sum() < 160
    assert 800 < (buckets[:, 0] == buckets[:, 1]).sum() < 1200


def test_a_row_is_the_sum_of_its_shared_rows_lifted():
    plan = mixdim.plan({"x": 50}, temperature=0, base_dim=4).with_storage("x", Hashed(2, buckets=7))
    layer = mixdim.MixedDimEmbedding(plan)
    table, projection = layer.table_hashed2_2, layer.lift
    for row in (0, 17, 49):
        buckets = [murmur((row ^ k * 0x9E3779B9) % 2**32) % 7 for k in range(2)]
        expected = (table[buckets[0]] + table[buckets[1]]) @ projection
        torch.testing.assert_close(layer(torch.tensor(row)), expected)


def test_one_bucket_and_one_hash_is_one_row_for_all():
    plan = mixdim.plan({"x": 50}, temperature=0, base_dim=4)
    plan = plan.with_storage("x", Hashed(4, buckets=1, hashes=1))
    layer = mixdim.MixedDimEmbedding(plan)
    assert plan.num_parameters == 4
    assert torch.equal(layer(torch.arange(50)), layer.table_hashed1_4.expand(50, 4))


def test_it_costs_less_than_one_parameter_a_row():
    counts = {"item": np.arange(1000, 0, -1)}
    plan = mixdim.plan({"item": 1000}, counts=counts, bands=4, temperature=0.5, base_dim=8)
    small = plan
    for band in range(4):
        small = small.with_storage("item", Hashed(4, buckets=20), band=band)
    assert small.num_parameters == 4 * (20 * 4 + 4 * 8) < small.num_rows


def test_a_plan_shows_it():
    plan = mixdim.plan({"x": 5000, "y": 3}, temperature=0.1, base_dim=4)
    shown = str(plan.with_storage("x", Hashed(2, buckets=1000)))
    assert "temperature 0.1, then changed by hand" in shown
    assert "2 hashed, 1,000 x 2" in shown
    assert f"{1000 * 2 + 2 * 4:,}" in shown


def test_an_error_in_training_names_the_shared_row():
    plan = mixdim.plan({"x": 50}, temperature=0, base_dim=4).with_storage("x", Hashed(4, buckets=3))
    layer = mixdim.MixedDimEmbedding(plan, sparse=True)
    optimizer = mixdim.SparseAMSGrad(layer.named_parameters())
    (layer(torch.arange(50)) * float("nan")).sum().backward()
    with pytest.raises(FloatingPointError, match="shared row 0 of feature 'x'"):
        optimizer.step()


def test_fitting_is_least_squares():
    generator = np.random.default_rng(1)
    matrix, weights = generator.standard_normal((60, 5)), generator.exponential(size=60)
    plan = mixdim.plan({"x": 60}, temperature=0, base_dim=5).with_storage("x", Hashed(5, buckets=8))
    layer = mixdim.MixedDimEmbedding(plan, dtype=torch.float64)
    layer.fit_dense("x", matrix, weights)
    adds = np.zeros((60, 8))
    for column in (hash_rows(torch.arange(60), 2) % 8).numpy().T:
        adds[np.arange(60), column] += 1
    root = np.sqrt(weights)[:, None]
    best = adds @ np.linalg.lstsq(root * adds, root * matrix, rcond=None)[0]
    np.testing.assert_allclose(layer.dense_weight().numpy(force=True), best, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "dim must be at least 1, got 0"),
        ((2, 0), "buckets must be at least 1, got 0"),
        ((2, 5, 0), "hashes must be at least 1, got 0"),
        ((2, 2**32), r"buckets must be below 2\^32"),
        ((2, 1.5), "buckets must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Hashed(*arguments)


def test_it_is_another_value_than_a_narrow_one():
    assert Hashed(2, 5) == Hashed(2, 5, hashes=2)
    assert Hashed(2, 5) != Rows(2)
    assert Hashed(2, 5) != Hashed(2, 6)


@pytest.mark.parametrize("storage", [Hashed(4, buckets=1, hashes=1), Hashed(4, 500, hashes=9)])
def test_rows_start_as_long_as_narrow_ones(storage):
    plan = mixdim.plan({"x": 5000}, temperature=0, base_dim=4)
    hashed = plan.with_storage("x", storage)
    lengths = []
    for seed in range(20):
        for one in (plan, hashed):
            layer = mixdim.MixedDimEmbedding(one, generator=torch.Generator().manual_seed(seed))
            lengths.append(layer.dense_weight().square().mean().item())
    narrow, shared = np.mean(lengths[::2]), np.mean(lengths[1::2])
    assert narrow == pytest.approx(6 / (5000 + 4) / 3, rel=0.02)  # the variance that Xavier gives
    assert 0.5 < shared / narrow < 2


@pytest.mark.parametrize("storage", [Hashed(8, 2000, hashes=8), Hashed(8, 1, hashes=1)])
def test_the_memory_forecast_covers_its_gradient(storage):
    plan = mixdim.plan({"x": 5000}, temperature=0, base_dim=8).with_storage("x", storage)
    layer = mixdim.MixedDimEmbedding(plan, sparse=True)
    layer(torch.randint(5000, (4096,))).sum().backward()
    gradient = layer.get_parameter(f"table_{storage.group}").grad
    held = gradient._indices().nbytes + gradient._values().nbytes
    sizes = {"batch_size": 4096, "num_ids": 1, "num_dense": 0, "train_rows": 1, "evaluation_rows": 1}
    forecast = forecast_memory(layer, optimizer="amsgrad", **sizes)
    assert held <= forecast.gradients <= 3 * held
