import pytest
import torch
from both_paths import assert_same_results, plain_path
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from strategies import examples, quiet_plan


@st.composite
def two_tables(draw):
    rows = {"user": draw(st.integers(1, 60)), "item": draw(st.integers(1, 40))}
    counts = {
        name: draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for name, n in rows.items()
    }
    plan = quiet_plan(
        rows,
        counts=counts,
        bands=draw(st.integers(1, 5)),
        temperature=draw(st.sampled_from([0.0, 0.2, 0.5])),
        base_dim=draw(st.integers(1, 40)),
        rounding=draw(st.sampled_from(["integer", "power_of_two"])),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    padding_id = draw(st.sampled_from([None, -1]))
    sparse = draw(st.booleans())
    return [
        mixdim.MixedDimEmbedding(
            plan[name],
            ids=plan[name].orders,
            sparse=sparse,
            padding_id=padding_id,
            generator=generator,
        )
        for name in rows
    ]


@settings(max_examples=examples(100))
@given(two_tables(), st.sampled_from([0, 1, 2, 90]), st.integers(0, 1000), st.booleans())
def test_the_kernel_gives_the_same_as_looking_up_and_multiplying(tables, batch, seed, wide_ids):
    generator = torch.Generator().manual_seed(seed)
    users, items = tables
    id_type = torch.int64 if wide_ids else torch.int32
    ids = [torch.randint(t.num_embeddings, (batch,), generator=generator, dtype=id_type) for t in tables]
    if users.padding_id is not None and batch:
        ids[0][0] = ids[1][-1] = -1
    pull = torch.randn(batch, generator=generator)
    parameters = [*users.parameters(), *items.parameters()]
    assert_same_results(
        lambda: mixdim.dot_scores(users, ids[0], items, ids[1]), parameters, pull, rtol=1e-4, atol=1e-5
    )
    with plain_path():
        expected = (users.dense_weight()[ids[0].long()] * items.dense_weight()[ids[1].long()]).sum(-1)
        expected = expected * ((ids[0] >= 0) & (ids[1] >= 0))
    torch.testing.assert_close(
        mixdim.dot_scores(users, ids[0], items, ids[1]), expected, rtol=1e-4, atol=1e-5
    )


def tables():
    plan = mixdim.plan({"user": 30, "item": 20}, temperature=0.3, base_dim=8)
    return mixdim.MixedDimEmbedding(plan["user"]), mixdim.MixedDimEmbedding(plan["item"])


def test_a_bad_id_raises_the_same_error_on_both_paths():
    users, items = tables()
    for user_id, item_id, feature in ((30, 0, "user"), (0, -1, "item")):
        arguments = (users, torch.tensor([1, user_id]), items, torch.tensor([1, item_id]))
        with pytest.raises(IndexError, match=f"of feature '{feature}'") as by_kernel:
            mixdim.dot_scores(*arguments)
        with plain_path(), pytest.raises(IndexError) as by_pytorch:
            mixdim.dot_scores(*arguments)
        assert str(by_kernel.value) == str(by_pytorch.value)


def test_it_compiles_to_one_graph():
    users, items = tables()

    def score(user_ids, item_ids):
        return mixdim.dot_scores(users, user_ids, items, item_ids)

    ids = torch.tensor([1, 2, 3])
    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, ids), score(ids, ids))


def test_arguments_that_do_not_fit_are_named():
    users, items = tables()
    other = mixdim.MixedDimEmbedding(mixdim.plan([9], temperature=0, base_dim=4))
    ids = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="one base_dim, got 8 and 4"):
        mixdim.dot_scores(users, ids, other, ids)
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(1,\)"):
        mixdim.dot_scores(users, ids, items, ids[:1])
    with pytest.raises(TypeError, match="item_ids must be integers"):
        mixdim.dot_scores(users, ids, items, ids.float())
