import pytest
import torch
from both_paths import assert_same_results
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.interaction import dot_interaction as kernel_interaction
from strategies import examples, plans, random_ids


def by_definition(dense, vectors):
    rows = []
    for d, v in zip(dense, vectors, strict=True):
        slots = [d, *v]
        pairs = [slots[i] @ slots[j] for i in range(len(slots)) for j in range(i)]
        rows.append(torch.cat([d, torch.stack(pairs)]) if pairs else d)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_dense_vector_and_all_pairwise_products(dtype):
    dense, vectors = torch.randn(5, 7, dtype=dtype), torch.randn(5, 4, 7, dtype=dtype)
    torch.testing.assert_close(mixdim.dot_interaction(dense, vectors), by_definition(dense, vectors))


@settings(max_examples=examples(60))
@given(st.sampled_from([0, 1, 3, 50]), st.integers(1, 30), st.integers(1, 40), st.integers(0, 1000))
def test_the_kernel_gives_the_same_as_plain_pytorch(batch, features, base_dim, seed):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(batch, base_dim, generator=generator).requires_grad_()
    vectors = torch.randn(batch, features, base_dim, generator=generator).requires_grad_()
    pull = torch.randn(batch * (base_dim + (features + 1) * features // 2), generator=generator)
    assert_same_results(
        lambda: mixdim.dot_interaction(dense, vectors), [dense, vectors], pull, rtol=1e-4, atol=1e-4
    )


@settings(max_examples=examples(60))
@given(plans(most_features=6, most_rows=60), st.sampled_from([0, 1, 48, 49, 100]), st.integers(0, 1000))
def test_a_layer_interacts_as_its_vectors_do(plan, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    layer = mixdim.FeatureEmbeddings(plan, sparse=seed % 2 == 0, padding_id=-1, generator=generator)
    ids = random_ids(plan, batch, generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.1] = -1
    dense = torch.randn(batch, plan.base_dim, generator=generator).requires_grad_()
    pull = torch.randn(batch * (plan.base_dim + (plan.num_features + 1) * plan.num_features // 2))
    parameters = [dense, *layer.parameters()]
    assert_same_results(lambda: layer.interact(dense, ids), parameters, pull, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.interact(dense, ids), mixdim.dot_interaction(dense, layer(ids)))


def small_layer(**options):
    return mixdim.FeatureEmbeddings(mixdim.plan([3, 50], temperature=0.3, base_dim=8), **options)


def test_a_layer_of_another_type_interacts_on_the_plain_path():
    layer, dense = small_layer(dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    ids = torch.tensor([[0, 49], [2, 0]])
    torch.testing.assert_close(layer.interact(dense, ids), by_definition(dense, layer(ids)))


def test_the_interaction_of_a_layer_compiles_to_one_graph():
    layer, dense, ids = small_layer(), torch.randn(2, 8), torch.tensor([[0, 49], [2, 0]])
    compiled = torch.compile(layer.interact, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(dense, ids), layer.interact(dense, ids))


def test_the_interaction_of_a_layer_checks_ids_and_shapes():
    layer, dense = small_layer(), torch.randn(2, 8)
    with pytest.raises(IndexError, match="id 50 of feature '1' is out of range"):
        layer.interact(dense, torch.tensor([[0, 0], [2, 50]]))
    with pytest.raises(TypeError, match="ids must be integers"):
        layer.interact(dense, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"ids must have shape \(batch, 2 features\)"):
        layer.interact(dense, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="dense must have shape"):
        layer.interact(dense, torch.zeros(3, 2, dtype=torch.int64))


def test_parameters_changed_before_the_backward_pass_are_noticed():
    layer, dense, ids = small_layer(sparse=True), torch.randn(1, 8), torch.tensor([[0, 0]])
    for forward in (lambda: layer.interact(dense, ids), lambda: layer(ids)):
        value = forward().sum()
        with torch.no_grad():
            layer.table_8.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_a_step_of_the_optimizer_before_the_backward_pass_is_noticed():
    layer, ids = small_layer(sparse=True), torch.tensor([[0, 0]])
    optimizer = mixdim.SparseAMSGrad(layer.parameters())
    late = layer(ids).sum()
    layer(ids).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_the_operator_keeps_the_rules_of_pytorch():
    arguments = (torch.randn(3, 5, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True))
    torch.library.opcheck(kernel_interaction, arguments)


def test_it_compiles_to_one_graph():
    dense, vectors = torch.randn(3, 5), torch.randn(3, 4, 5)
    compiled = torch.compile(mixdim.dot_interaction, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(dense, vectors), mixdim.dot_interaction(dense, vectors))


@pytest.mark.parametrize(
    ("dense", "vectors"), [((3,), (3, 2, 4)), ((3, 5), (3, 2, 4)), ((2, 4), (3, 2, 4))]
)
def test_shapes_that_do_not_fit_are_named(dense, vectors):
    with pytest.raises(ValueError, match=r"dense must have shape \(batch, base_dim\)"):
        mixdim.dot_interaction(torch.zeros(dense), torch.zeros(vectors))
