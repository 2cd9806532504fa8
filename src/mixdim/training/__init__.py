"""Training: the loop, its metrics and checkpoints. Knows nothing about particular models or files."""

from mixdim.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from mixdim.training.evaluation import evaluate
from mixdim.training.loop import DivergedError, Fitted, Stopped, fit
from mixdim.training.options import TrainingOptions, preset
from mixdim.training.resumption import load_weights
from mixdim.training.tasks import options_for

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "DivergedError",
    "Fitted",
    "Stopped",
    "TrainingOptions",
    "evaluate",
    "fit",
    "load_weights",
    "options_for",
    "preset",
]
