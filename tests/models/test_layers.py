import copy
import warnings

import pytest
import torch
from tests.kernels.both_paths import assert_same_results, gradients_of, plain_path
from torch import nn

from mixdim import kernels
from mixdim.kernels import backend
from mixdim.kernels import mlp as mlp_kernels
from mixdim.kernels.mlp import LinearLayer, kernel_layers, plain_layers
from mixdim.models.mlp import mlp

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=kernels.reason())
# Below, at and above whole vectors, panels, tiles and blocks of depth.
SHAPES = [
    (0, [3, 2, 1]),
    (1, [13, 40, 17, 8]),
    (64, [1, 1]),
    (97, [3, 2, 1]),
    (100, [13, 40, 17, 8]),
    (193, [33, 300, 65, 2]),
    (300, [383, 96, 16, 1]),
    (577, [16, 270, 530, 5]),
    (1100, [7, 12, 13, 14, 3]),
]


def trained(widths, activation=nn.ReLU, *, last=False, seed=0):
    """An MLP with biases, as after some training, and one output that no sample ever activates."""
    generator = torch.Generator().manual_seed(seed)
    model = mlp(widths, activation=activation, generator=generator)
    for layer in model[::2]:
        nn.init.uniform_(layer.bias, -0.3, 0.3, generator=generator)
    with torch.no_grad():
        model[0].bias[0] = -100
    return model.append(activation()) if last else model


def batch_of(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1), requires_grad=True)


@pytest.fixture(autouse=True)
def _any_size_is_large_enough(monkeypatch):
    monkeypatch.setattr(mlp_kernels, "LEAST_BATCH", 0)
    monkeypatch.setattr(mlp_kernels, "LEAST_PRODUCTS", 0)


@pytest.fixture
def calls(monkeypatch):
    """How often the kernels were called: one entry for each time."""
    made = []

    def counted(*args):
        made.append(args)
        return kernel_layers(*args)

    monkeypatch.setattr(backend, "kernel_layers", counted)
    return made


@needs_kernels
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
@pytest.mark.parametrize(("batch", "widths"), SHAPES)
def test_kernels_give_what_plain_pytorch_gives(batch, widths, activation, last, calls):
    model, x = trained(widths, activation, last=last), batch_of(batch, widths[0])
    pull = torch.randn(batch * widths[-1], generator=torch.Generator().manual_seed(2))
    assert_same_results(lambda: model(x), [x, *model.parameters()], pull, rtol=1e-4, atol=2e-4)
    assert len(calls) == 2


@needs_kernels
@pytest.mark.parametrize(("batch", "widths"), SHAPES)
def test_kernels_are_as_near_to_exact_sums_as_pytorch(batch, widths):
    model, x = trained(widths), batch_of(batch, widths[0])
    exact_model, exact_x = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    pull = torch.randn(batch * widths[-1], generator=torch.Generator().manual_seed(2))
    _, mine = gradients_of(lambda: model(x), [x, *model.parameters()], pull)
    exact_parameters = [exact_x, *exact_model.parameters()]
    _, exact = gradients_of(lambda: exact_model(exact_x), exact_parameters, pull.double())
    for gradient, expected in zip(mine, exact, strict=True):
        assert (gradient - expected).norm() <= 2e-6 * expected.norm() + 1e-6


@needs_kernels
@pytest.mark.parametrize("batch", [0, 1, 2, 5])
def test_the_kernels_themselves_take_any_batch(batch):
    model, x = trained([20, 30, 2]), batch_of(batch, 20)
    layers = [LinearLayer(model[0].weight, model[0].bias, 0.0), LinearLayer(model[2].weight, None, 1.0)]
    parameters = [x, model[0].weight, model[0].bias, model[2].weight]
    pull = torch.ones(2 * batch)
    value, gradients = gradients_of(lambda: kernel_layers(x, layers), parameters, pull)
    expected_value, expected = gradients_of(lambda: plain_layers(x, layers), parameters, pull)
    torch.testing.assert_close([value, *gradients], [expected_value, *expected], rtol=1e-5, atol=1e-5)


