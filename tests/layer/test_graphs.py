"""The layer inside graphs: torch.compile, torch.export, ONNX."""

import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from both_paths import plain_path
from torch import nn

import mixdim
from mixdim import FeatureEmbeddings
from mixdim.models import DLRM
from strategies import random_bags, random_ids

SHUFFLED = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def whole_plan():
    return mixdim.plan({"day": 3, "item": 10, "user": 90}, temperature=0.4, base_dim=16)


def banded_plan():
    rows = {"day": 3, "item": 10, "user": 90}
    return mixdim.plan(rows, counts=SHUFFLED, bands={"item": 4}, temperature=0.4, base_dim=16)


def foreign_calls(program):
    """Operators of a graph that only mixdim has."""
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert calls
    return [call for call in calls if "mixdim" in call]


class TestCompiled:
    @pytest.mark.parametrize("path", [nullcontext, plain_path])
    def test_bands_orders_and_padding(self, path):
        """In one graph; without fullgraph=True, PyTorch makes the same one."""
        with path():
            layer = FeatureEmbeddings(banded_plan(), padding_id=-1)
            self.compare(torch.compile(layer, fullgraph=True, backend="aot_eager"), layer)

    @pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile's own
    @pytest.mark.parametrize("make_plan", [whole_plan, banded_plan])
    def test_row_sparse_gradients_stay_out_of_the_graph(self, make_plan):
        """PyTorch cannot trace them: compiled code must still give the right answer, or say so."""
        layer = FeatureEmbeddings(make_plan(), sparse=True)
        self.compare(torch.compile(layer, backend="aot_eager"), layer)
        torch.compiler.reset()
        with pytest.raises(Exception, match=r"torch\.compile cannot trace sparse=True"):
            torch.compile(layer, backend="aot_eager", fullgraph=True)(
                torch.zeros(2, layer.num_features, dtype=torch.int64)
            )

    def compare(self, compiled, layer):
        torch.compiler.reset()
        for batch in (5, 1, 8):
            ids = random_ids(layer.plan, batch, generator_of(0))
            expected = layer(ids)
            gradients = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
            vectors = compiled(ids)
            torch.testing.assert_close(vectors, expected)
            found = torch.autograd.grad(vectors.square().sum(), list(layer.parameters()))
            for mine, theirs in zip(found, gradients, strict=True):
                torch.testing.assert_close(mine.to_dense(), theirs.to_dense())
        with pytest.raises(IndexError, match="of feature '"):
            compiled(torch.full((8, layer.plan.num_features), 10**6))

    def test_a_cold_cache_changes_nothing(self, tmp_path):
        """With the real compiler, in a process of its own: what it kept from before hides faults."""
        script = """
import torch, mixdim
def plan(**rows):
    return mixdim.plan(rows, counts={"item": [3, 9, 1, 1, 1, 1, 1, 1, 1, 1]}, bands={"item": 2},
                       temperature=0.4, base_dim=8, rounding="integer")
for plan, sparse in ((plan(day=3, item=10), False), (plan(day=3, item=10, user=50, shop=9), True)):
    torch.compiler.reset()  # what was left out of a graph once would be left out for ever
    layer = mixdim.FeatureEmbeddings(plan, sparse=sparse)
    ids = torch.arange(3)[:, None].expand(3, layer.num_features) % 3
    tables = list(layer.parameters())
    expected = torch.autograd.grad(layer(ids).square().sum(), tables)
    found = torch.autograd.grad(torch.compile(layer)(ids).square().sum(), tables)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.to_dense(), theirs.to_dense())
print("same")
"""
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        # No trials of what vectors the C++ compiler knows, and no pool of processes for a few kernels.
        cache |= {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **cache},
        )
        assert done.stdout.strip() == "same", done.stderr[-3000:]


