import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim import MixedDimEmbedding, Plan, Rows
from mixdim.lab.theory.assembly import assemble
from mixdim.lab.theory.factorization import Factors, complete_sgd, factor_blocks, factor_exactly
from mixdim.lab.theory.matrices import flat_spectra, random_block_matrix
from mixdim.lab.theory.structure import split_blocks
from mixdim.planning.feature import Block, Feature

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def random_structure(rows, columns, seed, least_rank=1):
    generator = np.random.default_rng(seed)
    most = np.minimum.outer(rows, columns)
    ranks = generator.integers(least_rank, most + 1)
    matrix = random_block_matrix(rows, columns, flat_spectra(ranks), generator=generator)
    blocks = split_blocks(matrix, rows, columns)
    factors = [
        [factor_exactly(block, rank) for block, rank in zip(line, of_line, strict=True)]
        for line, of_line in zip(blocks, ranks, strict=True)
    ]
    return matrix, ranks, factors


def layer_of(side):
    """A MixedDimEmbedding with the tables and projections of one side."""
    base_dim = side.projections[0].shape[1]
    starts = np.cumsum([0] + [len(table) for table in side.tables]).tolist()
    blocks = tuple(
        Block(start, len(table), Rows(table.shape[1]), 0.0)
        for start, table in zip(starts, side.tables, strict=False)
    )
    plan = Plan(base_dim, {"rule": "by_hand"}, (Feature("side", starts[-1], blocks),))
    layer = MixedDimEmbedding(plan, dtype=torch.float64)
    projections = [p if len(p) < base_dim else None for p in side.projections]
    layer.load_blocks("side", side.tables, projections)
    return layer


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, st.integers(0, 10**6), st.integers(0, 1))
def test_exact_blocks_give_the_matrix_back(rows, columns, seed, least_rank):
    matrix, ranks, factors = random_structure(rows, columns, seed, least_rank)
    row_side, column_side = assemble(factors)
    assert np.abs(row_side.dense() @ column_side.dense().T - matrix).max() < 1e-10
    assert [table.shape[1] for table in row_side.tables] == ranks.sum(axis=1).tolist()
    assert [table.shape[1] for table in column_side.tables] == ranks.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("rows", "columns"), [([1], [1]), ([1], [5]), ([5], [1]), ([1, 1], [1, 1]), ([1, 4, 2], [3, 1])]
)
def test_layers_loaded_with_the_assembly_return_the_matrix(rows, columns):
    matrix, ranks, factors = random_structure(rows, columns, seed=3)
    row_layer, column_layer = (layer_of(side) for side in assemble(factors))
    products = row_layer(torch.arange(sum(rows))) @ column_layer(torch.arange(sum(columns))).T
    assert np.abs(products.detach().numpy() - matrix).max() < 1e-10
    assert row_layer.base_dim == ranks.sum()


def test_projections_are_zeros_and_ones_with_one_dimension_for_each_direction():
    _, ranks, factors = random_structure([3, 4], [5, 2, 3], seed=0)
    for side in assemble(factors):
        stacked = np.concatenate(side.projections)
        assert set(np.unique(stacked)) == {0.0, 1.0}
        assert (stacked.sum(axis=0) == 1).all()
        assert (stacked.sum(axis=1) == 1).all()
        assert stacked.shape == (ranks.sum(), ranks.sum())


def test_completed_blocks_assemble_into_the_completed_matrix():
    generator = np.random.default_rng(0)
    rows, columns, ranks = [40, 30], [30, 40], [[2, 1], [1, 1]]
    matrix = random_block_matrix(rows, columns, flat_spectra(ranks), generator=generator)
    seen = generator.random(matrix.shape) < 0.5
    factors = factor_blocks(
        np.where(seen, matrix, np.nan), seen, rows, columns, ranks, complete=complete_sgd
    )
    row_side, column_side = assemble(factors)
    assert np.abs(row_side.dense() @ column_side.dense().T - matrix).max() < 1e-6


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="rectangle of blocks"):
        assemble([])


def test_ragged_blocks_are_refused():
    one = Factors(np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(ValueError, match=r"inhomogeneous|rectangle"):
        assemble([[one, one], [one]])
