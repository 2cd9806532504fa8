"""Rows that a gradient names follow the formula; all others stay as they are."""

import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mixdim
from mixdim import kernels
from mixdim.optim import SparseAMSGrad
from row_gradients import MOMENTS, generator_of, row_sparse, table_of

seeds = st.integers(0, 2**32 - 1)


class SlowAMSGrad:
    """One table as lists of Python floats, one number after the other, as the formula says."""

    def __init__(self, table, lr, betas, eps, weight_decay):
        self.weight = table.tolist()
        self.m, self.v, self.most = ([[0.0] * len(row) for row in self.weight] for _ in range(3))
        self.step_count, self.lr, self.betas, self.eps = 0, lr, betas, eps
        self.kept = 1 - lr * weight_decay

    def step(self, gradient_of_row):
        self.step_count += 1
        beta1, beta2 = self.betas
        for row, gradient in gradient_of_row.items():
            for i, g in enumerate(gradient):
                m = self.m[row][i] = beta1 * self.m[row][i] + (1 - beta1) * g
                v = self.v[row][i] = beta2 * self.v[row][i] + (1 - beta2) * g * g
                most = self.most[row][i] = max(self.most[row][i], v)
                denom = math.sqrt(most) / math.sqrt(1 - beta2**self.step_count) + self.eps
                step = self.lr / (1 - beta1**self.step_count) * m / denom
                self.weight[row][i] = self.kept * self.weight[row][i] - step


@settings(max_examples=60)
@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=1, max_size=8),
    st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0)]),
    st.sampled_from([0.0, 0.3, 4.0]),
    st.booleans(),
    seeds,
)
def test_they_follow_the_formula_number_by_number(rows, width, steps, betas, decay, coalesced, seed):
    table, generator = table_of(rows, width, seed), generator_of(seed)
    options = {"lr": 0.1, "betas": betas, "eps": 1e-3, "weight_decay": decay}
    optimizer = SparseAMSGrad([table], **options)
    slow = SlowAMSGrad(table.detach(), **options)
    for ids in steps:
        ids = [i % rows for i in ids]  # rows may come twice: their gradients add up
        values = torch.randn(len(ids), width, generator=generator, dtype=torch.float64)
        table.grad = row_sparse(ids, values, (rows, width), coalesced)
        optimizer.step()
        summed = {row: [0.0] * width for row in ids}
        for row, value in zip(ids, values.tolist(), strict=True):
            summed[row] = [old + new for old, new in zip(summed[row], value, strict=True)]
        slow.step(summed)
    found = [table.detach(), *(optimizer.state[table][moment] for moment in MOMENTS)]
    for mine, theirs in zip(found, [slow.weight, slow.m, slow.v, slow.most], strict=True):
        expected = torch.tensor(theirs, dtype=torch.float64)
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)
    assert optimizer.state[table]["step"] == len(steps)


@pytest.mark.parametrize("weight_decay", [0.0, 2.0])
def test_the_others_keep_weights_and_moments_bit_for_bit(weight_decay):
    table = table_of(10, 3, dtype=torch.float32)
    optimizer = SparseAMSGrad([table], lr=0.1, weight_decay=weight_decay)
    table.grad = torch.randn(10, 3, generator=generator_of(0))
    optimizer.step()
    before = [table.detach().clone(), *(optimizer.state[table][m].clone() for m in MOMENTS)]
    touched, others = [7, 2, 2], [0, 1, 3, 4, 5, 6, 8, 9]
    for seed in range(5):
        values = torch.randn(3, 3, generator=generator_of(seed)) + 2
        table.grad = row_sparse(touched, values, (10, 3))
        optimizer.step()
    after = [table.detach(), *(optimizer.state[table][m] for m in MOMENTS)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[others], new[others])
        assert not torch.eq(old[[2, 7]], new[[2, 7]]).any()


def test_a_row_of_zeros_is_touched_and_decays():
    """Its moment moves it on, unlike that of a row which the gradient does not name."""
    table = table_of(2, 1)
    optimizer = SparseAMSGrad([table], lr=0.1)
    table.grad = torch.ones(2, 1, dtype=torch.float64)
    optimizer.step()
    before = table.detach().clone()
    table.grad = row_sparse([1], torch.zeros(1, 1, dtype=torch.float64), (2, 1))
    optimizer.step()
    assert table[0] == before[0]
    assert table[1] < before[1]


def test_weight_decay_takes_a_share_of_the_rows_that_a_gradient_names():
    """Gradients of zero from the first step on leave the decay alone."""
    tables = [table_of(5, 3), table_of(5, 3, dtype=torch.float32)]
    for table in tables:
        before = table.detach().clone()
        optimizer = SparseAMSGrad([table], lr=0.1, weight_decay=2.0)
        for _ in range(3):
            table.grad = row_sparse([1, 4], torch.zeros(2, 3, dtype=table.dtype), (5, 3))
            optimizer.step()
        torch.testing.assert_close(table.detach()[[1, 4]], before[[1, 4]] * 0.8**3)
        assert torch.equal(table[[0, 2, 3]], before[[0, 2, 3]])


