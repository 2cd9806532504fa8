import math

import pytest
import torch
from torch import nn

from mixdim.models.mlp import mlp


@pytest.mark.parametrize(("init", "fan"), [("xavier", 500), ("he_fan_in", 300), ("he_fan_out", 200)])
def test_weights_are_uniform_up_to_the_bound_and_biases_zero(init, fan):
    linear = mlp([300, 200], init=init, generator=torch.Generator().manual_seed(0))[0]
    bound = math.sqrt(6 / fan)
    assert 0.999 * bound < linear.weight.abs().max() <= bound
    assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert linear.weight.mean().item() == pytest.approx(0, abs=0.01 * bound)
    assert not linear.bias.any()


def test_an_activation_follows_every_layer_but_the_last():
    layers = mlp([4, 3, 2, 1], activation=nn.Tanh)
    kinds = [type(layer) for layer in layers]
    assert kinds == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert [(lin.in_features, lin.out_features) for lin in layers[::2]] == [(4, 3), (3, 2), (2, 1)]
    assert all(p.requires_grad for p in layers.parameters())


def test_only_the_given_generator_moves():
    before = torch.get_rng_state()
    mlp([4, 3, 1], generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"widths \(4, 0, 1\) must be at least 1, got 0"):
        mlp([4, 0, 1])
    with pytest.raises(TypeError, match=r"must be a whole number, got 2\.5"):
        mlp([4, 2.5, 1])
    with pytest.raises(ValueError, match=r"an input and an output at least, got \(4,\)"):
        mlp([4])
    with pytest.raises(
        ValueError, match="init must be one of xavier, he_fan_in, he_fan_out, aligned, got 'he'"
    ):
        mlp([4, 1], init="he")
