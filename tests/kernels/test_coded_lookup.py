"""A layer with blocks of codes in one kernel, against plain PyTorch."""

import pytest
import torch
from both_paths import BAD_IDS, assert_same_error, assert_same_results, kernel_calls, plain_path
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import Rows
from mixdim.kernels.library import call
from mixdim.kernels.structs import BAD_CODES, CODED_COLUMNS, FINE, LayerStructs
from mixdim.storages.levels import BITS
from strategies import drawn_layer, examples, feature_arguments, quiet_plan, random_bags, random_ids

pytestmark = pytest.mark.skipif(not mixdim.kernels.available(), reason="no kernels")

# Decoded numbers have the same bits; products with a projection and sums are in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@st.composite
def layers(draw):
    """Layers whose blocks are coded in any bits, or not: with bands, orders and padding."""
    plan = quiet_plan(
        **draw(feature_arguments(most_features=4, most_rows=80)),
        temperature=draw(st.sampled_from([0.0, 0.3, 0.6])),
        base_dim=draw(st.one_of(st.integers(1, 20), st.sampled_from([33, 64, 70]))),
    )
    for feature in plan.features:
        for band in range(len(feature.blocks)):
            dim = draw(st.sampled_from([plan.base_dim, draw(st.integers(1, plan.base_dim))]))
            mean = st.just(False) if dim == plan.base_dim else st.booleans()
            alike = st.builds(Rows, st.just(dim), st.sampled_from(BITS), mean)
            bits = st.lists(st.sampled_from(BITS), min_size=dim, max_size=dim)
            falling = bits.map(lambda bits: tuple(sorted(bits, reverse=True)))
            coded = st.one_of(alike, st.builds(Rows, st.just(dim), falling, mean))
            if storage := draw(st.one_of(coded, coded, st.sampled_from([None, Rows(0)]))):
                plan = plan.with_storage(feature.name, storage, band=band)
    if not any(block.storage.is_quantized for block in plan.blocks):
        plan = plan.with_storage(plan.features[-1].name, Rows(1, bits=8), band=0)
    return drawn_layer(draw, plan)


def in_one_kernel(function):
    """Whether one kernel serves a lookup, and no block is decoded on its own."""
    with kernel_calls() as taken:
        function()
    return taken == ["lookup"]


def with_padding(ids, layer, generator):
    if layer.padding_id is not None:
        ids[torch.rand(ids.shape, generator=generator) < 0.2] = layer.padding_id
    return ids


@settings(max_examples=examples(60))
@given(layers(), st.sampled_from([0, 1, 47, 48, 49, 130]), st.integers(0, 1000), st.booleans())
def test_single_ids_give_the_same_as_plain_pytorch(layer, batch, seed, wide_ids):
    generator = torch.Generator().manual_seed(seed)
    ids = random_ids(layer.plan, batch, generator, torch.int64 if wide_ids else torch.int32)
    ids = with_padding(ids, layer, generator)
    with torch.no_grad():
        assert in_one_kernel(lambda: layer(ids))
        assert_same_results(lambda: layer(ids), [], torch.zeros(0), **CLOSE)
        assert torch.equal(layer(ids.t().contiguous().t()), layer(ids))


@settings(max_examples=examples(60))
@given(layers(), st.sampled_from([0, 1, 49, 60]), st.integers(0, 1000), st.booleans())
def test_bags_give_the_same_as_plain_pytorch(layer, batch, seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    values, offsets, _ = random_bags(layer.plan, batch, generator)
    values = with_padding(values, layer, generator)
    weights = torch.randn(len(values), generator=generator) if weighted else None
    with torch.no_grad():
        assert in_one_kernel(lambda: layer.bags(values, offsets, weights))
        assert_same_results(lambda: layer.bags(values, offsets, weights), [], torch.zeros(0), **CLOSE)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 7, 8, 31, 32, 33, 65])
def test_a_row_of_full_width_has_the_bits_of_its_levels_times_its_steps(dim, bits):
    plan = mixdim.plan({"a": 90, "b": 70}, temperature=0, base_dim=dim).quantized(bits)
    layer = mixdim.FeatureEmbeddings(plan)
    ids = random_ids(plan, 130, torch.Generator().manual_seed(0))
    assert in_one_kernel(lambda: layer(ids))
    with plain_path():
        expected = layer(ids)
    assert torch.equal(layer(ids), expected)


