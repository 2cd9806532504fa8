"""Two processes on this machine, reducing gradients with gloo."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

import mixdim

BATCH = torch.tensor([[0, 1], [2, 9], [1, 0], [2, 3]])


def make_model(sparse):
    plan = mixdim.plan(
        {"day": 3, "item": 10},
        counts={"item": [3, 9, 1, 1, 1, 1, 1, 1, 1, 1]},
        bands={"item": 2},
        temperature=0.4,
        base_dim=8,
    )
    generator = torch.Generator().manual_seed(0)
    layer = mixdim.FeatureEmbeddings(plan, sparse=sparse, generator=generator)
    linear = nn.Linear(16, 1)
    nn.init.constant_(linear.weight, 0.1)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(layer, nn.Flatten(), linear)


def train(model, batch, steps=3):
    optimizer = mixdim.SparseAMSGrad(model.named_parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def work(rank, store, results):
    """What one of the two processes does."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        train_half(rank, results)
    finally:
        # By now no model is left: the last of those that hold a group waits for its threads, and a model
        # would hold Python's lock meanwhile, which one of them may want.
        gc.collect()
        dist.destroy_process_group()


def train_half(rank, results):
    for sparse in (False, True):
        wrap = mixdim.DistributedDataParallel if sparse else nn.parallel.DistributedDataParallel
        model = wrap(make_model(sparse))
        train(model, BATCH[2 * rank : 2 * rank + 2])
        assert model.module[0].table_8.grad.is_sparse == sparse
        weights = {name: p.detach().tolist() for name, p in model.module.named_parameters()}
        results[rank, sparse] = weights
    try:
        nn.parallel.DistributedDataParallel(make_model(sparse=True))(BATCH)
    except RuntimeError as error:
        results[rank, "refused"] = str(error)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process had in the end, by its rank and whether gradients were row-sparse."""
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        store = tmp_path_factory.mktemp("ranks") / "store"
        # As sweeps start theirs: by now the forkserver may have imported torch for one already.
        multiprocessing.start_processes(work, (str(store), shared), nprocs=2, start_method="forkserver")
        return dict(shared)


@pytest.mark.parametrize("sparse", [False, True])
def test_two_processes_with_half_a_batch_each_train_as_one_with_all_of_it(results, sparse):
    alone = make_model(sparse)
    train(alone, BATCH)
    assert results[0, sparse] == results[1, sparse]
    for name, parameter in alone.named_parameters():
        found = torch.tensor(results[0, sparse][name])
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-4, atol=1e-5)


def test_the_class_of_pytorch_is_refused_early_with_what_to_do(results):
    for rank in (0, 1):
        assert "wrap the model in mixdim.DistributedDataParallel, or" in results[rank, "refused"]
