import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given

import mixdim
from mixdim import Hashed, Plan, Rows
from mixdim.planning.feature import Block, Feature
from strategies import plans

HALF = {"rule": "power_law", "temperature": 0.5}


def two_features():
    """Widths 4 of 4 and 2 of 4: one block of full width, one that needs a projection."""
    wide = Feature("wide", 3, (Block(0, 3, Rows(4), 0.3),))
    blocks = (Block(0, 1, Rows(4), 0.2), Block(1, 9, Rows(2), 0.05))
    narrow = Feature("narrow", 10, blocks, requested_bands=5)
    return Plan(base_dim=4, provenance={"rule": "by_hand", "was": HALF}, features=(wide, narrow))


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
    with pytest.raises(ValueError, match=r"optimizer must be one of .*'amsgrad', .* got 'magic'"):
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
        (edited(version=2), "a plan of version 2, and this mixdim reads version 4: make the plan again"),
        (edited(version=True), "a plan of version True"),
        (edited(features="abc"), "'features' must be a list of objects"),
        (edited(features=[]), "at least one feature"),
        (edited(base_dim=0), "base_dim must be at least 1"),
        (edited(base_dim="4"), "base_dim must be a whole number"),
        (edited(base_dim=3), "must be at most base_dim 3, got 4"),
        (edited(provenance=HALF | {"temperature": float("nan")}), "provenance must be values of JSON"),
        (edited(provenance=HALF | {"temperature": 1.5}), r"temperature must be in \[0, 1\], got 1.5"),
        (edited(provenance={"rule": "power_law"}), "temperature must be a number, got None"),
        (
            edited(provenance={"rule": "by_hand", "was": {}}),
            'provenance must be a mapping with a "rule"',
        ),
        (
            edited(provenance={"rule": "by_hand", "was": "x"}),
            'provenance must be a mapping with a "rule"',
        ),
        (edited(version=4.0), "a plan of version 4.0"),
        (edited(provenance="spectral"), "provenance must be a mapping with a \"rule\", got 'spectral'"),
        (edited(provenance={"temperature": 0.5}), 'provenance must be a mapping with a "rule"'),
        (edited(orders=[]), "'orders' must be an object"),
        (edited(orders={"other": [0]}), "the order of 'other', which is none of its features"),
        (edited(orders={"wide": [0, 1]}), "order of feature 'wide' must list its 3 ids"),
        (edited(orders={"wide": [0, 1, 1]}), "order of feature 'wide' must list each of its ids once"),
        (edited(orders={"wide": [0.5, 1, 2]}), "order of feature 'wide' must list its 3 ids"),
        (edited(orders={"wide": [3, 1, 2]}), "order of feature 'wide' must list each of its ids once"),
        (edited(orders_file="orders.safetensors"), "beside its own: read it with mixdim.Plan.load"),
        (edited(num_parameters=43), "states 43 parameters but has 42"),
        (without("storage"), "'storage' is missing"),
        (with_block(start=2), "do not cover its 10 rows"),
        (with_block(size=8), "do not cover its 10 rows"),
        (with_block(size=-9), "size of a block of feature 'narrow' must be at least 1"),
        (with_block(row_prob=-1.0), "must not be negative"),
        (with_block(storage=4), "a storage must be an object, got 4"),
        (with_block(storage={"kind": "magic"}), "knows the storages 'rows', .*, got 'magic'"),
        (with_block(storage={"kind": "rows"}), "'rows' must have bits, dim, got nothing"),
        (
            with_block(storage={"kind": "rows", "bits": 32, "dim": 2, "x": 1}),
            "must have bits, dim, got bits, dim, x",
        ),
        (with_block(storage={"kind": "rows", "bits": 32, "dim": True}), "dim must be a whole number"),
        (with_block(storage={"kind": "rows", "bits": 32, "dim": -1}), "dim must be at least 0, got -1"),
    ],
)
def test_a_malformed_document_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        Plan.from_json(text)


def test_a_name_may_be_there_once_and_must_be_text():
    feature = two_features().features[0]
    with pytest.raises(ValueError, match="'wide' is there twice"):
        Plan(4, HALF, (feature, feature))
    with pytest.raises(TypeError, match="name must be a non-empty string, got 3"):
        Plan(4, HALF, (replace(feature, name=3),))


def test_repr_fits_on_a_line():
    plan = replace(two_features(), provenance=HALF)
    assert repr(plan) == f"Plan(base_dim=4, provenance={HALF}, 2 features, 42 parameters)"


def test_a_width_alone_is_no_storage():
    feature = two_features().features[0]
    block = replace(feature.blocks[0], storage=4)
    with pytest.raises(TypeError, match=r"must be a mixdim\.Rows or another storage, got 4"):
        Plan(4, HALF, (replace(feature, blocks=(block,)),))


def test_a_rule_nobody_knows_is_shown_as_it_is():
    shown = str(replace(two_features(), provenance={"rule": "mine\n\x1b[31m", "power": 3}))
    assert shown.startswith(
        r"Mixed dimension plan: base_dim 4, made by the rule mine\n\x1b[31m (power 3)"
    )
    assert "made by the rule by_hand" in str(replace(two_features(), provenance={"rule": "by_hand"}))


