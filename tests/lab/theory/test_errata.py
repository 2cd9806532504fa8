"""Each misprint of the paper that docs/theory.md lists: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from mixdim.lab.theory.allocation import (
    relaxed_dims,
    rounding_gap,
    spectral_blocks,
    uniform_gap,
    weighted_mse,
)
from mixdim.lab.theory.assembly import assemble
from mixdim.lab.theory.factorization import factor_exactly
from mixdim.lab.theory.matrices import (
    block_ranks,
    flat_spectra,
    incoherence,
    is_rank_additive,
    random_block_matrix,
    ranges_are_independent,
)
from mixdim.lab.theory.power_law_allocation import closed_form_dims
from mixdim.lab.theory.recovery import (
    agnostic_sample_order,
    hopeless_recovery_bound,
    mixed_sample_order,
    sufficient_block_samples,
)
from mixdim.lab.theory.sampling import min_marginal_rate
from mixdim.lab.theory.spectra import inverse_spectral_decay
from mixdim.lab.theory.structure import split_blocks
from mixdim.lab.theory.tensors import interaction_matrix
from mixdim.planning.bands import equal_mass_bands

RANKS = np.array([[1, 2, 1], [2, 1, 3]])


def exact_factors(rows=(5, 6), columns=(4, 5, 6), ranks=RANKS):
    matrix = random_block_matrix(rows, columns, flat_spectra(ranks), generator=np.random.default_rng(0))
    blocks = split_blocks(matrix, rows, columns)
    return matrix, [
        [factor_exactly(block, rank) for block, rank in zip(line, of_line, strict=True)]
        for line, of_line in zip(blocks, ranks, strict=True)
    ]


class TestPowerLawCorollary:
    sizes, probs = ([300, 700], [500]), np.array([[0.9], [0.1]])
    scales, decay, budget = np.array([[2.0], [3.0]]), 0.8, 50_000.0

    def zeta(self):
        unit, area = np.array([[800], [1200]]), np.array([[150_000], [350_000]])
        return unit, (unit * area / self.scales**2) ** (-1 / (2 * self.decay))

    def test_the_printed_multiplier_misses_the_budget(self):
        unit, zeta = self.zeta()
        printed = (self.budget / (unit * zeta).sum()) ** (-2 * self.decay)
        dims = printed * zeta * self.probs ** (1 / (2 * self.decay))
        assert not 0.01 < (unit * dims).sum() / self.budget < 100

    def test_correcting_only_its_exponent_still_misses_the_budget(self):
        unit, zeta = self.zeta()
        dims = self.budget / (unit * zeta).sum() * zeta * self.probs ** (1 / (2 * self.decay))
        assert (unit * dims).sum() < 0.9 * self.budget

    def test_ours_meets_the_budget(self):
        dims = closed_form_dims(*self.sizes, self.probs, self.scales, self.decay, budget=self.budget)
        assert (self.zeta()[0] * dims).sum() == pytest.approx(self.budget)


class TestAlgorithm4:
    @pytest.mark.parametrize("column", ["as printed", "with j for the second i"])
    def test_the_printed_offsets_of_the_column_side_overlap(self, column):
        """s_ij = sum_(l<i) r_li + sum_(l<j) r_il."""
        starts = [
            RANKS[:i, i if column == "as printed" else j].sum() + RANKS[i, :j].sum()
            for i, j in np.ndindex(RANKS.shape)
        ]
        used = np.concatenate([np.arange(s, s + r) for s, r in zip(starts, RANKS.flat, strict=True)])
        assert len(np.unique(used)) < RANKS.sum()

    def test_row_major_offsets_give_the_matrix(self):
        matrix, factors = exact_factors()
        rows, columns = assemble(factors)
        assert np.abs(rows.dense() @ columns.dense().T - matrix).max() < 1e-12

    def test_the_second_row_of_the_four_block_example_holds_w21(self):
        _, factors = exact_factors((4, 4), (4, 4), np.array([[1, 1], [1, 1]]))
        rows, _ = assemble(factors)
        second = (rows.tables[1] @ rows.projections[1]).T
        assert (second[2] == factors[1][0].left[:, 0]).all()
        assert not (second[2] == factors[0][1].left[:, 0]).all()


def test_the_printed_condition_of_the_inverse_decay_is_never_met():
    values, x = np.array([5.0, 3.0, 2.0]), 4.0
    assert not any(values[k] < x <= values[k + 1] for k in range(2))
    assert inverse_spectral_decay(values, x) == 1


def test_popularity_as_a_sum_makes_equal_mass_bands_equally_popular():
    bands = equal_mass_bands([8, 4, 4, 2, 2, 2, 2], num_bands=3)
    assert np.ptp(bands.block_probs) == 0
    assert bands.row_probs[0] > bands.row_probs[-1]


def test_incoherence_as_printed_gives_a_flat_matrix_more_than_one():
    flat = np.ones((8, 2))
    leverage = (np.linalg.svd(flat)[2][:1] ** 2).sum(axis=0).max()
    assert leverage * 8 == pytest.approx(4)
    assert incoherence(flat) == 1


class TestRankAdditivity:
    three_lines = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])

    def test_ranges_that_meet_pairwise_at_zero_are_not_enough(self):
        pairs = [(0, 1), (0, 2), (1, 2)]
        assert all(np.linalg.matrix_rank(self.three_lines[:, pair]) == 2 for pair in pairs)
        assert block_ranks(self.three_lines, [2], [1, 1, 1]).sum() == 3
        assert not is_rank_additive(self.three_lines, [2], [1, 1, 1])
        assert not ranges_are_independent(self.three_lines, [2], [1, 1, 1])

    def test_the_matrix_of_a_tensor_is_not_rank_additive(self):
        generator = np.random.default_rng(0)
        matrix = interaction_matrix([generator.standard_normal((size, 2)) for size in (6, 7, 8)])
        assert np.linalg.matrix_rank(matrix) == 2
        assert block_ranks(matrix, [6, 7, 8], [6, 7, 8]).tolist() == [[2] * 3] * 3


class TestSampleCounts:
    def test_the_printed_order_asks_for_more_samples_than_there_are_entries(self):
        n, rank = 1000, 1
        rate = min_marginal_rate([[1.0]], [n], [n])
        assert rank / rate * n * math.log(n) > n * n
        assert agnostic_sample_order(rank, rate, n) == pytest.approx(rank * n * math.log(n))

    def test_r_entries_in_every_row_take_far_fewer_than_r_n_log_n_samples(self):
        n, rank = 1000, 20
        rate = 3 * rank / n  # 3 r n samples, where r n log n are 6.9 r n
        assert binom.sf(rank - 1, n, rate) ** (2 * n) > 0.99

    def test_the_bound_of_the_statement_is_chernoffs_and_that_of_the_proof_is_not(self):
        rank, delta = 20, 0.3
        chernoff = math.exp(-(1 - delta) * rank * (delta / (1 - delta)) ** 2 / 3)
        assert hopeless_recovery_bound(rank, 1, delta=delta) == pytest.approx(chernoff)
        # As in the proof: N epsilon = delta r for some delta in (1/2, 1), say 0.9.
        bound_of_proof = math.exp(-rank * 0.9**2 / (3 * (1 - 0.9)))
        assert binom.sf(rank - 1, 1000, 0.9 * rank / 1000) > bound_of_proof

    def test_the_constant_of_the_corollary_counts_rank_and_probability_twice(self):
        """With log n dominant, N* = C (r / Pi) n log n needs C = C0 kappa^2 alpha mu."""
        n, prob = 512, 0.25
        hadamard = np.ones((1, 1))
        while len(hadamard) < n:
            hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
        flat = np.outer(hadamard[0], hadamard[1])  # rank 1, mu = kappa = alpha = 1
        matrix = np.concatenate([flat, flat])
        counts = sufficient_block_samples(matrix, [[prob], [1 - prob]], [n, n], [n], [[1], [1]])
        order = mixed_sample_order([[1]], [[prob]], n)
        assert counts[0, 0] == pytest.approx(order)
        assert counts[0, 0] != pytest.approx(order / prob)


class TestMemoryLimitedRegime:
    rows, columns, probs = [6, 10], [8], np.array([[0.9], [0.1]])
    spectra = np.array([[[4.0, 3.0, 2.0, 1.0]], [[4.0, 3.0, 2.0, 1.0]]])

    def blocks(self):
        return spectral_blocks(self.rows, self.columns, self.probs, self.spectra)

    def test_the_printed_gap_to_uniform_is_not_a_difference_of_errors(self):
        blocks, dims, uniform = self.blocks(), np.array([[3], [1]]), 2
        squares = self.spectra[:, 0] ** 2
        # sum from k = 2 to 3 of the first block minus sum from k = 1 to 2 of the second, with k from 1
        printed = 0.9 * squares[0, 1:3].sum() - 0.1 * squares[1, 0:2].sum()
        truth = blocks.error(np.full((2, 1), uniform)) - blocks.error(dims)
        area = np.array([48, 80])
        assert printed != pytest.approx(truth)
        corrected = 0.9 / area[0] * squares[0, 2:3].sum() - 0.1 / area[1] * squares[1, 1:2].sum()
        assert corrected == pytest.approx(truth)

    def test_the_printed_uniform_width_costs_more_than_the_budget(self):
        blocks, budget = self.blocks(), 48.0
        width = budget / (16 + 8)
        assert blocks.cost(np.full((2, 1), width)) > budget
        fair = np.full((2, 1), budget / blocks.unit_cost.sum())
        assert blocks.cost(fair) == pytest.approx(budget)
        dims = relaxed_dims(blocks, budget)
        assert uniform_gap(blocks, budget, dims) == pytest.approx(
            blocks.error(fair) - blocks.error(dims)
        )

    def test_rounding_down_loses_less_than_the_gains_with_their_areas(self):
        blocks = self.blocks()
        for budget in range(5, 100, 7):
            dims = relaxed_dims(blocks, budget)
            bound = sum(
                blocks.gains[i, j, int(dims[i, j])]
                for i, j in np.ndindex(dims.shape)
                if dims[i, j] < blocks.ranks[i, j]
            )
            assert rounding_gap(blocks, dims) <= bound + 1e-15
            without_areas = sum(
                self.probs[i, j] * self.spectra[i, j, int(dims[i, j])] ** 2
                for i, j in np.ndindex(dims.shape)
                if dims[i, j] < 4
            )
            assert without_areas >= 48 * bound  # true, and 48 times too large or more

    def test_for_a_smooth_decay_the_bound_must_be_taken_at_the_rounded_width(self):
        """Between floor(d) and d a smooth g is larger than g(d)."""
        decay, d = 2.0, 1.9
        lost = (1.0 ** (1 - 2 * decay) - d ** (1 - 2 * decay)) / (2 * decay - 1)
        assert lost > (d**-decay) ** 2
        assert lost <= (math.floor(d) ** -decay) ** 2

    def test_block_wise_dims_are_not_optimal_among_all_mixed_factorisations(self):
        """Two rank additive blocks that nearly share a row space: one shared direction costs less."""
        generator = np.random.default_rng(0)
        left, right, tilt = (generator.standard_normal(size) for size in (20, 10, 10))
        matrix = np.concatenate([np.outer(left[:10], right), np.outer(left[10:], right + 1e-3 * tilt)])
        rows, columns, probs = [10, 10], [10], np.array([[0.5], [0.5]])
        assert is_rank_additive(matrix, rows, columns)
        budget = 20 + 10  # W of 20 x 1 and V of 10 x 1
        shared = factor_exactly(matrix, 1)
        assert sum(part.size for part in shared) == budget
        spectra = [[np.linalg.svd(b, compute_uv=False)[:1]] for b in (matrix[:10], matrix[10:])]
        blocks = spectral_blocks(rows, columns, probs, spectra)
        error = weighted_mse(matrix, shared.left @ shared.right.T, probs, rows, columns)
        assert error < 1e-4 * blocks.error(relaxed_dims(blocks, budget))