@needs_kernels
def test_small_batches_and_small_layers_take_plain_pytorch(calls, monkeypatch):
    monkeypatch.setattr(mlp_kernels, "LEAST_BATCH", 100)
    monkeypatch.setattr(mlp_kernels, "LEAST_PRODUCTS", 101 * 15)
    model = mlp([4, 3, 1])
    for batch in (0, 1, 99, 100):
        model(torch.ones(batch, 4))
    assert calls == []
    model(torch.ones(101, 4))
    assert len(calls) == 1


@needs_kernels
def test_a_row_has_the_same_bits_in_every_batch():
    model, x = trained([383, 96, 1]), batch_of(300, 383)
    with torch.no_grad():
        assert torch.equal(model(x)[200:], model(x[200:]))


@needs_kernels
def test_without_gradients_the_values_have_the_same_bits(calls):
    model, x = trained([33, 300, 65, 2]), batch_of(300, 33)
    with torch.no_grad():
        value = model(x)
    assert torch.equal(value, model(x))
    assert torch.equal(value, copy.deepcopy(model).requires_grad_(False)(x.detach()))
    with torch.inference_mode():
        assert torch.equal(value, model(x))
    assert len(calls) == 4


@needs_kernels
@pytest.mark.parametrize(
    "frozen", ["0.weight", "0.bias", "2.weight", "4.bias", "input", "all but 4.bias"]
)
def test_what_is_frozen_gets_no_gradient_and_all_else_the_same(frozen):
    model, x = trained([33, 30, 65, 2]), batch_of(100, 33)
    named = {"input": x, **dict(model.named_parameters())}
    with plain_path():
        _, gradients = gradients_of(lambda: model(x), list(named.values()), torch.ones(200))
    expected = dict(zip(named, gradients, strict=True))
    keep = {"4.bias"} if frozen.startswith("all") else named.keys() - {frozen}
    for name, tensor in named.items():
        tensor.requires_grad_(name in keep)
        tensor.grad = None
    model(x).sum().backward()
    for name, tensor in named.items():
        assert (tensor.grad is not None) == (name in keep)
        if name in keep:
            torch.testing.assert_close(tensor.grad, expected[name], rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
def test_infinities_and_nan_go_where_pytorch_lets_them_go(activation):
    model = trained([9, 17, 2], activation, last=True)
    x = batch_of(64, 9).detach()
    x[3, 2], x[5, 1], x[7, 0] = float("inf"), float("-inf"), float("nan")
    pull = torch.ones(64, 2)
    pull[9, 0] = float("inf")
    found = []
    for way in (model, nn.Sequential(*model)):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        value = way(leaf)
        value.backward(pull)
        found.append([value.detach(), leaf.grad])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5, equal_nan=True)


@needs_kernels
def test_strided_inputs_and_gradients_are_read_as_they_are(calls):
    model, x = trained([20, 30, 2]), batch_of(20, 100)
    pull = torch.randn(2, 100, generator=torch.Generator().manual_seed(2)).t()

    def gradient():
        x.grad = None
        model(x.t()).backward(pull)
        return x.grad

    mine = gradient()
    with plain_path():
        torch.testing.assert_close(mine, gradient(), rtol=1e-4, atol=1e-4)
    assert len(calls) == 1


@needs_kernels
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
def test_derivatives_of_derivatives_are_those_of_pytorch(activation):
    model, x = trained([5, 8, 6, 1], activation), batch_of(80, 5)

    def penalty(way):
        (slope,) = torch.autograd.grad(way(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *model.parameters()], allow_unused=True)

    mine, expected = penalty(model), penalty(nn.Sequential(*model))
    for gradient, wanted in zip(mine, expected, strict=True):
        zeros = torch.zeros(1)
        torch.testing.assert_close(
            zeros if gradient is None else gradient.sum(), zeros if wanted is None else wanted.sum(),
            rtol=1e-3, atol=1e-3, check_stride=False,
        )  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("what", ["weight", "output", "input"])
