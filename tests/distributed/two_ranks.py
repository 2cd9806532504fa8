"""What ranks do in these tests, and what one process does in their place."""

from itertools import product

import torch
import torch.distributed as dist
from torch import nn

import mixdim
import mixdim.distributed as distributed
from learner_contract import check_learner
from mixdim.models import DLRM
from mixdim.training.optimizers import NamedOptimizer


def mixed_plan():
    """Tables of 1, 2 and 3 rows, folded, padded and full ones, bands, an order, and a shared row."""
    sizes = {"one": 1, "two": 2, "three": 3, "item": 40, "user": 90, "ad": 301, "odd": 50}
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1] * 4}
    plan = mixdim.plan(sizes, counts=counts, bands={"item": 4}, temperature=0.35, base_dim=14)
    plan = plan.with_storage("ad", mixdim.Rows(1)).with_storage("user", mixdim.Rows(2))
    plan = plan.with_storage("odd", mixdim.Rows(5)).with_storage("item", mixdim.Rows(0))
    return plan.with_storage("item", mixdim.Rows(3), band=1)


def padded_plan():
    """Nothing to fold: widths 6, which is padded, and 20."""
    plan = mixdim.plan({"x": 70, "y": 9}, temperature=0, base_dim=20)
    return plan.with_storage("x", mixdim.Rows(6))


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


class Linear(nn.Module):
    """Linear in each row of a table, so that small differences stay small."""

    def __init__(self, embeddings, bags=False):
        super().__init__()
        self.embeddings, self.takes_bags = embeddings, bags
        shape = embeddings.num_features, embeddings.base_dim
        self.weight = nn.Parameter(torch.linspace(-1, 1, shape[0] * shape[1]).view(shape))

    def forward(self, asked):
        vectors = self.embeddings.bags(*asked) if self.takes_bags else self.embeddings(asked)
        return (vectors * self.weight).sum((1, 2))


def some_ids(plan, batch, seed=0):
    made = generator(seed)
    return torch.stack([torch.randint(f.rows, (batch,), generator=made) for f in plan.features], 1)


def some_bags(plan, batch, seed=0):
    """Bags of 0 to 3 ids in every feature, as ids with padding -1: (batch, feature, 3)."""
    made = generator(seed)
    rows = torch.tensor([feature.rows for feature in plan.features])
    ids = (torch.rand(batch, len(rows), 3, generator=made) * rows[:, None]).long()
    return ids.masked_fill(torch.rand(ids.shape, generator=made) < 0.4, -1)


def as_bags(ids):
    """(batch, feature, length) -> values and offsets, padding included."""
    by_feature = ids.transpose(0, 1)
    return by_feature.flatten(), torch.arange(ids.shape[0] * ids.shape[1] + 1) * ids.shape[2]


def dense_weights(sharded):
    """The matrix of every feature, looked up by all ranks alike."""
    embeddings = sharded.module.embeddings
    rows = max(feature.rows for feature in embeddings.plan.features)
    last = torch.tensor([feature.rows - 1 for feature in embeddings.plan.features])
    ids = torch.minimum(torch.arange(rows)[:, None], last)
    with torch.no_grad():
        return embeddings(ids)


def plain_weights(layer):
    last = torch.tensor([feature.rows - 1 for feature in layer.plan.features])
    ids = torch.minimum(torch.arange(int(last.max()) + 1)[:, None], last)
    with torch.no_grad():
        return layer(ids)


RATES = {"sgd": 0.02, "adagrad": 0.1, "rowwise_adagrad": 0.1}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
DECAY = 2.0  # a row of adagrad keeps 4/5 of itself


def rate_of(number, weight_decay):
    """The factor of the rates in a step: where there is a decay, they fall to 0 over ten steps."""
    return 1 - number / 10 if weight_decay else 1.0


def targets(batch):
    return torch.linspace(-1, 1, batch)


def train_plain(
    plan, optimizer, asked, steps, bags=False, after=lambda model: None, weight_decay=0.0, **options
):
    layer = mixdim.FeatureEmbeddings(plan, generator=generator(), sparse=True, **options)
    model = Linear(layer, bags=bags)
    stepping = NamedOptimizer(optimizer, model, lr=RATES[optimizer], weight_decay=weight_decay)
    for number, batch in enumerate(asked[:steps]):
        stepping.zero_grad()
        stepping.scale_rates(rate_of(number, weight_decay))
        ids = as_bags(batch) if bags else batch
        ((model(ids) - targets(len(batch))) ** 2).mean().backward()
        stepping.step()
        after(model)
    return model


def train_ranks(
    rank, world, plan, optimizer, asked, steps, bags=False, after=lambda _: None, options=None, **how
):
    embeddings = distributed.ShardableEmbeddings(plan, generator=generator(), **(options or {}))
    model = Linear(embeddings, bags=bags)
    sharded = distributed.shard(model, lr=RATES[optimizer], optimizer=optimizer, **how)
    for number, batch in enumerate(asked[:steps]):
        share = len(batch) // world
        here = slice(rank * share, (rank + 1) * share)
        ids = as_bags(batch[here]) if bags else batch[here]
        sharded.zero_grad()
        sharded.scale_rates(rate_of(number, how.get("weight_decay", 0.0)))
        sharded.backward(((sharded(ids) - targets(len(batch))[here]) ** 2).mean())
        sharded.step()
        after(sharded)
    return sharded


