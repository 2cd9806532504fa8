from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

import mixdim
from mixdim import Hashed, Robe, Rows
from mixdim.models import DLRM, MatrixFactorization, NeuralCollaborativeFiltering
from mixdim.storages.levels import BITS, NOISE, levels_of
from mixdim.training.optimizers import NamedOptimizer
from model_samples import SomeSamples
from storage_contract import BASE_DIM, ROWS, StorageContract
from strategies import random_bags, random_ids, stored_plans


class TestQuantized(StorageContract):
    storages = (
        Rows(2, bits=8),
        Rows(BASE_DIM, bits=4),
        Rows(3, bits=(5, 2, 1), mean=True),
        Rows(BASE_DIM, bits=(6, 6, 4, 3, 2, 2)),
    )
    has_kernels = True
    close: ClassVar = {"rtol": 1e-5, "atol": 1e-6}  # codes are decoded in float32

    @staticmethod
    def finds_all_it_can_hold(storage):
        return False  # steps are found anew


def plan_of(**storages):
    plan = mixdim.plan(dict.fromkeys(storages, 40), temperature=0, base_dim=4)
    for name, storage in storages.items():
        plan = plan.with_storage(name, storage)
    return plan


# The layer.


def codes_in(held, bits):
    """The codes of a row of bytes, which are one stream of bits."""
    stream, codes = np.unpackbits(held, bitorder="little").tolist(), []
    for own in bits:
        codes.append(sum(bit << n for n, bit in enumerate(stream[:own])))
        stream = stream[own:]
    return codes


@pytest.mark.parametrize(
    ("storage", "bits"),
    [(Rows(3, 8), (8, 8, 8)), (Rows(3, 3), (3, 3, 3)), (Rows(3, (6, 5, 1), mean=True), (6, 5, 1))],
)
def test_a_row_is_levels_times_steps_lifted_and_the_mean(storage, bits):
    layer = mixdim.FeatureEmbeddings(plan_of(a=storage, b=storage))
    size, width = -(-sum(bits) // 8), 3 + storage.mean
    codes, steps = layer.codes.view(2, 40, size).numpy(), layer.steps.float().view(2, 3).numpy()
    lift = layer.coded_lift.float().view(2, width, 4).numpy()
    assert (layer.codes.dtype, layer.steps.dtype) == (torch.uint8, torch.float16)
    for slot, name in enumerate("ab"):
        dense = layer.dense_weight(name).numpy()
        for row in (0, 10, 21, 39):
            both = zip(codes_in(codes[slot, row], bits), bits, strict=True)
            numbers = np.array([levels_of(own)[code] for code, own in both]) * steps[slot]
            expected = numbers @ lift[slot][:3] + lift[slot][3:].sum(0)
            np.testing.assert_allclose(dense[row], expected, rtol=1e-5, atol=1e-7)


@given(stored_plans(), st.sampled_from(BITS), st.integers(0, 100))
def test_a_quantized_layer_has_the_bytes_of_its_plan_and_looks_up_its_rows(plan, bits, seed):
    generator = torch.Generator().manual_seed(seed)
    layer = mixdim.FeatureEmbeddings(plan, generator=generator)
    small = layer.quantized(bits)
    assert small.plan == plan.quantized(bits)
    written = save(small.state_dict())
    assert small.plan.nbytes() == len(written) - 8 - int.from_bytes(written[:8], "little")
    mine, others = layer.tables(), small.tables()
    for before, after in zip(layer.layout.blocks, small.layout.blocks, strict=True):
        parts = others.of_block(after).parts(after)
        if not after.storage.is_quantized:
            assert all(torch.equal(parts[n], p) for n, p in mine.of_block(before).parts(before).items())
    ids = random_ids(plan, 5, generator)
    rows = torch.stack([small.dense_weight(name)[ids[:, i]] for i, name in enumerate(plan)], 1)
    torch.testing.assert_close(small(ids), rows)
    values, offsets, bags = random_bags(plan, 2, generator)
    summed = [
        small.dense_weight(name)[bags[2 * i + b]].sum(0) for b in range(2) for i, name in enumerate(plan)
    ]
    torch.testing.assert_close(small.bags(values, offsets), torch.stack(summed).view(2, len(plan), -1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 16])
def test_what_is_lost_of_normal_rows_is_the_noise_of_so_many_bits(bits, dim):
    plan = mixdim.plan({"x": 5000}, temperature=0, base_dim=16).with_storage("x", Rows(dim))
    layer = mixdim.MixedDimEmbedding(plan)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    found = mixdim.replan(layer, plan.quantized(bits))
    assert found.error["x"] == pytest.approx(NOISE[bits], rel=0.2)
    away = found.layer.dense_weight() - layer.dense_weight()
    error = away.pow(2).sum() / layer.dense_weight().pow(2).sum()
    assert error.item() == pytest.approx(found.error["x"], rel=5e-3)


def test_bits_by_direction_are_of_the_main_directions_in_the_metric_and_a_mean_is_taken_away():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    root = rng.normal(size=(6, 6)) + 3 * np.eye(6)
    spread, bits = np.array([8, 4, 2, 1, 0.5, 0.1]), (6, 5, 3, 1)
    seen = rng.normal(size=(4000, 6)) * spread @ turn.T + 20 * turn[:, 5]  # by the metric
    matrix = seen @ np.linalg.inv(root)
    plan = mixdim.plan({"x": 4000}, temperature=0, base_dim=6)
    options = {"metric": torch.from_numpy(root @ root.T), "counts": rng.exponential(size=4000)}

    def error(storage):
        found = mixdim.replan(torch.from_numpy(matrix), plan.with_storage("x", storage), **options)
        return found.error["x"] * (seen**2).sum() / len(seen)

    by_hand = sum(spread[n] ** 2 * (NOISE[own] if n < 4 else 1) for n, own in enumerate((*bits, 0, 0)))
    assert error(Rows(4, bits, mean=True)) == pytest.approx(by_hand, rel=0.05)
    assert error(Rows(4, bits)) > 1.5 * by_hand


def test_a_direction_without_numbers_gives_zeros_and_small_ones_are_kept_beside_large_ones():
    matrix = torch.randn(900, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-6, 1, 0])
    plan = mixdim.plan({"x": 900}, temperature=0, base_dim=3).with_storage("x", Rows(3, 6))
    dense = mixdim.replan(matrix, plan).layer.dense_weight()
    assert not dense[:, 2].any()
    for column in range(2):
        away = (dense - matrix)[:, column].square().sum() / matrix[:, column].square().sum()
        assert float(away) < 2 * NOISE[6]


