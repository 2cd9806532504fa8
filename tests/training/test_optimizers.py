import copy
import json
from itertools import chain

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, SparseAdam
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR

from mixdim.optim import SparseAMSGrad
from mixdim.planning.plan import OPTIMIZER_STATE
from mixdim.training.optimizers import (
    OPTIMIZERS,
    NamedOptimizer,
    embedding_parameters,
    sparse_parameters,
)
from mixdim.training.rates import SCHEDULES, rate_factor
from training_data import OwnModel, clicks, ratings, small_model

MODELS = {"dlrm": clicks, "mf": ratings, "ncf": ratings}


def take_steps(model, dataset, step, *, first=0, count=4):
    """Descend on the mean squared error with the given step, on batches of 16 rows."""
    for number in range(first, first + count):
        batch = dataset.rows(slice(16 * number, 16 * number + 16))
        model.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(batch), batch.target).backward()
        step()


def assert_equal_weights(one, other):
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_loaded_into_a_new_optimizer_goes_on_exactly(name, model_name):
    dataset = MODELS[model_name]()
    model = small_model(model_name, dataset)
    optimizer = NamedOptimizer(name, model, lr=0.01)
    take_steps(model, dataset, optimizer.step)
    tensors, numbers = optimizer.state()
    assert bool(tensors) == (name != "sgd")
    tensors, numbers = copy.deepcopy(tensors), json.loads(json.dumps(numbers))

    twin = copy.deepcopy(model)
    other = NamedOptimizer(name, twin, lr=0.01)
    other.load_state(tensors, numbers)
    for trained, its in ((model, optimizer), (twin, other)):
        take_steps(trained, dataset, its.step, first=4)
    assert_equal_weights(model, twin)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_embeddings_may_have_a_learning_rate_of_their_own(name, model_name):
    dataset = MODELS[model_name]()
    before = small_model(model_name, dataset)

    def after_a_step(**rates):
        model = copy.deepcopy(before)
        optimizer = NamedOptimizer(name, model, **rates)
        take_steps(model, dataset, optimizer.step, count=1)
        assert {place.rpartition("/")[0] for part in optimizer.state() for place in part} == (
            set(optimizer.parameters) if name != "sgd" else set()
        )
        return model.state_dict()

    slow, quick, own = after_a_step(lr=0.01), after_a_step(lr=0.04), after_a_step(lr=0.01, table_lr=0.04)
    same, embeddings = after_a_step(lr=0.01, table_lr=0.01), embedding_parameters(before)
    parts = {key.partition(".")[0] for key in embeddings}
    assert parts <= {"embeddings", "user_embedding", "item_embedding", "biases"}
    for key in before.state_dict():
        assert torch.equal(own[key], (quick if key in embeddings else slow)[key]), key
        assert torch.equal(same[key], slow[key]), key


def test_tables_of_other_modules_are_embeddings_too():
    assert embedding_parameters(OwnModel(ratings())) == {"users.weight", "items.weight"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loading_forgets_the_state_from_before(name):
    dataset = ratings()
    model = small_model("mf", dataset)
    fresh = NamedOptimizer(name, copy.deepcopy(model), lr=0.01).state()
    optimizer = NamedOptimizer(name, model, lr=0.01)
    take_steps(model, dataset, optimizer.step)
    optimizer.load_state(*fresh)
    tensors, numbers = optimizer.state()
    assert (tensors.keys(), numbers) == (fresh[0].keys(), fresh[1])
    assert all(torch.equal(tensors[place], fresh[0][place]) for place in tensors)


def test_loaded_tensors_are_copies():
    dataset = ratings()
    model = small_model("mf", dataset)
    optimizer = NamedOptimizer("amsgrad", model, lr=0.01)
    take_steps(model, dataset, optimizer.step)
    tensors, numbers = optimizer.state()
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    other = NamedOptimizer("amsgrad", model, lr=0.01)
    other.load_state(held, numbers)
    before = {name: tensor.clone() for name, tensor in held.items()}
    take_steps(model, dataset, other.step)
    assert all(torch.equal(held[name], before[name]) for name in held)


def test_amsgrad_on_a_dense_model_is_that_of_pytorch():
    dataset = ratings()
    mine, theirs = OwnModel(dataset, dropout=0.0), OwnModel(dataset, dropout=0.0)
    take_steps(mine, dataset, NamedOptimizer("amsgrad", mine, lr=0.05).step, count=20)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.05, amsgrad=True)
    take_steps(theirs, dataset, adam.step, count=20)
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], expected, rtol=1e-4, atol=1e-5)


def test_weight_decay_is_that_of_adamw_for_all_but_the_biases_of_layers():
    dataset = ratings()
    mine, theirs = OwnModel(dataset, dropout=0.0), OwnModel(dataset, dropout=0.0)
    decaying = NamedOptimizer("amsgrad", mine, lr=0.05, weight_decay=0.5)
    take_steps(mine, dataset, decaying.step, count=20)
    matrices = [parameter for parameter in theirs.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in theirs.parameters() if parameter.dim() == 1]
    assert matrices
    assert vectors
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.05, weight_decay=0.5, amsgrad=True)
    take_steps(theirs, dataset, adamw.step, count=20)
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], expected, rtol=1e-4, atol=1e-5)


