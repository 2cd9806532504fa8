from collections import namedtuple
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mixdim
from far_device import FAR, FarDevice, FarTensor, send
from mixdim.training import DivergedError, evaluate, preset
from mixdim.training.devices import device_of, to_device
from mixdim.training.evaluation import outputs_of
from mixdim.training.optimizers import OPTIMIZERS, NamedOptimizer
from training_data import OwnModel, Turning, clicks_with_bags, ratings, raw_bytes

OPTIONS = replace(preset("paper-cf"), batch_size=300, epochs=2, lr=0.05, patience=None)


class WithBags(nn.Module):
    """Reads every tensor of a batch."""

    def __init__(self, dataset):
        super().__init__()
        torch.manual_seed(3)
        self.users, self.tags = nn.Embedding(9, 4), nn.EmbeddingBag(6, 4, mode="sum")
        self.head = nn.Linear(6, 1)

    def forward(self, batch):
        values, offsets = batch.bags["tags"]
        vectors = self.users(batch.ids[:, 0]) + self.tags(values.long(), offsets[:-1])
        return self.head(torch.cat([vectors, batch.dense], dim=1)).squeeze(1)


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setenv("MIXDIM_KERNELS", "off")  # they round differently, and are not there
    with FarDevice():
        yield


def numbers_of(model):
    """The bytes of a model, wherever it is."""
    return {name: t.detach().numpy(force=True).tobytes() for name, t in model.state_dict().items()}


@pytest.mark.usefixtures("far")
def test_the_far_device_refuses_what_is_not_there():
    batch = ratings().rows(slice(0, 4))
    with pytest.raises(RuntimeError, match="expected all tensors on meta"):
        send(OwnModel(ratings()))(batch)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(
    ("make", "data", "optimizer"),
    [*((OwnModel, ratings, name) for name in OPTIMIZERS), (WithBags, clicks_with_bags, "amsgrad")],
)
def test_a_model_elsewhere_is_trained_and_measured_as_one_on_the_cpu(make, data, optimizer, tmp_path):
    dataset = data()
    here, there = make(dataset), send(make(dataset))
    options = replace(OPTIONS, optimizer=optimizer)
    results = []
    for model, out in ((here, "here"), (there, "there")):
        torch.manual_seed(0)  # for dropout
        results.append(mixdim.fit(model, dataset, options=options, out=tmp_path / out))
    assert numbers_of(there) == raw_bytes(here)
    assert all(isinstance(parameter.data, FarTensor) for parameter in there.parameters())
    assert results[0].test == results[1].test
    assert evaluate(there, dataset, "validation") == evaluate(here, dataset, "validation")
    one, other = (outputs_of(model, dataset, "test", batch_size=7) for model in (here, there))
    assert (one.outputs == other.outputs).all()
    assert (one.targets == other.targets).all()


@pytest.mark.usefixtures("far")
def test_losses_elsewhere_are_read_once_a_line_of_the_journal(monkeypatch, tmp_path):
    model, item, read_at, notes = send(Turning(OwnModel(ratings()), step=10**6)), FarTensor.item, [], []

    def reading(loss):
        read_at.append(model.calls)
        return item(loss)

    monkeypatch.setattr(FarTensor, "item", reading)
    options = replace(OPTIONS, optimizer="sgd", lr=1e-3, batch_size=10, epochs=1, checkpoint_every=10)
    told = {"progress": lambda stage, done, total, note: notes.append(note)}
    mixdim.fit(model, ratings(), options=options, out=tmp_path, **told)  # 80 steps, 20 lines
    at_checkpoints = set(range(10, 81, 10))
    assert set(read_at) == set(range(4, 81, 4)) | at_checkpoints
    assert len(read_at) == 80
    assert [note.partition(", ")[2][:5] for note in notes[:5]] == ["", "", "", "loss ", "loss "]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum('"kind": "train"' in line for line in lines) == 20


