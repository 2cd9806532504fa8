import numpy as np
import polars as pl
import pytest
import torch
from scipy.stats import chi2
from small_folder import write_small_folder

import mixdim.data
from mixdim.data.batches import UnknownDropout, thresholds
from mixdim.data.folder import FeatureMeta
from mixdim.data.table import prepare_table

EPOCHS = 12
DROPPED = {"batch_size": 128, "shuffle": True, "seed": 3, "unknown_dropout": True}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """10,000 rows with a heavy tail: user, item, and a bag of 0 to 4 tags."""
    folder, rng = tmp_path_factory.mktemp("dropout"), np.random.default_rng(0)
    tags = [rng.zipf(1.5, size) % 500 for size in rng.integers(0, 5, 10_000)]
    table = {
        "y": rng.integers(0, 2, 10_000),
        "user": rng.zipf(1.3, 10_000) % 5_000,
        "item": rng.zipf(1.6, 10_000) % 1_000,
        "tags": ["|".join(map(str, of_row)) for of_row in tags],
    }
    pl.DataFrame(table).write_parquet(folder / "raw.parquet")
    columns = {"target": "y", "categorical": ["user", "item"], "bags": {"tags": "|"}}
    prepare_table([folder / "raw.parquet"], folder / "data", **columns)
    return mixdim.data.open(folder / "data")


def ids_of(batches):
    """Ids of each feature, those of bags one after the other."""
    batches = list(batches)
    singles = torch.cat([batch.ids for batch in batches])
    values, offsets = zip(*(batch.bags["tags"] for batch in batches), strict=True)
    return {
        **{"user": singles[:, 0].numpy(), "item": singles[:, 1].numpy()},
        **{"tags": torch.cat(values).numpy(), "bag": torch.cat(offsets).numpy()},
    }


@pytest.fixture(scope="module")
def drawn(dataset):
    """Of each epoch, the ids before and after."""
    options = DROPPED | {"unknown_dropout": False}
    return [
        tuple(ids_of(dataset.batches("train", **told, epoch=epoch)) for told in (options, DROPPED))
        for epoch in range(EPOCHS)
    ]


def surprise(dataset, feature, before, after):
    """How much more often each id became unknown than it should, in standard deviations; by draw."""
    chance = 1 / (1 + dataset.counts[feature][before])
    return ((before != after) - chance) / np.sqrt(chance * (1 - chance))


@pytest.mark.parametrize("feature", ["user", "item", "tags"])
def test_ids_become_unknown_once_in_one_more_than_their_count(dataset, drawn, feature):
    unknown = {f.name: f.out_of_vocabulary for f in dataset.meta.features}[feature]
    before, after = (np.concatenate([epoch[when][feature] for epoch in drawn]) for when in (0, 1))
    changed = before != after
    assert set(after[changed]) == {unknown}
    counts = dataset.counts[feature][before]
    groups = np.minimum(np.frexp(counts)[1], 9)  # 1, 2-3, 4-7, ..., 256 and more
    statistic = 0.0
    for group in np.unique(groups):
        chance = 1 / (1 + counts[groups == group])
        found = changed[groups == group].sum()
        statistic += (found - chance.sum()) ** 2 / (chance * (1 - chance)).sum()
    assert len(np.unique(groups)) >= 7
    assert statistic < chi2.ppf(0.999, len(np.unique(groups)))


def test_fields_rows_values_of_a_bag_and_epochs_are_drawn_independently(dataset, drawn):
    """Each product of two surprises has mean 0 and variance 1 if the two are independent."""
    by_epoch = [
        {name: surprise(dataset, name, before[name], after[name]) for name in ("user", "item", "tags")}
        for before, after in drawn
    ]
    products = {
        "fields": [found["user"] * found["item"] for found in by_epoch],
        "rows": [found["user"][1:] * found["user"][:-1] for found in by_epoch],
        "values": [found["tags"][1:] * found["tags"][:-1] for found in by_epoch],
        "batches": [found["item"][128:] * found["item"][:-128] for found in by_epoch],
    }
    # Draws of different epochs, by their place: the rows there differ.
    pairs = zip(by_epoch[1:], by_epoch[:-1], strict=True)
    products["epochs"] = [one["user"] * other["user"] for one, other in pairs]
    for name, found in products.items():
        sums = np.concatenate(found)
        assert sums.sum() ** 2 / len(sums) < chi2.ppf(0.999, 1), name


