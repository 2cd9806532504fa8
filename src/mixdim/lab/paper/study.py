"""Which runs an experiment of the paper is made of, for given data. Trains and draws nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mixdim.data import Dataset
from mixdim.lab.paper.protocols import Protocol
from mixdim.lab.paper.rival_plans import lifted_uniform_plan, pooled_plan
from mixdim.planning.from_counts import FloorWarning
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model
from mixdim.runs.plans import plan_of
from mixdim.runs.sweeps.sweep import RunRequest, config_within

POOLED_BANDS = 8  # the fewest of the paper's range for bands


@dataclass(frozen=True)
class Study:
    """One model on one data set, as a protocol says. `plans` is a folder for plans made by hand."""

    protocol: Protocol
    dataset: Dataset
    plans: Path

    @cached_property
    def config(self) -> RunConfig:
        """What all runs have in common."""
        return replace(self.protocol.config, data=str(self.dataset.path))

    def budget(self, uniform_dim: int) -> int:
        """Parameters of the whole model with uniform tables of some width."""
        config = replace(self.config, temperature=0.0, base_dim=uniform_dim)
        return self._parameters(config, plan_of(config.resolved(self.dataset), self.dataset))

    def plan_within(self, uniform_dim: int, temperature: float) -> Plan:
        """The widest plan of a temperature within the budget of a uniform width."""
        config = replace(self.config, temperature=temperature)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FloorWarning)  # part of what is compared
            solved = config_within(config, self.dataset, self.budget(uniform_dim))
            return plan_of(solved, self.dataset)

    def frontier(
        self,
        uniform_dims: Sequence[int] | None = None,
        temperatures: Sequence[float] | None = None,
        **options: Any,
    ) -> list[RunRequest]:
        """Every temperature within every budget, with every seed."""
        return [
            RunRequest(
                replace(self.config, temperature=temperature, seed=seed, **options), self.budget(dim)
            )
            for dim in uniform_dims or self.protocol.uniform_dims
            for temperature in temperatures or self.protocol.temperatures
            for seed in range(self.protocol.seeds)
        ]

    def initializations(self) -> list[RunRequest]:
        """Uniform widths from Xavier's start and from He's, by fan-out (Fig. 7)."""
        return self.frontier(temperatures=(0.0,)) + self.frontier(temperatures=(0.0,), init="he_fan_out")

    def equipartitions(self) -> list[RunRequest]:
        """Uniform and mixed with tables cut into more and more bands (Fig. 5)."""
        at_one_budget = ((self.protocol.focus_dim,), (0.0, self.protocol.warm))
        return [
            run for bands in self.protocol.bands for run in self.frontier(*at_one_budget, bands=bands)
        ]

    def lifted(self, uniform_dims: Sequence[int] | None = None) -> list[RunRequest]:
        """Uniform tables lifted to the base_dim that mixed ones have within the same budget.

        The projections and the wider MLPs come on top of the budget: what this gains over uniform, it
        gains from base_dim alone.
        """
        runs = []
        for dim in uniform_dims or self.protocol.few_dims:
            base_dim = max(dim, self.plan_within(dim, self.protocol.warm).base_dim)
            plan = lifted_uniform_plan(self.dataset.cardinalities, dim=dim, base_dim=base_dim)
            runs += self._planned("lifted-uniform", plan)
        return runs

    def pooled(self) -> list[RunRequest]:
        """Bands of popularity across all features, within the budgets of `few_dims`."""
        return [
            run
            for budget in map(self.budget, self.protocol.few_dims)
            for run in self._planned("pooled-bands", self._pooled_within(budget))
        ]

    def _pooled_within(self, budget: int) -> Plan:
        """A pooled plan that meets the budget while the one of the next base_dim does not."""
        counts, temperature = self.dataset.counts, self.protocol.warm

        def planned(base_dim: int) -> Plan:
            return pooled_plan(counts, bands=POOLED_BANDS, temperature=temperature, base_dim=base_dim)

        def fits(base_dim: int) -> bool:
            config = replace(self.config, temperature=temperature, base_dim=base_dim)
            return self._parameters(config, planned(base_dim)) <= budget

        low, high = 1, 2
        while fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return planned(low)

    def _planned(self, name: str, plan: Plan) -> list[RunRequest]:
        """Runs of a plan that is no power law, kept in a file."""
        self.plans.mkdir(parents=True, exist_ok=True)
        of_data = self.dataset.fingerprint[:8]
        path = self.plans / f"{name}.{of_data}.{plan.num_parameters}.json"
        plan.save(path)
        return [
            RunRequest(replace(self.config, plan=str(path), seed=seed))
            for seed in range(self.protocol.seeds)
        ]

    def _parameters(self, config: RunConfig, plan: Plan) -> int:
        with torch.device("meta"):
            resolved = config.resolved(self.dataset)
            model = build_model(resolved, plan, num_dense=self.dataset.num_dense, mean=0.0)
        return sum(parameter.numel() for parameter in model.parameters())
