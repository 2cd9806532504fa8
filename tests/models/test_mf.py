from typing import ClassVar

import pytest
import torch
from torch import nn

import mixdim
from contracts import CollaborativeFilteringContract
from mixdim.models import Baseline, MatrixFactorization
from model_samples import MIXED, PLAIN, SomeSamples


class TestMatrixFactorization(CollaborativeFilteringContract):
    MODEL = MatrixFactorization
    OTHER_PARAMETERS = 0


class TestMatrixFactorizationWithBiases(CollaborativeFilteringContract):
    MODEL = MatrixFactorization
    CALLED: ClassVar = {"biases": True, "mean": 3.5}
    OTHER_PARAMETERS = 50 + 30

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_rating_is_its_formula(self, kind):
        model, samples = self.model(kind), self.samples(20)
        for bias in model.biases.parameters():
            assert not bias.any()
            nn.init.normal_(bias)
        users, items = (
            side.dense_weight() if kind == MIXED else side.weight
            for side in (model.user_embedding, model.item_embedding)
        )
        b_user, b_item = model.biases.parameters()
        expected = [
            3.5 + sum(users[u][d] * items[i][d] for d in range(8)) + b_user[u, 0] + b_item[i, 0]
            for u, i in samples.ids.tolist()
        ]
        torch.testing.assert_close(model(samples), torch.stack(expected), rtol=1e-5, atol=1e-5)

    def test_biases_of_other_rows_are_refused(self):
        users, items = torch.rand(50).double(), torch.rand(30).double()
        for kind, error in ((MIXED, ValueError), (PLAIN, RuntimeError)):
            with pytest.raises(error, match=r"shape|size"):
                self.model(kind).start_from(Baseline({"user": items, "item": users}))

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_biases_get_the_gradients_that_their_embedding_gets(self, kind, sparse):
        model = self.model(kind, sparse=sparse)
        model(self.samples(5)).sum().backward()
        assert [bias.grad.is_sparse for bias in model.biases.parameters()] == [sparse, sparse]


def test_a_mixed_side_may_meet_a_plain_one():
    plan = mixdim.plan({"item": 30}, temperature=0.3, base_dim=4)
    model = MatrixFactorization(nn.Embedding(20, 4), mixdim.MixedDimEmbedding(plan))
    samples = SomeSamples(torch.tensor([[19, 29], [0, 3]]), torch.empty(2, 0))
    users, items = model.user_embedding.weight, model.item_embedding.dense_weight()
    expected = torch.stack([users[19] @ items[29], users[0] @ items[3]])
    torch.testing.assert_close(model(samples), expected)


def test_vectors_of_two_widths_have_no_dot_product():
    with pytest.raises(ValueError, match="got 4 for user_embedding and 8 for item_embedding"):
        MatrixFactorization(nn.Embedding(9, 4), nn.Embedding(9, 8))


def test_biases_need_to_know_the_rows():
    table = nn.Linear(3, 4)
    table.embedding_dim = 4
    with pytest.raises(TypeError, match="num_embeddings; Linear does not"):
        MatrixFactorization(table, table, biases=True)