SCHEDULERS = {
    "constant": lambda optimizer, steps: ConstantLR(optimizer, factor=1.0),
    "linear": lambda optimizer, steps: LambdaLR(optimizer, lambda step: 1 - step / steps),
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, T_max=steps),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_and_decay_fall_as_with_a_scheduler_of_pytorch(schedule):
    dataset, steps = ratings(), 12
    mine, theirs = OwnModel(dataset, dropout=0.0), OwnModel(dataset, dropout=0.0)
    optimizer = NamedOptimizer("amsgrad", mine, lr=0.02, table_lr=0.05, weight_decay=0.5)
    matrices = [theirs.users.weight, theirs.items.weight]
    rest = [{"params": [theirs.head.weight]}, {"params": [theirs.head.bias], "weight_decay": 0.0}]
    rest.append({"params": theirs.norm.parameters(), "weight_decay": 0.0})
    groups = [{"params": matrices, "lr": 0.05}, *rest]
    adamw = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.5, amsgrad=True)
    scheduler = SCHEDULERS[schedule](adamw, steps)
    for number in range(steps):
        optimizer.scale_rates(rate_factor(schedule, number, steps))
        take_steps(mine, dataset, optimizer.step, first=number, count=1)
        take_steps(theirs, dataset, adamw.step, first=number, count=1)
        scheduler.step()
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_name", MODELS)
def test_with_its_own_rate_an_embedding_has_the_decay_of_that_rate(model_name):
    """Of a model without gradients but zeros only the decay is left."""
    model = small_model(model_name, MODELS[model_name]())
    before, tables = copy.deepcopy(model.state_dict()), embedding_parameters(model)
    optimizer = NamedOptimizer("amsgrad", model, lr=0.01, table_lr=0.04, weight_decay=5.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 0.8 if name in tables else 0.95 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * kept)


BY_HAND = {
    "amsgrad": lambda tables, rest: [SparseAMSGrad([*tables, *rest], lr=0.05)],
    "adam": lambda tables, rest: [SparseAdam(tables, lr=0.05), Adam(rest, lr=0.05)],
    "adagrad": lambda tables, rest: [Adagrad([*tables, *rest], lr=0.05)],
    "sgd": lambda tables, rest: [SGD([*tables, *rest], lr=0.05)],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_multiplies_matrices_and_the_rows_of_the_batch_before_a_step(name):
    dataset = ratings()
    mine, theirs = (OwnModel(dataset, sparse=True, dropout=0.0) for _ in range(2))
    optimizer = NamedOptimizer(name, mine, lr=0.05, weight_decay=4.0)
    take_steps(mine, dataset, optimizer.step, count=8)
    tables = [theirs.users.weight, theirs.items.weight]
    parts = BY_HAND[name](tables, [*theirs.norm.parameters(), *theirs.head.parameters()])
    seen = [set(), set()]
    for number in range(8):

        def step(number=number):
            ids = dataset.rows(slice(16 * number, 16 * number + 16)).ids
            with torch.no_grad():
                theirs.head.weight *= 0.8
                for table, column, rows in zip(tables, ids.T.tolist(), seen, strict=True):
                    rows.update(column)
                    for row in set(column):
                        table[row] *= 0.8
            for part in parts:
                part.step()

        take_steps(theirs, dataset, step, first=number, count=1)
    for key, expected in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], expected, rtol=1e-5, atol=1e-6)
    before = OwnModel(dataset)
    for table, first, rows in zip(tables, (before.users, before.items), seen, strict=True):
        changed = (table != first.weight).any(1).nonzero().flatten().tolist()
        assert set(changed) == rows
        assert len(rows) < len(table)


def test_adam_is_sparse_adam_for_the_tables_and_adam_for_the_rest():
    dataset = ratings()
    mine, theirs = (OwnModel(dataset, sparse=True, dropout=0.0) for _ in range(2))
    take_steps(mine, dataset, NamedOptimizer("adam", mine, lr=0.02).step, count=8)
    tables = torch.optim.SparseAdam([theirs.users.weight, theirs.items.weight], lr=0.02)
    rest = torch.optim.Adam([*theirs.norm.parameters(), *theirs.head.parameters()], lr=0.02)

    def by_hand():
        tables.step()
        rest.step()

    take_steps(theirs, dataset, by_hand, count=8)
    assert_equal_weights(mine, theirs)


