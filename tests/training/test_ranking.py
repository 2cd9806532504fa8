"""recall@10 and NDCG@10 against brute force over rows made by hand, and against other libraries."""

import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from mixdim.data import Dataset
from mixdim.data.table import prepare_table
from mixdim.models import MatrixFactorization
from mixdim.tasks import RANKING
from mixdim.training import candidates, ranking
from mixdim.training.ranking import DotProducts, best_of, ranking_metrics

USERS, ITEMS = 40, 50
DRAWN = {"negatives": 2, "negatives_of": "item", "negatives_for": ["user"], "split": "column:part"}


def bought(seed=0, rows=900):
    """Purchases: some without a user or item, some of items that training never has."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, USERS, rows), (ITEMS * rng.random(rows) ** 2).astype(int)
    part = rng.choice(["train", "train", "train", "validation", "test"], rows)
    names = [f"i{n}" if n % 9 or p != "train" else "" for n, p in zip(items, part, strict=True)]
    return pl.DataFrame({
        "user": [f"u{n}" if n else "" for n in users],
        "item": names,
        "part": part,
        "hour": rng.integers(0, 24, rows),
        "city": [f"c{n % 5}" for n in users],
        "genres": ["|".join(f"g{g}" for g in range(4) if n >> g & 1) for n in items],
        "kind": [f"k{n % 7}" for n in items],
        "pages": items * 1.5,
        "age": users * 0.5,
        "price": items + 0.01 * rng.normal(size=rows),
    })  # fmt: skip


def prepared(folder, **columns):
    frame = bought()
    frame.write_csv(folder / "buys.csv")
    told = {"categorical": ["user", "item"], **DRAWN, **columns}
    prepare_table([folder / "buys.csv"], folder / "data", **told)
    return Dataset(folder / "data")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return prepared(
        tmp_path_factory.mktemp("wide"),
        categorical=["hour", "kind", "user", "city", "item"],
        dense=["age", "pages"],
        bags={"genres": "|"},
    )


def values_of(data):
    """The value of each id of user and item, None where it is none."""
    found = {}
    for name in ("user", "item"):
        table = pl.read_parquet(data.path / "vocabulary" / f"{data.feature_names.index(name)}.parquet")
        found[name] = [
            value if kind == "value" else None
            for value, kind in zip(table["value"], table["kind"], strict=True)
        ]
    return found


def brute_force(data, outputs_of, split="test", users=None):
    """The metrics by sorting each user's candidates; `outputs_of(user, items, row)` asks a model."""
    batch, values = data.rows(slice(0, data.meta.num_rows)), values_of(data)
    columns = [data.single_valued.index(name) for name in ("user", "item")]
    ids = batch.ids.numpy()[:, columns].tolist()
    has = {name: {} for name in ("train", split)}
    first = {}
    for name, found in has.items():
        for row in range(*data.splits[name]):
            user, item = ids[row]
            if batch.target[row] and values["user"][user] and values["item"][item]:
                found.setdefault(user, set()).add(item)
                if name == split and item not in has["train"].get(user, ()):
                    first.setdefault(user, row)
    recalls, ndcgs = [], []
    for user in sorted(first) if users is None else users:
        seen = has["train"].get(user, set())
        relevant = has[split][user] - seen
        items = [item for item, value in enumerate(values["item"]) if value and item not in seen]
        outputs = dict(zip(items, outputs_of(user, items, first[user]), strict=True))
        best = sorted(items, key=lambda item: (-outputs[item], item))[:10]
        gains = [1 / math.log2(place + 2) for place, item in enumerate(best) if item in relevant]
        ideal = sum(1 / math.log2(place + 2) for place in range(min(10, len(relevant))))
        recalls.append(len(relevant & {*best}) / len(relevant))
        ndcgs.append(sum(gains) / ideal)
    return {"recall@10": np.mean(recalls), "ndcg@10": np.mean(ndcgs)}, len(recalls)


def factorization(data, generator, *, biases=True):
    """Vectors of few whole numbers: products are exact, and many are equal."""
    tables = [nn.Embedding(len(data.counts[name]), 3) for name in data.single_valued]
    model = MatrixFactorization(*tables, mean=0.5, biases=biases)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_dot_products_are_ranked_as_by_sorting_ties_by_lower_id(pairs, monkeypatch, split, biases):
    model = factorization(pairs, torch.Generator().manual_seed(5), biases=biases)

    def outputs_of(user, items, row):
        ids = torch.tensor([[user, item] for item in items])
        return model(SimpleNamespace(ids=ids)).tolist()

    expected, users = brute_force(pairs, outputs_of, split)
    found = ranking_metrics(model, pairs, split, sample=0)
    words = f"all {sum(map(bool, values_of(pairs)['item']))} items, {users} users; by popularity alone "
    assert found.pop("ranking").startswith(words)
    assert found == pytest.approx(expected)
    assert 0 < expected["recall@10"] < 1
    monkeypatch.setattr(DotProducts, "items_at_once", 7)  # some users and items after others
    monkeypatch.setattr(ranking, "SCORES_AT_ONCE", 40)
    assert ranking_metrics(model, pairs, split).items() >= found.items()