def test_rows_that_a_lift_makes_of_nearly_equal_numbers_are_turned_before_they_are_coded():
    """Codes of the numbers as they were trained would lose the little that the lift makes of them."""
    plan = mixdim.plan({"x": 1000}, temperature=0, base_dim=8).with_storage("x", Rows(2))
    layer = mixdim.MixedDimEmbedding(plan, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.table_2[:, 1] = layer.table_2[:, 0] + 1e-3 * layer.table_2[:, 1]
        layer.lift[1] = -layer.lift[0] + 1e-2 * layer.lift[1]
    assert mixdim.replan(layer, plan.quantized(8)).error["x"] < 3 * NOISE[8]


@pytest.mark.parametrize("face", [mixdim.FeatureEmbeddings, mixdim.MixedDimEmbedding])
def test_a_rounded_layer_keeps_order_padding_pooling_and_mode(face):
    counts = {"item": np.random.default_rng(1).permutation(50)}
    plan = mixdim.plan({"item": 50}, counts=counts, bands=3, temperature=0.5, base_dim=8)
    layer = face(plan, pooling="mean", padding_id=-1, check_ids=False, sparse=True).eval()
    state, seed = layer.state_dict(), torch.random.get_rng_state()
    small = layer.quantized()
    assert torch.equal(torch.random.get_rng_state(), seed)
    assert type(small) is face
    assert (small.pooling, small.padding_id, small.check_ids, small.training) == (
        "mean",
        -1,
        False,
        False,
    )
    assert torch.equal(small.ids.rank_of_id, layer.ids.rank_of_id)
    torch.testing.assert_close(small.dense_weight(), layer.dense_weight(), rtol=0, atol=0.01)
    assert all(torch.equal(tensor, state[name]) for name, tensor in layer.state_dict().items())
    again = face(small.plan, pooling="mean", padding_id=-1)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again.dense_weight(), small.dense_weight())
    assert torch.equal(small.quantized().dense_weight(), small.dense_weight())


def test_a_layer_with_an_order_of_its_own_keeps_it():
    plan = mixdim.plan(
        {"item": 6}, counts={"item": [9, 5, 4, 1, 1, 1]}, bands=2, temperature=0.5, base_dim=4
    )
    layer = mixdim.MixedDimEmbedding(plan, ids=[5, 4, 3, 2, 1, 0])
    torch.testing.assert_close(
        layer.quantized()(torch.arange(6)), layer(torch.arange(6)), rtol=0, atol=0.01
    )


