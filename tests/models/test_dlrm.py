from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from both_paths import is_served, threads
from small_folder import write_small_folder
from torch import nn

import mixdim
from feature_contract import FeatureContract
from mixdim import kernels
from mixdim.models import DLRM, dlrm
from mixdim.models.samples import join_bags
from model_samples import MIXED, SomeSamples, normal, seeded
from strategies import quiet_plan, random_ids


class TestDLRM(FeatureContract):
    MODEL = DLRM
    TRACED = ("ids",)
    OPTIONS: ClassVar = {"bottom": (16,), "top": (20,)}
    # Three features and the dense vector make 6 pairs.
    OTHER_PARAMETERS = (5 * 16 + 16) + (16 * 8 + 8) + ((8 + 6) * 20 + 20) + (20 + 1)

    def build(self, embeddings, generator):
        return DLRM(embeddings, num_dense=self.NUM_DENSE, generator=generator, **self.OPTIONS)


class TestDLRMWithoutNumbers(TestDLRM):
    NUM_DENSE = 0
    OTHER_PARAMETERS = 8 + ((8 + 6) * 20 + 20) + (20 + 1)

    def test_the_learned_vector_is_the_dense_slot_of_every_sample(self):
        model, samples = self.model(MIXED), self.samples(6)
        vector = model.bottom.weight.expand(6, 8)
        columns = mixdim.dot_interaction(vector, model.embeddings(samples.ids))
        torch.testing.assert_close(model(samples), model.top(columns)[:, 0])


class TestDLRMWithVectors(TestDLRM):
    OPTIONS: ClassVar = {**TestDLRM.OPTIONS, "vectors": True}
    OTHER_PARAMETERS = TestDLRM.OTHER_PARAMETERS + 3 * 8 * 20

    def test_the_top_mlp_reads_products_and_vectors(self):
        model, samples = self.model(MIXED), self.samples(6)
        dense, vectors = model.bottom(samples.dense), model.embeddings(samples.ids)
        columns = torch.cat([mixdim.dot_interaction(dense, vectors), vectors.reshape(6, 24)], 1)
        torch.testing.assert_close(model(samples), model.top(columns)[:, 0])


class TestDLRMWithFirstOrderWeights(TestDLRM):
    TRACED = ("bags",)
    OPTIONS: ClassVar = {**TestDLRM.OPTIONS, "first_order": True}
    OTHER_PARAMETERS = TestDLRM.OTHER_PARAMETERS + (90 + 12 + 4) + 5

    def build(self, embeddings, generator):
        told = {**self.OPTIONS, "first_order": self.first_order(embeddings, constant=-0.5)}
        return DLRM(embeddings, num_dense=self.NUM_DENSE, generator=generator, **told)

    def test_it_is_dlrm_of_standardized_numbers_plus_first_order_weights(self):
        model, samples = normal(self.model(MIXED)), self.samples(9)
        model.first_order.standardize_by(torch.full([5], 0.3), torch.tensor(2.0))
        numbers = (samples.dense - 0.3) / 2
        deep = TestDLRM().model(MIXED)
        deep.load_state_dict(model.state_dict(), strict=False)
        weights = [model.first_order.weights.dense_weight(name)[:, 0] for name in self.ROWS]
        expected = deep(samples._replace(dense=numbers)) - 0.5 + numbers @ model.first_order.dense[0]
        expected = expected + sum(w[samples.ids[:, i]] for i, w in enumerate(weights))
        torch.testing.assert_close(model(samples), expected)


def test_a_wide_top_chooses_pairs_in_its_graph(monkeypatch):
    monkeypatch.setattr(dlrm, "FOLDED_WIDTH", 7)  # pairs are chosen, not multiplied with 0
    TestDLRM().test_its_graph_gives_the_same_in_onnx_runtime(MIXED)
    TestDLRMWithVectors().test_its_graph_gives_the_same_in_onnx_runtime(MIXED)


