import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save

from mixdim.compression.compress import small_table
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import empty_layer
from mixdim.layer.idmap import IdMap
from mixdim.layer.paths import look_up_bags
from mixdim.layer.rank_code import RankCode
from mixdim.planning.trained_table import TrainedTable
from small_tables import chosen_for, measured_error, random_table

MODES = ("sum", "mean", "max")


def compressed(seed=0, factor=6, bits=32, **options):
    trained = random_table(seed, **options)
    offered = bits if bits == "auto" else [bits]
    return small_table(trained, chosen_for([trained], trained.nbytes // factor, bits=offered)[0])


def pooled(table, values, offsets, mode, weights=None):
    return look_up_bags(table, values, offsets, weights, mode).squeeze(1)


def named_codes(table):
    return [("table", code) for code in table.ids.codes.values()]


def bags_of(ids, lengths):
    return ids[: sum(lengths)], torch.tensor([0, *np.cumsum(lengths)])


TABLES = (
    {},
    {"bits": 8},
    {"bits": 4, "factor": 3},
    {"bits": "auto"},
    {"bits": "auto", "factor": 12, "fields": (100, 200)},
    {"fields": (100, 200)},
    {"padding_id": 5},
    {"padding_id": -1},
    {"factor": 1, "padding_id": 299},
)


@pytest.mark.parametrize("options", TABLES, ids=str)
def test_lookups_and_bags_are_those_of_the_dense_matrix(options):
    table = compressed(**options)
    ids = torch.randint(0, 300, (40,), generator=torch.Generator().manual_seed(1))
    ids[3] = 5
    dense = table.dense_weight().detach()
    torch.testing.assert_close(table(ids), dense[ids])
    assert table(ids[:6].view(1, 2, 3).int()).shape == (1, 2, 3, table.base_dim)
    assert table(ids[:0]).shape == (0, table.base_dim)
    values, offsets = bags_of(ids, [4, 0, 1, 7])
    padding = table.padding_id if (table.padding_id or -1) >= 0 else None
    for mode in MODES:
        expected = F.embedding_bag(
            values, dense, offsets, mode=mode, include_last_offset=True, padding_idx=padding
        )
        torch.testing.assert_close(pooled(table, values, offsets, mode), expected)
    weights = torch.rand(len(values))
    expected = F.embedding_bag(
        values, dense, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
    torch.testing.assert_close(pooled(table, values, offsets, "sum", weights), expected)


def test_gradients_of_lookups_are_those_of_the_dense_matrix():
    ids, goal = torch.tensor([0, 7, 7, 299, 5, 123]), torch.randn(6, 6)
    for table in (compressed(), compressed(padding_id=5), compressed(fields=(10, 290))):
        other = copy.deepcopy(table)
        (table(ids) * goal).sum().backward()
        (other.dense_weight()[ids] * goal).sum().backward()
        for mine, theirs in zip(table.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("bits", [(32,), (8,), (4,), (32, 8, 4), "auto"])
@pytest.mark.parametrize("fields", [(), (30, 170, 100)])
def test_a_fitted_table_has_the_bytes_and_the_error_that_were_chosen(fields, bits):
    gradients = np.random.default_rng(5).normal(size=(4, 6))  # fewer than 6: a singular metric
    metric = gradients.T @ gradients
    seen = metric + 1e-3 * np.trace(metric) / 6 * np.eye(6)
    for options, own in (({}, None), ({"metric": torch.tensor(metric)}, seen)):
        trained = random_table(4, fields=fields, **options)
        for factor in (2, 4, 16):
            choice = chosen_for([trained], trained.nbytes // factor, bits=bits)[0]
            table = small_table(trained, choice)
            assert table.nbytes == choice.nbytes
            measured = measured_error(trained, table, own)
            if bits == (32,):
                assert measured == pytest.approx(choice.error, rel=1e-4)
            # Numbers are nearly normal, and steps fit few rows better than many.
            assert 0.4 * choice.error <= measured + 1e-9 <= 1.2 * choice.error + 1e-5 * choice.energy


def test_no_table_of_the_same_widths_is_nearer_in_the_metric():
    factor = np.random.default_rng(0).normal(size=(6, 6))
    trained = random_table(0, metric=factor @ factor.T)
    table = small_table(trained, chosen_for([trained], trained.nbytes // 6)[0])
    seen = torch.tensor(trained.metric_root.root @ trained.metric_root.root, dtype=torch.float32)
    weights = torch.tensor(trained.row_probs, dtype=torch.float32)
    away = table.dense_weight() - trained.weight
    loss = (weights * ((away @ seen) * away).sum(1)).sum()
    loss.backward()  # where it is least, it is flat
    assert all(p.grad.abs().max() < 1e-4 * p.abs().max() for p in table.parameters())


def test_full_width_gives_the_table_back_and_width_zero_the_mean_by_popularity():
    trained = random_table(7, rows=80, width=4)
    whole, mean = (
        small_table(trained, chosen_for([trained], budget, bands=1)[0]).dense_weight()
        for budget in (trained.nbytes, 16)
    )
    assert torch.equal(whole, trained.weight)
    expected = np.average(trained.weight.numpy(), axis=0, weights=trained.row_probs)
    np.testing.assert_allclose(mean.detach(), np.tile(expected, (80, 1)), rtol=1e-5)


def test_padding_gives_zeros_and_takes_no_gradient():
    table = compressed(padding_id=5)
    vectors = table(torch.tensor([5, 5]))
    assert not vectors.any()
    vectors.sum().backward()
    assert all(not p.grad.any() for p in table.parameters() if p.grad is not None)
    assert not table.dense_weight()[5].any()


@pytest.mark.parametrize("options", TABLES, ids=str)
def test_a_file_has_its_bytes_and_a_plan_and_a_shape_bring_it_back(options):
    table = compressed(**options)
    state = table.state_dict()
    file = save({name: tensor.contiguous() for name, tensor in state.items()})
    header = 8 + int.from_bytes(file[:8], "little")
    assert len(file) - header == table.nbytes
    rows, codes = {"table": 300}, {name: RankCode(code.shape) for name, code in named_codes(table)}
    empty = empty_layer(
        MixedDimEmbedding, table.plan, ids=IdMap(rows, codes=codes), padding_id=table.padding_id
    )
    assert not any(tensor.any() for tensor in empty.state_dict().values())
    empty.load_state_dict(state)
    assert torch.equal(empty.dense_weight(), table.dense_weight())


def test_a_table_is_read_in_chunks_and_not_changed(monkeypatch):
    whole = compressed(bits=8), compressed()
    for room in ("planning.trained_table", "layer.sources"):
        monkeypatch.setattr(f"mixdim.{room}.AT_ONCE", 6 * 64)
    for expected, bits in zip(whole, (8, 32), strict=True):
        trained = random_table(0)
        before = trained.weight.clone()
        table = small_table(trained, chosen_for([trained], trained.nbytes // 6, bits=[bits])[0])
        assert torch.equal(trained.weight, before)
        torch.testing.assert_close(table.dense_weight(), expected.dense_weight(), atol=2e-3, rtol=0)


def test_it_has_the_type_of_the_table():
    weight = random_table(0).weight
    for dtype in (torch.float64, torch.bfloat16):
        trained = TrainedTable("x", weight.to(dtype), random_table(0).counts)
        choice = chosen_for([trained], trained.nbytes // 4)[0]
        table = small_table(trained, choice)
        assert table(torch.tensor([1])).dtype == dtype
        assert table.nbytes == choice.nbytes <= trained.nbytes // 4


@pytest.mark.parametrize("options", [{}, {"factor": 1}, {"padding_id": -1}], ids=str)
def test_ids_out_of_range_are_named(options):
    table = compressed(**options)
    for wrong in (300, -2):
        with pytest.raises(IndexError, match=f"id {wrong} of feature 'table' .* has 300 rows"):
            table(torch.tensor([3, wrong]))
        with pytest.raises(IndexError, match=f"id {wrong} of feature 'table' .* has 300 rows"):
            table.bags(torch.tensor([3, wrong]), torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="ids must be integers"):
        table(torch.tensor([0.5]))


def test_codes_of_another_table_are_refused():
    with pytest.raises(ValueError, match="code of feature 'table' must have its 300 ids, got 40"):
        IdMap({"table": 300}, codes={"table": RankCode([(40, 2)])})
    with pytest.raises(ValueError, match=r"ids must be of the plan's features \{'table': 300\}, got"):
        MixedDimEmbedding(compressed().plan, ids=IdMap.identity({"table": 40}))


def test_it_can_be_trained():
    table = compressed()
    before = table.dense_weight().detach().clone()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    goal = torch.randn(300, 6)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.mse_loss(table(torch.arange(300)), goal)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.equal(table.dense_weight(), before)
