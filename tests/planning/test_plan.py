import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given

import mixdim
from mixdim.planning.plan import Block, Feature, Plan
from strategies import plans


def two_features():
    """Widths 4 of 4 and 2 of 4: one block of full width, one that needs a projection."""
    wide = Feature("wide", 3, (Block(0, 3, 4, 0.3),))
    narrow = Feature("narrow", 10, (Block(0, 1, 4, 0.2), Block(1, 9, 2, 0.05)), bands_asked=5)
    return Plan(base_dim=4, temperature=0.5, features=(wide, narrow))


def test_the_cost_counts_tables_and_projections():
    plan = two_features()
    assert plan.table_parameters == 3 * 4 + 1 * 4 + 9 * 2
    assert plan.projection_parameters == 2 * 4
    assert plan.num_parameters == 42
    assert plan.num_rows == 13
    assert plan.equivalent_uniform_dim == 42 / 13
    assert plan.compression(uniform_dim=8) == 13 * 8 / 42


def test_bytes_depend_on_the_type_and_the_optimizer():
    plan = two_features()
    assert plan.nbytes() == 42 * 4
    assert plan.nbytes(torch.float64) == 42 * 8
    assert [plan.nbytes(optimizer=name) for name in ("sgd", "adagrad", "adam", "amsgrad")] == [
        42 * 4 * copies for copies in (1, 2, 3, 4)
    ]
    with pytest.raises(ValueError, match=r"optimizer must be one of .*'amsgrad', got 'magic'"):
        plan.nbytes(optimizer="magic")


@given(plans())
def test_bytes_are_what_a_layer_really_holds(plan):
    layer = mixdim.FeatureEmbeddings(plan)
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert plan.nbytes() == held
    trained = 4 * plan.num_parameters
    assert plan.nbytes(optimizer="adam") == held + 2 * trained


def test_the_optimizer_state_is_what_torch_really_keeps():
    plan = mixdim.plan([5, 7], temperature=0, base_dim=3)
    table = torch.nn.Parameter(torch.ones(12, 3))
    for name, optimizer in {
        "sgd": torch.optim.SGD([table], lr=1.0),
        "adagrad": torch.optim.Adagrad([table], lr=1.0),
        "adam": torch.optim.Adam([table], lr=1.0),
        "amsgrad": torch.optim.Adam([table], lr=1.0, amsgrad=True),
    }.items():
        table.grad = torch.ones_like(table)
        optimizer.step()
        state = sum(t.numel() for t in optimizer.state[table].values() if t.shape == table.shape)
        assert plan.nbytes(optimizer=name) == 4 * (table.numel() + state)


def test_a_plan_is_a_mapping_from_names_to_plans_of_one_feature():
    plan = two_features()
    assert list(plan) == ["wide", "narrow"]
    assert len(plan) == 2
    assert "wide" in plan
    assert "other" not in plan
    assert plan["narrow"].features == plan.features[1:]
    assert plan["narrow"].base_dim == 4
    assert sum(plan[name].num_parameters for name in plan) == plan.num_parameters


def test_an_unknown_feature_is_named_with_the_known_ones():
    with pytest.raises(KeyError) as caught:
        two_features()["other"]
    assert str(caught.value) == "unknown feature 'other'; the features are wide, narrow"


def test_a_plan_is_an_immutable_value():
    plan = two_features()
    with pytest.raises(FrozenInstanceError):
        plan.base_dim = 8
    assert plan == two_features()
    assert hash(plan) == hash(two_features())
    assert plan != replace(plan, base_dim=8)
    assert copy.deepcopy(plan) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


@given(plans())
def test_json_round_trips(plan):
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(plan.to_json().encode()) == plan


def edited(**changes):
    return json.dumps({**json.loads(two_features().to_json()), **changes})


def with_block(**changes):
    document = json.loads(two_features().to_json())
    document["features"][1]["blocks"][1].update(changes)
    return json.dumps(document)


def without(key):
    document = json.loads(two_features().to_json())
    del document["features"][0]["blocks"][0][key]
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a plan"),
        (two_features().to_json()[:-20], "not a plan"),
        (b"\xff\xfe\xfa", "not a plan"),
        ("[1]", "expected a JSON object, got list"),
        ("{}", "'mixdim.plan'"),
        ("[" * 100_000, "not a plan"),
        (edited(version=2), "reads plans of version 1, got 2"),
        (edited(features="abc"), "'features' must be a list of objects"),
        (edited(features=[]), "at least one feature"),
        (edited(base_dim=0), "base_dim must be at least 1"),
        (edited(base_dim="4"), "base_dim must be a whole number"),
        (edited(base_dim=3), "must be at most base_dim 3, got 4"),
        (edited(temperature=float("nan")), "temperature must be in"),
        (edited(num_parameters=43), "states 43 parameters but has 42"),
        (without("dim"), "'dim' is missing"),
        (with_block(start=2), "do not cover its 10 rows"),
        (with_block(size=8), "do not cover its 10 rows"),
        (with_block(size=-9), "size of a block of feature 'narrow' must be at least 1"),
        (with_block(row_prob=-1.0), "must not be negative"),
        (with_block(dim=True), "must be a whole number"),
    ],
)
def test_a_malformed_document_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        Plan.from_json(text)


def test_a_name_may_be_there_once_and_must_be_text():
    feature = two_features().features[0]
    with pytest.raises(ValueError, match="'wide' is there twice"):
        Plan(4, 0.5, (feature, feature))
    with pytest.raises(TypeError, match="name must be a non-empty string, got 3"):
        Plan(4, 0.5, (replace(feature, name=3),))


def test_repr_fits_on_a_line():
    assert repr(two_features()) == "Plan(base_dim=4, temperature=0.5, 2 features, 42 parameters)"
