"""Which directions the loss of a run feels: against gradients at plain matrices."""

import pytest
import torch
import torch.nn.functional as F

from mixdim.runs.loss_metrics import loss_metrics
from mixdim.runs.models import tables_of
from training_data import clicks_with_bags, ratings, raw_bytes, small_model

pytestmark = pytest.mark.filterwarnings("ignore::mixdim.FloorWarning")


def test_they_are_the_mean_products_of_gradients_at_vectors():
    data, model = ratings(), small_model("mf", ratings())
    before = raw_bytes(model)
    found = loss_metrics(model, data)
    assert raw_bytes(model) == before
    assert not any(parameter.grad is not None for parameter in model.parameters())

    (batch,) = data.batches("train", batch_size=2**12)  # all rows in one, as there
    vectors = {
        name: torch.from_numpy(table)[ids].requires_grad_()
        for (name, table), ids in zip(tables_of(model).items(), batch.ids.t(), strict=True)
    }
    others = sum(bias(ids)[:, 0] for bias, ids in zip(model.biases.values(), batch.ids.t(), strict=True))
    users, items = vectors.values()
    loss = F.mse_loss((users * items).sum(1) + others + model.mean, batch.target)
    for name, gradient in zip(vectors, torch.autograd.grad(loss, [users, items]), strict=True):
        squares = gradient.double().t() @ gradient.double() / len(gradient)
        torch.testing.assert_close(found[name], squares, rtol=1e-4, atol=0)


def test_bags_count_too():
    data = clicks_with_bags()
    found = loss_metrics(small_model("dlrm", data), data)
    assert list(found) == list(data.feature_names)
    for metric in found.values():
        assert torch.linalg.eigvalsh(metric).min() > -1e-9
        assert metric.trace() > 0
