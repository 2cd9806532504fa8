"""Which form of the interaction a layer takes."""

import os

import pytest
import torch

import mixdim
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from strategies import quiet_plan


def criteo_layer(base_dim, temperature=0.3):
    rows = {name: min(n, 50_000) for name, n in CRITEO_KAGGLE_ROWS.items()}
    plan = quiet_plan(rows, temperature=temperature, base_dim=base_dim)
    return mixdim.FeatureEmbeddings(plan, device="meta")


def test_wide_base_dims_are_split_and_narrow_ones_fused():
    assert [criteo_layer(base_dim).interaction_form(4096) for base_dim in (8, 16, 256, 600)] == [
        "fused",
        "fused",
        "split",
        "split",
    ]


def test_one_sample_is_fused():
    assert criteo_layer(128).interaction_form(1) == "fused"


def test_uniform_tables_are_fused():
    assert criteo_layer(64, temperature=0).interaction_form(4096) == "fused"


@pytest.mark.parametrize("form", ["fused", "split"])
def test_a_form_can_be_forced(form, monkeypatch):
    monkeypatch.setenv("MIXDIM_INTERACTION", form)
    assert criteo_layer(8).interaction_form(1) == criteo_layer(600).interaction_form(4096) == form


def test_a_form_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("MIXDIM_INTERACTION", "quick")
    layer = mixdim.FeatureEmbeddings(mixdim.plan([30, 5], temperature=0.3, base_dim=8))
    with pytest.raises(ValueError, match="MIXDIM_INTERACTION must be fused or split, got 'quick'"):
        layer.interact(torch.zeros(1, 8), torch.zeros(1, 2, dtype=torch.int64))


def test_elements_are_counted_as_they_are_listed():
    for base_dim in (8, 600):
        form = criteo_layer(base_dim).training_view.split_form
        assert form.num_elements == len(form.element_column) == form.element_start[-1]
        assert form.num_vectors == (form.elements @ (4, 2, 1)).sum()


def test_a_choice_for_many_features_lists_no_pairs():
    plan = quiet_plan([10] * 5000, temperature=0.3, base_dim=4)
    layer = mixdim.FeatureEmbeddings(plan, device="meta")
    assert layer.interaction_form(64) in ("fused", "split")
    assert not {"_later", "elements", "element_column"} & set(vars(layer.training_view.split_form))


def test_nothing_is_forced_here():
    """Otherwise the tests of the choice would say nothing."""
    assert "MIXDIM_INTERACTION" not in os.environ
