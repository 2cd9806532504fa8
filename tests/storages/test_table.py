"""What a storage gets from the seam without code of its own."""

from dataclasses import dataclass

import pytest
import torch

import mixdim
from mixdim.storages.storage import Cost, Storage
from mixdim.storages.table import ExportError, Table, TensorSpec
from served_files import answer, nothing_folded, served


class FrozenTable(Table):
    """Rows as whole numbers, which nobody trains, and a projection."""

    row_sparse = ()

    @staticmethod
    def holds(blocks, base_dim):
        rows = sum(block.size for block in blocks)
        return {"codes": TensorSpec((rows, blocks[0].storage.dim), "int8", False)}

    def take(self, rows, slots):
        codes = self.tensors["codes"][rows + self.of_slots(slots, 0)]
        return codes.to(self.tensors["projection"].dtype)

    def parts(self, block):
        here = slice(block.first_row, block.first_row + block.size)
        own = {"codes": self.tensors["codes"][here], "projection": self.tensors["projection"]}
        return own | {"projection": own["projection"][block.slot]}

    def draw(self, block, init):
        generator = torch.Generator().manual_seed(init.seed)
        self.parts(block)["codes"].random_(-100, 100, generator=generator)
        self.draw_projection(block, init)


@dataclass(frozen=True)
class Frozen(Storage):
    kind = "frozen"
    table_type = FrozenTable
    is_trained = False

    @property
    def group(self):
        return f"frozen_{self.dim}"

    def stored_rows(self, size):
        return size

    def cost(self, size, base_dim):
        return Cost(0, self.dim * base_dim, held_bytes=size * self.dim)


def test_a_storage_may_hold_what_is_not_trained():
    plan = mixdim.plan({"a": 30, "b": 9}, temperature=0, base_dim=4).with_storage("a", Frozen(2))
    layer = mixdim.FeatureEmbeddings(plan, sparse=True)
    assert layer.codes_frozen_2.dtype == torch.int8
    assert {name for name, _ in layer.named_parameters()} == {"table_4", "lift"}
    assert [table.shape for table in layer.row_sparse_tables] == [(9, 4)]
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert plan.nbytes() == held
    assert plan.num_parameters == layer.num_parameters

    ids = torch.stack([torch.arange(30), torch.arange(30) % 9], 1)
    vectors = layer(ids)
    dense = layer.codes_frozen_2.float() @ layer.lift
    torch.testing.assert_close(vectors[:, 0], dense)
    torch.testing.assert_close(vectors[:, 1], layer.table_4[ids[:, 1]])
    codes = layer.codes_frozen_2.clone()
    vectors.square().sum().backward()
    mixdim.SparseAMSGrad(layer.parameters()).step()
    assert torch.equal(layer.codes_frozen_2, codes)

    again = mixdim.FeatureEmbeddings(plan)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(ids), layer(ids))


def test_a_storage_without_an_onnx_form_is_named_unless_its_blocks_are_folded(tmp_path):
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    plan = mixdim.plan({"a": 30, "b": 9}, temperature=0, base_dim=4).with_storage("a", Frozen(2))
    layer = mixdim.FeatureEmbeddings(plan)
    message = r"^blocks stored as Frozen\(dim=2\) cannot be exported to ONNX yet$"
    with nothing_folded(), pytest.raises(ExportError, match=message):
        mixdim.export(layer, tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())
    ids = torch.stack([torch.arange(30), torch.arange(30) % 9], 1)
    with served(layer) as model:
        torch.testing.assert_close(answer(model, ids), layer(ids).detach())
