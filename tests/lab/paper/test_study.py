"""Which runs an experiment of the paper is made of."""

import dataclasses

import pytest

from mixdim import Plan
from mixdim.lab.paper.protocols import SCALES, smoke
from mixdim.lab.paper.study import Study
from mixdim.runs.plans import plan_of
from mixdim.runs.sweeps.sweep import config_within
from mixdim.tasks import task_of
from training_data import clicks, ratings


@pytest.fixture
def study(tmp_path):
    return Study(smoke()["ctr"], clicks(), tmp_path / "plans")


def test_a_uniform_width_spends_its_own_budget_wholly(study):
    for dim in (2, 8):
        config = dataclasses.replace(study.config, temperature=0.0)
        assert config_within(config, study.dataset, study.budget(dim)).base_dim == dim


def test_the_frontier_has_every_temperature_budget_and_seed_once(study):
    runs = study.frontier()
    protocol = study.protocol
    settings = {(run.model_budget, run.config.temperature, run.config.seed) for run in runs}
    assert len(settings) == len(runs)
    assert len(runs) == len(protocol.uniform_dims) * len(protocol.temperatures) * protocol.seeds


def test_a_lifted_plan_has_one_width_and_the_base_dim_of_mixed(study):
    run = study.lifted()[0]
    plan = Plan.load(run.config.plan)
    dim = study.protocol.few_dims[0]
    assert {block.dim for block in plan.blocks} == {dim}
    assert plan.base_dim == study.plan_within(dim, study.protocol.warm).base_dim > dim


def test_a_pooled_plan_keeps_within_the_budget_of_the_whole_model_and_the_next_does_not(study):
    plan = Plan.load(study.pooled()[0].config.plan)
    budget = study.budget(study.protocol.few_dims[0])
    config = dataclasses.replace(study.config, temperature=0.3, base_dim=plan.base_dim)
    assert study._parameters(config, plan) <= budget
    assert plan.base_dim > study.protocol.few_dims[0]
    assert any(len(feature.blocks) > 1 for feature in plan.features)


def test_equipartitions_ask_for_every_number_of_bands_uniform_and_mixed(tmp_path):
    study = Study(smoke()["mf"], ratings(), tmp_path)
    asked = {(run.config.bands, run.config.temperature) for run in study.equipartitions()}
    assert asked == {(k, t) for k in study.protocol.bands for t in (0.0, study.protocol.warm)}


def test_both_starts_are_tried_with_uniform_widths_only(study):
    asked = {(run.config.init, run.config.temperature) for run in study.initializations()}
    assert asked == {(None, 0.0), ("he_fan_out", 0.0)}


@pytest.mark.parametrize("scale", SCALES)
def test_protocols_hold_together(scale):
    for protocol in SCALES[scale]().values():
        assert protocol.temperatures[0] == 0
        assert protocol.warm in protocol.temperatures
        assert protocol.focus_dim in protocol.uniform_dims
        assert set(protocol.few_dims) <= set(protocol.uniform_dims)
        assert (protocol.generated is None) == (scale == "paper")
        resolved = protocol.config.resolved_for(protocol.task, ["user"])
        asked = task_of(protocol.task).paper_preset
        assert (resolved.preset, resolved.unknown_dropout) == (asked, False)
        assert protocol.seeds >= {"smoke": 2, "small": 3, "paper": 5}[scale]


def test_plans_of_a_study_fit_its_data(study):
    for run in study.pooled() + study.lifted():
        config = run.config.resolved_for(study.dataset.task)
        assert plan_of(config, study.dataset).num_rows == sum(study.dataset.cardinalities.values())
