"""A run: created, trained, opened again, measured, exported. Knows no loop, no model and no command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixdim._util.folders import brought_back
from mixdim._util.lazy import import_later
from mixdim._util.signals import signals_as_exceptions
from mixdim.data import Dataset
from mixdim.models import Model
from mixdim.planning.bands import Bands
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.folder import CONFIG, PLAN, SUMMARY, begun, check_folder, saved_config
from mixdim.runs.models import Loaded, as_served, read_model
from mixdim.runs.plans import check_features, check_vocabulary
from mixdim.runs.progress import shown
from mixdim.runs.summary import read_curve, read_summary
from mixdim.runs.train import (
    Planned,
    check_group,
    continued,
    is_finished,
    memory_line,
    planned,
    planned_again,
    train,
)
from mixdim.training.baselines import Baselines
from mixdim.training.evaluation import Progress, evaluate
from mixdim.training.group import ALONE, Group
from mixdim.training.ranking import ranking_metrics

if TYPE_CHECKING:
    from mixdim.runs import compress, export, predict
    from mixdim.runs.compress import CompressedRun
    from mixdim.runs.predict import Predictions

import_later(globals(), **{name: f"mixdim.runs.{name}" for name in ("compress", "export", "predict")})

Data = Dataset | Path | str
Echo = Callable[[str], None]
Show = Progress | bool | None  # True: bars, as the commands have them


class Run:
    """A training run and its folder: what the commands `train`, `evaluate`, `predict`, ... do.

    `create` plans a new one, `open` reads one back. `config` has all options, `plan` is how the
    embeddings are served. Wrong input raises what a command prints as its line, a ValueError or an
    OSError; a training that diverges raises a FloatingPointError. Ctrl-C in `train` raises
    `mixdim.training.Stopped` once a checkpoint is written; `train(resume=True)` continues from it.

    `progress` is True for bars, or a function of stage, rows done, rows in total and a note; `echo` is a
    function such as `print` that gets the lines of the command. `data` defaults to the run's own.

    >>> import tempfile
    >>> from mixdim.lab.synthetic.generate import generate_movielens_like
    >>> folder = tempfile.mkdtemp()
    >>> meta = generate_movielens_like(f"{folder}/data", rows=2_000, scale=0.0005)
    >>> options = {"data": f"{folder}/data", "model": "mf", "base_dim": 8}
    >>> run = Run.create(f"{folder}/run", options, epochs=2)
    >>> run.config.temperature, run.plan.base_dim, run.summary
    (0.3, 8, None)
    >>> summary = run.train()
    >>> Run.open(f"{folder}/run").evaluate()["mse"] == summary["test"]["best"]["mse"]
    True
    >>> run.predict(f"{folder}/data", f"{folder}/predictions.parquet", split="validation").rows
    200
    >>> small = run.compress(f"{folder}/small", "1/2", bits=8)
    >>> small.bytes_after <= small.bytes_before / 2
    True
    """

    def __init__(self, path: Path, config: RunConfig, plan: Plan) -> None:
        self.path, self.config, self.plan = path, config, plan
        self._new: Planned | None = None  # until training begins
        self._any_group = False  # whether the group says if it is distributed, and not the config
        self._overwrites = False
        self._trained: Loaded | None = None  # the best weights, as they are served

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def create(
        cls,
        out: Path | str,
        config: RunConfig | Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        **options: Any,
    ) -> Run:
        """Plan a run with these options, and check it; `train` makes its folder `out`.

        Options by name override those of `config`. With `overwrite`, `train` replaces the run in `out`.
        With `resume`, a run that is in `out` is opened; its options are those it was started with, and
        only `epochs`, `patience`, `checkpoint_every` and `distributed` may change.
        """
        given = config if isinstance(config, RunConfig) else RunConfig.of(**(config or {}))
        given, out = RunConfig.of(**options).merged_with(given), Path(out)
        if resume and overwrite:
            raise ValueError("give --resume or --overwrite, not both")
        if resume and (out / CONFIG).is_file():
            given = continued(given, saved_config(out), out)
            if (out / PLAN).is_file():  # not if it was killed before
                return cls(out, given, Plan.load(out / PLAN))
        if resume and given.data is None:
            raise ValueError(f"{out} holds no run to resume")
        new = planned(given)
        check_folder(out, resume=resume, overwrite=overwrite)
        run = cls(out, new.config, new.plan)
        run._new, run._overwrites = new, overwrite
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Read back the run in a folder, finished or not."""
        path = brought_back(path)
        for name in (CONFIG, PLAN):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path} is not a run: it has no {name}")
        run = cls(path, saved_config(path), Plan.load(path / PLAN))
        run._any_group = True
        return run

    @property
    def summary(self) -> dict[str, Any] | None:
        """How it ended, see docs/training.md; None if it has not."""
        if self._new is not None or not (self.path / SUMMARY).is_file():
            return None
        return read_summary(self.path)

    @property
    def curve(self) -> tuple[dict[str, Any], ...]:
        """Its validations so far: `step`, `epoch`, `train_seconds`, `seconds`, `loss`, ..."""
        return () if self._new is not None else read_curve(self.path)

    def train(
        self,
        *,
        resume: bool = False,
        group: Group = ALONE,
        progress: Show = None,
        echo: Echo | None = None,
        known_baselines: Mapping[str, Baselines] | None = None,
        tuned: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Train to the end, measure, and return the summary; with `resume`, continue what is there.

        - `group`: of a run with the option `distributed`, the group of `mixdim.distributed.init()`; all
          its processes call this, and process 0 writes. A run that was opened goes on with or without.
        - `known_baselines`: baselines that were measured before, by the fingerprint of their data.
        - `tuned`: what was tried to find the penalty or weight decay, for the summary.
        """
        if self._any_group:
            self.config = replace(self.config, distributed=True if group is not ALONE else None)
        check_group(self.path, self.config, group)
        speaks, new, summary = group.rank == 0, self._new, self.summary
        if new is None:
            if not resume:  # says what to do
                check_folder(self.path, resume=False, overwrite=False)
            new = planned_again(self.path, self.config, self.plan, summary)
            if summary is not None and is_finished(summary, new.config):
                if echo is not None and speaks:
                    echo(f"{self.path} is finished already")
                return summary
        resume = resume and not self._overwrites
        how: Any = {"resume": resume, "overwrite": self._overwrites, "group": group}
        memory = [] if new.config.distributed else [memory_line(new)]
        with (
            shown(progress if speaks else None, unit="samples") as show,
            begun(self.path, new.config, new.plan, **how),
        ):
            # From here on it can only be resumed.
            self.config, self._new, self._overwrites, self._trained = new.config, None, False, None
            summary, model = train(
                self.path,
                new,
                resume=resume,
                group=group,
                progress=show,
                echo=echo,
                notes=memory,
                known_baselines=known_baselines or {},
                tuned=tuned,
            )
        if model is not None:
            self._trained = Loaded(model, summary["validation"]["best"]["step"])
        return summary

    def dataset(self, data: Data | None = None) -> Dataset:
        """Open a prepared folder."""
        if isinstance(data, Dataset):
            return data
        own = self.config.data
        if data is None and (own is None or not Path(own).is_dir()):
            raise FileNotFoundError(
                f"the data that {self.path} was trained with is not at {own}: say where with --data"
            )
        return Dataset(data or own or "")

    def load(self, dataset: Dataset, weights: str = "best", *, served: bool = True) -> Loaded:
        """Read the model back, having checked that the ids of the data mean what it learned."""
        if self._new is not None:
            raise ValueError(f"{self.path} is not trained yet: call train() first")
        check_features(self.plan, dataset, str(self.path))
        if (summary := self.summary) is not None:
            check_vocabulary(summary, dataset, self.path)
        if self._trained is not None and weights == "best" and (served or self.plan.is_trained):
            return self._trained
        found = read_model(self.path, self.config, self.plan, weights, num_dense=dataset.num_dense)
        return Loaded(as_served(found.model, self.plan), found.step) if served else found

    def model(self, weights: str = "best", served: bool = True, *, data: Data | None = None) -> Model:
        """The model with its "best" or "last" weights, as the plan serves it or as it was trained."""
        loaded = self.load(self.dataset(data), weights, served=served)
        if loaded is self._trained:
            self._trained = None  # the caller may change it
        return loaded.model

    def evaluate(
        self,
        data: Data | None = None,
        split: str = "test",
        *,
        weights: str = "best",
        slice_by: str | None = None,
        ranking_users: int | None = None,
        progress: Show = None,
    ) -> dict[str, Any]:
        """Measure the model on a split: the metrics of its task, and the same in `slices`.

        Of data with negatives also `recall@10`, `ndcg@10` and, of what they were computed, `ranking`.
        """
        dataset = self.dataset(data)
        loaded = self.load(dataset, weights)
        assert self.config.batch_size is not None
        with shown(progress, unit="samples") as show:
            metrics = evaluate(
                loaded.model,
                dataset,
                split,
                batch_size=self.config.batch_size,
                slice_by=slice_by or self.config.slice_by,
                progress=show,
            )
            sample = self.config.ranking_sample if ranking_users is None else ranking_users
            metrics |= ranking_metrics(loaded.model, dataset, split, sample=sample, progress=show)
        about = {"run": str(self.path), "weights": weights, "step": loaded.step, "split": split}
        return {**about, **metrics}

    def predict(
        self,
        source: Data,
        out: Path | str,
        *,
        split: str | None = None,
        weights: str = "best",
        data: Data | None = None,
        max_bad: int = 0,
        encoding: str | None = None,
        separator: str | None = None,
        progress: Show = None,
    ) -> Predictions:
        """Write predictions to the Parquet file `out`; returns the number of rows.

        Columns: `row`, `prediction` (a probability if targets are clicks, else a rating) and `target`.

        - `source`: a prepared folder, for the rows of `split` (default "test"); or a raw file in the
          format of the data, for all its rows, counted from 0 without the header. It may lack targets.
        - `data`, `max_bad`, `encoding`, `separator`: for a raw file only: the folder that has its ids,
          how many malformed rows to skip, and how a table is written if not as the run's data was.
        """
        with shown(progress, unit="samples") as show:
            if isinstance(source, Dataset) or (Path(source) / "meta.json").is_file():
                how: Any = {"split": split or "test", "weights": weights, "progress": show}
                return predict.predict_split(self, self.dataset(source), Path(out), **how)
            if split is not None:
                raise ValueError("--raw predicts all rows of a file: leave --split out")
            return predict.predict_raw(
                self,
                Path(source),
                Path(out),
                dataset=self.dataset(data),
                weights=weights,
                max_bad=max_bad,
                encoding=encoding,
                separator=separator,
                progress=show,
            )

    def export(
        self,
        out: Path | str,
        *,
        bits: int | None = None,
        format: str | None = None,
        unknown: str = "clip",
        weights: str = "best",
        data: Data | None = None,
        split: str = "test",
        overwrite: bool = False,
        progress: Show = None,
        echo: Echo | None = None,
    ) -> None:
        """Write the model as .onnx or .pt2, and its vocabularies beside it, `<out>.vocabulary.json`.

        - `bits`: 8 or 4 quantize the embeddings; as the run, if not given.
        - `format`: "onnx" or "pt2"; as `out` ends, if not given.
        - `unknown`: ids that are no rows are clipped to the unknown id ("clip") or an error ("refuse").
        - `echo`: gets bytes, the loss on `split` before and after, and the time of an answer; without
          it, nothing is measured.
        """
        with signals_as_exceptions(), shown(progress, unit="samples") as show:
            export.export_run(
                self,
                Path(out),
                self.dataset(data),
                bits=bits,
                format=format,
                unknown=unknown,
                weights=weights,
                split=split,
                overwrite=overwrite,
                progress=show,
                echo=echo,
            )

    def compress(
        self,
        out: Path | str,
        budget: str,
        bits: int = 32,
        *,
        bands: Bands = 8,
        by_loss: bool = True,
        data: Data | None = None,
        overwrite: bool = False,
        progress: Show = None,
    ) -> CompressedRun:
        """Fit smaller embeddings to the learned ones, without training, as a run of its own in `out`.

        - `budget` of the embeddings: bytes such as "4MB", or a share such as "1/8" of their bytes.
        - `bits`: 8 or 4 quantize the embeddings too. `bands`: at most so many for each feature.
        - `by_loss`: directions count by how much the loss depends on them; else all alike.
        """
        with shown(progress, unit="samples") as show:
            return compress.compress_run(
                self,
                Path(out),
                self.dataset(data),
                budget=budget,
                bits=bits,
                bands=bands,
                by_loss=by_loss,
                overwrite=overwrite,
                progress=show,
            )