class Asked(nn.Module):
    """A model of all that a row has, with whole numbers as outputs, so that many are equal."""

    def __init__(self, data):
        super().__init__()
        sizes = {name: len(counts) for name, counts in data.counts.items()}
        self.tables = nn.ModuleDict({name: nn.EmbeddingBag(n, 1) for name, n in sizes.items()})
        self.names, self.asked = data.single_valued, 0
        for table in self.tables.values():
            table.weight.data.copy_(torch.randint(-3, 4, table.weight.shape))

    def forward(self, batch):
        self.asked += len(batch.ids)
        sums = [self.tables[n](batch.ids[:, [i]])[:, 0] for i, n in enumerate(self.names)]
        sums += [self.tables[n](v, o[:-1])[:, 0].round() for n, (v, o) in batch.bags.items()]
        item = sums[self.names.index("item")]  # meets all others, so that each decides an order
        return (1 + item) * (sum(sums) + (3 * batch.dense.sum(1)).round())


def test_other_columns_are_those_of_the_users_row_or_looked_up_by_the_item(wide, monkeypatch):
    torch.manual_seed(3)
    model, everything = Asked(wide), wide.rows(slice(0, wide.meta.num_rows))
    item_column, kind = (wide.single_valued.index(name) for name in ("item", "kind"))
    pages = wide.dense_names.index("pages")
    positive_of = {}
    for row in range(*wide.splits["train"]):
        if everything.target[row]:
            positive_of.setdefault(int(everything.ids[row, item_column]), row)

    def outputs_of(user, items, row):
        own = wide.rows(np.full(len(items), row))
        others = wide.rows(np.array([positive_of[item] for item in items]))
        own.ids[:, item_column] = torch.tensor(items)
        own.ids[:, kind], own.dense[:, pages] = others.ids[:, kind], others.dense[:, pages]
        return model(own._replace(bags=others.bags)).tolist()

    expected, users = brute_force(wide, outputs_of)
    monkeypatch.setattr(candidates.CandidateRows, "items_at_once", 7)
    found = ranking_metrics(model, wide)
    said = f"items, {users} users; genres, kind, pages of each item looked up; by popularity alone "
    assert said in found.pop("ranking")
    assert found == pytest.approx(expected)
    assert 0 < expected["recall@10"] < 1


def test_a_sample_of_users_is_the_same_for_all_models_and_said(pairs):
    class Other(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.users = model, set()

        def forward(self, batch):
            self.users |= {*batch.ids[:, 0].tolist()}
            return self.model(batch)

    models = [Other(factorization(pairs, torch.Generator().manual_seed(n))) for n in (1, 2)]
    found = [ranking_metrics(model, pairs, sample=7) for model in models]
    assert models[0].users == models[1].users
    assert len(models[0].users) == 7
    assert "items, 7 of " in found[0]["ranking"]
    assert " users, seed 0; by popularity" in found[0]["ranking"]

    def outputs_of(user, items, row):
        ids = torch.tensor([[user, item] for item in items])
        return models[0].model(SimpleNamespace(ids=ids)).tolist()

    expected, _ = brute_force(pairs, outputs_of, users=sorted(models[0].users))
    assert {name: found[0][name] for name in RANKING} == pytest.approx(expected)
    assert ranking_metrics(models[0], pairs, sample=0) == {}
    assert ranking_metrics(models[0].model, pairs, "train") == {}


def test_a_column_that_follows_the_item_without_being_decided_by_it_is_refused(tmp_path):
    data = prepared(tmp_path, dense=["price"])
    found = ranking_metrics(Asked(data), data)
    assert (found["recall@10"], found["ndcg@10"]) == (None, None)
    assert found["ranking"].startswith("not computed: price follows the item and is not the same in all")


def test_outputs_that_are_not_finite_are_no_ranking(pairs):
    model = factorization(pairs, torch.Generator().manual_seed(0))
    model.item_embedding.weight.data[3] = float("nan")
    found = ranking_metrics(model, pairs)
    assert found["recall@10"] is None
    assert found["ranking"] == "not computed: some outputs of candidates are not finite"


def test_the_best_are_those_of_a_sort_by_score_then_column():
    rng = np.random.default_rng(1)
    for width in (1, 9, 10, 11, 40):
        scores = rng.integers(0, 6, (30, width)).astype(np.float32)
        scores[rng.random(scores.shape) < 0.3] = -np.inf
        values, columns = best_of(torch.from_numpy(scores.copy()))
        for row, own in enumerate(scores.tolist()):
            order = sorted(range(width), key=lambda column: (-own[column], column))[:10]
            assert columns[row].tolist() == order
            assert values[row].tolist() == [own[column] for column in order]


def test_ndcg_is_that_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="pip install 'mixdim[compress-tests]'")
    rng, users, items = np.random.default_rng(2), 50, 30
    scores = rng.permuted(np.tile(np.arange(items), (users, 1)), axis=1)
    relevant = rng.random((users, items)) < rng.random((users, 1)) * 0.8
    relevant[:, 0] = True
    hits = np.take_along_axis(relevant, np.argsort(-scores, axis=1)[:, :10], axis=1)
    expected = theirs.ndcg_score(relevant, scores, k=10)
    assert RANKING["ndcg@10"](hits, relevant.sum(axis=1)) == pytest.approx(expected)
