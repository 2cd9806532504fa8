import copy
import io
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
from mixdim.optim import SparseAMSGrad
from strategies import random_ids

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
seeds = st.integers(0, 2**32 - 1)


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def table_of(rows, width, seed=0, dtype=torch.float64):
    return nn.Parameter(torch.randn(rows, width, generator=generator_of(seed), dtype=dtype))


def row_sparse(rows, values, shape, coalesced=False):
    """A row-sparse gradient, as an embedding with sparse=True gives; rows may come twice."""
    rows = torch.as_tensor(rows, dtype=torch.int64).reshape(1, -1)
    gradient = torch.sparse_coo_tensor(rows, values, shape, check_invariants=True)
    return gradient.coalesce() if coalesced else gradient


def snapshot(optimizer):
    """Copies of all weights and states, to compare bit for bit."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    weights = [p.detach().clone() for p in parameters]
    return weights, copy.deepcopy([dict(optimizer.state.get(p, {})) for p in parameters])


def assert_unchanged(optimizer, before):
    weights, states = snapshot(optimizer)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(weights, before[0], strict=True))
    for mine, theirs in zip(states, before[1], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)


class SlowAMSGrad:
    """One table as lists of Python floats, one number after the other, as the formula says."""

    def __init__(self, table, lr, betas, eps):
        self.weight = table.tolist()
        self.m, self.v, self.most = ([[0.0] * len(row) for row in self.weight] for _ in range(3))
        self.step_count, self.lr, self.betas, self.eps = 0, lr, betas, eps

    def step(self, gradient_of_row):
        self.step_count += 1
        beta1, beta2 = self.betas
        for row, gradient in gradient_of_row.items():
            for i, g in enumerate(gradient):
                m = self.m[row][i] = beta1 * self.m[row][i] + (1 - beta1) * g
                v = self.v[row][i] = beta2 * self.v[row][i] + (1 - beta2) * g * g
                most = self.most[row][i] = max(self.most[row][i], v)
                denom = math.sqrt(most) / math.sqrt(1 - beta2**self.step_count) + self.eps
                self.weight[row][i] -= self.lr / (1 - beta1**self.step_count) * m / denom


class TestAgainstAdam:
    @pytest.mark.parametrize("kind", ["dense", "coalesced", "uncoalesced", "by turns"])
    @pytest.mark.parametrize(
        ("dtype", "tolerance"),
        [(torch.float32, {"rtol": 1e-5, "atol": 1e-6}), (torch.float64, {"rtol": 1e-12, "atol": 1e-13})],
    )
    def test_with_every_row_touched_it_is_amsgrad(self, kind, dtype, tolerance):
        mine, theirs = table_of(7, 3, dtype=dtype), table_of(7, 3, dtype=dtype)
        options = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6}
        optimizer = SparseAMSGrad([mine], **options)
        reference = torch.optim.Adam([theirs], amsgrad=True, **options)
        generator = generator_of(1)
        for number in range(200):
            # Gradients that shrink, so that the maximum of the second moment outlives the moment.
            theirs.grad = torch.randn(7, 3, generator=generator, dtype=dtype) * 0.97**number
            rows = torch.randperm(7, generator=generator)
            if kind == "dense" or (kind == "by turns" and number % 3 == 0):
                mine.grad = theirs.grad.clone()
            else:
                mine.grad = row_sparse(rows, theirs.grad[rows], (7, 3), coalesced=kind == "coalesced")
            optimizer.step()
            reference.step()
        torch.testing.assert_close(mine, theirs, **tolerance)
        for moment in MOMENTS:
            found, expected = optimizer.state[mine][moment], reference.state[theirs][moment]
            torch.testing.assert_close(found, expected, **tolerance)
        assert (optimizer.state[mine]["max_exp_avg_sq"] > optimizer.state[mine]["exp_avg_sq"]).any()

    def test_tables_of_many_pieces_are_the_same(self, monkeypatch):
        monkeypatch.setattr("mixdim.optim.PIECE", 10)  # three rows of three numbers at a time
        self.test_with_every_row_touched_it_is_amsgrad("dense", torch.float64, {})
        self.test_with_every_row_touched_it_is_amsgrad("uncoalesced", torch.float64, {})

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (3, 0), (2, 3, 4)])
    def test_dense_parameters_of_any_shape(self, shape):
        mine = nn.Parameter(torch.randn(shape, generator=generator_of(0)))
        theirs = nn.Parameter(mine.detach().clone())
        optimizer = SparseAMSGrad([mine], lr=0.1)
        reference = torch.optim.Adam([theirs], lr=0.1, amsgrad=True)
        for seed in range(5):
            mine.grad = torch.randn(shape, generator=generator_of(seed))
            theirs.grad = mine.grad.clone()
            optimizer.step()
            reference.step()
        torch.testing.assert_close(mine, theirs)

    def test_a_transposed_parameter_is_updated_in_its_place(self):
        storage = torch.ones(3, 4)
        mine, theirs = nn.Parameter(storage.t()), nn.Parameter(torch.ones(4, 3))
        mine.grad = torch.randn(4, 3, generator=generator_of(0))
        theirs.grad = mine.grad.clone()
        SparseAMSGrad([mine]).step()
        torch.optim.Adam([theirs], amsgrad=True).step()
        torch.testing.assert_close(mine, theirs)

    def test_it_goes_on_from_the_state_of_adam(self):
        mine, theirs = table_of(4, 2), table_of(4, 2)
        reference = torch.optim.Adam([theirs], lr=0.1, amsgrad=True)
        theirs.grad = table_of(4, 2, seed=1).detach()
        reference.step()
        optimizer = SparseAMSGrad([mine])
        optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))  # torch would share it
        with torch.no_grad():
            mine.copy_(theirs)
        mine.grad = theirs.grad.to_sparse(1)
        optimizer.step()
        reference.step()
        torch.testing.assert_close(mine, theirs)


class TestTouchedRows:
    @settings(max_examples=60)
    @given(
        st.integers(1, 8),
        st.integers(1, 4),
        st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=1, max_size=8),
        st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0)]),
        st.booleans(),
        seeds,
    )
    def test_they_follow_the_formula_number_by_number(self, rows, width, steps, betas, coalesced, seed):
        table, generator = table_of(rows, width, seed), generator_of(seed)
        optimizer = SparseAMSGrad([table], lr=0.1, betas=betas, eps=1e-3)
        slow = SlowAMSGrad(table.detach(), lr=0.1, betas=betas, eps=1e-3)
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

    def test_the_others_keep_weights_and_moments_bit_for_bit(self):
        table = table_of(10, 3, dtype=torch.float32)
        optimizer = SparseAMSGrad([table], lr=0.1)
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

    def test_a_row_of_zeros_is_touched_and_decays(self):
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

    def test_an_empty_gradient_counts_as_a_step_and_changes_no_row(self):
        table = table_of(3, 2)
        before = table.detach().clone()
        optimizer = SparseAMSGrad([table])
        table.grad = row_sparse([], torch.zeros(0, 2, dtype=torch.float64), (3, 2))
        optimizer.step()
        assert torch.equal(table, before)
        assert optimizer.state[table]["step"] == 1
        assert not any(optimizer.state[table][moment].any() for moment in MOMENTS)

    def test_a_table_that_no_id_touched_counts_as_a_step_and_keeps_its_rows(self):
        plan = mixdim.plan([6], counts=[[90, 1, 1, 1, 1, 1]], bands=2, temperature=0.3, base_dim=8)
        table = mixdim.MixedDimEmbedding(plan, sparse=True)
        optimizer = mixdim.SparseAMSGrad(table.named_parameters())
        before = table.table_8.detach().clone()
        table(torch.tensor([3, 5])).sum().backward()
        assert table.table_8.grad._nnz() == 0
        optimizer.step()
        assert torch.equal(table.table_8, before)
        assert optimizer.state[table.table_8]["step"] == 1

    def test_a_parameter_without_gradient_gets_no_state(self):
        idle, table = table_of(3, 2), table_of(3, 2)
        before = idle.detach().clone()
        optimizer = SparseAMSGrad([idle, table])
        table.grad = torch.ones(3, 2, dtype=torch.float64)
        optimizer.step()
        assert torch.equal(idle, before)
        assert idle not in optimizer.state

    @pytest.mark.parametrize("shape", [(6,), (6, 2, 3)])
    def test_rows_may_be_numbers_or_matrices(self, shape):
        sparse = nn.Parameter(torch.ones(shape))
        dense = nn.Parameter(torch.ones(4, *shape[1:]))
        values = torch.randn(4, *shape[1:], generator=generator_of(0))
        sparse.grad, dense.grad = row_sparse([5, 0, 3, 1], values, shape), values
        SparseAMSGrad([sparse, dense]).step()
        assert torch.equal(sparse[[5, 0, 3, 1]], dense)
        assert torch.equal(sparse[[2, 4]], torch.ones(2, *shape[1:]))

    def test_the_gradient_is_left_as_it_was(self):
        table = table_of(3, 2)
        values = torch.ones(2, 2, dtype=torch.float64)
        table.grad = gradient = row_sparse([1, 1], values, (3, 2))
        SparseAMSGrad([table]).step()
        assert table.grad is gradient
        assert not gradient.is_coalesced()
        assert torch.equal(values, torch.ones(2, 2, dtype=torch.float64))

    def test_a_step_allocates_nothing_of_the_size_of_the_table(self):
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


class TestTraining:
    def layer(self, **options):
        counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}
        sizes = {"day": 3, "item": 10, "user": 90}
        plan = mixdim.plan(sizes, counts=counts, bands={"item": 4}, temperature=0.4, base_dim=16)
        return mixdim.FeatureEmbeddings(plan, generator=generator_of(0), dtype=torch.float64, **options)

    def train(self, layer, optimizer, steps, first=0):
        losses = []
        for number in range(first, first + steps):
            ids = random_ids(layer.plan, 16, generator_of(number % 3))
            optimizer.zero_grad()
            loss = (layer(ids) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_tables_and_projections_train_in_one_optimizer(self):
        layer = self.layer(sparse=True)
        optimizer = SparseAMSGrad(layer.parameters(), lr=0.05)
        losses = self.train(layer, optimizer, 30)
        assert {p.grad.layout for p in layer.parameters()} == {torch.sparse_coo, torch.strided}
        assert losses[-1] < 0.2 * losses[0]

    def test_the_layer_trains_as_with_adam_when_all_rows_are_looked_up(self):
        layers = [self.layer(sparse=True), self.layer(sparse=False)]
        optimizers = [
            SparseAMSGrad(layers[0].parameters(), lr=0.05),
            torch.optim.Adam(layers[1].parameters(), lr=0.05, amsgrad=True),
        ]
        rows = torch.arange(90)
        ids = torch.stack([rows % feature.rows for feature in layers[0].plan.features], dim=1)
        for _ in range(20):
            for layer, optimizer in zip(layers, optimizers, strict=True):
                optimizer.zero_grad()
                (layer(ids) - 1).square().mean().backward()
                optimizer.step()
        torch.testing.assert_close(layers[0].dense_weight(), layers[1].dense_weight())

    @pytest.mark.parametrize("named", [False, True])
    def test_a_saved_state_goes_on_exactly(self, named):
        layer = self.layer(sparse=True)
        optimizer = SparseAMSGrad(layer.named_parameters() if named else layer.parameters(), lr=0.05)
        self.train(layer, optimizer, 5)
        file = io.BytesIO()
        torch.save([layer.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        other = self.layer(sparse=True)
        other.load_state_dict(weights)
        again = SparseAMSGrad(other.named_parameters() if named else other.parameters())
        again.load_state_dict(state)
        assert_unchanged(again, snapshot(optimizer))
        assert self.train(layer, optimizer, 5, first=5) == self.train(other, again, 5, first=5)
        assert_unchanged(again, snapshot(optimizer))
        assert {state["step"] for state in again.state.values()} == {10}

    def test_a_deep_copy_of_layer_and_optimizer_goes_on_exactly(self):
        layer = self.layer(sparse=True)
        optimizer = SparseAMSGrad(layer.parameters(), lr=0.05)
        self.train(layer, optimizer, 3)
        other, again = copy.deepcopy((layer, optimizer))
        before = snapshot(again)
        losses = self.train(layer, optimizer, 3, first=3)
        assert_unchanged(again, before)
        assert self.train(other, again, 3, first=3) == losses

    def test_each_moment_has_an_array_of_its_own(self):
        layer = self.layer(sparse=True)
        optimizer = SparseAMSGrad(layer.parameters())
        self.train(layer, optimizer, 1)
        for parameter in layer.parameters():
            moments = [optimizer.state[parameter][moment] for moment in MOMENTS]
            assert all(moment.shape == parameter.shape for moment in moments)
            assert len({tensor.data_ptr() for tensor in [parameter, *moments]}) == 4

    def test_a_scheduler_sets_the_learning_rate(self):
        mine, theirs = table_of(4, 2), table_of(4, 2)
        optimizers = [SparseAMSGrad([mine], lr=0.1), torch.optim.Adam([theirs], lr=0.1, amsgrad=True)]
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.1) for o in optimizers]
        for seed in range(7):
            theirs.grad = table_of(4, 2, seed).detach()
            mine.grad = theirs.grad.to_sparse(1)
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                scheduler.step()
        assert optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4)
        torch.testing.assert_close(mine, theirs)

    def test_groups_have_options_of_their_own(self):
        fast, slow, frozen = (table_of(4, 2) for _ in range(3))
        groups = [{"params": [fast], "betas": (0.5, 0.5), "eps": 1e-3}, {"params": [slow], "lr": 0.01}]
        optimizer = SparseAMSGrad(groups, lr=0.1)
        optimizer.add_param_group({"params": frozen, "lr": 0})
        references = [
            torch.optim.Adam([table_of(4, 2)], amsgrad=True, lr=lr, betas=betas, eps=eps)
            for lr, betas, eps in [(0.1, (0.5, 0.5), 1e-3), (0.01, (0.9, 0.999), 1e-8)]
        ]
        for seed in range(3):
            gradient = table_of(4, 2, seed).detach()
            for reference in references:
                reference.param_groups[0]["params"][0].grad = gradient
                reference.step()
            fast.grad = slow.grad = frozen.grad = gradient
            optimizer.step()
        for mine, reference in zip([fast, slow], references, strict=True):
            torch.testing.assert_close(mine, reference.param_groups[0]["params"][0])
        assert torch.equal(frozen, table_of(4, 2))

    def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned(self):
        table = nn.Embedding(5, 2, sparse=True)
        optimizer = SparseAMSGrad(table.parameters(), lr=0.1)
        before = table.weight.detach().clone()

        def closure():
            optimizer.zero_grad()
            loss = table(torch.tensor([1, 1, 4])).square().sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss.item() == pytest.approx(before[[1, 1, 4]].square().sum().item())
        assert (table.weight != before).any(1).tolist() == [False, True, False, False, True]
        assert optimizer.step() is None


class TestNonFiniteGradients:
    def optimizer(self, named=True):
        """A layer after one step, so that there is state to protect, with finite gradients."""
        model = nn.ModuleDict({"table": nn.Embedding(20, 3, sparse=True), "top": nn.Linear(3, 1)})
        optimizer = SparseAMSGrad(model.named_parameters() if named else model.parameters())
        model["top"](model["table"](torch.tensor([1, 17, 17]))).sum().backward()
        optimizer.step()
        return model, optimizer

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("coalesced", [False, True])
    def test_in_a_row_it_is_named_and_nothing_changes(self, bad, coalesced):
        model, optimizer = self.optimizer()
        values = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 0.0]])
        model["table"].weight.grad = row_sparse([1, 17], values, (20, 3), coalesced)
        before = snapshot(optimizer)
        message = r"^gradient of parameter 'table\.weight' is not finite at row 17$"
        with pytest.raises(FloatingPointError, match=message):
            optimizer.step()
        assert_unchanged(optimizer, before)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_in_the_last_dense_parameter_it_stops_the_tables_too(self, bad):
        model, optimizer = self.optimizer()
        model["top"].bias.grad.fill_(bad)
        before = snapshot(optimizer)
        with pytest.raises(FloatingPointError, match=r"gradient of parameter 'top\.bias' is not finite"):
            optimizer.step()
        assert_unchanged(optimizer, before)

    def test_at_the_first_step_no_state_is_left_behind(self):
        tables = [table_of(3, 2), table_of(3, 2)]
        optimizer = SparseAMSGrad(tables)
        tables[0].grad, tables[1].grad = (torch.full((3, 2), x).double() for x in (1.0, math.nan))
        with pytest.raises(FloatingPointError):
            optimizer.step()
        assert len(optimizer.state) == 0

    def test_a_parameter_without_a_name_is_named_by_its_place(self):
        model, optimizer = self.optimizer(named=False)
        model["top"].weight.grad[0, 2] = math.nan
        message = r"gradient of parameter 1 of group 0 with shape \(1, 3\) is not finite at row 0"
        with pytest.raises(FloatingPointError, match=message):
            optimizer.step()

    def test_a_scalar_is_named_too(self):
        scale = nn.Parameter(torch.tensor(1.0))
        scale.grad = torch.tensor(math.inf)
        with pytest.raises(FloatingPointError, match=r"parameter 'scale' is not finite"):
            SparseAMSGrad([("scale", scale)]).step()

    @pytest.mark.parametrize("sparse", [False, True])
    def test_the_parameter_may_say_what_its_rows_are(self, sparse):
        table = table_of(20, 2)
        table.describe_row = lambda row: f"feature 'user', row {row - 3}"
        gradient = torch.zeros(20, 2, dtype=torch.float64)
        gradient[11, 1] = math.nan
        table.grad = row_sparse([11], gradient[[11]], (20, 2)) if sparse else gradient
        with pytest.raises(
            FloatingPointError, match="parameter 'table' is not finite at feature 'user', row 8"
        ):
            SparseAMSGrad([("table", table)]).step()

    def test_large_gradients_whose_sum_is_not_finite_are_fine(self):
        table = table_of(4, 2, dtype=torch.float32)
        table.grad = torch.full((4, 2), 3e38)
        SparseAMSGrad([table]).step()
        assert table.isfinite().all()

    def test_duplicates_that_add_up_to_infinity_are_found(self):
        table = table_of(4, 2, dtype=torch.float32)
        table.grad = row_sparse([3, 3], torch.full((2, 2), 3e38), (4, 2))
        with pytest.raises(FloatingPointError, match="at row 3"):
            SparseAMSGrad([table]).step()


class TestBadArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"lr": -0.1}, ValueError, r"lr must be at least 0, got -0\.1"),
            ({"lr": math.nan}, ValueError, "lr must be finite, got nan"),
            ({"lr": "fast"}, TypeError, "lr must be a number, got 'fast'"),
            ({"betas": (0.9, 1.0)}, ValueError, r"betas must be two .* \[0, 1\), got \(0\.9, 1\.0\)"),
            ({"betas": (-0.1, 0.9)}, ValueError, r"betas must be two .* got \(-0\.1, 0\.9\)"),
            ({"betas": (0.9,)}, ValueError, r"betas must be two .* got \(0\.9,\)"),
            ({"betas": (0.9, math.nan)}, ValueError, "betas must be finite, got nan"),
            ({"eps": -1e-8}, ValueError, "eps must be at least 0, got -1e-08"),
        ],
    )
    def test_options_are_checked_for_all_and_for_each_group(self, options, error, message):
        with pytest.raises(error, match=message):
            SparseAMSGrad([table_of(2, 2)], **options)
        optimizer = SparseAMSGrad([table_of(2, 2)])
        with pytest.raises(error, match=message):
            optimizer.add_param_group({"params": [table_of(2, 2)], **options})
        assert len(optimizer.param_groups) == 1

    def test_complex_and_sparse_parameters_are_refused(self):
        wave = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        with pytest.raises(TypeError, match=r"parameter 'wave' must be real .* got torch\.complex64"):
            SparseAMSGrad([("wave", wave)])
        matrix = nn.Parameter(torch.eye(2).to_sparse())
        with pytest.raises(TypeError, match=r"parameter 0 of group 0 .* dense, .* torch\.sparse_coo"):
            SparseAMSGrad([matrix])

    def test_a_gradient_sparse_in_two_dimensions_is_refused(self):
        idle, table = table_of(2, 2), table_of(2, 2)
        idle.grad = torch.ones(2, 2, dtype=torch.float64)
        table.grad = torch.eye(2, dtype=torch.float64).to_sparse()
        optimizer = SparseAMSGrad([("idle", idle), ("table", table)])
        with pytest.raises(
            ValueError, match=r"gradient of parameter 'table' .* got torch\.sparse_coo with sparse_dim 2"
        ):
            optimizer.step()
        assert torch.equal(idle, table_of(2, 2))

    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
    def test_a_gradient_of_another_sparse_layout_is_refused(self):
        """PyTorch 2.13 lets no such gradient through; a parameter of a class of its own might."""

        class Odd(nn.Parameter):
            grad = torch.eye(2).to_sparse_csr()

        with pytest.raises(ValueError, match=r"sparse_dim 1, got torch\.sparse_csr$"):
            SparseAMSGrad([Odd(torch.ones(2, 2))]).step()


class TestStateOfAnotherShape:
    """The kernel writes by addresses: it must never be called with state, or rows, that do not fit."""

    def stepped(self, rows, *, sparse=True):
        table = nn.Embedding(rows, 4, sparse=sparse)
        optimizer = mixdim.SparseAMSGrad(table.named_parameters())
        table(torch.tensor([0, rows - 1])).sum().backward()
        optimizer.step()
        return table, optimizer

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("rows", [1_000, 1_200, 300_000])
    def test_loading_it_is_refused_and_changes_nothing(self, rows, sparse):
        _, small = self.stepped(1_100, sparse=sparse)
        table, optimizer = self.stepped(rows, sparse=sparse)
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(
            ValueError, match=rf"'weight': exp_avg has shape \(1100, 4\), .* \({rows}, 4"
        ):
            optimizer.load_state_dict(small.state_dict())
        after = optimizer.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for key, value in before["state"][0].items():
            assert torch.equal(torch.as_tensor(after["state"][0][key]), torch.as_tensor(value))
        table(torch.tensor([rows - 1])).sum().backward()
        optimizer.step()

    def test_state_without_all_moments_is_of_another_optimizer(self):
        table, optimizer = self.stepped(5, sparse=False)
        adam = torch.optim.Adam(table.parameters())
        table.weight.grad = torch.ones_like(table.weight)
        adam.step()
        with pytest.raises(ValueError, match="has no max_exp_avg_sq: it is of another optimizer"):
            optimizer.load_state_dict(adam.state_dict())

    @pytest.mark.parametrize("sparse", [False, True])
    def test_a_table_whose_data_was_replaced_raises(self, sparse):
        table, optimizer = self.stepped(1_000, sparse=sparse)
        table.weight.data = torch.zeros(10, 4)
        table.weight.grad = None
        table(torch.tensor([3])).sum().backward()
        with pytest.raises(ValueError, match=r"exp_avg has shape \(1000, 4\), the parameter \(10, 4\)"):
            optimizer.step()
        optimizer.state.clear()
        optimizer.step()
        assert optimizer.state[table.weight]["exp_avg"].shape == (10, 4)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_a_gradient_of_the_table_before_raises(self, sparse):
        table, optimizer = self.stepped(1_000, sparse=sparse)
        optimizer.zero_grad()
        table(torch.tensor([999])).sum().backward()
        table.weight.data = torch.zeros(10, 4)
        optimizer.state.clear()
        with pytest.raises(
            ValueError, match=r"has shape \(1000, 4\), the parameter \(10, 4\): was its data"
        ):
            optimizer.step()

    @pytest.mark.parametrize("rows", [[3, 10], [-1, 3], [2**40, 2**41], [4, 3], [3, 3]])
    def test_rows_that_are_no_rows_of_the_table_raise_and_nothing_changes(self, rows):
        table, optimizer = self.stepped(10)
        before = table.weight.detach().clone()
        table.weight.grad = torch.sparse_coo_tensor(
            torch.tensor([rows]), torch.ones(2, 4), (10, 4), is_coalesced=True, check_invariants=False
        )
        with pytest.raises(
            IndexError, match="parameter 'weight' must name rows 0 to 9 in ascending order"
        ):
            optimizer.step()
        assert torch.equal(table.weight, before)


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
