"""How the paper's experiments are run at each scale: data, options, widths, temperatures, seeds.

Knows nothing about figures, and opens no data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixdim.runs.config import RunConfig


@dataclass(frozen=True)
class Generated:
    """The synthetic data that stands in where no folder is given."""

    name: str  # as `mixdim generate` calls it
    rows: int
    scale: float  # cardinalities, as a share of the real ones


@dataclass(frozen=True)
class Protocol:
    """How one model is trained at one scale.

    Budgets are equal in parameters of the whole model, and are those of a uniform model of each of
    `uniform_dims`: so uniform can spend each wholly, and "the budget of width 2" means what it says.
    """

    task: str  # of the data: "binary" or "rating"
    config: RunConfig  # what all runs have in common
    generated: Generated | None  # None: there must be a folder
    uniform_dims: tuple[int, ...]
    temperatures: tuple[float, ...]  # from 0, uniform
    seeds: int
    warm: float  # the temperature to which uniform is compared in ablations
    focus_dim: int  # the budget of what is shown at one budget only
    few_dims: tuple[int, ...]  # the budgets of ablations
    bands: tuple[int, ...] = ()  # of Fig. 5


Scale = dict[str, Protocol]  # by study: "ctr", "mf", "ncf"


def paper() -> Scale:
    """The paper's protocol (App. B): Criteo Kaggle, MovieLens 27M, five seeds; data to be given.

    The paper does not say which budgets it swept: from width 1, "1 parameter per embedding vector", to
    the memory of its GPU. At width 1 there is nothing to share out, so we start at 2.
    """
    ctr = Protocol(
        task="binary",
        config=RunConfig(model="dlrm", preset="paper-ctr", evaluations_per_epoch=16),
        generated=None,
        uniform_dims=(2, 4, 8, 16, 32, 64),
        temperatures=(0.0, 0.1, 0.2, 0.3, 0.4),
        seeds=5,
        warm=0.3,
        focus_dim=2,  # Fig. 2a: the budget of uniform width 2
        few_dims=(2, 4, 8),
    )
    mf = Protocol(
        task="rating",
        # A dot product, as the paper says. It rounds to powers of two for Criteo only.
        config=RunConfig.of(model="mf", preset="paper-cf", biases=False, rounding="integer"),
        generated=None,
        uniform_dims=(2, 4, 8, 16, 32, 64),
        temperatures=(0.0, 0.2, 0.4, 0.6, 0.8),
        seeds=5,
        warm=0.4,
        focus_dim=8,  # 2^21 parameters for 330,000 rows are width 6.4
        few_dims=(8,),
        bands=(2, 4, 8, 16, 32),
    )
    ncf = replace(mf, config=RunConfig(model="ncf", preset="paper-cf", rounding="integer"))
    return {"ctr": ctr, "mf": mf, "ncf": ncf}


def small() -> Scale:
    """Hours on two cores: MovieLens 1M if it is given, and 2 million generated clicks.

    DLRM's MLPs are smaller than the paper's, since its tables are too.
    """
    full = paper()
    narrow = RunConfig.of(bottom=(128, 64), top=(128, 64), evaluations_per_epoch=8)
    ctr = replace(
        full["ctr"],
        config=narrow.merged_with(full["ctr"].config),
        generated=Generated("criteo-like", rows=2_000_000, scale=0.02),
        uniform_dims=(2, 4, 8, 16, 32),
        temperatures=(0.0, 0.2, 0.3, 0.4),
        seeds=3,
        few_dims=(2, 4),
    )
    ratings = Generated("movielens-like", rows=1_000_000, scale=0.03)
    mf, ncf = (
        replace(full[name], generated=ratings, uniform_dims=(2, 4, 8, 16, 32), seeds=3)
        for name in ("mf", "ncf")
    )
    return {"ctr": ctr, "mf": mf, "ncf": ncf}


def smoke() -> Scale:
    """Minutes for everything, on generated data: shows that all of it works, and is no evidence."""
    modest = small()
    tiny = RunConfig.of(bottom=(16,), top=(16,), batch_size=512, evaluations_per_epoch=4)
    ctr = replace(
        modest["ctr"],
        config=tiny.merged_with(modest["ctr"].config),
        generated=Generated("criteo-like", rows=40_000, scale=0.0005),
        uniform_dims=(2, 4, 8),
        temperatures=(0.0, 0.3),
        seeds=2,
        few_dims=(2,),
    )
    ratings = Generated("movielens-like", rows=40_000, scale=0.002)
    mf, ncf = (
        replace(
            modest[name],
            config=replace(modest[name].config, epochs=12, batch_size=2048),
            generated=ratings,
            uniform_dims=(2, 4, 8),
            temperatures=(0.0, 0.4),
            seeds=2,
            focus_dim=4,
            bands=(2, 8),
        )
        for name in ("mf", "ncf")
    )
    return {"ctr": ctr, "mf": mf, "ncf": ncf}


SCALES = {"smoke": smoke, "small": small, "paper": paper}
