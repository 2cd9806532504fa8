import numpy as np
import pytest
from torch import nn

from contracts import CollaborativeFilteringContract
from mixdim.models import NeuralCollaborativeFiltering
from model_samples import MIXED, PLAIN


class TestNeuralCollaborativeFiltering(CollaborativeFilteringContract):
    MODEL = NeuralCollaborativeFiltering
    OTHER_PARAMETERS = (16 * 128 + 128) + (128 * 128 + 128) + (128 * 32 + 32) + (32 + 1)

    def build(self, embeddings, generator):
        return NeuralCollaborativeFiltering(*embeddings, generator=generator)

    @pytest.mark.parametrize("kind", [MIXED, PLAIN])
    def test_a_rating_is_its_formula(self, kind):
        model, samples = self.model(kind), self.samples(20)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        users, items = (
            (side.dense_weight() if kind == MIXED else side.weight).detach().double().numpy()
            for side in (model.user_embedding, model.item_embedding)
        )
        user_ids, item_ids = samples.ids.numpy().T
        x = np.concatenate([users[user_ids], items[item_ids]], axis=1)
        weights = [p.detach().double().numpy() for p in model.mlp.parameters()]
        for number, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
            x = x @ weight.T + bias
            if number < 3:
                x = np.where(x > 0, x, 0.01 * x)
        np.testing.assert_allclose(model(samples).detach().numpy(), x[:, 0], rtol=1e-4, atol=1e-4)


def test_the_sides_may_have_vectors_of_two_widths():
    model = NeuralCollaborativeFiltering(nn.Embedding(9, 4), nn.Embedding(9, 8), hidden=(5,))
    assert [tuple(p.shape) for p in model.mlp.parameters()] == [(5, 12), (5,), (1, 5), (1,)]


@pytest.mark.parametrize(("init", "fan"), [("xavier", 12 + 100), ("he_fan_in", 12), ("he_fan_out", 100)])
def test_init_says_how_the_mlp_is_drawn(init, fan):
    model = NeuralCollaborativeFiltering(
        nn.Embedding(9, 4), nn.Embedding(9, 8), hidden=(100,), init=init
    )
    bound = (6 / fan) ** 0.5
    assert 0.95 * bound < model.mlp[0].weight.abs().max() <= bound
