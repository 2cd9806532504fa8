"""How to train: the paper's two protocols as presets. Knows nothing about models or data.

The paper, Sec. 5 and App. B: click-through rates are learnt in one epoch, ratings in up to 100 with
early stopping; AMSGrad for both, and no regularisation.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixdim.arguments import real_number, whole_number
from mixdim.training.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class TrainingOptions:
    """What `fit` needs to know beside model and data.

    - `patience`: stop after so many evaluations without improvement; None never stops early.
    - `evaluations_per_epoch`: how often the validation split is measured; the best one is kept.
    - `checkpoint_every`: steps between checkpoints; None means every five minutes. There is always
      one at the end. Where they are does not change the result.
    - `slice_by`: the single-valued feature whose popularity cuts the metrics into thirds; None takes
      the one with most rows, or "item" if there is one.
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

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if real_number(self.lr, "lr") <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        for name in ("batch_size", "epochs", "evaluations_per_epoch"):
            whole_number(getattr(self, name), name)
        for name in ("patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name)
        whole_number(self.seed, "seed", at_least=0)


# The paper's protocols. Four looks at the validation split show a learning curve within the one epoch.
PRESETS = {
    "ctr": TrainingOptions("amsgrad", lr=1e-3, batch_size=2**12, epochs=1, evaluations_per_epoch=4),
    "cf": TrainingOptions("amsgrad", lr=1e-2, batch_size=2**15, epochs=100, patience=5),
}


def preset(name: str) -> TrainingOptions:
    """Return the paper's protocol for click-through rates ("ctr") or collaborative filtering ("cf").

    >>> preset("cf").batch_size
    32768
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
