"""How well a model ranks items for users: recall@10 and NDCG@10 of a split's positives.

Knows nothing about files. A user's candidates are all items that he has no positive of in training;
those of them that he has a positive of in the split are relevant. The ten best by the model's output, of
equal ones those with lower ids, are recommended.

Memory holds the positives, 8 bytes each, and the scores of some users and items at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.tasks.metrics import PLACES, RANKING
from mixdim.training.candidates import CandidateRows, NoCandidatesError
from mixdim.training.devices import device_of
from mixdim.training.evaluation import Progress, evaluating
from mixdim.training.inputs import num_rows
from mixdim.training.pairs import Pairing, Positives, RowsOfPairs, find_positives, item_ids

SAMPLE = 1000  # users, for models whose output is no dot product
SEED = 0  # of the sample: the same users for all models
ITEMS_AT_ONCE = 1 << 16
SCORES_AT_ONCE = 1 << 24


@runtime_checkable
class ScoresPairs(Protocol):
    """A model whose output may be a dot product of a vector of each of two ids."""

    def pair_vectors(self, column: int, ids: Tensor) -> Tensor | None:
        """Vectors (ids, width) of ids of a column; None if the output is no dot product."""


class Scorer(Protocol):
    """The outputs of a model for pairs of users and items."""

    @property
    def items(self) -> np.ndarray:
        """The ids that are candidates, rising."""

    @property
    def items_at_once(self) -> int:
        """How many it takes together."""

    def blocks(self, items: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """For these items, the outputs of some users after others, (users, items), which may change."""


def ranking_metrics(
    model: nn.Module,
    data: RowsOfPairs,
    split: str = "test",
    *,
    sample: int = SAMPLE,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return recall@10 and ndcg@10 of a split, and in `ranking` what they were computed of, in words.

    Exact for a model whose output is a dot product; for others exact on a `sample` of users, 0 for none.
    Both are None if they cannot be computed, and `ranking` says why. Nothing is returned for data
    without negatives, and for training, whose positives are no candidates.
    """
    pairing, sample = data.pairing, whole_number(sample, "ranking_users", at_least=0)
    if pairing is None or split == "train" or not num_rows(data, split):
        return {}
    if not num_rows(data, "train"):
        return not_computed("the data has no training rows, whose items are left out")
    found = find_positives(data, split, pairing)
    is_product = _is_product(model, data, pairing)
    if not len(found.relevant) or (not sample and not is_product):
        return {}
    users, what = np.unique(found.relevant // found.num_items), ""
    of_users = f"{len(users):,} users"
    if not is_product and sample < len(users):
        chosen = np.random.default_rng(SEED).choice(len(users), sample, replace=False)
        of_users = f"{sample:,} of {len(users):,} users, seed {SEED}"
        users = users[np.sort(chosen)]
    with evaluating(model), torch.no_grad():
        scorer: Scorer
        if is_product:
            scorer = DotProducts(model, data, pairing, users)  # type: ignore[arg-type]  # it has vectors
        else:
            try:
                scorer = CandidateRows(model, data, pairing, found, users)
            except NoCandidatesError as error:
                return not_computed(str(error))
            what = scorer.words
        best = _best_items(scorer, users, found, progress, f"ranking {split}")
    popular = _best_items(Popularity(found, users, scorer.items), users, found)
    if best is None or popular is None:
        return not_computed("some outputs of candidates are not finite")
    by_popularity = " and ".join(f"{value:.4f}" for value in _metrics(found, users, popular).values())
    about = f"all {len(scorer.items):,} items, {of_users}{what}; by popularity alone {by_popularity}"
    return {**_metrics(found, users, best), "ranking": about}


def _metrics(found: Positives, users: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """The metrics of recommended items (users, places)."""
    hits, relevant = found.hits(users, best)
    return {name: metric(hits, relevant) for name, metric in RANKING.items()}


def not_computed(why: str) -> dict[str, Any]:
    """What stands in the place of metrics that were not computed."""
    return {**dict.fromkeys(RANKING), "ranking": f"not computed: {why}"}


def _is_product(model: nn.Module, data: RowsOfPairs, pairing: Pairing) -> bool:
    """Whether the model's output is a dot product of the user's and the item's vectors."""
    if not isinstance(model, ScoresPairs) or len(pairing.users) != 1 or len(data.single_valued) != 2:
        return False
    with torch.no_grad():
        none = torch.zeros(0, dtype=torch.int64, device=device_of(model))
        return model.pair_vectors(0, none) is not None


class DotProducts:
    """The outputs of a model that are dot products, but for a constant."""

    items_at_once = ITEMS_AT_ONCE

    def __init__(
        self, model: ScoresPairs, data: RowsOfPairs, pairing: Pairing, users: np.ndarray
    ) -> None:
        names = list(data.single_valued)
        self.model, self.users, self.items = model, users, item_ids(data, pairing)
        self.of_users, self.of_items = names.index(pairing.users[0]), names.index(pairing.item)
        self.device = device_of(model)  # type: ignore[arg-type]  # it is a module too

    def blocks(self, items: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """Outputs of some users after others, (users, items)."""
        of_items = self._vectors(self.of_items, items).t()
        step = max(1, SCORES_AT_ONCE // len(items))
        for first in range(0, len(self.users), step):
            here = slice(first, first + step)
            yield here, self._vectors(self.of_users, self.users[here]) @ of_items

    def _vectors(self, column: int, ids: np.ndarray) -> Tensor:
        vectors = self.model.pair_vectors(column, torch.from_numpy(ids).to(self.device))
        assert vectors is not None
        return vectors


class Popularity:
    """Scores that are the same for all users: how many have an item in training."""

    def __init__(self, found: Positives, users: np.ndarray, items: np.ndarray) -> None:
        counts = np.bincount(found.seen % found.num_items, minlength=found.num_items)
        begins, ends = found.bounds(found.seen, users, 0, found.num_items)
        # No user has seen more items than that, so those that follow are not recommended to anybody.
        enough = PLACES + int((ends - begins).max(initial=0))
        order = np.argsort(-counts[items], kind="stable")
        self.items, self.counts = np.sort(items[order[:enough]]), counts
        self.items_at_once, self.num_users = len(self.items), len(users)

    def blocks(self, items: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """The same for some users after others, (users, items)."""
        counts = torch.from_numpy(self.counts[items].astype(np.float32))
        step = max(1, SCORES_AT_ONCE // len(items))
        for first in range(0, self.num_users, step):
            here = min(step, self.num_users - first)
            yield slice(first, first + here), counts.repeat(here, 1)


def _best_items(
    scorer: Scorer,
    users: np.ndarray,
    found: Positives,
    progress: Progress | None = None,
    stage: str = "",
) -> np.ndarray | None:
    """The ids of the best candidates of each user, the best first, (users, PLACES); -1 for none.

    None if an output is not finite.
    """
    best = np.full((len(users), PLACES), -np.inf, np.float32)
    ids = np.full((len(users), PLACES), -1)
    done, total = 0, len(users) * len(scorer.items)
    for first in range(0, len(scorer.items), scorer.items_at_once):
        items = scorer.items[first : first + scorer.items_at_once]
        for here, scores in scorer.blocks(items):
            _leave_out(scores, *_seen_places(found, users[here], items))
            values, columns = best_of(scores)
            if bool(values.isnan().any()) or bool(values.isposinf().any()):
                return None
            # What was there before has lower ids, and goes first where outputs are equal.
            both = np.hstack([best[here], values.numpy(force=True)])
            both_ids = np.hstack([ids[here], items[columns.numpy(force=True)]])
            order = np.argsort(-both, axis=1, kind="stable")[:, :PLACES]
            best[here] = np.take_along_axis(both, order, axis=1)
            ids[here] = np.take_along_axis(both_ids, order, axis=1)
            done += len(scores) * len(items)
            if progress is not None:
                progress(stage, done, total, "")
    ids[np.isneginf(best)] = -1
    return ids


def _seen_places(
    found: Positives, users: np.ndarray, items: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns, among these users and rising items, of what is seen in training."""
    begins, ends = found.bounds(found.seen, users, int(items[0]), int(items[-1]) + 1)
    rows = np.repeat(np.arange(len(users)), ends - begins)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(ends - begins) - (ends - begins), ends - begins)
    seen = found.seen[np.repeat(begins, ends - begins) + within] % found.num_items
    columns = np.searchsorted(items, seen)
    there = items[columns] == seen  # not if it is no candidate for anybody
    return rows[there], columns[there]


def _leave_out(scores: Tensor, rows: np.ndarray, columns: np.ndarray) -> None:
    """Put what is no candidate below all others."""
    places = torch.from_numpy(rows).to(scores.device), torch.from_numpy(columns).to(scores.device)
    scores[places] = -torch.inf


def best_of(scores: Tensor, places: int = PLACES) -> tuple[Tensor, Tensor]:
    """The best scores of each row and their columns, the best first, of equal ones the lower column.

    >>> best_of(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3)
    (tensor([[3., 3., 2.]]), tensor([[1, 3, 2]]))
    """
    places, width = min(places, scores.shape[1]), scores.shape[1]
    # One more than wanted, which says where equal scores may or may not be among them.
    values, columns = scores.topk(min(places + 1, width))
    columns = columns[:, :places].sort(dim=1).values
    if width > places:
        for row in (values[:, places - 1] == values[:, places]).nonzero()[:, 0].tolist():
            reach = (scores[row] >= values[row, places - 1]).nonzero()[:, 0]
            order = scores[row, reach].sort(descending=True, stable=True).indices[:places]
            columns[row] = reach[order].sort().values
    values = scores.gather(1, columns)
    order = values.sort(dim=1, descending=True, stable=True).indices
    return values.gather(1, order), columns.gather(1, order)
