"""`mixdim` on every rank, as torchrun would start it."""

from pathlib import Path

import torch
import two_ranks as two


def command(rank, world, arguments):
    from mixdim.cli.main import run

    raise SystemExit(run(arguments))


def dlrm_steps(rank, world, folder, out, optimizer, batch_size, steps):
    """Train DLRM on shares of batches as the run does; rank 0's loss of the first samples after it."""
    import mixdim.distributed as distributed
    from mixdim.data import Dataset
    from mixdim.distributed.training import Parted, Together
    from mixdim.training.options import TrainingOptions

    data = Dataset(folder)
    options = TrainingOptions(optimizer, lr=0.05, batch_size=batch_size, epochs=50)
    with distributed.joined() as group:
        model = two.small_dlrm(distributed.ShardableEmbeddings, data)
        sharded = distributed.shard(model, lr=0.05, optimizer=optimizer, replicate_below=200)
        run = Together(sharded, group, data, options, Path(out), None)
        batches = run.schedule.batches(Parted(data, run.part), after=0)
        losses = [run.train(next(batches)) for _ in range(steps)]
        batches.close()
        with torch.no_grad():
            return sharded(data.rows(slice(0, 64))).clone(), losses
