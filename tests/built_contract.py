"""What every model promises to a run, which builds it by its options, and as a file.

A part of tests/contracts.py.
"""

from dataclasses import asdict
from typing import ClassVar

import pytest
import torch

import mixdim
from mixdim.models import MODELS, Baseline, Drawn, Facts
from mixdim.serving.layer_graph import ExportOptions
from mixdim.serving.torch_file import traced
from model_samples import MIXED, PLAIN, normal, seeded
from served_files import answer, nothing_folded, served

LAYER_OF = {True: mixdim.FeatureEmbeddings, False: mixdim.MixedDimEmbedding}  # all together, or each


class BuiltContract:
    MODEL: type
    OPTIONS: ClassVar[dict] = {}
    ROWS: ClassVar[dict]
    NUM_DENSE = 0
    FEATURES_TOGETHER = False
    TRACED = ("ids", "bags")  # with which inputs: it takes a second, so a model's variants share them

    # As a run builds it.

    def facts(self, **others):
        told = {"features": tuple(self.ROWS), "num_dense": self.NUM_DENSE, "constant": 0.7}
        return Facts(**{**told, **others})

    def built(self, kind=MIXED, *, seed=0, layer=None, **options):
        options = self.MODEL.Options(**{**self.OPTIONS, **options})
        drawn = Drawn("xavier", seeded(seed))
        return self.MODEL.build(self.plan(kind), self.facts(), options, drawn, layer)

    def test_it_has_a_name_and_reads_such_data(self):
        assert MODELS[self.MODEL.name] is self.MODEL
        assert self.MODEL.takes.reads(self.facts())

    def test_its_options_are_plain_values_with_defaults_that_it_can_be_built_from(self):
        for options in (
            self.MODEL.Options(),
            *(self.MODEL.auto(self.facts(train_rows=n, num_ids=9)) for n in (10, 10**9)),
        ):
            told = asdict(options)
            assert None not in told.values()
            assert self.MODEL.Options(**told) == options
            model = self.MODEL.build(self.plan(MIXED), self.facts(), options, Drawn())
            assert model(self.samples(3)).shape == (3,)

    def test_what_is_built_looks_up_sparsely_in_layers_that_are_the_plan(self):
        model, plan = self.built(), self.plan(MIXED)
        layers = model.embedding_layers()
        assert [name for layer in layers for name in layer.plan] == list(plan) == list(self.ROWS)
        assert sum(layer.num_parameters for layer in layers) == plan.num_parameters
        assert model.embedding_parameters == plan.num_parameters
        assert model.feature_rows() == self.ROWS
        model(self.samples(200)).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
        for layer in layers:
            assert all(table.grad.is_sparse for table in layer.row_sparse_tables)

    def test_other_embeddings_may_take_the_place_of_its_own(self):
        plans = []

        def layer(plan, drawn, *, pooling="sum"):
            plans.append((plan, drawn is None, pooling))
            options = {"init": "xavier", "generator": seeded(0)} if drawn is None else drawn._asdict()
            return LAYER_OF[self.FEATURES_TOGETHER](plan, pooling=pooling, **options)

        model = self.built(layer=layer)
        assert not any(table.row_sparse_tables for table in model.embedding_layers())
        assert [name for plan, _, _ in plans for name in plan][: len(self.ROWS)] == list(self.ROWS)
        torch.testing.assert_close(model(self.samples(5)), self.built()(self.samples(5)))

    def test_of_shapes_alone_it_draws_nothing(self):
        before = torch.get_rng_state()
        with torch.device("meta"):
            options = self.MODEL.Options(**self.OPTIONS)
            model = self.MODEL.build(self.plan(MIXED), self.facts(), options, Drawn())
        assert torch.equal(torch.get_rng_state(), before)
        assert {tensor.device.type for tensor in model.parameters()} == {"meta"}
        wanted = {name: tensor.shape for name, tensor in self.built().state_dict().items()}
        assert {name: tensor.shape for name, tensor in model.state_dict().items()} == wanted

    def test_a_model_that_contains_a_baseline_begins_with_its_outputs_and_learns_on(self):
        options = dict.fromkeys(self.MODEL.baseline_needs, True)
        if not self.MODEL.baselines:
            with pytest.raises(ValueError, match="does not contain a baseline"):
                self.built().start_from(Baseline({}))
            return
        told = self.MODEL.Options(**{**self.OPTIONS, **options})
        assert all(self.MODEL.contains(one, told) for one in self.MODEL.baselines)
        assert not self.MODEL.contains("another", told)
        for one in self.MODEL.baseline_needs:
            without = self.MODEL.Options(**{**self.OPTIONS, **options, one: False})
            assert not any(self.MODEL.contains(baseline, without) for baseline in self.MODEL.baselines)
        model, samples, generator = self.built(**options), self.samples(200), seeded(5)
        of_ids = {name: torch.randn(rows, generator=generator) for name, rows in self.ROWS.items()}
        summed = sum(of_ids[name][samples.ids[:, i]] for i, name in enumerate(self.ROWS))
        if model.first_order is None:  # weights of ids only, beside vectors that are small at first
            expected = model(samples) + summed + 0.25
            model.start_from(Baseline(of_ids, shift=torch.tensor(0.25)))
        else:
            model.first_order.standardize_by(torch.full([self.NUM_DENSE], 0.5), torch.tensor(2.0))
            of_numbers = torch.randn(self.NUM_DENSE, generator=generator)
            expected = 0.7 + 0.25 + summed + (samples.dense - 0.5) / 2 @ of_numbers
            model.start_from(Baseline(of_ids, of_numbers, torch.tensor(0.25)))
        torch.testing.assert_close(model(samples), expected, rtol=1e-5, atol=1e-5)
        optimizer = mixdim.SparseAMSGrad(model.named_parameters(), lr=0.01)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for _ in range(4):
            optimizer.zero_grad()
            model(samples).square().sum().backward()
            optimizer.step()
        for old, (name, new) in zip(before, model.named_parameters(), strict=True):
            assert not torch.equal(old, new) or not new.numel(), name

    # As a file.

    def outputs(self, model, samples):
        with torch.no_grad():
            found = model(samples)
        return found.sigmoid() if self.MODEL.task == "binary" else found

    def assert_served(self, model, batches, **options):
        """One file answers as the model does."""
        with served(model, **options) as file:
            for batch in batches:
                found = answer(file, batch.ids.long(), batch.dense, batch.bags)
                expected = self.outputs(model, batch)
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_its_graph_gives_the_same_in_onnx_runtime(self, kind):
        pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
        model, batches = normal(self.model(kind)), [self.samples(1), self.samples(33)]
        self.assert_served(model, batches)
        with nothing_folded():
            self.assert_served(model, batches)
            if kind == MIXED:
                self.assert_served(mixdim.quantize(model), batches)

    def assert_traced(self, model, batches, bags=()):
        """One graph of PyTorch's operators, as a .pt2 file holds it, answers as the model does."""
        program = traced(model, ExportOptions(bags)).module()
        for batch in batches:
            dense = [batch.dense] if model.num_dense else []
            of_bags = (tensor.long() for name in bags for tensor in batch.bags[name])
            found = program(batch.ids.long(), *dense, *of_bags)
            torch.testing.assert_close(found, self.outputs(model, batch), rtol=1e-5, atol=1e-6)

    def test_its_trace_gives_the_same_for_any_batch(self):
        if "ids" in self.TRACED:
            self.assert_traced(normal(self.model(MIXED)), [self.samples(1), self.samples(9)])
