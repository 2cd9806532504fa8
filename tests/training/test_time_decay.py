"""Decay by time: every row at every step, as the dense form does it, without touching every row."""

import copy
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

import pytest
import torch
from both_paths import plain_path
from torch import nn

import mixdim
from mixdim import kernels
from mixdim.storages import Hashed, QuotientRemainder, Robe, Rows
from mixdim.training import Checkpoints, LocalLearner, load_weights
from mixdim.training.memory import forecast_memory
from mixdim.training.optimizers import NamedOptimizer, table_parameters
from mixdim.training.options import DECAY_BY
from mixdim.training.time_decay import LEAST_SUM, DecayedTable
from resumed_runs import OPTIONS, assert_same, fit_anew
from training_data import clicks, clicks_with_bags, raw_bytes, small_model

SIZES = {"user": 40, "item": 30}
COUNTS = {name: [1000 // (rank + 1) for rank in range(rows)] for name, rows in SIZES.items()}


class DenseAMSGrad:
    """Every parameter decays as a whole at every step; moments of a row move if a gradient names it."""

    def __init__(self, parameters, lr, decay, betas=(0.9, 0.999), eps=1e-8):
        self.parameters, self.lr, self.decay, self.betas, self.eps = parameters, lr, decay, betas, eps
        self.moments = [[torch.zeros_like(p) for _ in range(3)] for p in parameters]
        self.step_count = 0

    @torch.no_grad()
    def step(self):
        self.step_count += 1
        beta1, beta2 = self.betas
        for weight, (mean, square, most) in zip(self.parameters, self.moments, strict=True):
            weight.mul_(1 - self.lr * self.decay)
            gradient, here = weight.grad.to_dense(), slice(None)
            if weight.grad.is_sparse:
                here = weight.grad.coalesce().indices()[0]
            g, m, v, u = gradient[here], mean[here], square[here], most[here]
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            u = torch.maximum(u, v)
            mean[here], square[here], most[here] = m, v, u
            denom = u.sqrt() / math.sqrt(1 - beta2**self.step_count) + self.eps
            weight[here] -= self.lr / (1 - beta1**self.step_count) * m / denom


STORED = {
    "bands": None,
    "one row": Rows(0),
    "hashed": Hashed(3, buckets=7),
    "quotient": QuotientRemainder(3, buckets=5),
    "robe": Robe(3, length=50),
}


def layer_of(stored, dtype=torch.float32, **options):
    plan = mixdim.plan(SIZES, counts=COUNTS, bands=3, temperature=0.4, base_dim=6)
    if stored is not None:
        plan = plan.with_storage("item", stored)
    generator = torch.Generator().manual_seed(0)
    layer = mixdim.FeatureEmbeddings(plan, sparse=True, generator=generator, **options)
    return layer.to(dtype)


def batches(count, seed=0):
    """Few ids of many, so that most rows wait for several steps."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.stack([torch.randint(n, (4,), generator=generator) for n in SIZES.values()], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_it_is_the_dense_form_for_every_storage(stored, dtype):
    mine, theirs = layer_of(stored, dtype), layer_of(stored, dtype)
    optimizer = NamedOptimizer("amsgrad", mine, lr=0.05, weight_decay=2.0, decay_by="time")
    oracle = DenseAMSGrad(list(theirs.parameters()), lr=0.05, decay=2.0)
    for number, ids in enumerate(batches(40)):
        for layer, step in ((mine, optimizer.step), (theirs, oracle.step)):
            vectors = layer.interact(layer(ids)[:, 0], ids) if number % 2 else layer(ids)
            layer.zero_grad(set_to_none=True)
            vectors.square().sum().backward()
            step()
        if number == 17:
            optimizer.settle()
    with torch.no_grad():  # a lookup brings up what it reads
        torch.testing.assert_close(mine(ids), theirs(ids))
    optimizer.settle()
    assert mine.reader is None
    for (name, found), expected in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, msg=name)


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_other_optimizers_do_what_they_do_with_dense_gradients(kind):
    """These two leave a row as it is whose gradient is 0, but for its decay."""
    options = {"lr": 0.05, "weight_decay": 2.0}
    mine, theirs = layer_of(None), layer_of(None)
    theirs.sparse = False
    optimizer = NamedOptimizer(kind, mine, decay_by="time", **options)
    dense = NamedOptimizer(kind, theirs, **options)
    for ids in batches(20):
        for layer, its in ((mine, optimizer), (theirs, dense)):
            its.zero_grad()
            layer(ids).square().sum().backward()
            its.step()
    optimizer.settle()
    for found, expected in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pooling", ["sum", "max"])
def test_bags_and_padding_bring_up_what_they_read(pooling):
    mine, theirs = (layer_of(None, pooling=pooling, padding_id=0) for _ in range(2))
    optimizer = NamedOptimizer("amsgrad", mine, lr=0.05, weight_decay=2.0, decay_by="time")
    oracle = DenseAMSGrad(list(theirs.parameters()), lr=0.05, decay=2.0)
    for ids in batches(20):
        values, offsets = ids.t().flatten(), torch.tensor([0, 1, 1, 3, 4, 4, 6, 8, 8])
        for layer, step in ((mine, optimizer.step), (theirs, oracle.step)):
            layer.zero_grad(set_to_none=True)
            layer.bags(values, offsets).square().sum().backward()
            step()
        with torch.no_grad():
            torch.testing.assert_close(mine.bags(values, offsets), theirs.bags(values, offsets))
            torch.testing.assert_close(mine(ids), theirs(ids))


def test_tables_of_other_modules_have_no_row_behind_after_a_step():
    mine, theirs = (nn.Embedding(20, 3, sparse=True) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    optimizer = NamedOptimizer("amsgrad", mine, lr=0.05, weight_decay=2.0, decay_by="time")
    oracle = DenseAMSGrad(list(theirs.parameters()), lr=0.05, decay=2.0)
    for ids in batches(20):
        for layer, step in ((mine, optimizer.step), (theirs, oracle.step)):
            layer.zero_grad(set_to_none=True)
            layer(ids % 20).square().sum().backward()
            step()
        torch.testing.assert_close(mine.weight, theirs.weight)


def test_a_long_sum_begins_anew_so_that_nothing_is_rounded_to_zero():
    mine, theirs = layer_of(None), layer_of(None)
    optimizer = NamedOptimizer("sgd", mine, lr=0.1, weight_decay=9.0, decay_by="time")
    mine(next(batches(1))).sum().backward()
    kept, steps = 1 - 0.1 * 9.0, 0
    for parameter in mine.parameters():
        parameter.grad = None
    while all(table.sum > LEAST_SUM / 2 for table in optimizer.time_decay.tables.values()):
        optimizer.step()
        steps += 1
    for _ in range(4):
        optimizer.step()
        steps += 1
        assert all(table.sum >= LEAST_SUM for table in optimizer.time_decay.tables.values())
    optimizer.settle()
    for table in mine.row_sparse_tables:
        (name,) = (n for n, p in mine.named_parameters() if p is table)
        expected = getattr(theirs, name).double() * kept**steps
        torch.testing.assert_close(table.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("decay_by", DECAY_BY)
def test_embeddings_may_have_a_weight_decay_of_their_own(decay_by):
    dataset = clicks()
    before = small_model("dlrm", dataset)

    def after_steps(**decays):
        model = copy.deepcopy(before)
        optimizer = NamedOptimizer("amsgrad", model, lr=0.05, decay_by=decay_by, **decays)
        for batch in islice(dataset.batches("train", batch_size=50), 3):
            optimizer.zero_grad()
            (0.0 * model(batch).sum()).backward()  # so that decay alone moves weights
            optimizer.step()
        optimizer.settle()
        return model.state_dict()

    weak, strong = after_steps(weight_decay=1.0), after_steps(weight_decay=3.0)
    own, embeddings = after_steps(weight_decay=1.0, table_decay=3.0), table_parameters(before)
    assert any(not torch.equal(weak[name], strong[name]) for name in embeddings)
    for name in weak:
        assert torch.equal(own[name], (strong if name in embeddings else weak)[name]), name
    for decays, message in (
        ({"weight_decay": 30.0}, "weight_decay must be at least 0 and below 1 / learning rate = 10"),
        ({"table_decay": 10.0}, "table_decay must be at least 0 and below 1 / learning rate = 10"),
        ({"weight_decay": 30.0, "table_decay": 1.0, "table_lr": 0.1, "lr": 0.01}, None),
    ):
        with nullcontext() if message is None else pytest.raises(ValueError, match=message):
            replace(OPTIONS, **{"lr": 0.1, "table_lr": None, **decays})


def test_without_weight_decay_nothing_is_put_off():
    layer = layer_of(None)
    assert NamedOptimizer("amsgrad", layer, lr=0.1, decay_by="time").time_decay is None
    with_decay = NamedOptimizer("amsgrad", layer, lr=0.1, weight_decay=1.0, decay_by="request")
    assert with_decay.time_decay is None


# In a run.

BY_TIME = replace(OPTIONS, table_lr=0.1, weight_decay=0.5, decay_by="time")


@pytest.mark.parametrize("data", [clicks_with_bags, clicks])
def test_a_kill_changes_nothing_wherever_checkpoints_are(tmp_path, data):
    dataset = data()
    options = replace(BY_TIME, batch_size=12 if data is clicks_with_bags else 150)

    def make():
        return small_model("dlrm", dataset)

    straight = fit_anew(make, dataset, tmp_path / "straight", options=options)
    for kill_at in (2, 6, 5, 8):
        killed = {"kill_at": kill_at, "resume": True, "options": options}
        assert fit_anew(make, dataset, tmp_path / "run", **killed) is None
    resumed = fit_anew(make, dataset, tmp_path / "run", resume=True, options=options)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")
    rare = replace(options, checkpoint_every=1000)
    assert raw_bytes(fit_anew(make, dataset, tmp_path / "rare", options=rare)[0]) == raw_bytes(
        straight[0]
    )
    requested = replace(options, decay_by="request")
    other = fit_anew(make, dataset, tmp_path / "request", options=requested)
    assert raw_bytes(other[0]) != raw_bytes(straight[0])


def test_weights_of_a_checkpoint_within_an_epoch_are_read_up_to_date(tmp_path):
    from mixdim.training.resumption import TrainingState, save_everything

    dataset = clicks()
    model = small_model("dlrm", dataset)
    learner, twin = LocalLearner(model, BY_TIME), copy.deepcopy(model)
    for batch in dataset.batches("train", batch_size=5):
        learner.backward(learner.forward(batch).square().sum())
        learner.step()
        learner.zero_grad()
    checkpoints = Checkpoints(tmp_path)
    save_everything(checkpoints, learner, TrainingState(step=1), BY_TIME, dataset)
    tensors, numbers = learner.optimizer.state()
    assert sum(name.endswith("/decayed_to") for name in tensors) == len(
        learner.optimizer.time_decay.tables
    )
    load_weights(twin, checkpoints.newest())
    stale = copy.deepcopy(model.state_dict())
    learner.settle()
    assert raw_bytes(twin) == raw_bytes(model)
    assert any(not torch.equal(stale[name], now) for name, now in model.state_dict().items())
    assert not any(name.endswith("/decayed_to") for name in learner.optimizer.state()[0])

    learner.optimizer.load_state(tensors, json.loads(json.dumps(numbers)))
    again = learner.optimizer.state()
    assert again[1] == numbers
    name = next(name for name in tensors if name.endswith("/decayed_to"))
    with pytest.raises(ValueError, match="is not of a table of this model"):
        learner.optimizer.load_state({**tensors, name: tensors[name][:-1]}, numbers)
    with pytest.raises(ValueError, match="must be of the same tables"):
        learner.optimizer.load_state({n: t for n, t in tensors.items() if n != name}, numbers)


def test_the_model_that_is_returned_is_up_to_date_and_lookups_tell_nobody():
    dataset = clicks()
    model = small_model("dlrm", dataset)
    mixdim.fit(model, dataset, options=BY_TIME)
    assert all(getattr(module, "reader", None) is None for module in model.modules())


def test_memory_counts_four_bytes_a_row():
    with torch.device("meta"):
        model = nn.Embedding(1000, 4, sparse=True)
    sizes = {"optimizer": "amsgrad", "batch_size": 8, "num_ids": 1, "num_dense": 0}
    sizes |= {"train_rows": 10, "evaluation_rows": 10}
    by_time = forecast_memory(model, **sizes, decay_by_time=True)
    assert by_time.optimizer_state - forecast_memory(model, **sizes).optimizer_state == 4000


@pytest.mark.skipif(not kernels.available(), reason="without kernels PyTorch does it")
@pytest.mark.parametrize("width", [1, 5, 16])
def test_the_kernel_brings_up_what_the_plain_path_does(width):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, width, generator=generator)
    decayed_to = -3 * torch.rand(50, generator=generator)
    rows, found = torch.randint(50, (40,), generator=generator), []
    for path in (nullcontext, plain_path):
        table = DecayedTable(nn.Parameter(weight.clone()), {}, "", -3.25)
        table.decayed_to.copy_(decayed_to)
        with path():
            table.bring_up(rows)
            with pytest.raises(IndexError):
                table.bring_up(torch.tensor([3, 50]))
        found.append((table.parameter.detach(), table.decayed_to))
    torch.testing.assert_close(found[0], found[1])
    behind = weight * (-3.25 - decayed_to.double()).exp().float()[:, None]
    torch.testing.assert_close(found[0][0][rows], behind[rows])
