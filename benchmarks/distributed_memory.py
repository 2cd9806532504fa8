"""The memory of each rank with the full cardinalities of Criteo: `benchmarks/distributed_memory.py`.

Trains DLRM with Adagrad for a few batches of random ids, in one process without TorchRec, then with it
on one rank and on two; each process says the most memory it had, and how much of it came with the model.
"""

import argparse
import socket
import time
from types import SimpleNamespace

import torch
from torch.multiprocessing.spawn import start_processes

import mixdim
from mixdim.models import DLRM
from mixdim.training.memory import peak_memory

CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992),
    *(5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
BATCH, STEPS = 4096, 5


def batch_of(plan: mixdim.Plan, rank: int, world: int) -> SimpleNamespace:
    made = torch.Generator().manual_seed(rank)
    columns = [torch.randint(f.rows, (BATCH // world,), generator=made) for f in plan.features]
    dense = torch.rand(BATCH // world, 13, generator=made)
    return SimpleNamespace(ids=torch.stack(columns, 1), dense=dense, bags={})


def train_plain(plan: mixdim.Plan) -> None:
    model = DLRM(mixdim.FeatureEmbeddings(plan, sparse=True), num_dense=13)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch_of(plan, 0, 1)).square().mean().backward()
        optimizer.step()


def train_sharded(plan: mixdim.Plan, rank: int, world: int) -> None:
    from mixdim import distributed

    model = DLRM(distributed.ShardableEmbeddings(plan), num_dense=13)
    sharded = distributed.shard(model, lr=0.01, optimizer="adagrad")
    for _ in range(STEPS):
        sharded.zero_grad()
        sharded(batch_of(plan, rank, world)).square().mean().backward()
        sharded.step()


def measure(rank: int, world: int, port: int, sharded: bool, budget: str) -> None:
    torch.set_num_threads(1)
    if sharded:
        import torch.distributed as dist

        from mixdim.distributed import engine  # noqa: F401  # what importing it takes is measured

        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    plan = mixdim.plan(CARDINALITIES, temperature=0.3, budget=budget)
    before, start = peak_memory(), time.perf_counter()
    if sharded:
        train_sharded(plan, rank, world)
    else:
        train_plain(plan)
    peak, seconds = peak_memory(), time.perf_counter() - start
    name = f"rank {rank} of {world}" if sharded else "without TorchRec"
    print(
        f"{name:16} {peak / 1e6:7.0f} MB, {(peak - before) / 1e6:7.0f} MB of it model, state and steps; "
        f"{seconds:5.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="width:2", help="as in mixdim plan")
    budget = parser.parse_args().budget
    plan = mixdim.plan(CARDINALITIES, temperature=0.3, budget=budget)
    print(f"{plan.num_parameters:,} parameters of embeddings, base_dim {plan.base_dim}")
    for world, sharded in ((1, False), (1, True), (2, True)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start_processes(measure, (world, port, sharded, budget), nprocs=world, start_method="spawn")


if __name__ == "__main__":
    main()
