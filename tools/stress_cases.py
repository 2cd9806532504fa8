"""Random layers, optimizers and states: they equal the dense matrix and torch's Adam, or they raise.

A family draws its cases with hypothesis, in processes of their own: a crash is counted, with its seed.
"""

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import nn

import mixdim
from forks import Fork
from strategies import plans, random_bags, random_ids

PER_PROCESS = 250
CLOSE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
}
seeds = st.integers(0, 2**32 - 1)


def seeded(number):
    return torch.Generator().manual_seed(number)


@st.composite
def layers(draw, **options):
    """A layer of some plan, order, padding and dtype, and a generator for what is looked up."""
    plan, generator = draw(plans()), seeded(draw(seeds))
    order = {
        feature.name: torch.randperm(feature.rows, generator=generator).tolist()
        for feature in plan.features
        if len(feature.blocks) > 1 and draw(st.booleans())
    }
    layer = mixdim.FeatureEmbeddings(
        plan,
        ids=order,
        sparse=draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        padding_id=draw(st.sampled_from([None, -1, 0, 3])),
        generator=generator,
        **{name: draw(strategy) for name, strategy in options.items()},
    )
    return layer, generator


def gradients_of(layer, value):
    """The gradients of a value by the layer's parameters, dense and by name."""
    layer.zero_grad(set_to_none=True)
    value.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
        for name, p in layer.named_parameters()
    }


def check_equal(layer, found, expected, generator):
    """Two ways to the same vectors agree, and so do the gradients of the layer's parameters."""
    torch.testing.assert_close(found, expected, **CLOSE[found.dtype])
    upstream = torch.randn(found.shape, generator=generator, dtype=found.dtype)
    mine, theirs = (gradients_of(layer, (way * upstream).sum()) for way in (found, expected))
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], **CLOSE[found.dtype])


def ids_for(layer, batch, generator, dtype):
    """Ids of every feature, a few of them padding if the layer knows any."""
    ids = random_ids(layer.plan, batch, generator, dtype)
    if layer.padding_id is not None:
        ids[torch.rand(ids.shape, generator=generator) < 0.2] = layer.padding_id
    return ids


def dense_vectors(layer, ids):
    """The vectors of ids (batch, feature) out of the dense matrix; zeros for what is no row."""
    columns = []
    for place, feature in enumerate(layer.plan.features):
        column = ids[:, place].long()
        inside = (column >= 0) & (column < feature.rows)
        vectors = layer.dense_weight(feature.name)[column.where(inside, torch.zeros_like(column))]
        columns.append(vectors * inside[:, None])
    return torch.stack(columns, dim=1)


def in_range(layer, ids):
    """Whether the layer must take the ids: padding counts as in range."""
    rows = torch.tensor([feature.rows for feature in layer.plan.features])
    return bool(((ids == layer.padding_id) | ((ids >= 0) & (ids < rows))).all())


@given(layers(), st.integers(0, 9), st.sampled_from([torch.int32, torch.int64]))
def single_ids(made, batch, dtype):
    layer, generator = made
    ids = ids_for(layer, batch, generator, dtype)
    expected = dense_vectors(layer, ids)
    check_equal(layer, layer(ids), expected, generator)


@given(layers(), st.integers(1, 9), seeds, st.integers(-(2**31), 2**31 - 1))
def ids_out_of_range(made, batch, place, bad):
    layer, generator = made
    ids = ids_for(layer, batch, generator, torch.int64)
    ids.view(-1)[place % ids.numel()] = bad
    if in_range(layer, ids):
        layer(ids)
    else:
        _raises(IndexError, lambda: layer(ids))


@given(
    layers(pooling=st.sampled_from(["sum", "mean", "max", "product"])),
    st.integers(0, 5),
    st.booleans(),
)
def bags(made, batch, weighted):
    layer, generator = made
    values, offsets, lists = random_bags(layer.plan, batch, generator)
    weights = None
    if weighted and layer.pooling == "sum":  # others take none
        dtype = next(layer.parameters()).dtype
        weights = torch.rand(len(values), generator=generator, dtype=dtype) + 0.5
    found = layer.bags(values, offsets, weights)
    pooled = []
    start = 0
    for number, bag in enumerate(lists):  # feature-major
        feature = layer.plan.features[number // batch]
        keep = torch.ones_like(bag, dtype=torch.bool)
        if layer.padding_id is not None:
            keep = bag != layer.padding_id
        vectors = layer.dense_weight(feature.name)[bag[keep]]
        if weights is not None:
            vectors = vectors * weights[start : start + len(bag)][keep][:, None]
        pooled.append(_pooled(vectors, layer.pooling))
        start += len(bag)
    if not pooled:
        assert found.shape == (0, layer.plan.num_features, layer.base_dim)
        return
    shape = (layer.plan.num_features, batch, layer.base_dim)
    expected = torch.stack(pooled).view(shape).transpose(0, 1)
    check_equal(layer, found, expected, generator)


def _pooled(vectors, pooling):
    if len(vectors) == 0 and pooling != "product":
        return vectors.sum(0)  # zeros
    match pooling:
        case "sum":
            return vectors.sum(0)
        case "mean":
            return vectors.mean(0)
        case "max":
            return vectors.max(0).values
    return vectors.prod(0)


@given(layers(), st.integers(1, 9), st.sampled_from([0, 1, 10**6, -1]))
def ids_changed_in_place(made, batch, new):
    """The backward pass raises, or trains the rows of the ids as they were: the plain path may."""
    layer, generator = made
    ids = ids_for(layer, batch, generator, torch.int64)
    out, expected = layer(ids).sum(), gradients_of(layer, dense_vectors(layer, ids).sum())
    ids.fill_(new)
    try:
        found = gradients_of(layer, out)
    except RuntimeError:
        return
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], **CLOSE[gradient.dtype])