def small_layer(**options):
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}
    plan = mixdim.plan(
        {"day": 3, "item": 10, "user": 90},
        counts=counts,
        bands={"item": 4},
        temperature=0.4,
        base_dim=16,
    )
    return mixdim.FeatureEmbeddings(plan, **options).quantized()


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_bad_id_raises_the_same_error_on_both_paths(bad):
    assert_same_error(small_layer(), bad)


def test_a_damaged_order_is_an_error_and_never_a_row_outside_of_the_table():
    layer = small_layer(ids={"item": list(range(9, -1, -1))})
    layer.ids.rank_of_id.fill_(2**30)
    with pytest.raises(IndexError, match="rank_of_id"):
        layer(torch.zeros(2, 3, dtype=torch.int64))
    layer.ids.rank_of_id = layer.ids.rank_of_id[:4].clone()
    with pytest.raises(RuntimeError, match="rank_of_id has 4 entries where this layer needs 10"):
        layer(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["codes", "steps", "coded_lift"])
def test_tensors_of_another_size_are_refused_and_never_read(name):
    layer = small_layer()
    whole = layer.get_buffer(name)
    setattr(layer, name, whole[:-1].clone())
    with pytest.raises(RuntimeError, match=rf"{name} has shape .* was its data replaced"):
        layer(torch.zeros(2, 3, dtype=torch.int64))
    setattr(layer, name, whole)
    assert in_one_kernel(lambda: layer(torch.zeros(2, 3, dtype=torch.int64)))


@pytest.mark.parametrize("column", CODED_COLUMNS)
@pytest.mark.parametrize("value", [-7, 5, 2**40, 2**62, -(2**63)])
def test_a_block_of_codes_that_contradicts_itself_is_refused_and_never_read(column, value):
    """What Python should have seen, the kernel sees again before it reads."""
    layer = small_layer()
    structs = LayerStructs(layer.kernel_lookup(layer.serving_view, torch.zeros(2, 3, dtype=torch.int64)))
    wrong = structs.layout.coded.copy()
    lifted = int((wrong[:, CODED_COLUMNS.index("first_lift")] >= 0).argmax())
    was = wrong[lifted, CODED_COLUMNS.index(column)]
    wrong[lifted, CODED_COLUMNS.index(column)] = value
    coded = (structs.codes, wrong, len(wrong))
    returned = call("mixdim_coded_lookup", structs.layer, *coded, structs.ids, torch.empty(2, 3, 16))
    harmless = column in ("first_byte", "first_step", "first_lift") and value == 5  # other numbers
    assert returned == (FINE if harmless or value == was else BAD_CODES)
    with pytest.raises(RuntimeError, match="the codes of this layer contradict its plan"):
        structs.raise_if_wrong(BAD_CODES)


def test_what_the_kernel_does_not_know_takes_the_plain_path():
    layer, ids = small_layer(), torch.zeros(2, 3, dtype=torch.int64)
    expected = layer(ids)
    assert in_one_kernel(lambda: layer(ids))
    assert not in_one_kernel(lambda: layer(ids.to(torch.int16)))
    layer.codes = layer.codes.to(torch.int16).to(torch.uint8).repeat_interleave(2)[::2]
    assert not in_one_kernel(lambda: layer(ids))
    torch.testing.assert_close(layer(ids), expected)
    hashed = layer.plan.with_storage("user", mixdim.Hashed(4, 9))
    assert not in_one_kernel(lambda: mixdim.FeatureEmbeddings(hashed)(ids))


def test_a_float32_block_beside_rounded_ones_gets_its_gradient():
    plan = mixdim.plan({"a": 20, "b": 30}, temperature=0, base_dim=4)
    plan = plan.with_storage("a", Rows(2, bits=8)).with_storage("b", Rows(0))
    layer = mixdim.FeatureEmbeddings(plan)
    ids = random_ids(plan, 50, torch.Generator().manual_seed(0))
    assert not in_one_kernel(lambda: layer(ids))
    layer(ids)[:, 1].sum().backward()
    (shared,) = layer.parameters()
    assert torch.equal(shared.grad, torch.full_like(shared, 50))
    with torch.no_grad():
        assert in_one_kernel(lambda: layer(ids))