class PlainDLRM(nn.Module):
    """DLRM from nn.Embedding, nn.Linear and bmm alone: the oracle."""

    def __init__(self, rows, num_dense, base_dim, bottom, top):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, base_dim) for n in rows])
        slots = len(rows) + 1
        self.pairs = [(i, j) for i in range(slots) for j in range(i)]  # (1, 0), (2, 0), (2, 1), ...
        self.bottom = self.linears([num_dense, *bottom, base_dim])
        self.top = self.linears([base_dim + len(self.pairs), *top, 1])

    @staticmethod
    def linears(widths):
        return nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])

    def forward(self, ids, dense):
        x = dense
        for linear in self.bottom:
            x = torch.relu(linear(x))
        slots = torch.stack([x, *(table(ids[:, f]) for f, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(slots, slots.transpose(1, 2))
        y = torch.cat([x, torch.stack([products[:, i, j] for i, j in self.pairs], dim=1)], dim=1)
        *hidden, last = self.top
        for linear in hidden:
            y = torch.relu(linear(y))
        return last(y)[:, 0]

    def weights(self):
        """All weights in the order in which ours has them."""
        tables = torch.cat([table.weight for table in self.tables])
        return [tables, *self.bottom.parameters(), *self.top.parameters()]


def every_row_and_more(rows, batch_size, generator):
    """Ids (batch, features) in which every row of every feature occurs."""
    columns = []
    for n in rows:
        more = torch.randint(n, (batch_size - n,), generator=generator)
        shuffled = torch.randperm(batch_size, generator=generator)
        columns.append(torch.cat([torch.arange(n), more])[shuffled])
    return torch.stack(columns, dim=1)


# Both sum the same float32 products in another order, so gradients differ by some 1e-7 of their largest
# addend. AMSGrad divides a gradient by its own size, about 1e-2 of that addend where the sum cancels: a
# weight then differs by 1e-5 of a step of 1e-3, by 25 times that after 25 steps, plus the rounding of
# the weight itself (2e-7 was the most in three seeds). A wrong slot or update differs by a whole step.
FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, {"rtol": 1e-10, "atol": 1e-10}), (torch.float32, FLOAT32)],
)
def test_uniform_dims_train_step_for_step_as_plain_pytorch(sparse, dtype, tolerance):
    rows, num_dense, base_dim, batch_size, steps = (7, 3, 19, 1, 12), 4, 8, 48, 25
    widths = {"bottom": (32, 16), "top": (24, 12)}
    generator = seeded(0)
    embeddings = mixdim.FeatureEmbeddings(
        mixdim.plan(rows, temperature=0, base_dim=base_dim), sparse=sparse, generator=generator
    )
    ours = DLRM(embeddings, num_dense=num_dense, generator=generator, **widths).to(dtype)
    assert is_served(lambda: embeddings(torch.zeros(1, 5, dtype=torch.int64))) == (
        dtype == torch.float32 and kernels.available()
    )
    plain = PlainDLRM(rows, num_dense, base_dim, **widths).to(dtype)
    with torch.no_grad():
        for table, weight in zip(plain.tables, embeddings.dense_weight().split(rows), strict=True):
            table.weight.copy_(weight)
        mlps = [*ours.bottom.parameters(), *ours.top.parameters()]
        for theirs, mine in zip(plain.weights()[1:], mlps, strict=True):
            theirs.copy_(mine)
    before = [weight.detach().clone() for weight in ours.parameters()]

    our_optimizer = mixdim.SparseAMSGrad(ours.parameters(), lr=1e-3)
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3, amsgrad=True)
    for _ in range(steps):
        # Row-sparse updates leave a row alone that does not occur, dense ones do not; so all occur.
        ids = every_row_and_more(rows, batch_size, generator)
        dense = torch.randn(batch_size, num_dense, generator=generator, dtype=dtype)
        clicks = torch.randint(2, (batch_size,), generator=generator).to(dtype)
        losses = []
        for scores, optimizer in (
            (ours(SomeSamples(ids, dense)), our_optimizer),
            (plain(ids, dense), plain_optimizer),
        ):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(scores, clicks)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, **tolerance)
        for mine, theirs in zip(ours.parameters(), plain.weights(), strict=True):
            torch.testing.assert_close(mine, theirs, **tolerance)
    moved = [(now - then).abs().max() for now, then in zip(ours.parameters(), before, strict=True)]
    assert min(moved) > 1e-3  # nothing stood still


def test_the_default_widths_are_those_of_the_authors():
    model = DLRM([nn.Embedding(9, 16)], num_dense=13)
    assert [p.shape[0] for p in model.bottom.parameters()][::2] == [512, 256, 64, 16]
    assert [p.shape[0] for p in model.top.parameters()][::2] == [512, 256, 1]
    assert isinstance(model.bottom[-1], nn.ReLU)
    assert isinstance(model.top[-1], nn.Linear)