def test_numbers_of_numpy_are_numbers():
    stored = Hashed(np.int64(2), buckets=np.int32(3))
    plan = two_features().with_storage("narrow", stored)
    assert Plan.from_json(plan.to_json()) == plan
    assert stored == Hashed(2, 3)


def test_the_plan_does_not_change_with_what_it_was_made_of():
    rule = dict(HALF)
    plan = replace(two_features(), provenance=rule)
    rule["temperature"] = 0.9
    assert plan.temperature == 0.5


def test_the_temperature_is_that_of_the_rule_or_none():
    assert mixdim.plan([9], temperature=0.5, base_dim=2).provenance == HALF
    assert mixdim.plan([9], temperature=0.5, base_dim=2).temperature == 0.5
    assert two_features().temperature is None


def test_another_storage_takes_the_place_of_one_block():
    plan = replace(two_features(), provenance=HALF)
    hashed = plan.with_storage("narrow", Hashed(2, buckets=3))
    assert [block.storage for block in hashed.blocks] == [Rows(4), Rows(4), Hashed(2, 3)]
    assert hashed.num_parameters == plan.num_parameters - 2 * (9 - 3)
    assert hashed.provenance == {"rule": "by_hand", "was": HALF}
    twice = hashed.with_storage("narrow", Hashed(1, buckets=1, hashes=1), band=0)
    assert twice.provenance == hashed.provenance
    assert twice.blocks[1].storage == Hashed(1, 1, 1)
    assert Plan.from_json(twice.to_json()) == twice
    with pytest.raises(ValueError, match="feature 'wide' has 1 bands, got band 1"):
        plan.with_storage("wide", Rows(2), band=1)
    with pytest.raises(ValueError, match="unknown feature 'x'"):
        plan.with_storage("x", Rows(2))
    with pytest.raises(ValueError, match="must be at most base_dim 4, got 5"):
        plan.with_storage("wide", Hashed(5, buckets=1))


def test_orders_are_part_of_the_value():
    rows = {"item": 4}
    given = {"temperature": 0.2, "base_dim": 4, "bands": 2}
    falling = mixdim.plan(rows, counts={"item": [9, 5, 1, 1]}, **given)
    rising = mixdim.plan(rows, counts={"item": [1, 1, 5, 9]}, **given)
    assert falling.features == rising.features
    assert falling != rising
    assert rising == mixdim.plan(rows, counts={"item": [1, 1, 5, 9]}, **given)
    # An order that changes nothing says nothing.
    assert falling == replace(falling, named_orders=())
    assert (falling.id_map_bytes, rising.id_map_bytes) == (0, 16)
    with pytest.raises(ValueError, match="the order of feature 'item' must list its 4 ids, got 3"):
        replace(rising, named_orders=(("item", rising.orders["item"][:3]),))


def test_small_features_and_blocks_are_folded_to_full_width():
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1] * 4}
    rows = {"day": 3, "item": 40, "user": 90}
    plan = mixdim.plan(rows, counts=counts, bands={"item": 4}, temperature=0.5, base_dim=8)
    plan = plan.with_storage("user", mixdim.Hashed(4, buckets=5))
    stored = {name: [block.storage for block in plan[name].blocks] for name in plan}
    full, item = mixdim.Rows(8), plan["item"].features[0].blocks
    assert len({block.storage for block in item}) > 1

    everything = plan.folded(90 * 8 * 4)
    assert [block.storage for block in everything.blocks] == [full] * 3
    assert [block.size for block in everything.blocks] == [3, 40, 90]
    assert everything.orders == {}  # the rows of what is folded whole are by id
    assert everything.provenance == {"rule": "folded", "was": plan.provenance}
    assert "small blocks folded" in str(everything)
    assert mixdim.Plan.from_json(everything.to_json()) == everything

    most = 8 * 4 * max(block.size for block in item[:-1])
    some = plan.folded(most)
    assert [block.storage for block in some["day"].blocks] == [full]
    assert some["user"].blocks == plan["user"].blocks
    head, tail = some["item"].blocks
    assert (head.storage, head.size) == (full, 40 - tail.size)
    assert head.row_prob == pytest.approx(sum(b.size * b.row_prob for b in item[:-1]) / head.size)
    assert tail == item[-1]
    assert some.orders.keys() == {"item"}  # by rank, as before

    assert plan.folded(0) is plan
    assert {name: [block.storage for block in plan[name].blocks] for name in plan} == stored


def test_quantized_blocks_are_folded_by_a_bound_of_their_own():
    plan = mixdim.plan({"a": 10, "b": 100}, temperature=0.3, base_dim=8).quantized()
    assert plan.folded(10**6) is plan
    small = plan.folded(10**6, quantized_bytes=10 * 8 * 4)
    assert small.blocks[0].storage == mixdim.Rows(8)
    assert small.blocks[1] == plan.blocks[1]