def test_its_numbers_keep_their_types_whatever_the_layer_becomes():
    layer = mixdim.FeatureEmbeddings(plan_of(a=Rows(3, bits=8), b=Rows(4)))
    before = {name: tensor.clone() for name, tensor in layer.named_buffers()}
    vectors = layer(torch.zeros(1, 2, dtype=torch.int64))
    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        layer.to(dtype)
        assert layer.table_4.dtype == dtype
        for name, tensor in layer.named_buffers():
            assert tensor.dtype == before[name].dtype
            assert torch.equal(tensor, before[name])
    torch.testing.assert_close(layer(torch.zeros(1, 2, dtype=torch.int64))[0, 0], vectors[0, 0])


@pytest.mark.parametrize("wrong", ["table_3", "lift"])
def test_numbers_that_are_not_finite_are_refused_by_feature(wrong):
    layer = mixdim.FeatureEmbeddings(plan_of(a=Rows(3), b=Rows(4)))
    with torch.no_grad():
        layer.get_parameter(wrong)[0] = float("nan")
    with pytest.raises(
        ValueError, match="feature 'a' cannot be quantized: its numbers must be finite, row 0 is not"
    ):
        layer.quantized()


# What is not trained.


def test_training_is_refused_with_what_to_do():
    layer = mixdim.FeatureEmbeddings(plan_of(a=Rows(3, bits=8), b=Rows(4)))
    message = r"feature 'a' is stored as Rows\(dim=3, bits=8\), which is not trained: train plan"
    with pytest.raises(ValueError, match=message):
        NamedOptimizer("amsgrad", nn.ModuleDict({"embeddings": layer}), lr=0.1)
    with pytest.raises(ValueError, match="block 0 of feature 'a' is stored as Rows"):
        layer.load_blocks("a", [np.ones((40, 3))], [np.ones((3, 4))])


def test_gradients_stop_at_it():
    layer = mixdim.FeatureEmbeddings(plan_of(a=Rows(3, bits=8), b=Rows(4)))
    codes = layer.codes.clone()
    layer(torch.tensor([[1, 2]])).sum().backward()
    mixdim.SparseAMSGrad(layer.parameters()).step()
    assert torch.equal(layer.codes, codes)
    assert not mixdim.MixedDimEmbedding(plan_of(a=Rows(3, bits=8)))(torch.tensor([1])).requires_grad


# The plan.


def test_a_plan_becomes_one_of_codes():
    plan = plan_of(a=Rows(3), b=Hashed(2, buckets=5), c=Rows(4), d=Robe(2, 9), e=Rows(0))
    small = plan.quantized(bits=4)
    assert [block.storage for block in small.blocks] == [
        Rows(3, bits=4),
        Hashed(2, 5),
        Rows(4, bits=4),
        Robe(2, 9),
        Rows(0),
    ]
    assert small.provenance == {"rule": "quantized", "bits": 4, "was": plan.provenance}
    assert mixdim.Plan.from_json(small.to_json()) == small
    assert small.quantized() is small
    changed = small.with_storage("a", Rows(1))
    assert changed.provenance == {"rule": "by_hand", "was": small.provenance}
    with pytest.raises(ValueError, match="bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"):
        plan.quantized(bits=7)


def test_its_bytes_are_codes_steps_and_the_projection():
    assert Rows(3, bits=8).cost(size=40, base_dim=4) == (0, 0, 120 + 2 * 3 + 2 * 12, 0)
    assert Rows(3, bits=4).cost(size=41, base_dim=4) == (0, 0, 41 * 2 + 2 * 3 + 2 * 12, 0)
    assert Rows(4, bits=8).cost(size=1, base_dim=4) == (0, 0, 4 + 2 * 4, 0)
    assert Rows(4, bits=(3, 3, 2, 1)).cost(size=7, base_dim=4) == (0, 0, 7 * 2 + 2 * 4 + 2 * 16, 0)
    assert Rows(2, bits=1, mean=True).cost(size=7, base_dim=4) == (0, 0, 7 + 2 * 2 + 2 * 12, 0)
    plan = plan_of(a=Rows(3, bits=8), b=Rows(4, bits=8))
    assert plan.num_parameters == 0
    assert plan.nbytes() == plan.nbytes(optimizer="amsgrad") == 150 + 168
    assert plan.equivalent_uniform_dim == pytest.approx((150 + 168) / 4 / 80)
    assert plan.compression(uniform_dim=4) == pytest.approx(80 * 4 * 4 / (150 + 168))