@pytest.mark.parametrize(("init", "fan"), [("xavier", 1 + 300), ("he_fan_in", 300), ("he_fan_out", 1)])
def test_init_says_how_both_mlps_are_drawn(init, fan):
    model = DLRM([nn.Embedding(9, 1)], num_dense=300, bottom=(), top=(298,), init=init)
    bound = (6 / fan) ** 0.5
    assert 0.95 * bound < model.bottom[0].weight.abs().max() <= bound
    bound = (6 / {"xavier": 2 + 298, "he_fan_in": 2, "he_fan_out": 298}[init]) ** 0.5
    assert 0.95 * bound < model.top[0].weight.abs().max() <= bound


def test_every_feature_may_have_bags():
    ids, one_each = torch.empty(2, 0, dtype=torch.int64), torch.tensor([0, 1, 2])
    bags = {"b": (torch.tensor([3, 4]), one_each), "a": (torch.tensor([1, 2]), one_each)}
    values, offsets = join_bags(ids, bags, ["a", "b"])
    assert values.tolist() == [1, 2, 3, 4]
    assert offsets.tolist() == [0, 1, 2, 3, 4]


def test_embeddings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="one width, got 8 for feature 0 and 4 for feature 2"):
        DLRM([nn.Embedding(9, 8), nn.Embedding(9, 8), nn.Embedding(9, 4)], num_dense=2)
    with pytest.raises(TypeError, match=r"feature 0 must say how wide its vectors are.*Linear does not"):
        DLRM([nn.Linear(9, 8)], num_dense=2)
    with pytest.raises(ValueError, match="at least one feature, got none"):
        DLRM([], num_dense=2)
    with pytest.raises(TypeError, match="or a sequence of modules, one a feature, got Embedding"):
        DLRM(nn.Embedding(9, 8), num_dense=2)
    with pytest.raises(ValueError, match="num_dense must be at least 0, got -1"):
        DLRM([nn.Embedding(9, 8)], num_dense=-1)


def test_a_table_of_bands_may_stand_for_a_feature():
    plan = mixdim.plan(
        {"item": 6}, counts={"item": [9, 5, 4, 1, 1, 1]}, bands=2, temperature=0.5, base_dim=4
    )
    tables = nn.ModuleList([mixdim.MixedDimEmbedding(plan), nn.Embedding(3, 4)])
    model = DLRM(tables, num_dense=1)
    assert model(SomeSamples(torch.tensor([[5, 2]]), torch.ones(1, 1))).shape == (1,)
    assert model.embedding_parameters == plan.num_parameters + 12


def test_it_reads_the_batches_of_a_prepared_folder(tmp_path):
    dataset = mixdim.data.Dataset(write_small_folder(tmp_path / "folder", bags=True))
    embeddings = mixdim.FeatureEmbeddings(mixdim.plan(dataset, temperature=0.3, base_dim=8))
    model = DLRM(embeddings, num_dense=dataset.num_dense, bottom=(6,), top=(6,))
    sizes = [model(batch).shape for batch in dataset.batches("train", batch_size=32)]
    assert sizes == [(32,), (32,), (6,)]


@pytest.mark.parametrize("base_dim", [8, 96])
def test_training_gives_the_same_bytes_with_one_thread_and_two(base_dim):
    """With both forms of the interaction, and MLPs that are large enough for their kernel."""
    plan = quiet_plan([3, 40, 900, 5000], temperature=0.3, base_dim=base_dim)
    weights = []
    for count in (1, 2):
        generator = torch.Generator().manual_seed(0)
        embeddings = mixdim.FeatureEmbeddings(plan, sparse=True, generator=generator)
        model = DLRM(embeddings, num_dense=5, generator=generator)
        assert embeddings.interaction_form(1024) == ("split" if base_dim == 96 else "fused")
        optimizer = mixdim.SparseAMSGrad(model.parameters(), lr=0.01)
        with threads(count):
            for _ in range(5):
                ids = random_ids(plan, 1024, generator)
                dense = torch.randn(1024, 5, generator=generator)
                clicks = (torch.rand(1024, generator=generator) < 0.3).float()
                logits = model(SomeSamples(ids, dense, {}))
                torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks).backward()
                optimizer.step()
                optimizer.zero_grad()
        weights.append(model.state_dict())
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name
