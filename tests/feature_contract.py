"""What models of any features promise beside what every model does: numbers, bags, their ids."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import mixdim
from contracts import ModelContract
from model_samples import MIXED, PLAIN, SomeSamples, first_order, normal, seeded
from served_files import nothing_folded


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
        if "bags" in self.TRACED:
            self.assert_traced(model, [one, three], ["genres"])

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_float_id_is_refused(self, kind):
        model, samples = self.model(kind), self.samples(3)
        with pytest.raises((TypeError, RuntimeError), match=r"integers|Long"):
            model(samples._replace(ids=samples.ids.float()))
