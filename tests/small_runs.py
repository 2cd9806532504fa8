"""Runs that take moments: their options, and all that their folders hold."""

from mixdim.runs.run import Run
from training_data import clicks, ratings, small_config

DATA = {"dcn": clicks, "deepfm": clicks, "dlrm": clicks, "mf": ratings, "ncf": ratings}
FEW_STEPS = {"batch_size": 100, "epochs": 4, "lr": 0.1}


def told(name, **options):
    return small_config(name, DATA[name](), **{**FEW_STEPS, **options})


def trained(config, out, *, resume=False, overwrite=False, **how):
    """A run, trained."""
    run = Run.create(out, config, resume=resume, overwrite=overwrite)
    run.train(resume=resume, **how)
    return run


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
