"""The parameters of a layer: how many, how they are drawn, loaded and refused."""

import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from torch import nn

import mixdim
from mixdim import FeatureEmbeddings, MixedDimEmbedding
from small_layers import banded_plan, generator_of
from strategies import plans


class TestParameters:
    @given(plans())
    def test_the_layer_has_as_many_parameters_as_the_plan_says(self, plan):
        layer = FeatureEmbeddings(plan)
        assert layer.num_parameters == plan.num_parameters
        assert sum(p.numel() for p in layer.parameters()) == plan.num_parameters

    def test_uniform_dims_need_no_projection(self):
        layer = FeatureEmbeddings(mixdim.plan([5, 50], temperature=0, base_dim=6))
        assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {"table_6": (55, 6)}

    def test_blocks_of_one_width_share_a_parameter(self):
        plan = mixdim.plan([2, 40, 60, 100], temperature=0.5, base_dim=8)
        assert [block.dim for block in plan.blocks] == [8, 2, 2, 1]
        shapes = {name: tuple(p.shape) for name, p in FeatureEmbeddings(plan).named_parameters()}
        assert shapes == {
            "table_8": (2, 8),
            "table_2": (100, 2),
            "table_1": (100, 1),
            "lift": (2 * 2 + 1, 8),
        }

    @pytest.mark.parametrize("init", ["xavier", "he_fan_in", "he_fan_out"])
    def test_each_block_is_drawn_like_torch_draws_its_matrix(self, init):
        plan = mixdim.plan([300, 10_000], temperature=0.4, base_dim=32)
        layer = FeatureEmbeddings(plan, init=init, generator=generator_of(0))
        narrow = plan.blocks[1].dim
        linear = torch.empty(32, narrow)  # nn.Linear(narrow, 32).weight
        drawn_like = {
            "xavier": nn.init.xavier_uniform_,
            "he_fan_in": lambda w: nn.init.kaiming_uniform_(w, mode="fan_in", nonlinearity="relu"),
            "he_fan_out": lambda w: nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu"),
        }[init]
        for found, reference in [
            (layer.table_32, torch.empty(300, 32)),
            (getattr(layer, f"table_{narrow}"), torch.empty(10_000, narrow)),
            (layer.lift, linear),
        ]:
            drawn_like(reference)
            assert found.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05)
            assert found.std().item() == pytest.approx(reference.std().item(), rel=0.15)
            assert abs(found.mean().item()) < found.std().item()

    def test_an_aligned_start_has_one_deviation_and_projections_that_are_parts_of_the_identity(self):
        plan = mixdim.plan([300, 10_000], temperature=0.4, base_dim=32)
        narrow = plan.blocks[1].dim
        layer = FeatureEmbeddings(plan, init="aligned", generator=generator_of(0))
        assert torch.equal(layer.lift, torch.eye(32)[:narrow])
        wide, lifted = (layer.dense_weight(name) for name in plan)
        assert not lifted[:, narrow:].any()
        for drawn in (wide, lifted[:, :narrow]):
            assert drawn.std().item() == pytest.approx(0.1, rel=0.02)
            assert drawn.abs().max().item() <= 0.1 * 3**0.5 * 1.0001

    def test_xavier_bounds_are_those_of_the_formula(self):
        layer = MixedDimEmbedding(mixdim.plan([10_000], temperature=0, base_dim=16))
        bound = math.sqrt(6 / (10_000 + 16))
        assert bound * 0.999 < layer.table_16.abs().max().item() <= bound

    def test_the_generator_decides_the_weights(self):
        first, again, other = (
            FeatureEmbeddings(banded_plan(), generator=generator_of(seed)).dense_weight()
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_building_a_layer_allocates_its_tables_once(self):
        """In a process of its own: the peak grows by the tables, not by twice the tables."""
        script = """
import json, resource, torch, mixdim
plan = mixdim.plan([4_000_000, 1_000_000, 1000], temperature=0.2, base_dim=64)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
mixdim.FeatureEmbeddings(mixdim.plan([10], temperature=0, base_dim=4))
before = peak()
layer = mixdim.FeatureEmbeddings(plan, sparse=True)
print(json.dumps([peak() - before, plan.nbytes()]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        grown, tables = json.loads(done.stdout)
        assert tables > 100e6
        assert grown < 1.2 * tables


class TestBadArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"pooling": "median"}, ValueError, "pooling must be one of sum, mean, .* got 'median'"),
            ({"init": "zeros"}, ValueError, "init must be one of xavier, .* got 'zeros'"),
            ({"padding_id": 1.5}, TypeError, "padding_id must be a whole number, got 1.5"),
        ],
    )
    def test_options_are_checked(self, options, error, message):
        with pytest.raises(error, match=message):
            FeatureEmbeddings(banded_plan(), **options)

    def test_a_plan_is_asked_for(self):
        with pytest.raises(TypeError, match=r"plan must be a mixdim\.Plan, got dict"):
            FeatureEmbeddings({"a": 3})

    def test_one_table_wants_the_plan_of_one_feature(self):
        with pytest.raises(ValueError, match=r"got 3 \(day, item, user\): pass plan\['day'\]"):
            MixedDimEmbedding(banded_plan())

    def test_an_unknown_feature_has_no_weight(self):
        with pytest.raises(KeyError, match="unknown feature 'shop'; the features are day, item, user"):
            FeatureEmbeddings(banded_plan()).dense_weight("shop")


class TestLoadBlocks:
    def loaded(self, plan, feature, seed=0):
        """A layer with given blocks in one feature, and those blocks."""
        draw = generator_of(seed)
        blocks = plan[feature].blocks
        tables = [torch.randn(b.size, b.dim, generator=draw, dtype=torch.float64) for b in blocks]
        projections = [
            None
            if b.dim == plan.base_dim
            else torch.randn(b.dim, plan.base_dim, generator=draw, dtype=torch.float64)
            for b in blocks
        ]
        layer = FeatureEmbeddings(plan, dtype=torch.float64, ids=plan.orders)
        return layer, tables, projections

    @pytest.mark.parametrize("feature", ["day", "item", "user"])
    def test_a_feature_becomes_what_was_given_and_the_others_stay(self, feature):
        plan = banded_plan()
        layer, tables, projections = self.loaded(plan, feature)
        before = {name: layer.dense_weight(name).detach().clone() for name in plan}
        layer.load_blocks(feature, [table.numpy() for table in tables], projections)
        by_rank = torch.cat(
            [t if p is None else t @ p for t, p in zip(tables, projections, strict=True)]
        )
        expected = torch.empty_like(by_rank)
        order = plan.orders.get(feature)
        expected[torch.arange(len(by_rank)) if order is None else torch.as_tensor(order)] = by_rank
        torch.testing.assert_close(layer.dense_weight(feature).detach(), expected)
        for name in set(plan) - {feature}:
            assert torch.equal(layer.dense_weight(name), before[name])

    def test_what_does_not_fit_is_named_and_nothing_is_copied(self):
        plan = banded_plan()
        layer, tables, projections = self.loaded(plan, "item")
        before = layer.dense_weight().detach().clone()
        narrow = next(i for i, p in enumerate(projections) if p is not None)
        full = next(i for i, p in enumerate(projections) if p is None)
        with pytest.raises(ValueError, match=rf"tables\[{full}\] of feature 'item' must have shape"):
            layer.load_blocks(
                "item", [*tables[:full], tables[full][:, :-1], *tables[full + 1 :]], projections
            )
        with pytest.raises(ValueError, match=rf"projections\[{narrow}\] of feature 'item' .* got None"):
            layer.load_blocks("item", tables, [None] * len(tables))
        with pytest.raises(ValueError, match=rf"projections\[{full}\] of feature 'item' must be None"):
            layer.load_blocks("item", tables, [torch.eye(16) if p is None else p for p in projections])
        with pytest.raises(ValueError, match=f"has {len(tables)} blocks, got 0 tables"):
            layer.load_blocks("item", [], [])
        with pytest.raises(mixdim.UnknownFeatureError, match="unknown feature 'nobody'"):
            layer.load_blocks("nobody", tables, projections)
        assert torch.equal(layer.dense_weight(), before)