@pytest.mark.usefixtures("far")
def test_a_loss_elsewhere_that_diverged_is_told_with_its_step(tmp_path):
    model = send(Turning(OwnModel(ratings()), step=6))
    options = replace(OPTIONS, optimizer="sgd", lr=1e-3, batch_size=10)
    with pytest.raises(DivergedError, match=r"after step 5: the loss is nan; .*step-00000000"):
        mixdim.fit(model, ratings(), options=options, checkpoint_every=100, out=tmp_path)
    assert model.calls == 8


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_elsewhere_is_resumed_with_its_state_beside_its_parameters(optimizer, tmp_path):
    dataset, options = ratings(), replace(OPTIONS, optimizer=optimizer)
    torch.manual_seed(0)
    straight = send(OwnModel(dataset))
    mixdim.fit(straight, dataset, options=options)
    torch.manual_seed(0)
    first = send(OwnModel(dataset))
    mixdim.fit(first, dataset, options=options, epochs=1, out=tmp_path)
    torch.manual_seed(99)
    resumed = send(OwnModel(dataset))
    mixdim.fit(resumed, dataset, options=options, out=tmp_path, resume=True)
    assert numbers_of(resumed) == numbers_of(straight)


@pytest.mark.usefixtures("far")
def test_loaded_moments_are_with_their_parameters_and_steps_stay_on_the_cpu():
    model = OwnModel(ratings())
    tensors, numbers = _after_a_step("adam", model).state()
    far = NamedOptimizer("adam", send(OwnModel(ratings())), lr=0.1)
    far.load_state(tensors, numbers)
    for place, tensor in far.state()[0].items():
        assert isinstance(tensor, FarTensor) == (not place.endswith("/step")), place


def _after_a_step(name, model):
    optimizer = NamedOptimizer(name, model, lr=0.1)
    batch = ratings().rows(slice(0, 16))
    model(batch).sum().backward()
    optimizer.step()
    return optimizer


def test_random_numbers_drawn_elsewhere_are_kept_and_taken_up(monkeypatch, tmp_path, caplog):
    dataset, drawn = ratings(), [torch.tensor([1, 2, 3], dtype=torch.uint8)]
    module = SimpleNamespace(
        get_rng_state=lambda device: drawn[-1], set_rng_state=lambda state, device: drawn.append(state)
    )
    mixdim.fit(OwnModel(dataset), dataset, options=OPTIONS, epochs=1, out=tmp_path / "before")
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    mixdim.fit(OwnModel(dataset), dataset, options=OPTIONS, epochs=1, out=tmp_path / "run")
    drawn.append(torch.zeros(3, dtype=torch.uint8))
    mixdim.fit(OwnModel(dataset), dataset, options=OPTIONS, out=tmp_path / "run", resume=True)
    assert drawn[-1].tolist() == [1, 2, 3]
    assert not caplog.records
    mixdim.fit(OwnModel(dataset), dataset, options=OPTIONS, out=tmp_path / "before", resume=True)
    assert "has no random state of cpu: it will draw other numbers there" in caplog.text


Pair = namedtuple("Pair", ["target", "bags"])


@dataclass(frozen=True)
class Samples:
    target: Tensor
    bags: dict[str, tuple[Tensor, Tensor]]
    note: str = "kept"


class Own:
    """A type of the user's, which knows how to move."""

    def __init__(self, target):
        self.target = target

    def to(self, device):
        return Own(self.target.to(device))


@pytest.mark.parametrize("kind", [Pair, Samples])
def test_all_tensors_of_a_batch_are_moved(kind):
    bags = {"tags": (torch.ones(3), torch.tensor([0, 2, 3])), "none": ()}
    moved = to_device(kind(torch.zeros(2), bags), FAR)
    assert type(moved) is kind
    assert moved.target.device == FAR
    assert [tensor.device for tensor in moved.bags["tags"]] == [FAR, FAR]
    assert moved.bags["none"] == ()
    assert getattr(moved, "note", "kept") == "kept"


def test_a_type_of_the_users_own_moves_itself():
    assert to_device(Own(torch.zeros(2)), FAR).target.device == FAR


def test_a_batch_that_cannot_be_moved_says_what_it_lacks():
    batch = SimpleNamespace(target=torch.zeros(2))
    with pytest.raises(
        TypeError, match=r"SimpleNamespace cannot be moved from cpu to meta.* to\(device\)"
    ):
        to_device(batch, FAR)


@pytest.mark.parametrize("device", [torch.device("cpu"), None])
def test_a_batch_that_is_there_already_is_left_alone(device):
    batch = SimpleNamespace(target=torch.zeros(2))
    assert to_device(batch, device) is batch


def test_a_model_is_where_its_first_parameter_or_buffer_is():
    assert device_of(nn.Linear(2, 1, device="meta")) == FAR
    assert device_of(nn.BatchNorm1d(2, affine=False, device="meta")) == FAR
    assert device_of(nn.ReLU()) is None
