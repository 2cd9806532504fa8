"""What a rank takes of plain mixdim's memory: `python benchmarks/distributed_memory.py`.

Trains DLRM with Adagrad for a few batches of random ids, on the cardinalities of Criteo: in one process
without TorchRec, then with it on two and on four ranks. Each process says the most memory it had, and
how much of that it had before there was a model. With the default budget, tables and their state are
89 % of the memory of plain mixdim.
"""

import argparse
import socket
import time
from types import SimpleNamespace

import torch
from torch.multiprocessing.spawn import start_processes

import mixdim
from mixdim.models import DLRM
from mixdim.planning.budget import format_bytes
from mixdim.training.memory import peak_memory

CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992),
    *(5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
STEPS = 5


def batch_of(plan: mixdim.Plan, size: int, rank: int, world: int) -> SimpleNamespace:
    made = torch.Generator().manual_seed(rank)
    columns = [torch.randint(f.rows, (size // world,), generator=made) for f in plan.features]
    dense = torch.rand(size // world, 13, generator=made)
    return SimpleNamespace(ids=torch.stack(columns, 1), dense=dense, bags={})


def train_plain(plan: mixdim.Plan, size: int) -> None:
    model = DLRM(mixdim.FeatureEmbeddings(plan, sparse=True), num_dense=13)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch_of(plan, size, 0, 1)).square().mean().backward()
        optimizer.step()


def train_sharded(plan: mixdim.Plan, size: int, rank: int, world: int) -> None:
    from mixdim import distributed

    model = DLRM(distributed.ShardableEmbeddings(plan), num_dense=13)
    learner = distributed.shard(model, lr=0.01, optimizer="adagrad")
    for _ in range(STEPS):
        learner.zero_grad()
        learner.backward(learner(batch_of(plan, size, rank, world)).square().mean())
        learner.step()


def measure(rank: int, world: int, port: int, plan: mixdim.Plan, size: int, peaks: list[int]) -> None:
    torch.set_num_threads(1)
    if world:
        import torch.distributed as dist

        from mixdim.distributed import engine  # noqa: F401  # what importing it takes is measured

        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    before, start = peak_memory(), time.perf_counter()
    if world:
        train_sharded(plan, size, rank, world)
    else:
        train_plain(plan, size)
    peak, seconds = peak_memory(), time.perf_counter() - start
    peaks[rank] = peak
    name = f"rank {rank} of {world}" if world else "plain mixdim"
    sizes = f"{peak / 1e6:.0f} MB, {before / 1e6:.0f} MB of it before the model"
    print(f"{name}: {sizes}; {seconds:.1f} s", flush=True)


def peaks_of(world: int, plan: mixdim.Plan, size: int) -> list[int]:
    """The peak of each process; no ranks: one process without TorchRec."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        peaks = manager.list([0] * max(world, 1))
        arguments = (world, port, plan, size, peaks)
        start_processes(measure, arguments, nprocs=max(world, 1), start_method="spawn")
        return list(peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="width:13", help="as in mixdim plan")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    told = parser.parse_args()
    plan = mixdim.plan(CARDINALITIES, temperature=0.2, budget=told.budget)
    tables = plan.nbytes(optimizer="adagrad")
    (plain,) = peaks_of(0, plan, told.batch_size)
    print(
        f"{plan.num_parameters:,} parameters of embeddings, base_dim {plan.base_dim}: with their state "
        f"{format_bytes(tables)}, {tables / plain:.0%} of the memory of plain mixdim"
    )
    for world in told.ranks:
        most = max(peaks_of(world, plan, told.batch_size))
        print(f"{world} ranks: each at most {most / plain:.3f} of plain mixdim", flush=True)


if __name__ == "__main__":
    main()