@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.sampled_from(["dense", "rows"]), min_size=1, max_size=8),
    st.booleans(),
    seeds,
)
def optimizer_steps(rows, width, dtype, kinds, reload, number):
    """SparseAMSGrad is AdamW(amsgrad=True) as long as every step touches every row."""
    generator = seeded(number)
    start = torch.randn(rows, width, generator=generator, dtype=dtype)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": number % 3 * 0.5}
    optimizer = mixdim.SparseAMSGrad([mine], **options)
    adam = torch.optim.AdamW([theirs], amsgrad=True, **options)
    for step, kind in enumerate(kinds):
        theirs.grad = torch.randn(rows, width, generator=generator, dtype=dtype)
        if kind == "dense":
            mine.grad = theirs.grad.clone()
        else:
            order = torch.randperm(rows, generator=generator)
            mine.grad = torch.sparse_coo_tensor(
                order[None], theirs.grad[order], (rows, width), check_invariants=True
            )
        optimizer.step()
        adam.step()
        if reload and step == len(kinds) // 2:
            saved = optimizer.state_dict()
            optimizer = mixdim.SparseAMSGrad([mine], **options)
            optimizer.load_state_dict(saved)
    torch.testing.assert_close(mine, theirs, **CLOSE[dtype])


@given(
    st.tuples(st.integers(1, 2_000), st.integers(1, 4)),
    st.tuples(st.integers(1, 2_000), st.integers(1, 4)),
    st.booleans(),
    seeds,
)
def states_of_other_shapes(shape, other, sparse, number):
    """State of another shape is refused, and the optimizer goes on as if nothing had happened."""
    optimizers = [_stepped(one, sparse, number) for one in (shape, other)]
    (table, optimizer), (_, stranger) = optimizers
    if shape == other:
        optimizer.load_state_dict(stranger.state_dict())
    else:
        _raises(ValueError, lambda: optimizer.load_state_dict(stranger.state_dict()))
    table(torch.tensor([shape[0] - 1])).sum().backward()
    optimizer.step()
    assert table.weight.isfinite().all()


@given(st.integers(2, 2_000), st.integers(1, 2_000), st.booleans(), seeds)
def tables_that_became_shorter(rows, fewer, sparse, number):
    """A table whose data was replaced raises; nothing is read or written beyond its end."""
    table, optimizer = _stepped((rows, 3), sparse, number)
    table(torch.tensor([0])).sum().backward()
    table.weight.data = torch.zeros(1 + fewer % (rows - 1), 3)
    _raises(ValueError, optimizer.step)


def _stepped(shape, sparse, number):
    table = nn.Embedding(*shape, sparse=sparse)
    optimizer = mixdim.SparseAMSGrad(table.named_parameters())
    ids = torch.randint(shape[0], (3,), generator=seeded(number))
    table(ids).sum().backward()
    optimizer.step()
    return table, optimizer


def _raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"it did not raise {kind.__name__}")


FAMILIES = {
    family.__name__: family
    for family in (
        *(single_ids, ids_out_of_range, bags, ids_changed_in_place),
        *(optimizer_steps, states_of_other_shapes, tables_that_became_shorter),
    )
}


def try_cases(name, folder, *, cases, first_seed):
    """Try so many cases of a family; returns how many were tried, and problems with their seeds."""
    problems, tried = [], 0
    while tried < cases:
        number, count = first_seed + tried, min(PER_PROCESS, cases - tried)
        log = folder / f"{name}-{number}.log"
        code = Fork(lambda: _try(FAMILIES[name], number, count), log).wait()  # noqa: B023
        if code != 0:
            how = "crashed" if code < 0 else "failed"
            problems.append(f"{name} {how} with seed {number} (exit code {code}), see {log}")
        tried += count
    return tried, problems


def _try(family, number, count):
    torch.set_num_threads(1)
    quiet = settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    seed(number)(quiet(family))()
    return 0