@pytest.mark.parametrize("name", ["adagrad", "sgd"])
def test_adagrad_and_sgd_are_those_of_pytorch(name):
    dataset = ratings()
    mine, theirs = (OwnModel(dataset, sparse=True, dropout=0.0) for _ in range(2))
    take_steps(mine, dataset, NamedOptimizer(name, mine, lr=0.02).step)
    kind = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[name]
    take_steps(theirs, dataset, kind(theirs.parameters(), lr=0.02).step)
    assert_equal_weights(mine, theirs)


@pytest.mark.parametrize("model_name", MODELS)
def test_the_parameters_called_sparse_are_those_that_get_sparse_gradients(model_name):
    dataset = MODELS[model_name]()
    options = {"biases": True} if model_name == "mf" else {}
    model = small_model(model_name, dataset, **options)
    take_steps(model, dataset, lambda: None, count=1)
    found = {name for name, parameter in model.named_parameters() if parameter.grad.is_sparse}
    assert sparse_parameters(model) == found
    assert found


def test_a_model_without_tables_or_with_tables_alone_has_one_adam():
    dataset = ratings()
    tables = small_model("mf", dataset, temperature=0.0)
    for model in (nn.Linear(2, 1), tables):
        assert len(NamedOptimizer("adam", model, lr=0.1).parts) == 1


def test_zero_grad_forgets_all_gradients():
    dataset = ratings()
    model = OwnModel(dataset, sparse=True)
    optimizer = NamedOptimizer("adam", model, lr=0.1)
    take_steps(model, dataset, lambda: None, count=1)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


WRONG_STATES = [
    (lambda t, n: t.update({"lost/exp_avg": torch.zeros(2)}), r"no parameter 'lost', got its 'exp_avg'"),
    (lambda t, n: t.update({"exp_avg": torch.zeros(2)}), r"no parameter '', got its 'exp_avg'"),
    (lambda t, n: n.update({"lost/step": 3}), r"no parameter 'lost', got its 'step'"),
    (
        lambda t, n: t.update({"users.weight/exp_avg": torch.zeros(3, 4)}),
        r"'exp_avg' of parameter 'users.weight' must be as .*of shape \(\d+, 4\), got .*shape \(3, 4\)",
    ),
    (
        lambda t, n: t.update({"head.bias/exp_avg": torch.zeros(1, dtype=torch.float64)}),
        r"'head.bias' must be .*float32 of shape \(1,\), got torch.float64",
    ),
    (lambda t, n: t.pop("head.bias/max_exp_avg_sq"), r"'head.bias' must have .*'max_exp_avg_sq'.* got"),
    (lambda t, n: n.pop("head.bias/step"), r"state of parameter 'head.bias' must have .*'step'"),
    (lambda t, n: n.update({"head.bias/step": None}), r"'step' .*must be a number of steps, got None"),
    (lambda t, n: n.update({"head.bias/exp_avg": 1.0}), r"'exp_avg' of .*must be a tensor, got 1.0"),
    (lambda t, n: t.update({"head.bias/sum": torch.zeros(1)}), r"must have .*, got .*'sum'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_STATES)
def test_state_of_something_else_is_refused_before_anything_changes(change, message):
    dataset = ratings()
    model = OwnModel(dataset)
    optimizer = NamedOptimizer("amsgrad", model, lr=0.01)
    take_steps(model, dataset, optimizer.step, count=1)
    tensors, numbers = optimizer.state()
    before = {place: tensor.clone() for place, tensor in tensors.items()}
    changed = dict(tensors), dict(numbers)
    change(*changed)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state(*changed)
    after, counted = optimizer.state()
    assert (after.keys(), counted) == (before.keys(), numbers)
    assert all(torch.equal(after[place], before[place]) for place in before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_keeps_what_its_entry_says_and_what_a_plan_counts(name):
    dataset = ratings()
    model = OwnModel(dataset, sparse=True)
    optimizer = NamedOptimizer(name, model, lr=0.01)
    assert bool(optimizer.state()[0]) == OPTIMIZERS[name].from_the_start
    take_steps(model, dataset, optimizer.step, count=1)
    kept = {parameter: set() for parameter in optimizer.parameters}
    for place in chain(*optimizer.state()):
        parameter, _, key = place.rpartition("/")
        kept[parameter].add(key)
    assert all(keys == OPTIMIZERS[name].keys for keys in kept.values())
    assert len(OPTIMIZERS[name].keys - {"step"}) == OPTIMIZERS[name].copies == OPTIMIZER_STATE[name]


def test_a_plan_counts_every_optimizer_that_a_run_can_name():
    assert OPTIMIZER_STATE.keys() == {None, *OPTIMIZERS}


def test_a_parameter_without_a_gradient_so_far_need_have_no_state_but_with_adagrad():
    for name in OPTIMIZERS:
        optimizer = NamedOptimizer(name, nn.Linear(2, 1), lr=0.1)
        if name == "adagrad":
            with pytest.raises(ValueError, match=r"'weight' must have 'step', 'sum' .* got nothing"):
                optimizer.load_state({}, {})
        else:
            optimizer.load_state({}, {})
