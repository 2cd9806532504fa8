"""Training: the loop, its metrics and checkpoints. Knows nothing about particular models or files."""

from mixdim.training.auto import auto_options
from mixdim.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from mixdim.training.evaluation import evaluate
from mixdim.training.fitted import Fitted
from mixdim.training.loop import DivergedError, Stopped, fit
from mixdim.training.options import TrainingOptions, preset
from mixdim.training.resumption import load_weights

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "DivergedError",
    "Fitted",
    "Stopped",
    "TrainingOptions",
    "auto_options",
    "evaluate",
    "fit",
    "load_weights",
    "preset",
]
