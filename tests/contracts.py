"""What every model promises, whatever embeddings it is given. A model's test inherits this suite.

A subclass says `MODEL`, `ROWS`, `NUM_DENSE`, `OPTIONS` (of a run, so that the model is small) and
`OTHER_PARAMETERS` (of the model without its embeddings, counted by hand), and builds the model from
embeddings: `build(embeddings, generator)`. `embeddings` has one module a feature, or, for
`FeatureContract`, is a FeatureEmbeddings where they are mixed. What a run and a file make of a model is
in built_contract.py, what models of any features promise beside it in feature_contract.py.
"""

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn

import mixdim
from built_contract import BuiltContract
from model_samples import BASE_DIM, MIXED, PLAIN, UNIFORM, SomeSamples, seeded, zipf_counts


class ModelContract(BuiltContract):
    BANDS = 1
    OTHER_PARAMETERS: int

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

        def as_plain(name):
            """Biases of a mixed layer are tables of width 1."""
            return name.replace("table_1", "weight") if name.startswith("biases.") else name

        others = {
            as_plain(name): tensor
            for name, tensor in uniform.state_dict().items()
            if "embedding" not in name
        }
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
                same = plain.get_parameter(as_plain(name))
                torch.testing.assert_close(parameter.grad, same.grad, **close)


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
