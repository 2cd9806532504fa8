"""Random plans and lookups for hypothesis."""

import os
import warnings

import numpy as np
import torch
from hypothesis import strategies as st

import mixdim

ROUNDINGS = ("power_of_two", "integer")
FEWER_EXAMPLES = "MIXDIM_FEWER_EXAMPLES"  # in the environment: where the same is tried once more


def examples(number):
    """How many random examples a test tries: a part of them where they are tried once more."""
    return number // int(os.environ.get(FEWER_EXAMPLES, "1"))


def quiet_plan(*args, **options):
    """A plan whose rows may sit at the floor: random plans often do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mixdim.FloorWarning)
        return mixdim.plan(*args, **options)


@st.composite
def feature_arguments(draw, *, most_features=4, most_rows=30):
    """Arguments of mixdim.plan that describe features: rows, counts, bands, ids per sample, min_dim."""
    rows = draw(st.lists(st.integers(1, most_rows), min_size=1, max_size=most_features))
    names = [f"f{i}" for i in range(len(rows))]
    count = st.integers(0, 50)
    counts = {
        name: draw(st.lists(count, min_size=n, max_size=n)) for name, n in zip(names, rows, strict=True)
    }
    bands = {name: draw(st.sampled_from([1, 1, 2, 3, 5, "octaves"])) for name in names}
    ids = {name: draw(st.floats(0.1, 5)) for name in names}
    rows_by_name = dict(zip(names, rows, strict=True))
    described = {"rows": rows_by_name, "counts": counts, "bands": bands, "ids_per_sample": ids}
    return {**described, "min_dim": draw(st.sampled_from([0, 1]))}


@st.composite
def plans(draw, **limits):
    """Plans with narrow, full-width, shared and single-row blocks, whole features and bands."""
    return quiet_plan(
        **draw(feature_arguments(**limits)),
        temperature=draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        base_dim=draw(st.integers(1, 12)),
        rounding=draw(st.sampled_from(ROUNDINGS)),
    )


@st.composite
def stored_plans(draw, **limits):
    """Plans whose blocks are stored in any way, some narrow and some not."""
    plan = draw(plans(**limits))
    for feature in plan.features:
        for band in range(len(feature.blocks)):
            if draw(st.booleans()):
                dim = draw(st.integers(1, plan.base_dim))
                storage = draw(
                    st.one_of(
                        st.builds(mixdim.Hashed, st.just(dim), st.integers(1, 5), st.integers(1, 3)),
                        st.builds(mixdim.QuotientRemainder, st.just(dim), st.integers(1, 9)),
                        st.builds(mixdim.Robe, st.just(dim), st.sampled_from([12, 13])),
                    )
                )
                plan = plan.with_storage(feature.name, storage, band=band)
    return plan


def drawn_layer(draw, plan):
    """A layer of a plan with any options that the kernels must heed."""
    return mixdim.FeatureEmbeddings(
        plan,
        sparse=draw(st.booleans()),
        ids=plan.orders if draw(st.booleans()) else None,
        padding_id=draw(st.sampled_from([None, -1, 0])),
        generator=torch.Generator().manual_seed(draw(st.integers(0, 1000))),
    )


def random_ids(plan, batch, generator, dtype=torch.int64):
    """Ids of every feature: (batch, features)."""
    columns = [
        torch.randint(feature.rows, (batch,), generator=generator, dtype=dtype)
        for feature in plan.features
    ]
    return torch.stack(columns, dim=1)


def random_bags(plan, batch, generator, *, longest=4):
    """Values and feature-major offsets of bags of 0 to `longest` ids, and the bags as lists."""
    bags = []  # feature-major
    for feature in plan.features:
        for _ in range(batch):
            length = int(torch.randint(longest + 1, (1,), generator=generator))
            bags.append(torch.randint(feature.rows, (length,), generator=generator))
    offsets = torch.from_numpy(np.cumsum([0, *(len(bag) for bag in bags)]))
    return torch.cat(bags) if bags else torch.zeros(0, dtype=torch.int64), offsets, bags
