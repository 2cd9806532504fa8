"""First weights: uniform, each by its place, and without a pattern between tensors."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

import mixdim
from mixdim.storages.init import BlockInit, Uniform, seed_from

ODDS = 1e-4  # a draw that is right fails a test once in so many


def drawn(key, count, bound=1.0, first=0):
    tensor = torch.empty(count)
    Uniform(key, bound).fill(tensor, first)
    return tensor.numpy()


def of_block(feature=0, block=0, seed=7):
    return BlockInit("xavier", seed, feature, block)


def test_numbers_are_the_halves_of_the_published_words_of_splitmix64():
    words = [
        *(6457827717110365317, 3203168211198807973, 9817491932198370423),
        *(4593380528125082431, 16408922859458223821),
    ]
    halves = [word >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
    signed = [half - 2**32 * (half >> 31) for half in halves]
    assert drawn(1234567, 10).tolist() == np.float32(np.divide(signed, 2**31)).tolist()


@pytest.mark.parametrize("bound", [1e-3, 1.0])
def test_numbers_are_uniform(bound):
    found = drawn(seed_from(None), 200_001, bound) / bound
    assert np.abs(found).max() <= 1
    assert stats.kstest(found, stats.uniform(-1, 2).cdf).pvalue > ODDS
    bits = found[:200_000].astype(np.float64) * 2**31 + 2**31
    for modulus in (16, 1000):  # of the upper bits, which float32 keeps
        counts = np.bincount((bits / 256).astype(np.int64) % modulus)
        assert stats.chisquare(counts).pvalue > ODDS
    pairs = np.floor((found[:200_000].reshape(-1, 2) + 1) * 16).clip(max=31) @ [32, 1]
    assert stats.chisquare(np.bincount(pairs.astype(int), minlength=1024)).pvalue > ODDS


def test_any_range_and_any_rows_drawn_alone_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr("mixdim.storages.init.AT_ONCE", 8)
    whole = drawn(3, 60)
    monkeypatch.undo()
    assert (whole == drawn(3, 60)).all()
    for first, count in itertools.product(range(0, 20), (0, 1, 2, 7, 8, 9, 40)):
        monkeypatch.setattr("mixdim.storages.init.AT_ONCE", 8)
        assert (drawn(3, count, first=first) == whole[first : first + count]).all()
    for width in (1, 2, 3, 4, 5, 10):
        rows = torch.tensor([4, 0, 1, 5, 3, 3])
        expected = whole[: 60 // width * width].reshape(-1, width)[rows]
        assert (Uniform(3, 1.0).rows(rows, width).numpy() == expected).all()
    assert Uniform(3, 1.0).rows(torch.tensor([], dtype=torch.int64), 3).shape == (0, 3)
    far = 2**40 + 1
    assert (Uniform(3, 1.0).rows(torch.tensor([far]), 5).numpy() == drawn(3, 5, first=5 * far)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_have_the_same_numbers_as_float32(dtype):
    tensor = torch.empty(3, 5, dtype=dtype)
    Uniform(1, 0.5).fill(tensor)
    assert torch.equal(tensor, torch.from_numpy(drawn(1, 15, 0.5)).view(3, 5).to(dtype))


def test_features_blocks_tensors_and_layers_are_not_correlated():
    size = 20_000
    keys = [
        how.key
        for seed, feature, block in itertools.product((0, 1, 2**62), range(3), range(3))
        for how in (
            of_block(feature, block, seed).rows(4, 9),
            of_block(feature, block, seed).projection(4, 9),
        )
    ]
    assert len(set(keys)) == len(keys)
    numbers = np.stack([drawn(key, size + 1) for key in keys]).astype(np.float64)
    shifted = [numbers[:, :-1], numbers[:, 1:]]
    for these, others in itertools.product(shifted, repeat=2):
        found = np.corrcoef(these, others)[: len(keys), len(keys) :]
        if these is others:
            found = found[~np.eye(len(keys), dtype=bool)]
        assert np.abs(found).max() * np.sqrt(size) < 5.5  # standard deviations, of 12,000 pairs


def test_successive_layers_of_one_generator_differ_and_meta_takes_nothing_from_it():
    plan, generator = mixdim.plan({"a": 5, "b": 5}, temperature=0, base_dim=4), torch.Generator()
    first, second = (
        mixdim.FeatureEmbeddings(plan, generator=generator.manual_seed(seed)).table_4 for seed in (1, 2)
    )
    third = mixdim.FeatureEmbeddings(plan, generator=generator).table_4
    state = generator.get_state()
    mixdim.FeatureEmbeddings(plan, generator=generator, device="meta")
    assert torch.equal(generator.get_state(), state)
    parts = [part for table in (first, second, third) for part in table.view(2, -1)]
    for these, others in itertools.combinations(parts, 2):
        assert not torch.isin(these, others).any()


def test_a_feature_is_drawn_alike_whatever_other_features_there_are():
    one = mixdim.plan({"a": 30, "b": 20}, temperature=0, base_dim=4)
    other = mixdim.plan({"a": 30, "b": 20, "c": 9}, temperature=0, base_dim=4)
    layers = [
        mixdim.FeatureEmbeddings(plan, generator=torch.Generator().manual_seed(1))
        for plan in (one, other)
    ]
    for name in one:
        assert torch.equal(*(layer.dense_weight(name) for layer in layers))