class TestExported:
    def test_single_ids_of_any_batch(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan)
        batch = torch.export.Dim("batch")
        exported = torch.export.export(
            layer, (random_ids(plan, 4, generator_of(0)),), dynamic_shapes=({0: batch},)
        ).module()
        for size in (1, 2, 9):
            ids = random_ids(plan, size, generator_of(size))
            torch.testing.assert_close(exported(ids), layer(ids))
        with pytest.raises(IndexError, match="id 3 of feature 'day'"):
            exported(torch.tensor([[3, 0, 0]] * 4))

    @pytest.mark.parametrize(
        ("pooling", "check_ids"),
        [
            *((pooling, True) for pooling in ("sum", "mean", "max", "product", "concat")),
            *(("sum", False), ("concat", False)),  # the check is made before rows are pooled
        ],
    )
    def test_bags(self, pooling, check_ids):
        """From two samples on: of a batch of one, PyTorch 2.13 makes a graph of its own."""
        layer = FeatureEmbeddings(
            banded_plan(), pooling=pooling, check_ids=check_ids, padding_id=-1, generator=generator_of(3)
        )

        def bags(batch):
            if pooling != "concat":
                return random_bags(layer.plan, batch, generator_of(batch))[:2]
            ids = random_ids(layer.plan, 2 * batch, generator_of(batch))
            return ids.t().reshape(-1), 2 * torch.arange(3 * batch + 1)

        batch = torch.export.Dim("batch")
        values = 6 * batch if pooling == "concat" else torch.export.Dim("values")
        program = torch.export.export(
            _Bags(layer), bags(4), dynamic_shapes=({0: values}, {0: 3 * batch + 1})
        )
        assert bool(foreign_calls(program)) == check_ids
        for size in (2, 4, 9):
            torch.testing.assert_close(program.module()(*bags(size)), layer.bags(*bags(size)))
        if check_ids:
            values, offsets = bags(4)
            with pytest.raises(IndexError, match="of feature 'day'"):
                program.module()(values.fill_(90), offsets)
            with pytest.raises(ValueError, match="offsets must rise from 0 to the number of values"):
                program.module()(values.fill_(0), offsets.flip(0))

    def test_without_the_check_a_model_has_only_operators_of_pytorch(self):
        program = torch.export.export(*dlrm_to_export(whole_plan()))
        assert not foreign_calls(program)

    @pytest.mark.filterwarnings("ignore")  # the converter's own
    def test_a_model_becomes_onnx_that_answers_the_same(self, tmp_path):
        """Of a plan with whole features and one in bands, by each way to look up."""
        onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'mixdim[onnx]'")
        model, example = dlrm_to_export(banded_plan())
        batch = torch.export.Dim("batch")
        file = tmp_path / "dlrm.onnx"
        shapes = ({0: batch}, {0: batch})
        torch.onnx.export(model, example, file, dynamic_shapes=shapes, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(file)
        names = [entry.name for entry in session.get_inputs()]
        for size in (1, 2, 9):
            ids = random_ids(banded_plan(), size, generator_of(size))
            dense = torch.randn(size, 4, generator=generator_of(size))
            inputs = dict(zip(names, (dense.numpy(), ids.numpy()), strict=True))
            answer = torch.from_numpy(session.run(None, inputs)[0])
            torch.testing.assert_close(answer, model(dense, ids), rtol=1e-4, atol=1e-6)

    @pytest.mark.filterwarnings("ignore")  # tracing warns of itself, and is deprecated
    def test_a_traced_model_keeps_no_address(self):
        model, example = dlrm_to_export(banded_plan())
        traced = torch.jit.trace(model, example)
        dense, ids = (tensor[:2].clone() for tensor in example)
        torch.testing.assert_close(traced(dense, ids), model(dense, ids))


class _Bags(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, values, offsets):
        return self.layer.bags(values, offsets)


class _Tensors(nn.Module):
    """A model that takes tensors, as exporters want it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, dense, ids):
        return self.model(SimpleNamespace(ids=ids, dense=dense, bags={}))


def dlrm_to_export(plan):
    embeddings = FeatureEmbeddings(plan, check_ids=False, generator=generator_of(0))
    model = _Tensors(DLRM(embeddings, num_dense=4, bottom=[8], top=[8], generator=generator_of(1)))
    return model.eval(), (torch.zeros(5, 4), random_ids(plan, 5, generator_of(0)))