def test_bits_that_are_all_the_same_are_one_number():
    assert Rows(3, (4, 4, 4)) == Rows(3, [4, 4, 4]) == Rows(3, 4)
    assert Rows(2, np.array([4, 2])) == Rows(2, (4, 2))
    assert Rows(5, (6, 6, 4, 4, 1)).describe(9) == "5 of 6x2-4x2-1 bits"
    assert Rows(2, 4, mean=True).describe(9) == "2 of 4 bits and a mean"
    plan = plan_of(a=Rows(3, (4, 2, 1)), b=Rows(2, 3, mean=True))
    assert mixdim.Plan.from_json(plan.to_json()) == plan
    assert [block.dim for block in plan.trainable().blocks] == [3, 3]
    assert plan.least_bits == 1


def test_a_plan_shows_bytes_whose_shares_add_up():
    counts = {"b": np.random.default_rng(0).permutation(40)}
    plan = mixdim.plan({"a": 40, "b": 40}, counts=counts, bands={"b": 2}, temperature=0.5, base_dim=4)
    small = plan.with_storage("a", Robe(2, 30)).quantized()
    lines = str(small).splitlines()
    assert lines[0].endswith("temperature 0.5, then changed by hand, quantized to 8 bits")
    assert "bytes" in lines[2]
    assert any("of 8 bits" in line for line in lines)
    assert any(line.startswith("ranks of ids") and "160" in line for line in lines)
    shares = [float(line.split()[-1][:-1]) for line in lines if line.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    (total,) = (line for line in lines if line.startswith("total"))
    assert total.split()[-1] == f"{small.nbytes():,}"
    assert "which are not trained" in str(small)


def test_a_mean_takes_the_place_of_a_direction():
    assert plan_of(a=Rows(3, 4, mean=True)).trainable().blocks[0].dim == 4
    with pytest.raises(ValueError, match="feature 'a' with its mean must be at most base_dim 4, got 5"):
        plan_of(a=Rows(4, 4, mean=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8), r"a row that all share has 32 bits, got 8: use Rows\(0\)"),
        ((2, 16), "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 16"),
        ((2, 8.0), "bits must be a whole number, got 8.0"),
        ((2, (8,)), "bits must be one for each of 2 directions, got 1"),
        ((2, (4, 8)), r"bits must not rise from direction to direction, got \(4, 8\)"),
        ((2, (32, 8)), "bits of a direction must be 1, 2, 3, 4, 5, 6, 8, got 32"),
        ((2, 8, 1), "mean must be true or false, got 1"),
        ((2, 32, True), "only codes are of what is left without a mean"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rows(*arguments)


# Whole models.


def models():
    plan = mixdim.plan(ROWS, temperature=0.3, base_dim=8)
    yield DLRM(mixdim.FeatureEmbeddings(plan), num_dense=2, bottom=(4,), top=(4,)), 3
    for kind in (MatrixFactorization, NeuralCollaborativeFiltering):
        yield kind(mixdim.MixedDimEmbedding(plan["whole"]), mixdim.MixedDimEmbedding(plan["cut"])), 2


@pytest.mark.parametrize("number", range(3))
def test_a_model_is_copied_with_its_layers_rounded(number):
    model, features = list(models())[number]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = mixdim.quantize(model, bits=8)
    assert type(small) is type(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    layers = [module for module in small.modules() if hasattr(module, "plan")]
    assert len(layers) == (1 if features == 3 else 2)
    assert not any(block.storage.is_trained for layer in layers for block in layer.plan.blocks)
    ids = torch.tensor([[10, 22, 8], [0, 3, 5]])[:, :features]
    samples = SomeSamples(ids, torch.randn(2, 2))
    torch.testing.assert_close(small(samples), model(samples), rtol=0, atol=0.05)
    assert not set(map(id, small.parameters())) & set(map(id, model.parameters()))


def test_a_layer_that_a_model_has_twice_stays_one():
    layer = mixdim.MixedDimEmbedding(mixdim.plan({"x": 9}, temperature=0, base_dim=4))
    small = mixdim.quantize(nn.ModuleList([layer, layer]))
    assert small[0] is small[1]
    assert mixdim.quantize(layer).plan == layer.plan.quantized()


def test_a_model_without_a_layer_to_round_is_refused():
    with pytest.raises(ValueError, match="must have a mixdim layer to quantize, Linear has none"):
        mixdim.quantize(nn.Linear(2, 2))
