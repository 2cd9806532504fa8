import pytest
import torch
from both_paths import assert_same_results
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.interaction import dot_interaction as kernel_interaction


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


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([0, 1, 3, 50]), st.integers(1, 30), st.integers(1, 40), st.integers(0, 1000))
def test_the_kernel_gives_the_same_as_plain_pytorch(batch, features, base_dim, seed):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(batch, base_dim, generator=generator).requires_grad_()
    vectors = torch.randn(batch, features, base_dim, generator=generator).requires_grad_()
    pull = torch.randn(batch * (base_dim + (features + 1) * features // 2), generator=generator)
    assert_same_results(
        lambda: mixdim.dot_interaction(dense, vectors), [dense, vectors], pull, rtol=1e-4, atol=1e-4
    )


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