def test_nothing_else_of_a_batch_changes(dataset, drawn):
    before, after = drawn[0]
    assert np.array_equal(before["bag"], after["bag"])
    told = DROPPED | {"unknown_dropout": False}
    for one, other in zip(
        dataset.batches("train", **told), dataset.batches("train", **DROPPED), strict=True
    ):
        assert torch.equal(one.dense, other.dense)
        assert torch.equal(one.target, other.target)
        assert (one.ids.dtype, one.bags["tags"][0].dtype) == (
            other.ids.dtype,
            other.bags["tags"][0].dtype,
        )


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("shuffle", [False, True])
def test_seed_epoch_and_place_decide_whatever_is_read_ahead(dataset, shuffle):
    told = DROPPED | {"shuffle": shuffle}
    first = ids_of(dataset.batches("train", **told))
    for prefetch in (0, 1, 9):
        assert same(first, ids_of(dataset.batches("train", **told, prefetch=prefetch)))
    for change in ({"seed": 4}, {"epoch": 1}):
        assert not same(first, ids_of(dataset.batches("train", **told | change)))


def test_a_stream_resumes_in_mid_epoch_with_the_same_bytes(dataset):
    whole = list(dataset.batches("train", **DROPPED, epoch=5))
    for done in (0, 1, 17, len(whole)):
        stream = dataset.batches("train", **DROPPED, epoch=5)
        for _ in range(done):
            next(stream)
        state = stream.state()
        assert state["unknown_dropout"] is True
        rest = list(dataset.resume(state, prefetch=2))
        assert len(rest) == len(whole) - done
        if rest:
            assert same(ids_of(rest), ids_of(whole[done:]))


def test_a_state_of_an_earlier_version_resumes_without_it(dataset):
    stream = dataset.batches("train", batch_size=128, shuffle=True, seed=3)
    next(stream)
    state = stream.state()
    assert state.pop("unknown_dropout") is False
    untouched = list(dataset.batches("train", batch_size=128, shuffle=True, seed=3, position=1))
    assert same(ids_of(dataset.resume(state)), ids_of(untouched))


def test_it_is_for_training_only(dataset):
    for split in ("validation", "test"):
        with pytest.raises(ValueError, match=f"unknown_dropout is for the split train only.*'{split}'"):
            dataset.batches(split, batch_size=4, unknown_dropout=True)


def test_ids_without_a_count_are_always_unknown_and_popular_ones_hardly_ever():
    feature = FeatureMeta("x", 4, 3, 3)
    dropout = UnknownDropout([feature], {"x": np.array([2**40, 1, 0, 0])})
    ids = np.tile(np.array([[0], [1], [2], [3]], np.int32), (500, 1))
    before = ids.copy()
    dropout.apply(ids, {}, seed=0, epoch=0, position=0)
    changed = (ids != before).reshape(500, 4)
    assert (ids[before == 2] == 3).all()
    assert (ids[before == 3] == 3).all()
    assert not changed[:, 0].any()
    assert 200 < changed[:, 1].sum() < 300


def test_chances_are_those_of_the_formula():
    counts = np.array([0, 1, 2, 9, 10**6, 2**32 - 1, 2**40])
    chances = (thresholds(counts).astype(float) + 1) / 2**32
    assert chances == pytest.approx(1 / (1 + counts), abs=2**-32)
    assert chances[0] == 1
    assert (thresholds(counts).dtype, chances[-1]) == (np.uint32, 2**-32)


@pytest.mark.parametrize("bags", [False, True])
def test_batches_of_a_few_rows_and_bags_of_none(tmp_path, bags):
    dataset = mixdim.data.open(write_small_folder(tmp_path / "data", bags=bags))
    for batch_size in (1, 3, 1000):
        found = list(dataset.batches("train", batch_size=batch_size, unknown_dropout=True))
        assert sum(len(batch.ids) for batch in found) == 70
        assert all(batch.ids.amax() <= 8 for batch in found)


def test_features_that_training_rows_never_ask_unknown_values_of_are_named(tmp_path):
    raw = tmp_path / "t.csv"
    raw.write_text("y,user,item\n" + "1,often,x\n" * 7 + "0,once,x\n1,new,x\n1,newer,x\n")
    columns = {"target": "y", "categorical": ["user", "item"], "split": "position"}
    for min_count, untrained in ((1, ("user", "item")), (2, ())):
        prepare_table([raw], tmp_path / f"{min_count}", min_count=min_count, **columns)
        assert mixdim.data.open(tmp_path / f"{min_count}").untrained_unknown == untrained
