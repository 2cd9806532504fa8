"""What is to be predicted, as a value: all that depends on it. Knows no model, no file and no loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixdim.tasks.metrics import Metric, Rows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ByTime:
    """How the preset "auto" trains where ids are the signal: rates fall to 0, and every row decays."""

    epochs: int
    most_samples: int
    table_lr: float
    table_decay: float


@dataclass(frozen=True)
class Pace:
    """How long and how fast the preset "auto" trains: see training/auto.py.

    - `most_samples`: of all epochs together, as long as there are `least_epochs`.
    - `patient_epochs`: epochs without improvement, after which it stops.
    - `table_lr(train_rows)`: the learning rate of tables.
    - `schedule`: how rates change.
    - `penalty`: the strength of the penalty of training/penalty.py, which then takes the place of weight
      decay; 0: none.
    - `by_time`: what is done instead where a model reads the vectors of few features.
    """

    least_epochs: int
    most_epochs: int
    most_samples: int
    patient_epochs: int
    table_lr: Callable[[int], float]
    schedule: str = "constant"
    penalty: float = 0.0
    by_time: ByTime | None = None


@dataclass(frozen=True)
class Task:
    """What targets and a model's outputs mean, how they are learnt, measured and served.

    Of data:
    - `labels`: all values that a target may have; None: any finite number.
    - `wrong_target`: why a row is rejected whose target is something else; `target_advice`: what helps.

    Of training:
    - `loss(outputs, targets)`: what training minimises.
    - `metrics`: by name; the first is the objective, the loss that runs are compared by.
    - `objective_words`: the same for people.
    - `curve_metrics`: what a learning curve keeps beside the objective.
    - `rows(outputs, targets, name)`: both as float64 (rows,), or an error if they are not of this task.
    - `constant_output(mean_target)`: the output with the least loss, if it is the same for all rows.
    - `baseline`: the simple model that runs are compared with: "logistic" or "biases".
    - `any_features_model`: the default model where `default_model` cannot read the data.
    - `default_model`, `paper_preset`, `pace`: what a run takes if nothing is said, the paper's protocol,
      and what the preset "auto" needs to know.
    - `penalized_pace`: the same for models that tell what they look up, if training can have a penalty.

    Of serving:
    - `prediction(outputs)`: what an output says of the target; `output_of(predictions)`: the inverse.
    - `output_name`: what a served model calls its predictions; `graph_operator`: the ONNX operator that
      makes them of outputs, "" for none.
    """

    name: str
    labels: tuple[float, ...] | None
    wrong_target: str
    target_advice: str | None
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Mapping[str, Metric]
    objective_words: str
    curve_metrics: tuple[str, ...]
    rows: Callable[[Any, Any, str], Rows]
    constant_output: Callable[[float], float]
    baseline: str
    default_model: str
    any_features_model: str
    paper_preset: str
    pace: Pace
    penalized_pace: Pace | None
    prediction: Callable[[Tensor], Tensor]
    output_of: Callable[[Tensor], Tensor]
    output_name: str
    graph_operator: str

    @property
    def objective(self) -> str:
        """The name of the metric to minimise.

        >>> from mixdim.tasks import task_of
        >>> task_of("binary").objective, task_of("rating").objective
        ('log_loss', 'mse')
        """
        return next(iter(self.metrics))

    def measure(self, outputs: Any, targets: Any) -> dict[str, float | int | None]:
        """Return the number of rows and every metric; a metric that is undefined is None.

        >>> from mixdim.tasks import task_of
        >>> task_of("rating").measure([3.0, 5.0], [4.0, 4.0])
        {'rows': 2, 'mse': 1.0, 'rmse': 1.0, 'mae': 1.0}
        >>> task_of("rating").measure([], [])
        {'rows': 0, 'mse': None, 'rmse': None, 'mae': None}
        >>> task_of("binary").measure([0.5, float("nan")], [0, 1])
        Traceback (most recent call last):
        ValueError: outputs must be finite, got 1 value that is not: nan at row 1
        """
        outputs, targets = self.rows(outputs, targets, "outputs")
        rows, metrics = len(outputs), self.metrics.items()
        return {
            "rows": rows,
            **{name: metric(outputs, targets) if rows else None for name, metric in metrics},
        }
