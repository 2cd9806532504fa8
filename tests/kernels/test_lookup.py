import pytest
import torch
from both_paths import BAD_IDS, assert_same_error, assert_same_results, is_served, plain_path, threads
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.lookup import lookup_operator
from mixdim.kernels.structs import BLOCK_COLUMNS, KernelLayout
from strategies import drawn_layer, examples, feature_arguments, quiet_plan, random_bags, random_ids

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@st.composite
def layers(draw):
    """Layers of widths 1 to 64, odd ones too, with bands, orders and padding."""
    plan = quiet_plan(
        **draw(feature_arguments(most_features=5, most_rows=80)),
        temperature=draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])),
        base_dim=draw(st.one_of(st.integers(1, 20), st.sampled_from([24, 31, 33, 64, 70]))),
        rounding=draw(st.sampled_from(["integer", "power_of_two"])),
    )
    return drawn_layer(draw, plan)


def pull_for(layer, batch, generator):
    return torch.randn(batch * layer.plan.num_features * layer.base_dim, generator=generator)


@settings(max_examples=examples(150))
@given(layers(), st.sampled_from([0, 1, 2, 47, 48, 49, 130]), st.integers(0, 1000), st.booleans())
def test_single_ids_give_the_same_as_plain_pytorch(layer, batch, seed, wide_ids):
    generator = torch.Generator().manual_seed(seed)
    ids = random_ids(layer.plan, batch, generator, torch.int64 if wide_ids else torch.int32)
    if layer.padding_id is not None:
        ids[torch.rand(ids.shape, generator=generator) < 0.2] = layer.padding_id
    pull = pull_for(layer, batch, generator)
    assert_same_results(lambda: layer(ids), list(layer.parameters()), pull, **CLOSE)


@settings(max_examples=examples(150))
@given(layers(), st.sampled_from([0, 1, 2, 49, 60]), st.integers(0, 1000), st.booleans(), st.booleans())
def test_bags_give_the_same_as_plain_pytorch(layer, batch, seed, weighted, mean):
    layer.pooling = "mean" if mean and not weighted else "sum"
    generator = torch.Generator().manual_seed(seed)
    values, offsets, _ = random_bags(layer.plan, batch, generator)
    if layer.padding_id is not None:
        values[torch.rand(values.shape, generator=generator) < 0.2] = layer.padding_id
    weights = torch.randn(len(values), generator=generator) if weighted else None
    pull = pull_for(layer, batch, generator)
    parameters = list(layer.parameters())
    assert_same_results(lambda: layer.bags(values, offsets, weights), parameters, pull, **CLOSE)


def small_layer(**options):
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}
    plan = mixdim.plan(
        {"day": 3, "item": 10, "user": 90},
        counts=counts,
        bands={"item": 4},
        temperature=0.4,
        base_dim=16,
    )
    return mixdim.FeatureEmbeddings(plan, **options)


def test_gradients_come_coalesced_each_touched_row_once_ascending():
    layer = small_layer(sparse=True)
    ids = random_ids(layer.plan, 500, torch.Generator().manual_seed(0))
    layer(ids).sum().backward()
    for name, parameter in layer.named_parameters():
        if name.startswith("table"):
            assert (parameter.grad._indices()[0].diff() > 0).all()
    touched = sum(p.grad._nnz() for n, p in layer.named_parameters() if n.startswith("table"))
    assert touched == sum(len(column.unique()) for column in ids.t())


def test_an_output_in_large_pages_is_like_any_other():
    """From 32 MB on the kernel asks for them."""
    table = mixdim.MixedDimEmbedding(mixdim.plan([300], temperature=0, base_dim=512))
    ids = torch.arange(17_001) % 300
    with torch.no_grad():
        out = table(ids)
        assert out.nbytes > 2**25
        assert torch.equal(out, table.dense_weight()[ids])


@pytest.mark.parametrize("num_features", [1, 3])
def test_a_gradient_is_read_wherever_its_samples_are(num_features):
    """Parts of a wider matrix, one sample for all, features before samples, no sample at all."""
    plan = small_layer().plan
    layer = mixdim.FeatureEmbeddings(plan if num_features == 3 else plan["item"])
    ids = random_ids(layer.plan, 50, torch.Generator().manual_seed(0))
    before, after = torch.rand(50, 7), torch.rand(50, 3)
    pull = torch.randn(50 * (10 + num_features * 16))
    for function in (
        lambda: torch.cat([before, layer(ids).flatten(1), after], dim=1),
        lambda: layer(ids).sum(dim=0),
        lambda: layer(ids).sum(),
        lambda: layer(ids).transpose(0, 1).contiguous(),
        lambda: layer(ids).transpose(1, 2).contiguous(),
        lambda: layer(ids)[::2],
        lambda: torch.cat([layer(ids[:1]).flatten(1), before[:1]], dim=1),
        lambda: torch.cat([layer(ids[:0]).flatten(1), before[:0]], dim=1),
    ):
        assert_same_results(function, list(layer.parameters()), pull, **CLOSE)


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_bad_id_raises_the_same_error_on_both_paths(bad):
    assert_same_error(small_layer(), bad)


