"""How to train: the options, and the paper's two protocols as presets. Knows no models and no data.

The paper, Sec. 5 and App. B: click-through rates are learnt in one epoch, ratings in up to 100 with
early stopping; AMSGrad for both, and no regularisation. What is done if nobody says is in auto.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixdim._util.arguments import WrongTypeError, positive_number, real_number, whole_number
from mixdim.training.optimizers import OPTIMIZERS, check_weight_decays
from mixdim.training.rates import SCHEDULES

DECAY_BY = ("time", "request")
AUTO = "auto"  # the preset that is chosen from the data


@dataclass(frozen=True)
class TrainingOptions:
    """What `fit` needs to know beside model and data.

    - `table_lr`: the learning rate of tables of embeddings, without projections; None means `lr`.
    - `schedule`: how rates change from step to step: "constant", or from all of it to 0 over all epochs,
      "linear" or along a half "cosine". A run resumed with more epochs goes on with the rates that a
      run of so many has there.
    - `patience`: stop after so many evaluations without improvement; None never stops early.
    - `evaluations_per_epoch`: how often the validation split is measured; the best one is kept.
    - `checkpoint_every`: steps between checkpoints; None means every five minutes. There is always
      one at the end. Where they are does not change the result.
    - `slice_by`: the single-valued feature whose popularity cuts the metrics into thirds; None takes
      the one with most rows, or "item" if there is one.
    - `weight_decay`: before a step, weights of embeddings and matrices are multiplied by
      1 - learning rate * weight_decay.
    - `table_decay`: the weight decay of tables of embeddings; None means `weight_decay`.
    - `decay_by`: of tables, this is done to those rows that the batch asks for ("request"), or to all
      rows ("time").
    - `penalty`: of ratings, the strength of a penalty on looked-up vectors and biases in the loss, 0 for
      none; see `mixdim.training.penalty`. The model must show what it looks up.
    - `unknown_dropout`: in training each id becomes its feature's unknown id with probability
      1 / (1 + its training count), so that the row which unseen ids get has learnt something.
    """

    optimizer: str
    lr: float
    batch_size: int
    epochs: int
    patience: int | None = None
    evaluations_per_epoch: int = 1
    checkpoint_every: int | None = None
    shuffle: bool = True
    seed: int = 0
    slice_by: str | None = None
    unknown_dropout: bool = False
    table_lr: float | None = None
    weight_decay: float = 0.0
    table_decay: float | None = None
    decay_by: str = "request"
    schedule: str = "constant"
    penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        positive_number(self.lr, "lr")
        if self.table_lr is not None:
            positive_number(self.table_lr, "table_lr")
        check_weight_decays(self.weight_decay, self.table_decay, self.lr, self.table_lr)
        if self.decay_by not in DECAY_BY:
            raise ValueError(f"decay_by must be {' or '.join(DECAY_BY)}, got {self.decay_by!r}")
        if real_number(self.penalty, "penalty") < 0:
            raise ValueError(f"penalty must be at least 0, got {self.penalty:g}")
        for name in ("batch_size", "epochs", "evaluations_per_epoch"):
            whole_number(getattr(self, name), name)
        for name in ("patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name)
        whole_number(self.seed, "seed", at_least=0)
        if not isinstance(self.unknown_dropout, bool):
            raise WrongTypeError(f"unknown_dropout must be true or false, got {self.unknown_dropout!r}")


# The paper's protocols. Four looks at the validation split show a learning curve within the one epoch.
CTR = TrainingOptions("amsgrad", lr=1e-3, batch_size=2**12, epochs=1, evaluations_per_epoch=4)
CF = TrainingOptions("amsgrad", lr=1e-2, batch_size=2**15, epochs=100, patience=5)
PRESETS = {"paper-ctr": CTR, "paper-cf": CF, "clicks": replace(CTR, unknown_dropout=True)}


def preset(name: str) -> TrainingOptions:
    """Return the paper's protocol for clicks ("paper-ctr") or collaborative filtering ("paper-cf").

    "clicks" is "paper-ctr" with `unknown_dropout`. What "auto" is depends on the data: `auto_options`
    chooses it.

    >>> preset("paper-cf").batch_size
    32768
    """
    if check_preset(name) == AUTO:
        raise ValueError("preset auto is chosen from the data: auto_options(task, train_rows)")
    return PRESETS[name]


def check_preset(name: str) -> str:
    """Return the name of a preset, or say which there are."""
    if name not in (AUTO, *PRESETS):
        raise ValueError(f"preset must be one of {', '.join((AUTO, *PRESETS))}, got {name!r}")
    return name
