"""What every storage must do: tests/storages has a class for each that inherits these tests.

The oracle is the dense matrix that a layer stands for, and autograd through it.
"""

import copy
import json
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import pytest
import torch
from both_paths import kernel_calls, plain_path
from safetensors.torch import save

import mixdim
from mixdim import kernels
from mixdim.storages import STORAGES, storage_from_json
from served_files import answer, nothing_folded, served

BASE_DIM = 6
ROWS = {"whole": 11, "cut": 23, "narrow": 9}
COUNTS = {"cut": np.random.default_rng(0).permutation(23) ** 2}


class StorageContract:
    """A layer with blocks of one storage: a whole feature and the tail of another; and narrow ones."""

    storages = ()  # a few of the kind, lifted and of full width
    has_kernels = False  # whether the kernels serve its blocks, and not only those beside them
    close: ClassVar = {}  # how near sums are in any type, if not as near as the type has them

    @pytest.fixture(params=range(4))
    def storage(self, request):
        if request.param >= len(self.storages):
            pytest.fail("every storage is tried in four forms")
        return self.storages[request.param]

    @staticmethod
    def plan(storage):
        plan = mixdim.plan(
            ROWS, counts=COUNTS, bands={"cut": 3}, temperature=0.4, base_dim=BASE_DIM, rounding="integer"
        )
        return plan.with_storage("whole", storage).with_storage("cut", storage)

    def layer(self, storage, **options):
        options = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64} | options
        return mixdim.FeatureEmbeddings(self.plan(storage), **options)

    @staticmethod
    def ids(batch=40, seed=1):
        generator = torch.Generator().manual_seed(seed)
        return torch.stack([torch.randint(n, (batch,), generator=generator) for n in ROWS.values()], 1)

    @staticmethod
    def from_dense(layer, ids):
        """The lookup, as rows of the dense matrices: (batch, features, base_dim)."""
        return torch.stack([layer.dense_weight(n)[ids[:, i]] for i, n in enumerate(ROWS)], 1)

    # The value.

    def test_it_is_listed_and_its_json_reads_back(self, storage):
        assert STORAGES[storage.kind] is type(storage)
        assert storage_from_json(json.loads(json.dumps(storage.to_json()))) == storage
        plan = self.plan(storage)
        assert mixdim.Plan.from_json(plan.to_json()) == plan
        stored = [block for block in plan.blocks if block.storage == storage]
        assert len(stored) >= 2
        assert all(storage.describe(block.size) in str(plan) for block in stored)

    def test_its_cost_is_what_a_layer_really_holds(self, storage):
        plan, layer = self.plan(storage), self.layer(storage, dtype=torch.float32)
        assert plan.num_parameters == sum(parameter.numel() for parameter in layer.parameters())
        held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
        assert plan.nbytes() == held
        alone = mixdim.MixedDimEmbedding(plan["whole"])
        written = save(layer.state_dict())
        assert plan.nbytes() == len(written) - 8 - int.from_bytes(written[:8], "little")
        assert plan.id_map_bytes == 4 * ROWS["cut"]
        own = storage.cost(ROWS["whole"], BASE_DIM).parameters + storage.shared_parameters
        assert own == sum(parameter.numel() for parameter in alone.parameters())

    # The vectors.

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_it_equals_the_rows_of_its_dense_matrix(self, storage, dtype):
        layer, ids = self.layer(storage, dtype=dtype), self.ids()
        torch.testing.assert_close(layer(ids), self.from_dense(layer, ids))
        for one in (ids[:1], ids[:0], ids.to(torch.int32)):
            torch.testing.assert_close(layer(one), self.from_dense(layer, one.to(torch.int64)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_its_gradients_are_those_through_the_dense_matrix(self, storage, dtype, sparse):
        layer, ids = self.layer(storage, dtype=dtype, sparse=sparse), self.ids()
        upstream = torch.randn(40, 3, BASE_DIM, dtype=dtype, generator=torch.Generator().manual_seed(2))
        (layer(ids) * upstream).sum().backward()
        found = {name: parameter.grad.to_dense() for name, parameter in layer.named_parameters()}
        kinds = {name for name, parameter in layer.named_parameters() if parameter.grad.is_sparse}
        tables = {id(table) for table in layer.row_sparse_tables}
        assert kinds == {name for name, p in layer.named_parameters() if id(p) in tables}
        layer.zero_grad()
        (self.from_dense(layer, ids) * upstream).sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, msg=name)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("pooling", ["sum", "mean", "max", "product"])
    def test_bags_are_pooled_rows_of_the_dense_matrix(self, storage, pooling, dtype):
        layer = self.layer(storage, pooling=pooling, dtype=dtype)
        bags = [
            [0, 3, 3],
            [],
            [10],
            [22, 1],
            [5, 5, 5, 7],
            [0],
            [8],
            [],
            [2, 1],
        ]  # three of each feature
        values = torch.tensor([value for bag in bags for value in bag])
        offsets = torch.tensor(np.cumsum([0] + [len(bag) for bag in bags]))
        pool = {
            "sum": lambda rows: rows.sum(0),
            "mean": lambda rows: rows.sum(0) / max(len(rows), 1),
            "max": lambda rows: rows.amax(0) if len(rows) else rows.new_zeros(BASE_DIM),
            "product": lambda rows: rows.prod(0),
        }[pooling]
        expected = [
            torch.stack([pool(layer.dense_weight(n)[bags[3 * f + sample]]) for f, n in enumerate(ROWS)])
            for sample in range(3)
        ]
        torch.testing.assert_close(layer.bags(values, offsets), torch.stack(expected), **self.close)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_weights_of_a_bag_multiply_its_rows(self, storage, dtype):
        layer = self.layer(storage, dtype=dtype)
        values, weights = torch.tensor([1, 2, 20, 22, 0, 8]), torch.arange(1.0, 7.0, dtype=dtype)
        dense = [layer.dense_weight(name) for name in ROWS]
        rows = torch.stack([dense[i // 2][value] * (i + 1) for i, value in enumerate(values)])
        expected = rows.view(3, 2, BASE_DIM).sum(1)[None]
        found = layer.bags(values, torch.tensor([0, 2, 4, 6]), weights)
        torch.testing.assert_close(found, expected, **self.close)
        found.sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_padding_gives_zeros_and_touches_no_row(self, storage, dtype):
        layer = self.layer(storage, padding_id=-1, sparse=True, dtype=dtype)
        ids = self.ids(4)
        ids[1], ids[2, 0] = -1, -1
        found = layer(ids)
        keep = (ids >= 0)[:, :, None]
        torch.testing.assert_close(found, self.from_dense(layer, ids.clamp(min=0)) * keep)
        layer(torch.full((5, 3), -1)).sum().backward()
        for table in layer.row_sparse_tables:
            assert table.grad is None or table.grad.coalesce()._nnz() == 0

    def test_an_id_out_of_range_is_named(self, storage):
        ids = torch.tensor([[11, 0, 0]])
        with pytest.raises(IndexError, match="id 11 of feature 'whole' is out of range"):
            self.layer(storage)(ids)

    @pytest.mark.skipif(not kernels.available(), reason="no kernels are compiled")
    def test_kernels_serve_the_float_rows_beside_it(self, storage):
        layer, ids = self.layer(storage, dtype=torch.float32, padding_id=-1), self.ids()
        ids[3, 1] = -1
        with kernel_calls() as taken:
            found = layer(ids)
        assert "lookup" in taken
        with plain_path(), kernel_calls() as taken:
            torch.testing.assert_close(found, layer(ids))
        assert taken == []

    # The other forms of the lookup: kernels and graphs find what plain PyTorch finds.

    @pytest.mark.skipif(not kernels.available(), reason="no kernels are compiled")
    @torch.no_grad()
    def test_kernels_find_what_torch_finds(self, storage, monkeypatch):
        layer, ids = self.layer(storage, dtype=torch.float32, padding_id=-1), self.ids()
        ids[3], ids[5, 1] = -1, -1
        values, offsets = ids.t().flatten(), torch.arange(0, 121, 4)
        assert (layer.serving_view is not None) == self.has_kernels

        def found():
            tables, blocks = layer.tables(), layer.layout.blocks
            stored = [tables.of_block(b).take(torch.arange(b.size), b.slot) for b in blocks]
            return stored, layer(ids), layer.bags(values, offsets)

        stored, vectors, bags = found()
        monkeypatch.setenv("MIXDIM_KERNELS", "off")
        expected_stored, expected_vectors, expected_bags = found()
        assert all(map(torch.equal, stored, expected_stored))  # codes are decoded to the same bits
        torch.testing.assert_close(vectors, expected_vectors)
        torch.testing.assert_close(bags, expected_bags)

    @pytest.mark.parametrize("folding", [nothing_folded, nullcontext])
    @pytest.mark.parametrize("padding_id", [None, -1, 0])
    def test_a_graph_finds_what_torch_finds(self, storage, padding_id, folding, monkeypatch):
        pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
        monkeypatch.setenv("MIXDIM_KERNELS", "off")
        layer, ids = self.layer(storage, dtype=torch.float32, padding_id=padding_id), self.ids()
        if padding_id is not None:
            ids[3], ids[5, 1] = padding_id, padding_id
        with folding(), served(layer) as model:
            for batch in (ids, ids[:1]):
                torch.testing.assert_close(
                    answer(model, batch), layer(batch).detach(), rtol=1e-5, atol=1e-6
                )

    def test_it_exports_without_the_check_to_operators_of_pytorch(self):
        """All forms in one layer: an export takes half a second, whatever it is of."""
        forms = [f"{name} {form}" for form in range(len(self.storages)) for name in ("whole", "cut")]
        cut = {name: COUNTS["cut"] for name in forms if name.startswith("cut")}
        plan = mixdim.plan(
            {**{name: ROWS[name.split()[0]] for name in forms}, "narrow": ROWS["narrow"]},
            **{"counts": cut, "bands": dict.fromkeys(cut, 3), "rounding": "integer"},
            **{"temperature": 0.4, "base_dim": BASE_DIM},
        )
        for name in forms:
            plan = plan.with_storage(name, self.storages[int(name.split()[1])])
        layer = mixdim.FeatureEmbeddings(
            plan, check_ids=False, generator=torch.Generator().manual_seed(0)
        )
        generator = torch.Generator().manual_seed(1)
        ids = torch.stack(
            [torch.randint(feature.rows, (40,), generator=generator) for feature in plan.features], 1
        )
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(layer, (ids[:4],), dynamic_shapes=shapes)
        assert "mixdim" not in str(program.graph)
        torch.testing.assert_close(program.module()(ids), layer(ids))

    # Copies, files, devices.

    def test_copies_and_states_give_the_same_vectors(self, storage):
        layer, ids = self.layer(storage, dtype=torch.float32), self.ids()
        expected = layer(ids)
        assert torch.equal(copy.deepcopy(layer)(ids), expected)
        other = self.layer(storage, dtype=torch.float32, generator=torch.Generator().manual_seed(9))
        assert not torch.equal(other(ids), expected)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(ids), expected)

    def test_a_layer_of_the_device_meta_takes_a_state(self, storage):
        layer, ids = self.layer(storage, dtype=torch.float32), self.ids()
        empty = self.layer(storage, device="meta", dtype=torch.float32, generator=None)
        empty.load_state_dict(layer.state_dict(), assign=True)
        assert torch.equal(empty(ids), layer(ids))
        made = self.layer(storage, device="meta", dtype=torch.float32, generator=None).to_empty(
            device="cpu"
        )
        made.load_state_dict(layer.state_dict())
        assert torch.equal(made(ids), layer(ids))

    def test_the_seed_decides_its_weights(self, storage):
        one, same = self.layer(storage).state_dict(), self.layer(storage).state_dict()
        for name, tensor in one.items():
            assert torch.equal(tensor, same[name])
            assert tensor.abs().max() > 0

    # Training, and fitting. What a storage cannot promise, its class says by overriding these two.

    @classmethod
    def fitting_plan(cls, storage):
        """A plan whose features can all be fitted."""
        return cls.plan(storage)

    def fitting_layer(self, storage, seed):
        generator = torch.Generator().manual_seed(seed)
        plan = self.fitting_plan(storage)
        return mixdim.FeatureEmbeddings(plan, generator=generator, dtype=torch.float64)

    @staticmethod
    def finds_all_it_can_hold(storage):
        """Whether fitting finds what the storage can hold exactly; at worst, it is the mean row."""
        return True

    def test_row_sparse_training_is_dense_training_where_every_row_is_touched(self, storage):
        every = [torch.arange(23) % rows for rows in ROWS.values()]
        ids, dense = torch.stack(every, 1), self.layer(storage)
        sparse = self.layer(storage, sparse=True)
        theirs = torch.optim.Adam(dense.parameters(), lr=0.1, amsgrad=True)
        ours = mixdim.SparseAMSGrad(sparse.parameters(), lr=0.1)
        for _ in range(4):
            for layer, optimizer in ((dense, theirs), (sparse, ours)):
                optimizer.zero_grad()
                ((layer(ids) - 1) ** 2).sum().backward()
                optimizer.step()
        for name, parameter in dense.named_parameters():
            torch.testing.assert_close(sparse.get_parameter(name), parameter, msg=name)

    def test_fitting_is_never_worse_than_the_mean_row(self, storage):
        layer, generator = self.fitting_layer(storage, seed=0), np.random.default_rng(3)
        for name, rows in ROWS.items():
            matrix = generator.standard_normal((rows, BASE_DIM)) + 0.5
            weights = generator.exponential(size=rows) * (generator.random(rows) < 0.8)
            layer.fit_dense(name, matrix, weights)
            error = lost(layer.dense_weight(name).numpy(force=True), matrix, weights)
            mean = np.average(matrix, axis=0, weights=weights)
            assert error <= lost(mean, matrix, weights) * (1 + 1e-9)

    def test_what_it_can_hold_it_is_fitted_to_exactly(self, storage):
        if not self.finds_all_it_can_hold(storage):
            return
        source, layer = (self.fitting_layer(storage, seed) for seed in (0, 1))
        for name in ROWS:
            wanted = source.dense_weight(name).detach()
            layer.fit_dense(name, wanted)
            torch.testing.assert_close(layer.dense_weight(name), wanted, rtol=1e-6, atol=1e-6)


def lost(found, matrix, weights):
    """The sum over rows of weight * squared distance."""
    return (weights @ (found - matrix) ** 2).sum()
