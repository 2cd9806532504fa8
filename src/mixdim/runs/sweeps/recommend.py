"""Which measured configuration to use: records and a wish in, a configuration out. Trains nothing."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from mixdim.planning.budget import BYTES_PER_PARAMETER, format_bytes
from mixdim.runs.config import CHOSEN_FROM_DATA, RunConfig, config_of
from mixdim.runs.sweeps.methods import UNIFORM, bits_of, plain_method_of, temperature_of, with_bits
from mixdim.runs.sweeps.objective import common_task
from mixdim.runs.sweeps.records import Record, replicates
from mixdim.training.options import AUTO


class Spread(NamedTuple):
    """Numbers in short: their mean and, of two or more, their sample standard deviation.

    >>> str(spread([0.5, 0.7])), str(spread([0.5]))
    ('0.6000 ± 0.1414', '0.5000')
    """

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.std is None else f"{self.mean:.4f} ± {self.std:.4f}"


def spread(numbers: Sequence[float]) -> Spread:
    """Mean and sample standard deviation."""
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)


@dataclass(frozen=True)
class Measured:
    """A configuration with the runs that measured it, one a seed."""

    records: tuple[Record, ...]

    @property
    def temperature(self) -> float | None:
        """0 is uniform; None where another rule than the power law chose the widths."""
        return temperature_of(self.records[0])

    @property
    def is_uniform(self) -> bool:
        """Whether all rows have one width, in float32."""
        return self.method in ("0", UNIFORM)

    @property
    def method(self) -> str:
        """The temperature, or the name of a method or of another rule; and its bits, if not 32."""
        return with_bits(self.plain_method, self.bits)

    @property
    def plain_method(self) -> str:
        """The same without bits."""
        return plain_method_of(self.records[0]) if self.temperature is None else f"{self.temperature:g}"

    @property
    def bits(self) -> int:
        """Of a number of the embeddings as they are served."""
        return bits_of(self.records[0])

    @property
    def parameters(self) -> float:
        """Of the whole model; a mean, since seeds with their own splits differ a little."""
        return statistics.fmean(summary["num_parameters"] for summary in self._summaries)

    @property
    def embedding_bytes(self) -> float:
        """Of all that embeddings store; a mean too."""
        return statistics.fmean(map(embedding_bytes_of, self._summaries))

    @property
    def num_bytes(self) -> float:
        """Of the whole model as it is stored; a mean too."""
        return self.embedding_bytes + statistics.fmean(
            BYTES_PER_PARAMETER * (summary["num_parameters"] - summary["embedding_parameters"])
            for summary in self._summaries
        )

    @property
    def base_dims(self) -> str:
        """The base_dim, or the least and the largest if seeds differ in it."""
        widths = [summary["base_dim"] for summary in self._summaries]
        return f"{min(widths)}" if min(widths) == max(widths) else f"{min(widths)}-{max(widths)}"

    @property
    def seconds(self) -> float:
        """The mean time of a run."""
        return statistics.fmean(summary["seconds"] for summary in self._summaries)

    def loss(self, split: str) -> Spread | None:
        """The loss of the weights that were best in validation; None if the split is empty."""
        losses = [loss_of(record, split) for record in self.records]
        known = [loss for loss in losses if loss is not None]
        return spread(known) if known else None

    @property
    def _summaries(self) -> list[dict[str, Any]]:
        return [record.summary for record in self.records if record.summary is not None]


def embedding_bytes_of(summary: Mapping[str, Any]) -> int:
    """Bytes of all that the embeddings of a run store; records from before runs said so are float32."""
    in_float32 = BYTES_PER_PARAMETER * summary["embedding_parameters"]
    return int(summary.get("embedding_bytes", in_float32))


def loss_of(record: Record, split: str) -> float | None:
    """The loss of a finished run's best weights; None if the split is empty."""
    assert record.summary is not None
    loss: float | None = record.summary[split]["best"][record.loss_name]
    return loss


class Recommendation(NamedTuple):
    """The cheapest configuration that satisfies a wish, and whom it was compared with."""

    chosen: Measured
    best: Measured  # the lowest validation loss of all
    uniform: Measured | None  # the cheapest uniform one that is no worse in validation, if one is


