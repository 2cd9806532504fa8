import numpy as np
import pytest
import torch

import mixdim
from mixdim import QuotientRemainder
from storage_contract import BASE_DIM, StorageContract, lost


class TestQuotientRemainder(StorageContract):
    storages = (
        QuotientRemainder(2, buckets=3),
        QuotientRemainder(BASE_DIM, 4),
        QuotientRemainder(3, 2),
        QuotientRemainder(1, 20),
    )


def layer_of(rows, storage, base_dim, **options):
    plan = mixdim.plan({"x": rows}, temperature=0, base_dim=base_dim).with_storage("x", storage)
    return mixdim.MixedDimEmbedding(plan, **options)


@torch.no_grad()
def with_any_remainders(layer, generator=None):
    """The layer as if it were trained: remainders are no longer 1."""
    for table in layer.parameters():
        table.uniform_(-1, 1, generator=generator)
    return layer


def test_a_row_is_quotient_times_remainder_lifted():
    layer = with_any_remainders(layer_of(50, QuotientRemainder(2, buckets=7), 4))
    table, projection = layer.table_qr_2, layer.lift
    assert table.shape == (8 + 7, 2)  # ceil(50 / 7) quotients
    for row in (0, 6, 7, 49):
        expected = (table[row // 7] * table[8 + row % 7]) @ projection
        torch.testing.assert_close(layer(torch.tensor(row)), expected)


def test_blocks_of_one_width_share_a_table_whatever_their_buckets():
    plan = mixdim.plan({"a": 20, "b": 10}, temperature=0, base_dim=4)
    plan = plan.with_storage("a", QuotientRemainder(4, 5)).with_storage("b", QuotientRemainder(4, 2))
    layer = with_any_remainders(mixdim.FeatureEmbeddings(plan))
    table = layer.table_qr_4
    assert table.shape == (4 + 5 + 5 + 2, 4)
    expected = torch.stack([table[3] * table[4 + 4], table[9 + 4] * table[14 + 1]])
    torch.testing.assert_close(layer(torch.tensor([[19, 9]]))[0], expected)


def test_rows_start_as_long_as_narrow_ones():
    storage = QuotientRemainder(4, buckets=10)
    layer = layer_of(5000, storage, 4, generator=torch.Generator().manual_seed(0))
    variance = 6 / (5000 + 4) / 3  # that of Xavier
    assert layer.dense_weight().square().mean().item() == pytest.approx(variance, rel=0.1)
    assert torch.equal(layer.table_qr_4[500:], torch.ones(10, 4))


@pytest.mark.parametrize("storage", [QuotientRemainder(6, 4), QuotientRemainder(2, 3)])
def test_fitting_comes_near_to_what_it_can_hold(storage):
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        source = with_any_remainders(layer_of(40, storage, 6, dtype=torch.float64), generator)
        wanted = source.dense_weight().numpy(force=True)
        layer = layer_of(40, storage, 6, dtype=torch.float64)
        layer.fit_dense("x", wanted)
        found = layer.dense_weight().numpy(force=True)
        assert lost(found, wanted, np.ones(40)) < 0.1 * lost(0, wanted, np.ones(40))


def test_an_error_in_training_names_the_shared_row():
    layer = layer_of(9, QuotientRemainder(4, buckets=6), 4, sparse=True)  # as many rows as it stands for
    optimizer = mixdim.SparseAMSGrad(layer.named_parameters())
    (layer(torch.arange(8)) * float("nan")).sum().backward()
    with pytest.raises(FloatingPointError, match="shared row 0 of feature 'x'"):
        optimizer.step()


def test_a_plan_shows_it():
    plan = mixdim.plan({"x": 5000, "y": 3}, temperature=0.1, base_dim=4)
    shown = str(plan.with_storage("x", QuotientRemainder(2, buckets=3)))
    assert "2 quotient-remainder, 1,667 x 3" in shown
    assert f"{1670 * 2 + 2 * 4:,}" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "dim must be at least 1, got 0"),
        ((2, 0), "buckets must be at least 1, got 0"),
        ((2, 1.5), "buckets must be a whole number, got 1.5"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        QuotientRemainder(*arguments)