@pytest.mark.skipif(not kernels.available(), reason="without kernels PyTorch does it")
def test_weight_decay_has_the_same_bits_with_any_number_of_threads():
    rows, threads = torch.randperm(20_000, generator=generator_of(0))[:9_000].sort().values, []
    before = torch.get_num_threads()
    try:
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            sparse, dense = (table_of(20_000, 5, dtype=torch.float32) for _ in range(2))
            optimizer = SparseAMSGrad([sparse, dense], lr=0.1, weight_decay=0.3)
            for seed in range(3):
                dense.grad = torch.randn(20_000, 5, generator=generator_of(seed))
                sparse.grad = row_sparse(rows, dense.grad[rows], (20_000, 5))
                optimizer.step()
            assert torch.equal(sparse[rows], dense[rows])
            threads.append(torch.stack([sparse.detach(), dense.detach()]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(threads[0], other) for other in threads[1:])


def test_an_empty_gradient_counts_as_a_step_and_changes_no_row():
    table = table_of(3, 2)
    before = table.detach().clone()
    optimizer = SparseAMSGrad([table])
    table.grad = row_sparse([], torch.zeros(0, 2, dtype=torch.float64), (3, 2))
    optimizer.step()
    assert torch.equal(table, before)
    assert optimizer.state[table]["step"] == 1
    assert not any(optimizer.state[table][moment].any() for moment in MOMENTS)


def test_a_table_that_no_id_touched_counts_as_a_step_and_keeps_its_rows():
    plan = mixdim.plan([6], counts=[[90, 1, 1, 1, 1, 1]], bands=2, temperature=0.3, base_dim=8)
    table = mixdim.MixedDimEmbedding(plan, sparse=True)
    optimizer = mixdim.SparseAMSGrad(table.named_parameters())
    before = table.table_8.detach().clone()
    table(torch.tensor([3, 5])).sum().backward()
    assert table.table_8.grad._nnz() == 0
    optimizer.step()
    assert torch.equal(table.table_8, before)
    assert optimizer.state[table.table_8]["step"] == 1


def test_a_parameter_without_gradient_gets_no_state():
    idle, table = table_of(3, 2), table_of(3, 2)
    before = idle.detach().clone()
    optimizer = SparseAMSGrad([idle, table])
    table.grad = torch.ones(3, 2, dtype=torch.float64)
    optimizer.step()
    assert torch.equal(idle, before)
    assert idle not in optimizer.state


@pytest.mark.parametrize("shape", [(6,), (6, 2, 3)])
def test_rows_may_be_numbers_or_matrices(shape):
    sparse = nn.Parameter(torch.ones(shape))
    dense = nn.Parameter(torch.ones(4, *shape[1:]))
    values = torch.randn(4, *shape[1:], generator=generator_of(0))
    sparse.grad, dense.grad = row_sparse([5, 0, 3, 1], values, shape), values
    SparseAMSGrad([sparse, dense]).step()
    assert torch.equal(sparse[[5, 0, 3, 1]], dense)
    assert torch.equal(sparse[[2, 4]], torch.ones(2, *shape[1:]))


def test_the_gradient_is_left_as_it_was():
    table = table_of(3, 2)
    values = torch.ones(2, 2, dtype=torch.float64)
    table.grad = gradient = row_sparse([1, 1], values, (3, 2))
    SparseAMSGrad([table]).step()
    assert table.grad is gradient
    assert not gradient.is_coalesced()
    assert torch.equal(values, torch.ones(2, 2, dtype=torch.float64))


def test_a_step_allocates_nothing_of_the_size_of_the_table():
    """In a process of its own: after the state is there, the peak does not grow."""
    script = """
import json, resource, torch
from mixdim.optim import SparseAMSGrad
table = torch.nn.Parameter(torch.zeros(500_000, 32))
optimizer = SparseAMSGrad([table])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def touch():
    table.grad = torch.sparse_coo_tensor([[5, 499_999, 5]], torch.ones(3, 32), table.shape)
    optimizer.step()
touch()
grown = [peak()]
for _ in range(3): touch()
grown.append(peak())
table.grad = torch.ones_like(table)
grown.append(peak())
optimizer.step()
grown.append(peak())
print(json.dumps(grown))
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, sparse, with_gradient, dense = json.loads(done.stdout)
    table = 4 * 32 * 500_000
    assert first > 4 * table  # the table and its three moments
    assert sparse - first < 0.2 * table
    assert dense - with_gradient < 0.2 * table


def test_rows_of_a_gradient_need_not_lie_side_by_side_in_memory():
    tables = [torch.nn.Parameter(torch.ones(8, 2)) for _ in range(2)]
    rows = torch.tensor([1, 0, 3, 0, 6, 0])[::2]
    for table, indices in zip(tables, (rows, rows.clone()), strict=True):
        table.grad = torch.sparse_coo_tensor(
            indices[None], torch.ones(3, 2), (8, 2), is_coalesced=True, check_invariants=False
        )
        SparseAMSGrad([table], lr=0.1).step()
    assert torch.equal(tables[0], tables[1])
    assert (tables[0] != 1).any(dim=1).nonzero().flatten().tolist() == [1, 3, 6]