def held_bytes(sharded):
    """What this rank holds of embeddings and their state, by the tensors themselves."""

    def size(*tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    found = {"tables": 0, "state": 0, "replicated": 0}
    for _, held in sharded.tables():
        if held.place.kind == "data_parallel":
            found["replicated"] += size(held.weight, held.state)
        else:
            found["tables"] += size(*(rows for _, rows in held.parts))
            shards = [] if held.state is None else held.state.local_shards()
            found["state"] += size(*(shard.tensor for shard in shards))
    sums, _ = sharded.dense.state()
    found["replicated"] += size(sharded.module.embeddings.lift, sums["embeddings.lift/sum"])
    found["replicated"] += size(sharded.module.embeddings.ids.rank_of_id)
    return found


SHARDINGS = [("table_wise", 0), ("row_wise", 0), ("auto", 200), ("auto", 2**20)]


def many_things(rank, world):
    """Lookups and short trainings in every way of sharding."""
    plan, found = mixed_plan(), {}
    ids = [some_ids(plan, 64, seed) for seed in range(6)]
    bags = [some_bags(plan, 64, seed) for seed in range(6)]
    with distributed.init():
        for sharding, below in SHARDINGS:
            how = {"sharding": sharding, "replicate_below": below}
            found["first", sharding, below] = dense_weights(
                train_ranks(rank, world, plan, "sgd", ids, 0, **how)
            )
            for optimizer, decay in product(OPTIMIZERS, (0.0, DECAY)):
                trained = found["trained", sharding, below, optimizer, decay] = []

                def note(sharded, trained=trained):
                    trained.append((dense_weights(sharded), sharded.module.weight.detach().clone()))

                sharded = train_ranks(
                    rank, world, plan, optimizer, ids, 6, after=note, weight_decay=decay, **how
                )
            found["held", sharding, below] = held_bytes(sharded)
            places = [place.kind for place in sharded.places["embeddings"].values()]
            found["places", sharding, below] = places
        options = {"bags": list(plan), "padding_id": -1}
        for pooling in ("sum", "mean"):
            own = {**options, "pooling": pooling}
            sharded = train_ranks(rank, world, plan, "adagrad", bags, 0, bags=True, options=own)
            with torch.no_grad():
                found["first bags", pooling] = sharded.module.embeddings.bags(*as_bags(bags[5]))
            how = {"weight_decay": DECAY, "sharding": "row_wise", "replicate_below": 200}
            sharded = train_ranks(rank, world, plan, "adagrad", bags, 4, bags=True, options=own, **how)
            with torch.no_grad():
                found["bags", pooling] = sharded.module.embeddings.bags(*as_bags(bags[5]))
        found["batch of one"] = sharded.module.embeddings(some_ids(plan, 1)).detach()
        found["empty batch"] = sharded.module.embeddings(some_ids(plan, 0)).detach()
        both = distributed.shard(TwoLayers(distributed.ShardableEmbeddings, plan), lr=0.1)
        found["two layers"] = tuple(vectors.detach() for vectors in both(ids[0]))
        wide = padded_plan()
        asked = [some_ids(wide, 8, seed) for seed in range(4)]
        how = {"sharding": "row_wise", "replicate_below": 700}
        rowwise = train_ranks(rank, world, wide, "rowwise_adagrad", asked, 4, **how)
        found["rowwise"] = (
            dense_weights(rowwise),
            [t.layout for t in rowwise.module.embeddings.block_tables],
        )
    return found


def loss_of(learner, batch):
    """The loss of a rank's share of a batch, or of all of it in one process."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    share = len(batch) // world
    here = slice(rank * share, (rank + 1) * share)
    return ((learner.forward(batch[here]) - targets(len(batch))[here]) ** 2).mean()


def go_on(learner, first, last):
    """Train with some batches, of which three ranks can take equal shares."""
    for seed in range(first, last):
        learner.backward(loss_of(learner, some_ids(mixed_plan(), 66, seed)))
        learner.step()
        learner.zero_grad()


def a_learner(sharding, below, seed=9, plan=None, **options):
    plan = mixed_plan() if plan is None else plan
    model = Linear(distributed.ShardableEmbeddings(plan, generator=generator(seed)))
    how = {"optimizer": "adagrad", "sharding": sharding, "replicate_below": below, **options}
    return distributed.shard(model, lr=0.05, **how)


def saved_after(rank, world, path, before, batches, sharding, below):
    """Go on from a checkpoint, or begin, with some batches; save, and say what the weights are."""
    with distributed.init():
        learner = a_learner(sharding, below)
        kept = None if before is None else distributed.load(learner, before)
        go_on(learner, *batches)
        distributed.save(learner, path, {"step": batches[1]})
        return kept, dense_weights(learner), learner.module.weight.detach().clone()


CONTRACTS = [
    ("table_wise", 0, "adagrad", "amsgrad"),
    ("row_wise", 0, "adagrad", None),
    ("auto", 200, "adagrad", "adam"),
    ("row_wise", 700, "rowwise_adagrad", None),
]


def keeps_the_contract(rank, world, folder):
    """The contract of learners, in every way of sharding and with every optimizer that has a state."""
    other = mixdim.plan({"one": 1, "two": 20}, temperature=0, base_dim=14)
    with distributed.init() as group:
        for number, (sharding, below, optimizer, dense) in enumerate(CONTRACTS):
            plan = padded_plan() if optimizer == "rowwise_adagrad" else mixed_plan()
            wrong = other if plan.base_dim == 14 else plan.with_storage("x", mixdim.Rows(7))

            def make(seed, plan=plan, wrong=wrong, how=(sharding, below, optimizer, dense)):
                told = {"optimizer": how[2], "dense_optimizer": how[3]}
                own = wrong if seed is None else plan
                return a_learner(*how[:2], seed=seed or 0, plan=own, **told)

            def loss(learner, number, plan=plan):
                return loss_of(learner, some_ids(plan, 66, number))

            check_learner(make, loss, f"{folder}/{number}", group)


def killed_while_saving(rank, world, path):
    """Rank 0 dies when the old checkpoint is put aside and the new one not yet in its place."""
    import os
    import signal
    from pathlib import Path

    rename = Path.rename

    def once(mine, to):
        rename(mine, to) if mine == Path(path) else os.kill(os.getpid(), signal.SIGKILL)

    Path.rename = once
    saved_after(rank, world, path, None, (0, 1), "table_wise", 0)


def refused_by_the_disk(rank, world, path):
    """Rank 1 may write no more than 2,000 bytes into a file; what each rank says of it."""
    import resource

    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    try:
        saved_after(rank, world, path, None, (0, 1), "table_wise", 0)
    except OSError as error:
        return str(error)


class TwoLayers(nn.Module):
    """Two embeddings of one plan."""

    def __init__(self, layer, plan):
        super().__init__()
        made = generator()
        self.one, self.other = layer(plan, generator=made), layer(plan, generator=made)

    def forward(self, ids):
        return self.one(ids), self.other(ids)


def small_dlrm(layer, data):
    plan = mixdim.plan(data, temperature=0, base_dim=8)
    plan = plan.with_storage(next(iter(plan)), mixdim.Rows(2))
    made = generator(1)
    embeddings = layer(plan, generator=made)
    return DLRM(embeddings, num_dense=data.num_dense, bottom=(16,), top=(16,), generator=made)


def one_rank_is_wrong(rank, world):
    """Rank 1 asks for an id that is not there, while rank 0 waits for it."""
    plan = mixed_plan()
    with distributed.init():
        model = Linear(distributed.ShardableEmbeddings(plan))
        sharded = distributed.shard(model, lr=0.1, replicate_below=0)
        sharded(some_ids(plan, 2) + 1000 * rank)


def refused(rank, world):
    """What is refused, by what was tried: the line it says."""
    plan, lines = mixed_plan(), {}
    embeddings = distributed.ShardableEmbeddings(plan)

    def attempt(name, work):
        try:
            work()
        except (ValueError, RuntimeError, IndexError) as error:
            lines[name] = str(error)

    def made(**options):
        return Linear(distributed.ShardableEmbeddings(plan, **options))

    attempt("no group", lambda: distributed.shard(made(), lr=0.1))
    attempt("not sharded", lambda: embeddings(some_ids(plan, 2)))
    attempt("pooling", lambda: made(pooling="max"))
    attempt("unknown bags", lambda: made(bags=["nothing"]))
    hashed = plan.with_storage("odd", mixdim.Hashed(4, buckets=7))
    attempt("storage", lambda: distributed.ShardableEmbeddings(hashed))
    with distributed.init():
        attempt("adam", lambda: distributed.shard(made(), lr=0.1, optimizer="adam"))
        attempt("rowwise", lambda: distributed.shard(made(), lr=0.1, optimizer="rowwise_adagrad"))
        attempt("eps", lambda: distributed.shard(made(), lr=0.1, eps=0.0))
        attempt("decay", lambda: distributed.shard(made(), lr=0.1, weight_decay=10.0))
        attempt("lr", lambda: distributed.shard(made(), lr=-1.0))
        attempt("nothing to shard", lambda: distributed.shard(nn.Linear(2, 1), lr=0.1))
        sharded = distributed.shard(made(padding_id=-1), lr=0.1).module.embeddings
        bags = as_bags(some_bags(plan, 8))
        attempt("bags", lambda: sharded.bags(*bags))
        attempt("weights", lambda: sharded.bags(*bags, torch.ones(len(bags[0]))))
        decaying = distributed.shard(made(), lr=0.1, weight_decay=1.0)
        decaying(some_ids(plan, 2)).sum().backward()
        attempt("own backward", decaying.step)
        attempt("out of range", lambda: sharded(some_ids(plan, 2) + 1000))
        attempt("shape", lambda: sharded(some_ids(plan, 2)[:, 1:]))
    return lines