def test_a_damaged_order_is_an_error_and_never_a_row_outside_of_the_table():
    plan = small_layer().plan
    layer = mixdim.FeatureEmbeddings(plan, ids={"item": list(range(9, -1, -1))})
    layer.ids.rank_of_id.fill_(2**30)
    ids, dense = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 16)
    items = mixdim.MixedDimEmbedding(plan["item"], ids=list(range(9, -1, -1)))
    items.ids.rank_of_id.fill_(-5)
    for call in (
        lambda: layer(ids),
        lambda: layer.interact(dense, ids),
        lambda: mixdim.dot_scores(items, ids[:, 0], items, ids[:, 0]),
    ):
        with pytest.raises(IndexError, match="rank_of_id"):
            call()


def test_second_derivatives_are_refused_not_wrong():
    layer = mixdim.FeatureEmbeddings(mixdim.plan([3, 50], temperature=0.3, base_dim=8))
    (narrow,) = (p for name, p in layer.named_parameters() if name in ("table_4", "table_2"))
    ids = torch.zeros(2, 2, dtype=torch.int64)
    (gradient,) = torch.autograd.grad(layer(ids).square().sum(), narrow, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    with plain_path():
        (gradient,) = torch.autograd.grad(layer(ids).square().sum(), narrow, create_graph=True)
        gradient.sum().backward()
    assert (narrow.grad != 0).any()


def test_weights_that_want_a_gradient_take_the_plain_path():
    layer = small_layer()
    values, offsets = torch.tensor([0, 1, 2, 5]), torch.tensor([0, 1, 3, 4])
    weights = torch.rand(4, requires_grad=True)
    layer.bags(values, offsets, weights).sum().backward()
    assert (weights.grad != 0).all()


def test_other_types_take_the_plain_path():
    layer = small_layer(dtype=torch.float64)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    assert not is_served(lambda: layer(ids))
    assert layer(ids).dtype == torch.float64
    assert is_served(lambda: small_layer()(ids))
    assert not is_served(lambda: small_layer()(ids.to(torch.int16)))
    assert small_layer()(ids.to(torch.uint8)).shape == (2, 3, 16)


@pytest.mark.parametrize("bags", [False, True])
def test_the_operator_keeps_the_rules_of_pytorch(bags):
    layer = small_layer(padding_id=-1)
    if bags:
        ids, offsets, _ = random_bags(layer.plan, 4, torch.Generator().manual_seed(0))
        weights = torch.rand(len(ids))
    else:
        ids, offsets, weights = random_ids(layer.plan, 4, torch.Generator().manual_seed(0)), None, None
    described = layer.kernel_lookup(layer.training_view, ids).layer[:-3]
    torch.library.opcheck(lookup_operator, (ids, offsets, weights, *described))


def test_the_plain_path_has_the_gradients_of_finite_differences():
    layer = small_layer(dtype=torch.float64)
    ids = random_ids(layer.plan, 3, torch.Generator().manual_seed(0))
    names = [name for name, _ in layer.named_parameters()]

    def vectors(*parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (ids,))

    assert torch.autograd.gradcheck(vectors, tuple(layer.parameters()))


def test_a_training_run_has_the_same_bits_with_any_number_of_threads():
    """200 steps of layer, interaction and optimizer."""

    def train(count):
        with threads(count):
            generator = torch.Generator().manual_seed(0)
            layer = small_layer(sparse=True, generator=generator)
            optimizer = mixdim.SparseAMSGrad(layer.parameters(), lr=0.01)
            dense = torch.rand(300, 16, generator=generator)
            pull = torch.rand(300, 16 + 6, generator=generator)
            for _ in range(200):
                ids = random_ids(layer.plan, 300, generator)
                optimizer.zero_grad()
                mixdim.dot_interaction(dense, layer(ids)).backward(pull)
                optimizer.step()
            return [parameter.detach().clone() for parameter in layer.parameters()]

    for one, two in zip(train(1), train(2), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("stored", [0, 2, 6])
def test_a_layout_stores_a_row_for_each_rank_or_one_for_all(stored):
    view = mixdim.FeatureEmbeddings(mixdim.plan([5], temperature=0, base_dim=4)).training_view
    blocks = view.blocks.clone()
    blocks[0, BLOCK_COLUMNS.index("rows")] = stored
    with pytest.raises(ValueError, match="contradicts itself"):
        KernelLayout(blocks, view.features, 4)
