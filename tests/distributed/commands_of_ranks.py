"""`mixdim` on every rank, as torchrun would start it."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
import torch
import two_ranks as two


def command(rank, world, arguments):
    from mixdim.cli.main import run

    raise SystemExit(run(arguments))


def commands(rank, world, all_arguments):
    """The exit code of every command, and the lines that it wrote to standard output and error."""
    from mixdim.cli.main import run

    found = []
    for arguments in all_arguments:
        with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
            code = run(arguments)
        found.append((code, printed.getvalue().splitlines()))
    return found


def dlrm_steps(rank, world, folder, out, cases):
    """Train DLRM on shares of batches as the run does; outputs of first samples after it, and losses."""
    import mixdim.distributed as distributed
    from mixdim.data import Dataset
    from mixdim.training import Trainer, TrainingOptions

    data, found = Dataset(folder), []
    with distributed.init() as group:
        for optimizer, batch_size, steps in cases:
            options = TrainingOptions(optimizer, lr=0.05, batch_size=batch_size, epochs=50)
            model = two.small_dlrm(distributed.ShardableEmbeddings, data)
            sharded = distributed.shard(model, lr=0.05, optimizer=optimizer, replicate_below=200)
            trainer = Trainer(sharded, data, options, group=group)
            with pytest.raises(ValueError, match=r"made with table_lr=0\.05, but options have 0\.1"):
                Trainer(sharded, data, replace(options, table_lr=0.1), group=group)
            batches = trainer.schedule.batches(data, after=0, **group.part)
            losses = []
            for _ in range(steps):
                trainer.step(batches)
                losses.append(trainer.last_loss)
            batches.close()
            with torch.no_grad():
                found.append((sharded(data.rows(slice(0, 64))).clone(), losses))
    return found