def test_a_change_before_the_backward_pass_is_noticed(what):
    model, x = trained([5, 8, 1], last=True), torch.randn(80, 5)
    value = model(x)
    with torch.no_grad():
        {"weight": model[2].weight, "output": value, "input": x}[what].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@needs_kernels
def test_a_weight_of_another_shape_at_the_backward_pass_is_refused():
    model, x = trained([5, 8, 1]), torch.randn(80, 5)
    value = model(x)
    model[0].weight.data = torch.zeros(8, 4)
    with pytest.raises(RuntimeError):
        value.sum().backward()


def test_a_hook_on_a_layer_is_called_and_may_change_the_result(calls):
    model = mlp([4, 3, 1])
    model[1].register_forward_hook(lambda module, args, output: output + 1)
    x = torch.randn(100, 4)
    expected = torch.relu(x @ model[0].weight.T).add(1) @ model[2].weight.T
    torch.testing.assert_close(model(x), expected)
    assert calls == []


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(),
        lambda model: model.append(nn.Sigmoid()),
        lambda model: model.append(nn.ReLU()).append(nn.LeakyReLU()),
        lambda model: model.insert(0, nn.ReLU()),
        lambda model: nn.utils.parametrizations.weight_norm(model[0]),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 3).t())),
        lambda model: model.__setitem__(1, nn.LeakyReLU(-0.5)),
    ],
    ids=["double", "sigmoid", "two", "first", "weight_norm", "strides", "negative slope"],
)
def test_what_the_kernels_cannot_do_pytorch_does(change, calls):
    model = mlp([4, 3, 1], activation=nn.LeakyReLU)
    change(model)
    x = torch.randn(100, 4, dtype=next(model.parameters()).dtype)
    assert torch.equal(model(x), nn.Sequential(*model)(x))
    assert calls == []


def test_more_dimensions_and_wrong_widths_are_for_pytorch(calls):
    model = mlp([4, 3, 1])
    assert model(torch.ones(2, 100, 4)).shape == (2, 100, 1)
    assert model(torch.ones(4)).shape == (1,)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(100, 5))
    assert calls == []


def test_other_ways_to_differentiate_take_plain_pytorch(calls):
    model, x = mlp([4, 3, 1]), torch.randn(100, 4)
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    found = torch.func.grad(loss)(parameters)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # PyTorch's own
        _, tangent = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    assert torch.func.vmap(model)(x[None]).shape == (1, 100, 1)
    assert calls == []
    loss(parameters).backward()
    torch.testing.assert_close(found["0.weight"], model[0].weight.grad)
    torch.testing.assert_close(tangent, model(x + 0.5) - model(x - 0.5), rtol=1, atol=1)


def test_autocast_still_rounds(calls):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mlp([4, 3, 1])(torch.ones(100, 4)).dtype is torch.bfloat16
    assert calls == []


def test_graphs_hold_plain_operators(calls):
    model, x = mlp([4, 3, 1]).eval(), torch.randn(100, 4)
    calls.clear()
    exported = torch.export.export(model, (x,))
    assert "mixdim" not in str(exported.graph)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        traced = torch.jit.trace(model, x, check_trace=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert calls == []
    for graph in (exported.module(), traced, compiled):
        torch.testing.assert_close(graph(x), model(x))


def test_it_prints_copies_slices_and_loads_as_a_sequential(calls):
    model = mlp([4, 3, 1])
    plain = nn.Sequential(*mlp([4, 3, 1]))
    assert repr(model) == repr(plain)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    plain.load_state_dict(model.state_dict())
    x = torch.randn(100, 4)
    for other in (copy.deepcopy(model), model[:], plain):
        torch.testing.assert_close(other(x), model(x))
    assert model[0](x).shape == (100, 3)
    assert model[:1](x).shape == (100, 3)
