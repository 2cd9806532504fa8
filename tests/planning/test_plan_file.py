"""Plans as files: orders beside them, earlier versions, and what is wrong with files."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import mixdim
from mixdim.planning.plan_file import MOST_IDS_IN_JSON


def shuffled_plan(rows=6, seed=0):
    counts = np.random.default_rng(seed).permutation(rows) + 1
    return mixdim.plan({"item": rows}, counts={"item": counts}, bands=2, temperature=0.5, base_dim=4)


@pytest.mark.parametrize("rows", [6, MOST_IDS_IN_JSON, MOST_IDS_IN_JSON + 1])
def test_a_saved_plan_keeps_its_orders(tmp_path, rows):
    plan = shuffled_plan(rows)
    plan.save(tmp_path / "plan.json")
    assert len(list(tmp_path.iterdir())) == (2 if rows > MOST_IDS_IN_JSON else 1)
    loaded = mixdim.Plan.load(str(tmp_path / "plan.json"))
    assert loaded == plan
    assert loaded.nbytes() == plan.nbytes()
    layer = mixdim.MixedDimEmbedding(loaded)
    most_popular = int(plan.orders["item"][0])
    # The most popular id has the first row of the widest table.
    assert torch.equal(layer(torch.tensor(most_popular)), layer.table_4[0])


def test_json_has_an_order_on_a_line():
    text = shuffled_plan().to_json()
    order = shuffled_plan().orders["item"].tolist()
    assert text.endswith(f'  "orders": {{\n    "item": {json.dumps(order)}\n  }}\n}}\n')


def test_a_plan_written_over_another_leaves_nothing_of_it(tmp_path):
    path = tmp_path / "plan.json"
    for plan in (shuffled_plan(20_000), shuffled_plan(20_000, seed=1), shuffled_plan(5)):
        plan.save(path)
        assert mixdim.Plan.load(path) == plan
    assert list(tmp_path.iterdir()) == [path]


def test_plans_beside_each_other_have_their_own_orders(tmp_path):
    plan, other = shuffled_plan(20_000), shuffled_plan(5)
    names = ("a.json", "b.json", "a.txt")
    for name in names:
        plan.save(tmp_path / name)
    for number, name in enumerate(names):
        other.save(tmp_path / name)
        assert mixdim.Plan.load(tmp_path / name) == other
        assert all(mixdim.Plan.load(tmp_path / left) == plan for left in names[number + 1 :])


def test_a_plan_written_over_a_copy_leaves_the_original_its_orders(tmp_path):
    plan = shuffled_plan(20_000)
    plan.save(tmp_path / "plan.json")
    shutil.copy(tmp_path / "plan.json", tmp_path / "copy.json")
    shuffled_plan(5).save(tmp_path / "copy.json")
    assert mixdim.Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("named", ["victim.txt", "plan.json", "", "a\0b", "x" * 300, 7, None])
def test_no_file_is_removed_or_read_because_a_plan_names_it(tmp_path, named):
    path, victim = tmp_path / "plan.json", tmp_path / "victim.txt"
    victim.touch()
    document = json.loads(shuffled_plan().to_json())
    path.write_text(json.dumps({**document, "orders": {}, "orders_file": named}))
    with pytest.raises(ValueError, match="orders_file must be a file beside it"):
        mixdim.Plan.load(path)
    shuffled_plan().save(path)
    assert mixdim.Plan.load(path) == shuffled_plan()
    assert victim.exists()


def test_what_is_no_file_gets_the_orders_too(tmp_path):
    pipe, plan = tmp_path / "pipe", shuffled_plan(20_000)
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        plan.save(pipe)
        assert mixdim.Plan.from_json(reader.stdout.read()) == plan
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("name", ["__metadata__", "\ud800", "a/b"])
def test_a_feature_may_be_called_anything(tmp_path, name):
    counts = np.arange(20_000)
    plan = mixdim.plan({name: 20_000}, counts={name: counts}, bands=2, temperature=0.1, base_dim=4)
    plan.save(tmp_path / "plan.json")
    assert mixdim.Plan.load(tmp_path / "plan.json") == plan
    assert mixdim.Plan.from_json(plan.to_json()) == plan


def orders_written(path, **tensors):
    """Put other tensors into the file of orders, with the right checksum."""
    content = safetensors.torch.save(tensors)
    document = json.loads(path.read_text())
    checksum = hashlib.blake2b(content, digest_size=16).hexdigest()
    path.with_name(document["orders_file"]).write_bytes(content)
    path.write_text(json.dumps({**document, "orders_checksum": checksum}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "has no orders"),
        ({"0": torch.zeros(20_000, dtype=torch.bfloat16)}, "is no file of orders"),
        ({"0": torch.zeros(20_000)}, "must list its 20000 ids"),
        ({"0": torch.zeros(20_000, dtype=torch.int32)}, "must list each of its ids once"),
        ({"0": torch.arange(5)}, "must list its 20000 ids"),
        ({"1": torch.arange(20_000)}, "is no file of orders"),
        ({"item": torch.arange(20_000)}, "is no file of orders"),
    ],
)
def test_a_file_with_other_tensors_is_refused(tmp_path, tensors, message):
    shuffled_plan(20_000).save(tmp_path / "plan.json")
    orders_written(tmp_path / "plan.json", **tensors)
    with pytest.raises(ValueError, match=message):
        mixdim.Plan.load(tmp_path / "plan.json")


def test_a_kill_at_any_moment_leaves_a_plan_that_loads(tmp_path):
    """The old one or the new one, never one with the other's orders."""
    path, plans = tmp_path / "plan.json", [shuffled_plan(20_000, seed) for seed in range(2)]
    plans[0].save(path)
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_plan_file import shuffled_plan\n"
        "plans = [shuffled_plan(20_000, seed) for seed in range(2)]\n"
        "for _ in sys.stdin:\n"  # a process for each line, which imports nothing any more
        "    saving = os.fork()\n"
        "    if saving: print(os.waitpid(saving, 0)[1], flush=True)\n"
        "    else: print(os.getpid(), flush=True)\n"
        "    while not saving:\n        for plan in plans: plan.save(sys.argv[2])\n"
    )
    arguments = [sys.executable, "-c", script, str(Path(__file__).parent), str(path)]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(arguments, text=True, **pipes) as parent:
        for delay in (0.0, 0.013, 0.029):
            print(file=parent.stdin, flush=True)
            saving = int(parent.stdout.readline())
            time.sleep(delay)
            os.kill(saving, signal.SIGKILL)
            assert int(parent.stdout.readline()) == signal.SIGKILL  # it was at work until then
            assert mixdim.Plan.load(path) in plans


def test_orders_that_are_missing_damaged_or_anothers_are_said(tmp_path):
    path = tmp_path / "plan.json"
    shuffled_plan(20_000).save(path)
    (beside,) = tmp_path.glob("*.safetensors")
    whole = beside.read_bytes()
    beside.write_bytes(whole[:-4] + b"\x00\x00\x00\x00")
    with pytest.raises(ValueError, match=r"plan\.json: .*safetensors is damaged, or belongs to another"):
        mixdim.Plan.load(path)
    beside.unlink()
    with pytest.raises(ValueError, match=r"its orders of ids are missing: .*should be beside it"):
        mixdim.Plan.load(path)
    path.write_text(path.read_text().replace(beside.name, f"../{beside.name}"))
    with pytest.raises(ValueError, match="orders_file must be a file beside it"):
        mixdim.Plan.load(path)
    with pytest.raises(ValueError, match=r"read it with mixdim\.Plan\.load"):
        mixdim.Plan.from_json(path.read_text())


def test_what_is_no_plan_is_said_with_the_path(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json: not a plan"):
        mixdim.Plan.load(tmp_path / "other.json")
    with pytest.raises(FileNotFoundError):
        mixdim.Plan.load(tmp_path / "nothing.json")
