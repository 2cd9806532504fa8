"""Layers in ONNX Runtime, against the matrices they stand for."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import FeatureEmbeddings, MixedDimEmbedding
from served_files import answer, nothing_folded, served
from small_layers import generator_of
from strategies import drawn_layer, random_bags, random_ids, stored_plans

pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
COUNTS = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1] * 4}


def banded_plan(**options):
    rows = {"day": 3, "item": 40, "user": 90, "site": 70}
    defaults = {"temperature": 0.4, "base_dim": 16, "counts": COUNTS, "bands": {"item": 4}}
    return mixdim.plan(rows, **{**defaults, **options})


def by_dense_weight(layer, ids):
    """What the layer's matrices say: (batch, features, base_dim)."""
    columns = []
    for name, column in zip(layer.plan, ids.unbind(1), strict=True):
        vectors = layer.dense_weight(name).detach()[column.clamp(min=0)]
        is_id = column != (2**40 if layer.padding_id is None else layer.padding_id)
        columns.append(vectors * is_id[:, None])
    return torch.stack(columns, dim=1)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_layer_answers_as_its_matrices(data):
    layer = drawn_layer(data.draw, data.draw(stored_plans(most_features=3)))
    bits = data.draw(st.sampled_from([None, 8, 4]))
    layer = layer if bits is None else layer.quantized(bits)
    with data.draw(st.sampled_from([nothing_folded, nullcontext]))(), served(layer) as model:
        for batch in (1, 5):
            ids = random_ids(layer.plan, batch, generator_of(batch))
            if layer.padding_id is not None:
                ids[::2] = layer.padding_id
            assert_close(answer(model, ids), by_dense_weight(layer, ids))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("base_dim", [1, 5, 16, 96, 129])
def test_scales_of_any_width(bits, base_dim):
    """One scale a row, several rows a scale, and scales that end within a row."""
    plan = mixdim.plan([2000, 33, 9], temperature=0.0, base_dim=base_dim)
    layer = FeatureEmbeddings(plan, generator=generator_of(0)).quantized(bits)
    ids = torch.arange(2000)[:, None] % torch.tensor([2000, 33, 9])
    with nothing_folded(), served(layer) as model:
        assert_close(answer(model, ids), by_dense_weight(layer, ids))
        values = (2042 + 4 * 64) * base_dim  # with what is put between features, and behind them
        assert model.path.stat().st_size < values * bits / 8 + values / (8 * bits) * 2 + 4000


def test_one_table_takes_the_place_of_an_embedding():
    table = MixedDimEmbedding(banded_plan()["item"], generator=generator_of(0))
    ids = torch.arange(40)
    for context in (nothing_folded, nullcontext):
        with context(), served(table) as model:
            assert_close(answer(model, ids), table.dense_weight().detach())


@pytest.mark.parametrize("padding_id", [None, -1, 0])
@pytest.mark.parametrize("pooling", ["sum", "mean", "max", "product"])
def test_bags(pooling, padding_id):
    layer = FeatureEmbeddings(
        banded_plan(), pooling=pooling, padding_id=padding_id, generator=generator_of(3)
    )
    names = list(layer.plan)
    with nothing_folded(), served(layer, bags=names) as model:
        for batch in (1, 6):
            values, offsets, _ = random_bags(layer.plan, batch, generator_of(batch))
            if padding_id is not None:
                values[::3] = padding_id
            bags = {}
            for n, name in enumerate(names):
                own = offsets[n * batch : (n + 1) * batch + 1]
                bags[name] = values[own[0] : own[-1]], own - own[0]
            found = answer(model, torch.zeros(batch, 0), bags=bags)
            assert_close(found, layer.bags(values, offsets).detach())
    with pytest.raises(ValueError, match="bags to export need pooling sum, mean, max, product"):
        mixdim.export(FeatureEmbeddings(banded_plan(), pooling="concat"), "x.onnx", bags=["day"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_type_become_float32(dtype):
    layer = FeatureEmbeddings(banded_plan(), generator=generator_of(0), dtype=dtype)
    ids = random_ids(layer.plan, 9, generator_of(1))
    with nothing_folded(), served(layer) as model:
        assert_close(answer(model, ids), by_dense_weight(layer.float(), ids))


@pytest.mark.parametrize("wrong", [-1, 40, 2**40, -(2**40)])
def test_ids_out_of_range_are_refused_or_become_the_unknown_id(wrong):
    layer = FeatureEmbeddings(banded_plan(), generator=generator_of(0))
    unknown = {"day": 2, "item": 7, "user": 0, "site": 69}
    ids = torch.tensor([[1, 3, 5, 7], [0, wrong, 89, 1]])
    for context in (nothing_folded, nullcontext):
        with context(), served(layer, unknown=unknown) as model:
            known = ids.clone()
            known[1, 1] = 7
            assert_close(answer(model, ids), by_dense_weight(layer, known))
        with context(), served(layer) as model:
            with pytest.raises(ValueError, match="an id is not a row of its feature"):
                answer(model, ids)
            answer(model, ids[:1])
