"""A TorchRec collection is compressed as any other model, against its own answers.

In a fork of the process that has imported TorchRec, which changes PyTorch for all that comes after it.
"""

import pytest
import torch
from ranks import needs_torchrec
from torch import nn

import mixdim

pytestmark = needs_torchrec
ROWS = {"user": 300, "item": 200}


def collection(device="cpu"):
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

    tables = [
        EmbeddingBagConfig(name=f"of_{name}", embedding_dim=8, num_embeddings=rows, feature_names=[name])
        for name, rows in ROWS.items()
    ]
    return nn.Sequential(EmbeddingBagCollection(tables=tables, device=torch.device(device)))


def bags():
    from torchrec import KeyedJaggedTensor

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, (2 * 50,), generator=generator)
    values = torch.randint(200, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys=[*ROWS], values=values, lengths=lengths)


def compress_a_collection(rank, world, folder):
    torch.manual_seed(0)
    model, asked = collection(), bags()
    values, lengths = asked.values(), asked.lengths()
    before = model(asked).values().detach()
    stats = mixdim.observe(model, [asked])
    split = int(lengths[:50].sum())
    for name, ids in {"user": values[:split], "item": values[split:]}.items():
        expected = torch.bincount(ids, minlength=ROWS[name])
        assert stats[f"0.embedding_bags.of_{name}"].tolist() == expected.tolist()

    result = mixdim.compress(model, stats, "1/2", bits=8, echo=None)
    assert not result.refused
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) == result.bytes_after
    assert result.bytes_after <= result.bytes_before / 2
    after = model(asked).values()
    assert (after - before).abs().max() < 0.02 * before.abs().max()
    with pytest.raises(RuntimeError, match="computed: nothing can be written into it"):
        model[0].reset_parameters()
    assert torch.equal(model(asked).values(), after)

    mixdim.save_compressed(model, f"{folder}/small.safetensors")
    mixdim.load_compressed(other := collection(), f"{folder}/small.safetensors")
    assert torch.equal(other(asked).values(), after)

    with pytest.raises(ValueError, match=r"no values yet \(device meta\), as one .* to be sharded"):
        mixdim.compress(collection("meta"), dict(stats), "1/2")


def test_a_collection_answers_as_before_and_one_to_be_sharded_is_refused(ranks, tmp_path):
    ranks.run(__file__, "compress_a_collection", 1, str(tmp_path))
