import numpy as np
import pytest
import torch

import mixdim
from mixdim import Rows
from storage_contract import BASE_DIM, StorageContract


class TestNarrow(StorageContract):
    storages = (Rows(0), Rows(1), Rows(4), Rows(BASE_DIM))
    has_kernels = True


def test_rows_of_width_0_share_one_row_of_full_width():
    plan = mixdim.plan({"x": 50, "y": 4}, temperature=0, base_dim=4).with_storage("x", Rows(0))
    layer = mixdim.FeatureEmbeddings(plan, sparse=True)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "table_0": (1, 4),
        "table_4": (4, 4),
    }
    assert torch.equal(layer.dense_weight("x"), layer.table_0.expand(50, 4))
    layer(torch.tensor([[0, 0], [49, 0], [7, 3]])).sum().backward()
    assert layer.table_0.grad.coalesce().values().tolist() == [[3.0] * 4]
    matrix, weights = np.arange(200.0).reshape(50, 4), np.arange(50)
    layer.fit_dense("x", matrix, weights)
    expected = np.average(matrix, axis=0, weights=weights)
    np.testing.assert_allclose(layer.table_0.numpy(force=True)[0], expected, rtol=1e-6)


def test_fitting_is_the_weighted_svd():
    generator = np.random.default_rng(0)
    matrix, weights = generator.standard_normal((30, 8)), generator.exponential(size=30)
    for dim in (1, 3, 8):
        plan = mixdim.plan({"x": 30}, temperature=0, base_dim=8).with_storage("x", Rows(dim))
        layer = mixdim.MixedDimEmbedding(plan, dtype=torch.float64)
        layer.fit_dense("x", matrix, weights)
        root = np.sqrt(weights)[:, None]
        left, values, right = np.linalg.svd(root * matrix, full_matrices=False)
        best = (left[:, :dim] * values[:dim]) @ right[:dim] / root
        np.testing.assert_allclose(layer.dense_weight().numpy(force=True), best, atol=1e-10)


def test_rows_without_weight_do_not_matter_unless_none_has_any():
    matrix = np.array([[1.0, 0.0], [0.0, 5.0]])
    plan = mixdim.plan({"x": 2}, temperature=0, base_dim=2).with_storage("x", Rows(1))
    layer = mixdim.MixedDimEmbedding(plan, dtype=torch.float64)
    layer.fit_dense("x", matrix, [1, 0])
    np.testing.assert_allclose(layer.dense_weight().numpy(force=True)[0], matrix[0], atol=1e-12)
    layer.fit_dense("x", matrix, [0, 0])
    np.testing.assert_allclose(layer.dense_weight().numpy(force=True)[1], matrix[1], atol=1e-12)


@pytest.mark.parametrize("storage", [Rows(1), mixdim.Hashed(1, buckets=2)])
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_numbers_whose_squares_no_float_holds_are_fitted_all_the_same(storage, scale):
    plan = mixdim.plan({"x": 2}, temperature=0, base_dim=2).with_storage("x", storage)
    layer = mixdim.MixedDimEmbedding(plan, dtype=torch.float64)
    matrix = np.array([[1.0, 2.0], [1.0, 2.0]])
    layer.fit_dense("x", matrix * scale, [scale, scale])
    np.testing.assert_allclose(layer.dense_weight().numpy(force=True), matrix * scale, rtol=1e-9)


@pytest.mark.parametrize(
    ("matrix", "weights", "message"),
    [
        (
            np.ones((3, 2)),
            None,
            r"matrix of feature 'x' must be numbers of shape \(2, 2\), got float64 \(3, 2\)",
        ),
        (np.full((2, 2), np.nan), None, "matrix of feature 'x' must be finite"),
        (np.ones((2, 2)), [1.0], r"row_weights of feature 'x' must be numbers of shape \(2,\)"),
        (np.ones((2, 2)), [1.0, -1.0], "row_weights of feature 'x' must not be negative"),
    ],
)
def test_what_cannot_be_fitted_is_said_and_nothing_changes(matrix, weights, message):
    layer = mixdim.MixedDimEmbedding(mixdim.plan({"x": 2}, temperature=0, base_dim=2))
    before = layer.dense_weight().detach().clone()
    with pytest.raises(ValueError, match=message):
        layer.fit_dense("x", matrix, weights)
    assert torch.equal(layer.dense_weight(), before)
