"""Small tables do what nn.Embedding and nn.EmbeddingBag do: against those with the same weight."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mixdim
from mixdim.compression.replacements import CompressedEmbedding, CompressedEmbeddingBag


def compressed(table, budget="1/4", **options):
    """A stand-in for a table, and a table of the same kind with the weight that it stands for."""
    torch.manual_seed(0)
    counts = torch.arange(table.num_embeddings).flip(0) % 50
    model = nn.ModuleDict({"x": table})
    mixdim.compress(model, {"x": counts}, budget=budget, echo=None, **{"bits": 32} | options)
    small = model["x"]
    plain = copy.deepcopy(table)
    with torch.no_grad():
        plain.weight.copy_(small.weight)
    return small, plain


def check_same(found, expected, small, plain):
    """The same values, and the same gradient at all that the weight is computed from."""
    assert torch.allclose(found, expected, atol=1e-6)
    direction = torch.randn(found.shape)
    parameters = list(small.parameters())
    mine = torch.autograd.grad((found * direction).sum(), parameters, allow_unused=True)
    (dense,) = torch.autograd.grad((expected * direction).sum(), plain.weight)
    through = torch.autograd.grad(small.weight, parameters, dense, allow_unused=True)
    for one, other in zip(mine, through, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_a_table_looks_up_as_one_of_its_weight(padding_idx):
    small, plain = compressed(nn.Embedding(200, 8, padding_idx=padding_idx))
    assert isinstance(small, nn.Embedding)
    assert isinstance(small, CompressedEmbedding)
    assert small.padding_idx == plain.padding_idx == (199 if padding_idx == -1 else padding_idx)
    for shape in ((30,), (4, 5), (0,), (2, 3, 4), ()):
        ids = torch.randint(0, 200, shape)
        check_same(small(ids), plain(ids), small, plain) if ids.numel() else None
        assert small(input=ids).shape == plain(ids).shape
    with pytest.raises(IndexError, match="out of range"):
        small(torch.tensor([200]))


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("include_last_offset", [False, True])
def test_bags_are_pooled_as_by_one_of_its_weight(mode, padding_idx, include_last_offset):
    options = {"mode": mode, "padding_idx": padding_idx, "include_last_offset": include_last_offset}
    small, plain = compressed(nn.EmbeddingBag(200, 8, **options))
    assert isinstance(small, nn.EmbeddingBag)
    assert isinstance(small, CompressedEmbeddingBag)
    ids, offsets = torch.randint(0, 200, (20,)), torch.tensor([0, 4, 4, 11, 20])
    ids[4:7] = 3
    offsets = offsets if include_last_offset else offsets[:-1]
    check_same(small(ids, offsets), plain(ids, offsets), small, plain)
    check_same(small(input=ids, offsets=offsets), plain(ids, offsets), small, plain)
    rows = ids.view(4, 5)
    check_same(small(rows), plain(rows), small, plain)
    if mode == "sum":
        weights = torch.randn(20)
        for asked in ((ids, offsets, weights), (rows, None, weights.view(4, 5))):
            check_same(small(*asked), plain(*asked), small, plain)
    else:
        with pytest.raises(ValueError, match="per_sample_weights are for mode 'sum' only"):
            small(ids, offsets, per_sample_weights=torch.ones(20))
    with pytest.raises(ValueError, match="offsets must be None"):
        small(rows, offsets)
    with pytest.raises(ValueError, match="input must have two dimensions, or one with offsets"):
        small(ids)


def test_the_weight_is_read_and_gives_gradients_to_the_parts():
    small, plain = compressed(nn.Embedding(100, 8))
    query = torch.randn(3, 8)
    check_same(query @ small.weight.t(), query @ plain.weight.t(), small, plain)
    ids = torch.tensor([5, 7])
    check_same(F.embedding(ids, small.weight), F.embedding(ids, plain.weight), small, plain)


def test_nothing_can_be_written_in_its_place():
    small, _ = compressed(nn.Embedding(100, 8, padding_idx=2))
    before = small.weight.tolist()
    writes = [
        lambda: small.weight.data.copy_(torch.zeros(100, 8)),
        lambda: nn.init.normal_(small.weight),
        lambda: setattr(small, "weight", nn.Parameter(torch.zeros(100, 8))),
        lambda: setattr(small, "weight", torch.zeros(100, 8)),
        small.reset_parameters,
        small._fill_padding_idx_with_zero,
    ]
    for write in writes:
        with pytest.raises(RuntimeError, match="computed: nothing can be written into it"):
            write()
    assert small.weight.tolist() == before


def test_its_facts_are_those_of_the_table():
    small, plain = compressed(nn.Embedding(100, 8, padding_idx=1, sparse=True))
    for name in ("num_embeddings", "embedding_dim", "padding_idx", "sparse", "max_norm", "norm_type"):
        assert getattr(small, name) == getattr(plain, name)
    assert (small.device, small.dtype) == (torch.device("cpu"), torch.float32)
    assert not any(p.numel() == 800 for p in small.parameters())
    assert small.nbytes == sum(tensor.nbytes for tensor in small.state_dict().values()) <= 800
    assert "instead of 3.2 kB" in repr(small)
    small(torch.tensor([2, 2])).sum().backward()
    assert any(p.grad is not None and p.grad.is_sparse for p in small.parameters())


def test_it_is_copied_moved_and_loaded():
    small, plain = compressed(nn.Embedding(100, 8))
    ids = torch.arange(100)
    other = copy.deepcopy(small)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    assert not torch.allclose(other(ids), small(ids))
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(ids), small(ids))
    other.double()
    assert (other.dtype, other.weight.dtype) == (torch.float64, torch.float64)
    assert torch.allclose(other(ids), plain(ids).double(), atol=1e-6)
    assert other.to("cpu", torch.float32).train(False).training is False
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*Unexpected key"):
        small.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("bits", [32, 8, 4, "auto"])
def test_vectors_have_the_type_of_the_table_and_change_it_as_weights_do(kind, bits):
    small, _ = compressed(kind(400, 8, dtype=torch.bfloat16), bits=bits)
    ids = torch.arange(200).view(50, 4)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        small = copy.deepcopy(small).to(dtype)
        assert (small.dtype, small(ids).dtype, small.weight.dtype) == (dtype, dtype, dtype)
        plain = kind.from_pretrained(small.weight.clone())
        assert torch.allclose(small(ids), plain(ids), atol=1e-2)
    assert "instead of 25.6 kB" in repr(small)  # 400 rows of 8 numbers of 8 bytes


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
def test_a_graph_of_it_answers_for_other_ids_too():
    small, plain = compressed(nn.Embedding(300, 8))
    traced = torch.jit.trace(small.eval(), torch.arange(5))
    assert torch.allclose(traced(torch.arange(300)), plain(torch.arange(300)), atol=1e-6)


def test_it_is_trained_on():
    small, _ = compressed(nn.Embedding(100, 8))
    target, ids = torch.randn(20, 8), torch.arange(20)
    optimizer, losses = torch.optim.Adam(small.parameters(), lr=0.05), []
    for _ in range(50):
        losses.append((small(ids) - target).square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


def test_a_frozen_table_stays_frozen_and_a_rounded_one_has_nothing_to_train():
    frozen = nn.Embedding(100, 8)
    frozen.weight.requires_grad_(False)
    small, _ = compressed(frozen)
    assert small.parameters()
    assert not any(parameter.requires_grad for parameter in small.parameters())
    small, plain = compressed(nn.Embedding(100, 8), bits=8, bands=1, min_dim=1)
    assert not list(small.parameters())
    assert torch.allclose(small(torch.arange(100)), plain(torch.arange(100)), atol=1e-6)
