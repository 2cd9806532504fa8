import numpy as np
import pytest
import torch

import mixdim
from mixdim import Robe, Rows
from mixdim.storages.hashing import hash_rows
from storage_contract import BASE_DIM, StorageContract, lost


class TestRobe(StorageContract):
    # At full width the mean row is not promised, but here it is found.
    storages = (Robe(2, length=9), Robe(BASE_DIM, 20), Robe(3, 3), Robe(1, 50))

    @classmethod
    def fitting_plan(cls, storage):
        return cls.plan(storage).with_storage("cut", Rows(2))  # nobody else shares the array

    @staticmethod
    def finds_all_it_can_hold(storage):
        return storage.dim in (1, BASE_DIM)  # else products are taken apart by descent


def two_features(storage, **options):
    plan = mixdim.plan({"a": 40, "b": 30}, temperature=0, base_dim=4)
    plan = plan.with_storage("a", storage).with_storage("b", storage)
    return mixdim.FeatureEmbeddings(plan, **options)


def test_a_row_is_a_piece_of_the_circular_array_lifted():
    layer = two_features(Robe(3, length=17))
    array, lifted = layer.table_robe17_3, layer.lift.view(2, 3, 4)
    assert array.shape == (17,)
    starts = hash_rows(torch.arange(40), 2) % 17  # hash k is that of the block in slot k
    assert (starts[:, 0] > 14).any()  # pieces that go around the end
    for row in (0, 1, *(starts[:, 0] > 14).nonzero()[:, 0].tolist()):
        found = layer(torch.tensor([[row, row % 30]]))[0]
        for slot, rank in ((0, row), (1, row % 30)):
            places = (int(starts[rank, slot]) + np.arange(3)) % 17
            torch.testing.assert_close(found[slot], array[places] @ lifted[slot])


def test_equal_ranks_of_different_blocks_begin_elsewhere():
    layer = two_features(Robe(4, length=1000))
    ids = torch.arange(30)[:, None].expand(-1, 2)
    first, second = layer(ids).unbind(1)
    assert (first == second).all(1).sum() <= 1


def test_the_array_is_counted_once_and_by_every_plan_that_has_it():
    plan = two_features(Robe(3, length=17)).plan
    assert plan.cost == (0, 2 * 3 * 4, 0, 17)
    assert plan.num_parameters == 24 + 17
    assert plan["a"].cost == (0, 3 * 4, 0, 17)
    assert plan.nbytes(optimizer="amsgrad") == 4 * 4 * (24 + 17)
    both = plan.with_storage("b", Robe(3, length=18))  # another array
    assert both.cost.shared == 17 + 18
    assert mixdim.Plan.from_json(both.to_json()) == both


def test_a_plan_shows_the_array_and_shares_add_up():
    plan = mixdim.plan({"a": 40, "b": 30, "c": 3}, temperature=0, base_dim=4)
    plan = plan.with_storage("a", Robe(3, 1000)).with_storage("b", Robe(3, 1000))
    lines = str(plan).splitlines()
    assert sum("3 of a shared array of 1,000" in line for line in lines) == 2
    (array,) = (line.split() for line in lines if line.startswith("shared array"))
    assert array[-2:] == ["1,000", "96.5%"]
    shares = [float(line.split()[-1][:-1]) for line in lines if line.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert "1,036 parameters: 12 in tables, 24 in projections, 1,000 in shared arrays" in lines


def test_rows_start_as_long_as_narrow_ones_in_the_mean():
    sizes = {"few": 60, "many": 3000}
    narrow = mixdim.plan(sizes, temperature=0, base_dim=4)
    shared = narrow
    for name in sizes:
        shared = shared.with_storage(name, Robe(4, length=500))
    squares = {}
    for kind, plan in {"narrow": narrow, "shared": shared}.items():
        layers = [
            mixdim.FeatureEmbeddings(plan, generator=torch.Generator().manual_seed(seed))
            for seed in range(10)
        ]
        squares[kind] = np.mean([layer.dense_weight().square().mean().item() for layer in layers])
    assert squares["shared"] == pytest.approx(squares["narrow"], rel=0.1)


def test_blocks_that_share_the_array_are_not_fitted_one_by_one():
    layer = two_features(Robe(3, length=17))
    before = layer.dense_weight().detach().clone()
    with pytest.raises(ValueError, match="feature 'b' cannot be fitted: 2 blocks share the array of"):
        layer.fit_dense("b", np.ones((30, 4)))
    assert torch.equal(layer.dense_weight(), before)


@pytest.mark.parametrize("storage", [Robe(2, length=60), Robe(3, 100)])
def test_fitting_comes_near_to_what_it_can_hold(storage):
    plan = mixdim.plan({"x": 40}, temperature=0, base_dim=5).with_storage("x", storage)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        source = mixdim.MixedDimEmbedding(plan, dtype=torch.float64, generator=generator)
        wanted = source.dense_weight().numpy(force=True)
        layer = mixdim.MixedDimEmbedding(plan, dtype=torch.float64)
        layer.fit_dense("x", wanted)
        found = layer.dense_weight().numpy(force=True)
        assert lost(found, wanted, np.ones(40)) < 0.1 * lost(0, wanted, np.ones(40))


def test_its_gradient_is_dense_also_beside_row_sparse_ones():
    layer = two_features(Robe(3, length=17), sparse=True)
    layer(torch.tensor([[1, 2]])).sum().backward()
    assert layer.row_sparse_tables == []
    assert not layer.table_robe17_3.grad.is_sparse


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "dim must be at least 1, got 0"),
        ((4, 3), r"length must be from dim 4 to below 2\^32, got 3"),
        ((4, 2**32), r"length must be from dim 4 to below 2\^32, got 4294967296"),
        ((4, 9.5), "length must be a whole number, got 9.5"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Robe(*arguments)
