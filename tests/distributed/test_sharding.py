"""Two processes against one: lookups and training, in every way of sharding."""

import pytest
import torch
import two_ranks as two
from ranks import needs_torchrec

import mixdim
from mixdim.distributed.placement import bytes_by_rank

pytestmark = needs_torchrec
by_sharding = pytest.mark.parametrize(("sharding", "below"), two.SHARDINGS)


@pytest.fixture(scope="module")
def found(ranks):
    return ranks.run(two.__file__, "many_things", 2)


@by_sharding
def test_first_weights_are_those_of_the_plain_layer_bit_for_bit(found, sharding, below):
    plain = mixdim.FeatureEmbeddings(two.mixed_plan(), generator=two.generator())
    for rank in found:
        assert torch.equal(rank["first", sharding, below], two.plain_weights(plain))


def test_two_layers_of_one_plan_have_their_own_weights(found):
    plan = two.mixed_plan()
    expected = two.TwoLayers(mixdim.FeatureEmbeddings, plan)(two.some_ids(plan, 64, 0))
    for rank in found:
        assert all(map(torch.equal, rank["two layers"], expected))


@by_sharding
@pytest.mark.parametrize("decay", [0.0, two.DECAY])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_each_of_six_steps_of_two_ranks_is_that_of_one_process(found, sharding, below, optimizer, decay):
    plan, steps = two.mixed_plan(), []
    asked = [two.some_ids(plan, 64, seed) for seed in range(6)]

    def note(model):
        steps.append((two.plain_weights(model.embeddings), model.weight.detach().clone()))

    two.train_plain(plan, optimizer, asked, 6, after=note, weight_decay=decay)
    first = two.plain_weights(mixdim.FeatureEmbeddings(plan, generator=two.generator()))
    assert (steps[-1][0] - first).abs().max() > 0.1
    for rank in found:
        trained = rank["trained", sharding, below, optimizer, decay]
        for mine, expected in zip(trained, steps, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)


@by_sharding
def test_each_rank_holds_the_bytes_that_were_said_before(found, sharding, below):
    said = bytes_by_rank(two.mixed_plan(), 2, sharding=sharding, replicate_below=below)
    for rank, expected in zip(found, said, strict=True):
        assert rank["held", sharding, below] == vars(expected)


def test_the_shardings_that_were_tried_are_different_ones(found):
    kinds = {key: set(found[0][key]) for key in found[0] if key[0] == "places"}
    assert kinds["places", "table_wise", 0] == {"table_wise"}
    # A table of one row cannot be cut, nor three rows of which the last rank would have one too few.
    assert kinds["places", "row_wise", 0] == {"row_wise", "table_wise"}
    assert kinds["places", "auto", 2**20] == {"data_parallel"}
    assert len(kinds["places", "auto", 200]) > 1


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_of_two_ranks_are_those_of_one_process(found, pooling):
    plan = two.mixed_plan()
    bags = [two.some_bags(plan, 64, seed) for seed in range(6)]
    own = {"pooling": pooling, "padding_id": -1, "weight_decay": two.DECAY}
    model = two.train_plain(plan, "adagrad", bags, 4, bags=True, **own)
    expected = model.embeddings.bags(*two.as_bags(bags[5])).detach()
    layer = mixdim.FeatureEmbeddings(plan, generator=two.generator(), pooling=pooling, padding_id=-1)
    first = layer.bags(*two.as_bags(bags[5])).detach()
    for rank in found:
        torch.testing.assert_close(rank["first bags", pooling], first, rtol=0, atol=1e-6)
        torch.testing.assert_close(rank["bags", pooling], expected, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_and_an_empty_one_can_be_looked_up(found):
    assert found[0]["batch of one"].shape == (1, 7, 14)
    assert found[0]["empty batch"].shape == (0, 7, 14)


def test_rowwise_adagrad_divides_by_the_mean_square_of_what_is_not_padding(found):
    """The formula, in float64, of plain tables: sum += mean(g^2), row -= lr * g / (sqrt(sum) + eps)."""
    plan = two.padded_plan()
    asked = [two.some_ids(plan, 8, seed) for seed in range(4)]
    vectors, layouts = found[0]["rowwise"]
    assert [layout.shape for layout in layouts] == [(70, 8), (9, 20)]
    model = two.Linear(mixdim.FeatureEmbeddings(plan, generator=two.generator()))
    tables = {name: p for name, p in model.named_parameters() if ".table" in name}
    others = [p for name, p in model.named_parameters() if ".table" not in name]
    dense, sums = torch.optim.Adagrad(others, lr=0.1), dict.fromkeys(tables, 0.0)
    for batch in asked:
        model.zero_grad()
        ((model(batch) - two.targets(8)) ** 2).mean().backward()
        dense.step()
        for name, table in tables.items():
            sums[name] = sums[name] + table.grad.double().square().mean(1, keepdim=True)
            with torch.no_grad():
                table -= (0.1 * table.grad / (sums[name].sqrt() + 1e-10)).nan_to_num().float()
    torch.testing.assert_close(vectors, two.plain_weights(model.embeddings), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_is_refused_in_one_line_on_every_rank(ranks):
    first, second = ranks.run(two.__file__, "refused", 2)
    assert first == second
    for name, words in {
        "no group": "there is no process group: start with torchrun",
        "not sharded": "the tables have no weights yet: call mixdim.distributed.shard(model) first",
        "pooling": "pooling must be sum or mean on TorchRec, got 'max'",
        "unknown bags": "unknown feature 'nothing'; the features are one, two",
        "storage": "feature 'odd' is stored as Hashed",
        "adam": "optimizer must be one of sgd, adagrad, rowwise_adagrad for tables on TorchRec",
        "rowwise": "has 2 rows of width 2 in each: use 'adagrad', or widths from 3 on",
        "eps": "eps must be",
        "decay": "weight_decay must be at least 0 and below 1 / learning rate = 10, got 10",
        "lr": "lr must be",
        "own backward": "call learner.backward(loss) and not loss.backward(): it decays weights",
        "nothing to shard": "the model has no mixdim.distributed.ShardableEmbeddings to spread",
        "bags": "has bags of several ids: name it in ShardableEmbeddings(plan, bags=['",
        "weights": "TorchRec does not take weights of ids in a bag",
        "out of range": "of feature 'one' is out of range: the feature has 1 rows",
        "shape": "ids must have shape (batch, 7 features), got (2, 6)",
    }.items():
        assert words in first.pop(name), name
    assert first == {}


def test_an_id_out_of_range_on_one_rank_ends_all(ranks):
    group = ranks.start(two.__file__, "one_rank_is_wrong", 2)
    assert group.wait(30) == [70, 70]
    assert "id 1000 of feature 'one' is out of range: the feature has 1 rows" in group.printed(1)
    assert "LostRankError: rank 0 has lost another process of the group" in group.printed(0)
