"""One run, trained, measured and recorded in one pass. Knows nothing about other runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mixdim
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from mixdim.runs.sweeps.records import Record
from mixdim.training import evaluate
from mixdim.training.baselines import Baselines
from mixdim.training.evaluation import Progress

TRAIN_ROWS = 200_000  # enough to see the gap between training and test


@dataclass(frozen=True)
class SolvedRun:
    """A run that will be recorded: its resolved config, and the key that names it.

    `model_budget` is the budget that the config was solved from, if so; `error` says why it was not.
    `known_baselines` were measured by earlier runs, by the fingerprint of their data.
    """

    config: RunConfig
    key: str
    model_budget: int | None = None
    error: str | None = None
    known_baselines: Mapping[str, Baselines] = field(default_factory=dict)

    def record(
        self,
        *,
        error: str | None = None,
        summary: dict[str, Any] | None = None,
        curve: Iterable[dict[str, Any]] = (),
        train: dict[str, Any] | None = None,
    ) -> Record:
        """What is kept of it, now that it has ended: results, or an error."""
        return Record(
            key=self.key,
            status="finished" if error is None else "failed",
            error=error,
            # As it will be read back.
            config=json.loads(json.dumps({**self.config.to_dict(), "model_budget": self.model_budget})),
            summary=summary,
            curve=list(curve),
            train=train,
            finished_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


def train_and_measure(
    solved: SolvedRun, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Record:
    """Train a run in the folder `out`, and measure its best weights on the first training rows too."""
    run = Run.create(out, solved.config, overwrite=overwrite)
    summary = run.train(progress=progress, known_baselines=solved.known_baselines)
    train = evaluate(
        run.model(),
        run.dataset().head(TRAIN_ROWS),
        "train",
        batch_size=summary["batch_size"],
        slice_by=summary["slice_feature"],
    )
    return solved.record(summary=summary, curve=run.curve, train=train)


def known_baselines(records: Iterable[Record]) -> dict[str, Baselines]:
    """The baselines that runs of this version have measured, by the fingerprint of their data."""
    summaries = [record.summary for record in records if record.summary is not None]
    return {
        summary["data_fingerprint"]: summary["baselines"]
        for summary in summaries
        if summary.get("version") == mixdim.__version__ and "baselines" in summary
    }
