"""A compressed model as a file, and back into one that is not compressed."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import mixdim
from mixdim.compression.files import _digest as digest
from models_to_compress import Recommender, batch, batches, changed, state_of


def compressed(**options):
    model = Recommender()
    model(*batch())  # its norm has seen something
    mixdim.compress(model, mixdim.observe(model, batches()), "1/8", echo=None, **options)
    return model.eval()


@pytest.fixture
def saved(tmp_path):
    model = compressed()
    mixdim.save_compressed(model, tmp_path / "small.safetensors")
    return model, tmp_path / "small.safetensors"


@pytest.mark.parametrize("options", [{}, {"bits": 32}, {"bits": 8}, {"bands": 1}])
def test_what_is_loaded_is_the_same_model(tmp_path, options):
    model, path = compressed(**options), tmp_path / "small.safetensors"
    mixdim.save_compressed(model, path)
    other = Recommender(seed=1).train()
    other.item.weight.requires_grad_(False)
    mixdim.load_compressed(other, path)
    assert other.training
    assert other.user.training
    assert not any(parameter.requires_grad for parameter in other.item.parameters())
    assert torch.equal(other.eval()(*batch(9)), model(*batch(9)))
    assert [path.name for path in tmp_path.iterdir()] == ["small.safetensors"]
    assert path.stat().st_size < sum(t.nbytes for t in Recommender().state_dict().values()) / 3
    mixdim.save_compressed(other, path)
    mixdim.load_compressed(again := Recommender(seed=2), path)
    assert torch.equal(again.eval()(*batch(9)), model(*batch(9)))


def test_a_table_in_two_places_is_saved_once(tmp_path):
    def model():
        table = nn.Embedding(300, 8)
        return nn.ModuleDict({"a": table, "b": nn.Sequential(table, nn.Linear(8, 1))})

    first, second, path = model(), model(), tmp_path / "small.safetensors"
    mixdim.compress(first, {"a": np.arange(300)}, "1/4", echo=None)
    mixdim.save_compressed(first, path)
    assert not any(name.startswith("b.0.") for name in load_file(path))
    mixdim.load_compressed(second, path)
    assert second["a"] is second["b"][0]
    assert torch.equal(second["b"](torch.arange(300)), first["b"](torch.arange(300)))
    twice = model()
    twice["a"] = nn.Embedding(300, 8)
    with pytest.raises(ValueError, match=r"has one table for a, b.0, the model's is for a"):
        mixdim.load_compressed(twice, path)


@pytest.mark.parametrize("bits", [32, 8, "auto"])
def test_numbers_become_those_of_the_type_that_the_model_has(tmp_path, bits):
    model, path = compressed(bits=bits).half(), tmp_path / "small.safetensors"
    mixdim.save_compressed(model, path)
    mixdim.load_compressed(other := Recommender(seed=1), path)
    assert other.user.dtype == torch.float32
    with torch.no_grad():
        expected = model.float()(*batch(9))
        assert torch.allclose(other.eval()(*batch(9)), expected, atol=1e-4)


DIFFERENT = {
    "num_embeddings=400, the model's has 401": lambda: changed(
        Recommender(), user=nn.Embedding(401, 16)
    ),
    "embedding_dim=16, the model's has 8": lambda: changed(Recommender(), user=nn.Embedding(400, 8)),
    "padding_idx=0, the model's has None": lambda: changed(Recommender(), item=nn.Embedding(300, 16)),
    "mode=mean, the model's has None": lambda: changed(Recommender(), tags=nn.Embedding(200, 16)),
    "has a table 'user', the model has none of that name": lambda: changed(
        Recommender(), user=nn.Linear(2, 2)
    ),
    r"top.bias is of shape \(1,\) there and not here": lambda: changed(
        Recommender(), top=nn.Linear(16, 1, bias=False)
    ),
    "more.bias is not there and of shape": lambda: changed(Recommender(), more=nn.Linear(2, 2)),
    "table 'user' is compressed already: build the model anew": compressed,
}


@pytest.mark.parametrize(("complaint", "make"), DIFFERENT.items(), ids=DIFFERENT.keys())
def test_a_model_that_differs_is_told_how_and_untouched(saved, complaint, make):
    model = make()
    before = state_of(model)
    with pytest.raises(ValueError, match=complaint):
        mixdim.load_compressed(model, saved[1])
    assert state_of(model) == before


def test_a_model_without_values_is_told_so(saved):
    model = Recommender().to("meta")
    with pytest.raises(ValueError, match=r"user.weight has none \(device meta\); build it on a device"):
        mixdim.load_compressed(model, saved[1])
    assert type(model.user) is nn.Embedding
    mixdim.load_compressed(model.to_empty(device="cpu").eval(), saved[1])
    assert torch.equal(model(*batch(9)), saved[0](*batch(9)))


def test_a_damaged_file_is_one_line_and_the_model_is_untouched(saved):
    _, path = saved
    whole, model = path.read_bytes(), Recommender(seed=1)
    before = state_of(model)
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "a byte of the header": whole[:200].replace(b"user", b"usor", 1) + whole[200:],
        "a number": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:],
        "something else": b"PK" + bytes(100),
    }
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged") as error:
            mixdim.load_compressed(model, path)
        assert "\n" not in str(error.value)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"no file that mixdim\.save_compressed wrote"):
        mixdim.load_compressed(model, path)
    later = {"mixdim": json.dumps({"format": "mixdim.compressed", "version": 2}), "blake2b": ""}
    save_file({"x": torch.zeros(2)}, path, metadata=later)
    with pytest.raises(ValueError, match=r"reads mixdim\.compressed version 3, got version 2"):
        mixdim.load_compressed(model, path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors is no file"):
        mixdim.load_compressed(model, path.with_name("nothing.safetensors"))
    assert state_of(model) == before


def changed_document(path, change):
    """The file with other words about its tables, and a checksum that fits them."""
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()["mixdim"])
    tensors = load_file(path)
    change(document)
    text = json.dumps(document)
    metadata = {"mixdim": text, "blake2b": digest(text, tensors)}
    save_file(tensors, path, metadata=metadata)


def first_block(document, **changes):
    document["tables"][0]["plan"]["features"][0]["blocks"][0].update(changes)


def first_storage(document, **changes):
    document["tables"][0]["plan"]["features"][0]["blocks"][0]["storage"].update(changes)


HOSTILE = {
    "does not describe its tables": lambda document: document["tables"][0].pop("plan"),
    "describe its tables ": lambda document: document["tables"][0].update(names=[]),
    "describe its tables as": lambda document: document.update(same_as={"x": "y"}),
    "has a table 'user' with a plan that is none": lambda document: first_block(document, size=-1),
    "that is none: malformed plan: bits must be 1, 2": lambda document: first_storage(document, bits=7),
    "none: malformed plan: bits must not rise": lambda document: first_storage(
        document, dim=2, bits=[1, 8]
    ),
    "plan has 1 features, 1000000000000000 rows and": lambda document: (
        document["tables"][0]["plan"].update(num_parameters=16 * 10**15),
        document["tables"][0]["plan"]["features"][0].update(
            rows=10**15, blocks=[{"start": 0, "size": 10**15, "storage": ROWS, "row_prob": 0.1}]
        ),
    ),
    r"user.table.\w+ is .*, by its plan it is of shape": lambda document: first_storage(
        document, dim=15, bits=8
    ),
    "malformed map of ids for table 'user': the code of feature": lambda document: document["tables"][
        0
    ].update(codes=[[10**15, 8]]),
    "malformed map of ids for table 'user': bands": lambda document: document["tables"][0].update(
        codes=[[400, 10**9]]
    ),
    "malformed map of ids for table 'user'": lambda document: document["tables"][0].update(codes=[[4]]),
}
ROWS = {"kind": "rows", "dim": 16, "bits": 32}


@pytest.mark.parametrize(("complaint", "change"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_a_header_that_says_something_else_is_one_line_before_memory_is_taken(saved, complaint, change):
    _, path = saved
    changed_document(path, change)
    model = Recommender(seed=1)
    before = state_of(model)
    with pytest.raises(ValueError, match=complaint) as error:
        mixdim.load_compressed(model, path)
    assert "\n" not in str(error.value)
    assert state_of(model) == before


def test_what_cannot_be_saved_leaves_the_file_that_was_there(saved, tmp_path):
    model, path = saved
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"model must be compressed to be saved so: call mixdim\.compress"
    ):
        mixdim.save_compressed(Recommender(), path)
    model.get_extra_state = lambda: {"a": 1}
    type(model).get_extra_state = lambda self: {"a": 1}
    try:
        with pytest.raises(ValueError, match="tensors only in its state: _extra_state is dict"):
            mixdim.save_compressed(model, path)
    finally:
        del type(model).get_extra_state
    with pytest.raises(OSError, match="no directory"):
        mixdim.save_compressed(model, tmp_path / "no" / "small.safetensors")
    assert path.read_bytes() == before
