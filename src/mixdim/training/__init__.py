"""Training: the trainer, its metrics and checkpoints. Knows nothing about particular models or files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import names_later

if TYPE_CHECKING:
    from mixdim.training.auto import auto_options
    from mixdim.training.checkpoint import Checkpoint, CheckpointError, Checkpoints
    from mixdim.training.evaluation import evaluate
    from mixdim.training.fitting import fit
    from mixdim.training.group import Group
    from mixdim.training.learner import Learner, LocalLearner
    from mixdim.training.options import TrainingOptions, preset
    from mixdim.training.result import Result
    from mixdim.training.resumption import load_weights
    from mixdim.training.trainer import DivergedError, Stopped, Trainer
else:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = names_later(
        globals(),
        names={
            "Checkpoint": "checkpoint",
            "CheckpointError": "checkpoint",
            "Checkpoints": "checkpoint",
            "DivergedError": "trainer",
            "Group": "group",
            "Learner": "learner",
            "LocalLearner": "learner",
            "Result": "result",
            "Stopped": "trainer",
            "Trainer": "trainer",
            "TrainingOptions": "options",
            "auto_options": "auto",
            "evaluate": "evaluation",
            "fit": "fitting",
            "load_weights": "resumption",
            "preset": "options",
        },
    )

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "DivergedError",
    "Group",
    "Learner",
    "LocalLearner",
    "Result",
    "Stopped",
    "Trainer",
    "TrainingOptions",
    "auto_options",
    "evaluate",
    "fit",
    "load_weights",
    "preset",
]
