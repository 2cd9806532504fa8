"""What every model promises, whatever embeddings it is given. A model's test inherits this suite.

A subclass says `MODEL`, `ROWS`, `NUM_DENSE`, `OPTIONS` (of a run, so that the model is small) and
`OTHER_PARAMETERS` (of the model without its embeddings, counted by hand), and builds the model from
embeddings: `build(embeddings, generator)`. `embeddings` has one module a feature, or, for
`FeatureContract`, is a FeatureEmbeddings where they are mixed. A run builds it by `built`.
"""

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import mixdim
from mixdim.models import MODELS, Baseline, Drawn, Facts, FirstOrder
from served_files import answer, nothing_folded, served

BASE_DIM = 8
MIXED, UNIFORM, PLAIN = "mixed", "uniform", "nn.Embedding"


class SomeSamples(NamedTuple):
    ids: Tensor
    dense: Tensor
    bags: Mapping = MappingProxyType({})


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def zipf_counts(rows):
    return [round(1000 / (rank + 1)) for rank in range(rows)]


def normal(model, seed=7, std=0.3):
    """Let no parameter be special, such as 0."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std, generator=seeded(seed))
    return model


def first_order(rows, num_dense, *, sparse=False, constant=0.0):
    """Weights of these features, 0 at first."""
    plan = mixdim.plan(rows, temperature=0, base_dim=1)
    weights = mixdim.FeatureEmbeddings(plan, sparse=sparse, pooling="mean", generator=seeded(0))
    return FirstOrder(weights, num_dense=num_dense, constant=constant)


class ModelContract:
    MODEL: type
    OPTIONS: ClassVar[dict] = {}
    ROWS: ClassVar[dict]
    NUM_DENSE = 0
    BANDS = 1
    OTHER_PARAMETERS: int
    FEATURES_TOGETHER = False

    def build(self, embeddings, generator):
        raise NotImplementedError

    def plan(self, kind):
        counts = {name: zipf_counts(rows) for name, rows in self.ROWS.items()}
        temperature = 0.3 if kind == MIXED else 0
        return mixdim.plan(
            self.ROWS, counts=counts, bands=self.BANDS, temperature=temperature, base_dim=BASE_DIM
        )

    def model(self, kind, *, sparse=False, seed=0):
        generator = seeded(seed)
        if kind == PLAIN:
            weights = [torch.randn(n, BASE_DIM, generator=generator) for n in self.ROWS.values()]
            embeddings = [
                nn.Embedding.from_pretrained(weight, freeze=False, sparse=sparse) for weight in weights
            ]
        elif self.FEATURES_TOGETHER:
            embeddings = mixdim.FeatureEmbeddings(self.plan(kind), sparse=sparse, generator=generator)
        else:
            plan = self.plan(kind)
            embeddings = [
                mixdim.MixedDimEmbedding(plan[name], sparse=sparse, generator=generator) for name in plan
            ]
        return self.build(embeddings, generator)

    def samples(self, batch_size, *, dtype=torch.int32):
        generator = seeded(batch_size)
        columns = [
            torch.randint(n, (batch_size,), generator=generator, dtype=dtype) for n in self.ROWS.values()
        ]
        dense = torch.randn(batch_size, self.NUM_DENSE, generator=generator)
        return SomeSamples(torch.stack(columns, dim=1), dense)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("batch_size", [0, 1, 7])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_each_sample_gets_one_number(self, kind, batch_size, dtype):
        scores = self.model(kind)(self.samples(batch_size, dtype=dtype))
        assert scores.shape == (batch_size,)
        assert scores.dtype == torch.float32
        scores.sum().backward()

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_sample_gets_the_same_number_in_any_batch(self, kind):
        model, samples = self.model(kind), self.samples(7)
        alone = [model(SomeSamples(samples.ids[i : i + 1], samples.dense[i : i + 1])) for i in range(7)]
        torch.testing.assert_close(model(samples), torch.cat(alone), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_every_parameter_gets_a_gradient(self, kind, sparse):
        model, samples = self.model(kind, sparse=sparse), self.samples(200)
        model(samples).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            gradient = parameter.grad.to_dense()
            assert gradient.any() or not gradient.numel(), name
            assert gradient.isfinite().all(), name

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_the_state_restores_the_model(self, kind, tmp_path):
        model, other = self.model(kind, seed=0), self.model(kind, seed=1)
        samples = self.samples(7)
        assert not torch.equal(model(samples), other(samples))
        torch.save(model.state_dict(), tmp_path / "state.pt")
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert torch.equal(model(samples), other(samples))

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_copy_gives_the_same_and_shares_nothing(self, kind):
        model, samples = self.model(kind), self.samples(7)
        twin, before = copy.deepcopy(model), model(samples).detach()
        assert torch.equal(twin(samples), before)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.fill_(0.5)
        assert torch.equal(model(samples), before)
        assert not torch.equal(twin(samples), before)

    @pytest.mark.parametrize("kind", [MIXED, UNIFORM, PLAIN])
    def test_parameters_are_counted_once_and_wholly(self, kind):
        model = self.model(kind)
        if kind == MIXED:
            plan = self.plan(MIXED)
            assert any(block.dim < BASE_DIM for block in plan.blocks)
            tables = sum(block.size * block.dim for block in plan.blocks)
            narrow = [block for block in plan.blocks if block.dim < BASE_DIM]
            expected = tables + sum(block.dim * BASE_DIM for block in narrow)
        else:
            expected = sum(self.ROWS.values()) * BASE_DIM
        assert model.embedding_parameters == expected
        assert model.num_parameters == expected + self.OTHER_PARAMETERS

    def test_frozen_parameters_do_not_count(self):
        model = self.model(MIXED).requires_grad_(False)
        assert model.num_parameters == model.embedding_parameters == 0

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_the_seed_gives_the_weights(self, kind):
        first, again, other = (list(self.model(kind, seed=s).parameters()) for s in (3, 3, 4))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        both = zip(first, other, strict=True)  # of which 0 and 1 are not drawn
        drawn = [pair for pair in both if pair[0].numel() and (pair[0] != pair[0].flatten()[0]).any()]
        assert drawn
        assert not any(torch.equal(a, b) for a, b in drawn)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_training_lowers_the_loss(self, kind, sparse):
        model, samples = self.model(kind, sparse=sparse), self.samples(64)
        target = torch.randn(64, generator=seeded(9))
        optimizer = mixdim.SparseAMSGrad(model.named_parameters(), lr=0.02)
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(samples), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_sparse_gradients_change_neither_scores_nor_gradients(self, kind):
        samples = self.samples(30)
        dense, sparse = self.model(kind, sparse=False), self.model(kind, sparse=True)
        assert torch.equal(dense(samples), sparse(samples))
        dense(samples).sum().backward()
        sparse(samples).sum().backward()
        assert any(p.grad.is_sparse for p in sparse.parameters())
        assert not any(p.grad.is_sparse for p in dense.parameters())
        for mine, theirs in zip(dense.parameters(), sparse.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad.to_dense())

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("last_feature", [False, True])
    def test_an_id_out_of_range_is_an_index_error(self, kind, last_feature):
        model = self.model(kind)
        column = -1 if last_feature else 0
        for bad in (-1, list(self.ROWS.values())[column]):
            samples = self.samples(7)
            samples.ids[3, column] = bad
            with pytest.raises(IndexError):
                model(samples)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_ids_of_another_shape_are_refused(self, kind):
        model, samples = self.model(kind), self.samples(4)
        one_short = samples.ids[:, 1:]
        one_too_many = torch.cat([samples.ids, samples.ids[:, :1]], dim=1)
        flat = samples.ids[:, 0]
        for ids in (one_short, one_too_many, flat):
            with pytest.raises(ValueError, match=rf"ids must have shape \(batch, {len(self.ROWS)}.*got"):
                model(samples._replace(ids=ids))

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
        if self.MODEL.baseline is None:
            with pytest.raises(ValueError, match="does not contain a baseline"):
                self.built().start_from(Baseline({}))
            return
        told = self.MODEL.Options(**{**self.OPTIONS, **options})
        assert self.MODEL.contains(self.MODEL.baseline, told)
        assert not self.MODEL.contains("another", told)
        for one in self.MODEL.baseline_needs:
            without = self.MODEL.Options(**{**self.OPTIONS, **options, one: False})
            assert not self.MODEL.contains(self.MODEL.baseline, without)
        model, samples, generator = self.built(**options), self.samples(200), seeded(5)
        of_ids = {name: torch.randn(rows, generator=generator) for name, rows in self.ROWS.items()}
        summed = sum(of_ids[name][samples.ids[:, i]] for i, name in enumerate(self.ROWS))
        if model.first_order is None:  # weights of ids only, beside vectors that are small at first
            expected = model(samples) + summed
            model.start_from(Baseline(of_ids))
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

    def test_a_pt2_file_gives_the_same_for_any_batch(self):
        model = normal(self.model(MIXED))
        with tempfile.TemporaryDirectory() as folder:
            program = torch.export.load(mixdim.export(model, Path(folder) / "model.pt2")).module()
        for batch in (self.samples(1), self.samples(9)):
            inputs = [batch.ids.long(), *([batch.dense] if model.num_dense else [])]
            expected = self.outputs(model, batch)
            torch.testing.assert_close(program(*inputs), expected, rtol=1e-5, atol=1e-6)

    # Beside nn.Embedding.

    def test_uniform_dims_are_the_same_as_nn_embedding(self):
        plain, uniform, samples = self.model(PLAIN), self.model(UNIFORM), self.samples(30)

        def tables(model, of=lambda p: p):
            """Of all embeddings, one below the other: uniform tables are packed in that order."""
            return torch.cat([of(p) for name, p in model.named_parameters() if "embedding" in name])

        with torch.no_grad():
            rows = tables(uniform).split(list(self.ROWS.values()))
            tables_of_plain = [p for name, p in plain.named_parameters() if "embedding" in name]
            for table, weight in zip(tables_of_plain, rows, strict=True):
                table.copy_(weight)
        others = {name: t for name, t in uniform.state_dict().items() if "embedding" not in name}
        missing, unexpected = plain.load_state_dict(others, strict=False)
        assert not unexpected
        assert all("embedding" in name for name in missing)

        scores, expected = uniform(samples), plain(samples)
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
        scores.square().sum().backward()
        expected.square().sum().backward()
        close = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(
            tables(uniform, lambda p: p.grad), tables(plain, lambda p: p.grad), **close
        )
        for name, parameter in uniform.named_parameters():
            if "embedding" not in name:
                torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad, **close)


LAYER_OF = {True: mixdim.FeatureEmbeddings, False: mixdim.MixedDimEmbedding}  # all together, or each


class FeatureContract(ModelContract):
    """For models of any features: numbers and bags too; `BAGS` has one feature that may be a bag."""

    ROWS: ClassVar = {"ad": 90, "site": 12, "device": 4}
    NUM_DENSE = 5
    FEATURES_TOGETHER = True
    BAGS: ClassVar = {"user": 10, "genres": 9, "item": 30}

    def first_order(self, embeddings, **options):
        """First-order weights of the same features, with gradients of the same kind."""
        one = embeddings if isinstance(embeddings, mixdim.FeatureEmbeddings) else embeddings[0]
        rows = dict(zip(self.names(embeddings), self.rows(embeddings), strict=True))
        return first_order(rows, self.NUM_DENSE, sparse=one.sparse, **options)

    @staticmethod
    def names(embeddings):
        plan = getattr(embeddings, "plan", None)
        return list(map(str, range(len(embeddings)))) if plan is None else list(plan)

    @staticmethod
    def rows(embeddings):
        plan = getattr(embeddings, "plan", None)
        if plan is None:
            return [table.num_embeddings for table in embeddings]
        return [feature.rows for feature in plan.features]

    def samples_with_bags(self):
        """Two single-valued features around one with bags; a sample without a genre."""
        genres = torch.tensor([3, 0, 0, 8, 1], dtype=torch.int32), torch.tensor([0, 2, 2, 5])
        ids = torch.tensor([[4, 29], [0, 0], [9, 7]], dtype=torch.int32)
        return SomeSamples(ids, torch.ones(3, self.NUM_DENSE), {"genres": genres})

    def model_for_bags(self, pooling="sum"):
        plan = mixdim.plan(self.BAGS, temperature=0.3, base_dim=8)
        embeddings = mixdim.FeatureEmbeddings(plan, pooling=pooling, generator=seeded(0))
        return normal(self.build(embeddings, seeded(1)))

    def test_numbers_of_another_shape_are_refused(self):
        model, samples, n = self.model(MIXED), self.samples(4), self.NUM_DENSE
        wrong = rf"dense must have shape \(batch, {n}.*got \(4, {n + 1}\)"
        with pytest.raises(ValueError, match=wrong):
            model(samples._replace(dense=torch.ones(4, n + 1)))

    @pytest.mark.parametrize("pooling", ["sum", "mean"])
    def test_bags_are_pooled_in_their_place_in_the_plan(self, pooling):
        """Against a model of nn.Embedding that is given the pooled vectors as rows of their own."""
        model, samples = self.model_for_bags(pooling), self.samples_with_bags()
        tables = [model.embeddings.dense_weight(name).detach() for name in self.BAGS]
        pool = getattr(torch, pooling)
        rows = [tables[1][[3, 0]], torch.zeros(1, 8), tables[1][[0, 8, 1]]]
        tables[1] = torch.stack([pool(of_bag, 0) for of_bag in rows])  # a row for each sample
        embeddings = [nn.Embedding.from_pretrained(table, freeze=False) for table in tables]
        ids = torch.stack([samples.ids[:, 0].long(), torch.arange(3), samples.ids[:, 1].long()], 1)
        plain = self.build(embeddings, seeded(1))
        own = {n: t for n, t in model.state_dict().items() if not n.startswith(("embed", "first"))}
        plain.load_state_dict(own, strict=False)
        expected = plain(SomeSamples(ids, samples.dense))
        if model.first_order is not None:
            numbers, nothing = samples.dense, torch.zeros(3)
            expected = plain.score(numbers, SomeSamples(ids, samples.dense))
            expected = expected + model.first_order(nothing, numbers, samples)
        torch.testing.assert_close(model(samples), expected, rtol=1e-5, atol=1e-5)

    def test_bags_of_one_are_single_ids(self):
        model, ids = self.model_for_bags(), torch.tensor([[4, 3, 29], [9, 8, 0]])
        bags = {"genres": (ids[:, 1], torch.tensor([0, 1, 2]))}
        dense = torch.ones(2, self.NUM_DENSE)
        single, bagged = SomeSamples(ids, dense), SomeSamples(ids[:, [0, 2]], dense, bags)
        torch.testing.assert_close(model(bagged), model(single))

    def test_an_empty_batch_has_empty_bags(self):
        nothing, dense = torch.empty(0, dtype=torch.int32), torch.empty(0, self.NUM_DENSE)
        bags = {"genres": (nothing, torch.tensor([0]))}
        samples = SomeSamples(torch.empty(0, 2, dtype=torch.int32), dense, bags)
        assert self.model_for_bags()(samples).shape == (0,)

    def test_bags_that_do_not_fit_are_named(self):
        model, samples = self.model_for_bags(), self.samples_with_bags()
        values, offsets = samples.bags["genres"]
        for change, error, message in (
            ({"bags": {"colour": (values, offsets)}}, ValueError, "feature 'colour'; the features are"),
            ({"ids": samples.ids[:, :1]}, ValueError, r"ids must have shape \(batch, 2: .*got \(3, 1\)"),
            (
                {"bags": {"genres": (values, offsets[:-1])}},
                ValueError,
                r"offsets of feature 'genres' must have shape \(4,\).*\(3,\)",
            ),
            (
                {"bags": {"genres": (values[:-1], offsets)}},
                ValueError,
                "must rise from 0 to the number of values 4, got 0 to 5",
            ),
            (
                {"bags": {"genres": (values, offsets.clamp(min=1))}},
                ValueError,
                "must rise from 0 to the number of values 5, got 1 to 5",
            ),
            (
                {"bags": {"genres": (values.where(values != 8, 9), offsets)}},
                IndexError,
                "id 9 of feature 'genres'",
            ),
        ):
            with pytest.raises(error, match=message):
                model(samples._replace(**change))

    def test_one_module_a_feature_takes_no_bags(self):
        tables = [nn.Embedding(n, 8) for n in self.BAGS.values()]
        with pytest.raises(TypeError, match=r"bags need .*FeatureEmbeddings.*got bags of genres"):
            self.build(tables, seeded(0))(self.samples_with_bags())

    def test_bags_are_served_as_they_are_trained(self):
        pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
        model, three = self.model_for_bags(), self.samples_with_bags()
        values, offsets = three.bags["genres"]
        one = SomeSamples(three.ids[:1], three.dense[:1], {"genres": (values[:2], offsets[:2])})
        with nothing_folded():
            self.assert_served(model, [one, three], bags=["genres"])
        with tempfile.TemporaryDirectory() as folder:
            file = mixdim.export(model, Path(folder) / "model.pt2", bags=["genres"])
            program = torch.export.load(file).module()
        for batch in (one, three):
            dense = [batch.dense] if model.num_dense else []
            found = program(batch.ids.long(), *dense, *(t.long() for t in batch.bags["genres"]))
            torch.testing.assert_close(found, self.outputs(model, batch), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_float_id_is_refused(self, kind):
        model, samples = self.model(kind), self.samples(3)
        with pytest.raises((TypeError, RuntimeError), match=r"integers|Long"):
            model(samples._replace(ids=samples.ids.float()))


class CollaborativeFilteringContract(ModelContract):
    """For models of users and items: `CALLED` is how the class is called."""

    ROWS: ClassVar = {"user": 50, "item": 30}
    BANDS = 3
    CALLED: ClassVar = {}

    def build(self, embeddings, generator):
        return self.MODEL(*embeddings, **self.CALLED)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_the_mean_is_added_saved_and_not_trained(self, kind):
        tables, samples = self.model(kind), self.samples(7)
        sides = tables.user_embedding, tables.item_embedding
        centred, shifted = self.MODEL(*sides), self.MODEL(*sides, mean=2.5)
        assert shifted.state_dict()["mean"] == 2.5
        assert "mean" not in dict(shifted.named_parameters())
        centred.load_state_dict({**shifted.state_dict(), "mean": torch.tensor(0.0)})
        torch.testing.assert_close(shifted(samples), centred(samples) + 2.5)

    @pytest.mark.parametrize("mean", [float("nan"), float("inf"), "3.5", True])
    def test_a_mean_that_is_no_number_is_refused(self, mean):
        with pytest.raises((TypeError, ValueError), match="mean must be"):
            self.MODEL(nn.Embedding(3, 2), nn.Embedding(3, 2), mean=mean)

    def test_an_embedding_of_unknown_width_is_refused(self):
        with pytest.raises(TypeError, match=r"item_embedding must say how wide .* Identity does not"):
            self.MODEL(nn.Embedding(3, 2), nn.Identity())

    def test_an_embedding_shared_by_both_sides_counts_once(self):
        table = nn.Embedding(50, BASE_DIM)
        assert self.MODEL(table, table).embedding_parameters == 50 * BASE_DIM

    def test_dense_numbers_and_bags_are_not_read(self):
        model, samples = self.model(MIXED), self.samples(5)
        more = samples._replace(dense=torch.ones(5, 3), bags={"genres": None})
        assert torch.equal(model(samples), model(more))