def recommend(
    records: Iterable[Record], *, loss_within: float | None = None, budget: int | None = None
) -> Recommendation:
    """Choose by the mean validation loss over the seeds, never by test.

    - `loss_within=0.001`: the fewest bytes within 0.1% of the lowest loss; or
    - `budget`: the lowest loss with at most so many float32 parameters of the whole model, or what takes
      no more bytes.

    Configurations with fewer seeds than others, by a failure or an unfinished sweep, are left out, with
    a warning: the luck of one seed would speak for them.
    """
    if (loss_within is None) == (budget is None):
        raise ValueError("give either loss_within or budget")
    measured = [Measured(tuple(group)) for group in replicates(records)]
    if not measured:
        raise ValueError("there are no finished runs in the records")
    most = max(len(one.records) for one in measured)
    whole = [one for one in measured if len(one.records) == most]
    if len(whole) < len(measured):
        warnings.warn(
            f"{len(measured) - len(whole)} of {len(measured)} configurations have fewer than {most} "
            "seeds and were left out",
            stacklevel=2,
        )

    def validation(one: Measured) -> float:
        loss = one.loss("validation")
        if loss is None:
            raise ValueError("the runs have no validation loss: the validation split is empty")
        return loss.mean

    def cheapest(some: Iterable[Measured]) -> Measured | None:
        return min(some, key=lambda one: (one.num_bytes, validation(one)), default=None)

    best = min(whole, key=lambda one: (validation(one), one.num_bytes))
    chosen: Measured | None
    if loss_within is not None:
        if not 0 <= loss_within < math.inf:
            raise ValueError(f"loss_within must be at least 0, got {loss_within}")
        chosen = cheapest(
            one for one in whole if validation(one) <= validation(best) * (1 + loss_within)
        )
        assert chosen is not None  # the best is within
    else:
        assert budget is not None
        affordable = [one for one in whole if one.num_bytes <= budget * BYTES_PER_PARAMETER]
        if not affordable:
            least = min(one.num_bytes for one in whole)
            raise ValueError(
                f"budget of {budget:,} parameters is below all that was measured: the smallest model "
                f"takes {format_bytes(int(least))}, as {least / BYTES_PER_PARAMETER:,.0f} do"
            )
        chosen = min(affordable, key=lambda one: (validation(one), one.num_bytes))
    rivals = (one for one in whole if one.is_uniform and validation(one) <= validation(chosen))
    return Recommendation(chosen, best, cheapest(rivals))


def select(
    records: Iterable[Record], *, model: str | None = None, data: Sequence[str] | None = None
) -> list[Record]:
    """The finished records of one model on one data set; an error that lists them if there are several.

    Folders that are replicates, so that each seed was trained on one of them, count as one data set.
    `data` are folders, or their names.
    """
    finished = [record for record in records if record.finished]
    models = sorted({record.config["model"] for record in finished})
    if model is not None:
        finished = [record for record in finished if record.config["model"] == model]
    elif len(models) > 1:
        raise ValueError(f"the records hold several models, choose one: {', '.join(models)}")
    if model is not None and not finished:
        raise ValueError(
            f"there are no runs of model {model!r}: there are {', '.join(models) or 'none'}"
        )
    folders = sorted({record.config["data"] for record in finished})
    if data is not None:
        wanted = {name for given in data for name in (given, str(Path(given).resolve()))}
        finished = [
            record
            for record in finished
            if wanted & {record.config["data"], Path(record.config["data"]).name}
        ]
        if not finished:
            raise ValueError(
                f"there are no runs on {', '.join(data)}: there are {', '.join(folders) or 'none'}"
            )
    by_seed: dict[int, set[str]] = {}
    for record in finished:
        by_seed.setdefault(record.config["seed"], set()).add(record.config["data"])
    if any(len(used) > 1 for used in by_seed.values()):
        raise ValueError(f"the records hold several data sets, choose one: {', '.join(folders)}")
    return finished


def train_command(record: Record, out: str = "run") -> str:
    """The command that makes a run again: data, model, widths, and what else differs from defaults."""
    assert record.summary is not None
    config = config_of({name: value for name, value in record.config.items() if name != "model_budget"})
    always = {"data", "model", "temperature", "base_dim", "budget", "method", "plan"}
    # What was chosen from the data is said, so that the run is the same whatever would be chosen now.
    always |= CHOSEN_FROM_DATA if config.preset == AUTO else {"preset"}
    told = RunConfig(**{name: value for name, value in config.said().items() if name in always})
    defaults = told.effective(common_task([record.summary]).name, train_rows=1)
    words = ["mixdim", "train"]
    for name, value in config.said().items():
        if name in always or value != getattr(defaults, name):
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, tuple):
                words += [f"--{flag}", ",".join(map(str, value))]
            else:
                words += [f"--{flag}", _exact(value) if isinstance(value, float) else str(value)]
    return join([*words, "--out", out])


def _exact(number: float) -> str:
    """The shortest text that is read as the same number.

    >>> _exact(0.3), _exact(1 / 3), _exact(1.0)
    ('0.3', '0.3333333333333333', '1')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
