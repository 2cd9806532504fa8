"""What the kernels read may change between forward and backward: that raises, and crashes nothing."""

import pytest
import torch
from torch import nn

import mixdim
from mixdim.kernels.lookup import lookup_operator
from mixdim.kernels.structs import BLOCK_COLUMNS

SHUFFLED = [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]


def make_layer(**options):
    plan = mixdim.plan(
        {"day": 3, "item": 10, "user": 90},
        counts={"item": SHUFFLED},
        bands={"item": 4},
        temperature=0.4,
        base_dim=16,
    )
    return mixdim.FeatureEmbeddings(plan, **options)


def make_tables(**options):
    layer = make_layer()
    return tuple(mixdim.MixedDimEmbedding(layer.plan[name], **options) for name in ("user", "item"))


def single_ids(layer, ids):
    return layer(ids)


def interaction(layer, ids):
    return layer.interact(torch.ones(len(ids), 16, requires_grad=True), ids)


def bag_values(layer, ids):
    return layer.bags(ids.t().reshape(-1), torch.arange(ids.numel() + 1))


def scores(layer, ids):
    users, items = make_tables(sparse=layer.sparse)
    return mixdim.dot_scores(users, ids[:, 2], items, ids[:, 1])


FORWARDS = [single_ids, interaction, bag_values, scores]


def the_ids(dtype=torch.int64):
    return torch.tensor([[0, 1, 2], [1, 9, 80], [2, 0, 89]], dtype=dtype)


@pytest.mark.parametrize("new", [0, 10**6, -1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("forward", [single_ids, interaction, scores])
def test_ids_changed_before_the_backward_pass_raise_as_those_of_nn_embedding(forward, sparse, new):
    ids = the_ids()
    plain = nn.Embedding(100, 4)(ids).sum()
    out = forward(make_layer(sparse=sparse), ids).sum()
    ids.fill_(new)
    for value in (plain, out):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_bags_changed_before_the_backward_pass_raise():
    layer, values, offsets = make_layer(), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 3, 4])
    weights = torch.ones(4)
    for changed in (values, weights):
        out = layer.bags(values, offsets, weights).sum()
        changed.fill_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()
    out = layer.bags(values, offsets, weights).sum()
    offsets.fill_(10**9)  # the layer has a copy
    out.backward()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("forward", FORWARDS)
def test_ids_changed_behind_the_back_of_autograd_are_checked_again(forward, dtype):
    """`.data` and numpy write without autograd noticing."""
    for change in (lambda ids: ids.data.fill_(10**6), lambda ids: ids.numpy().fill(-(2**31))):
        layer, ids = make_layer(sparse=True), the_ids(dtype)
        base = ids.t().contiguous()  # so that a column, or all values, are views of what changes
        out = forward(layer, base.t()).sum()
        change(base)
        with pytest.raises(IndexError, match="is out of range"):
            out.backward()


def test_an_order_changed_before_the_backward_pass_raises():
    layer, ids = make_layer(), the_ids()
    out = layer(ids).sum()
    layer.ids.rank_of_id.fill_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("name", ["table", "projection"])
def test_weights_whose_data_was_replaced_raise(forward, name, monkeypatch):
    """Before the forward pass, and between it and the backward pass."""
    tables = make_tables()
    monkeypatch.setattr(f"{__name__}.make_tables", lambda **_: tables)
    layer = make_layer()
    modules = tables if forward is scores else (layer,)
    weights = [p for m in modules for n, p in m.named_parameters() if n.startswith(name)]
    for weight in weights:
        before = weight.data
        out = forward(layer, the_ids()).sum()
        weight.data = before[:0].clone()
        message = rf"{name}_\d+ has shape \(0, .* was its data replaced\?"
        if not (forward is scores and name == "projection"):  # which its backward pass does not read
            with pytest.raises(RuntimeError, match=message):
                out.backward()
        with pytest.raises((RuntimeError, IndexError), match=f"{message}|out of bounds"):
            forward(layer, the_ids())
        weight.data = before


def test_dense_vectors_whose_data_was_replaced_raise():
    layer, ids = make_layer(), the_ids()
    for forward in (
        lambda dense: layer.interact(dense, ids),
        lambda dense: mixdim.dot_interaction(dense, layer(ids)),
    ):
        dense = torch.ones(3, 16, requires_grad=True)
        out = forward(dense).sum()
        dense.data = torch.ones(1, 1)
        with pytest.raises(RuntimeError, match=r"dense has shape \(1, 1\) where \(3, 16\) is needed"):
            out.backward()


def test_an_order_that_became_shorter_raises():
    layer = make_layer()
    layer.ids.rank_of_id = layer.ids.rank_of_id[:5].clone()
    with pytest.raises(RuntimeError, match="rank_of_id has 5 entries where this layer needs 10"):
        layer(the_ids())


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        *((0, "end", 10**6), (0, "width", 99), (3, "number", 7), (3, "start", 5), (0, "first_row", -9)),
        *((3, "lift_row", -1), (0, "number", -1), (0, "rows", 2)),
    ],
)
def test_a_graph_from_a_damaged_file_raises(row, column, value):
    layer = make_layer()
    arguments = layer.kernel_lookup(layer.training_view, the_ids()).layer[:-3]
    arguments[3][row, BLOCK_COLUMNS.index(column)] = value
    with pytest.raises(ValueError, match="contradicts itself"):
        lookup_operator(the_ids(), None, None, *arguments)


def test_offsets_are_checked_by_the_operator_too():
    layer = make_layer()
    described = layer.kernel_lookup(layer.training_view, the_ids()).layer[:-3]
    for offsets in ([0, 10**9, 3, 4], [0, 1, 3, 400], [5, 1, 3, 4]):
        with pytest.raises(ValueError, match="offsets must rise from 0 to the number of values 4"):
            lookup_operator(torch.tensor([0, 1, 2, 3]), torch.tensor(offsets), None, *described)
