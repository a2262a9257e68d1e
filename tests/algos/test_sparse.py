"""Sparse networks. The values are those of the stream-x sheet, section 9: of the official classes in float64."""

import math

import pytest
import torch
from torch import nn

from algos.nn import initialise
from algos.obgd import ObGD
from algos.random import generators
from algos.sparse import Conv, Network, SparseLinear, activate

D = torch.float64


def test_activation():
    out = activate(torch.tensor([[1.0, 2, 3, 6]], dtype=D))
    assert out[0].tolist() == pytest.approx([-0.010690434, -0.005345217, 0, 1.603565161], abs=1e-8)


def test_activation_of_images_normalises_a_run_as_a_whole():
    x = torch.randn(2, 3, 4, 5, dtype=D)
    normed = (x[1] - x[1].mean()) / (x[1].var(unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(activate(x)[1], torch.where(normed > 0, normed, 0.01 * normed))


@pytest.mark.parametrize(
    ("inputs", "kept"), [(5, 0), (9, 0), (10, 1), (18, 1), (28, 2), (36, 3), (106, 10), (128, 12), (256, 25), (349, 34),
                         (512, 51), (576, 57), (1024, 102)]
)  # fmt: skip
def test_nine_tenths_of_each_units_weights_are_zero(inputs, kept):
    layer = SparseLinear(3, inputs, 20)
    initialise(layer, generators([0, 1, 2], "x"))
    assert ((layer.weight != 0).sum(-1) == kept).all()
    bound = 1 / math.sqrt(inputs)
    assert layer.weight.abs().max() <= bound
    assert kept < 10 or (layer.weight.max() > 0.9 * bound and layer.weight.min() < -0.9 * bound)
    assert (layer.bias == 0).all()
    places = layer.weight != 0
    assert kept == 0 or not torch.equal(places[0], places[1])
    assert kept == 0 or (places != places[:, :1]).flatten(1).any(1).all()  # each unit has its own, too


def test_every_layer_begins_sparse():
    network = Network(2, (30,), (20, 16), 3)
    initialise(network, generators([0, 1], "x"))
    for layer, kept in zip([*network.hidden, network.out], (3, 2, 1), strict=True):
        assert ((layer.weight != 0).sum(-1) == kept).all()


def test_zeros_of_the_start_are_learned():
    network = Network(1, (5,), (16, 16), 1)
    initialise(network, generators([0], "x"))
    first = network.hidden[0].weight
    assert (first == 0).all()
    obgd = ObGD(network, 2.0, 0.792)
    for _ in range(2):  # the first step gives the second layer something to pass on
        obgd.step(torch.ones(1), obgd.gradients(network(torch.randn(1, 5)).squeeze(-1)), torch.zeros(1))
    assert (first != 0).any()


def test_a_convolution_is_torchs():
    torch.manual_seed(0)
    conv = Conv(2, 3, 5, 3, 2)
    for parameter in conv.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 9, 9)
    for run in range(2):
        weight = conv.linear.weight[run].view(5, 3, 3, 3)
        expected = torch.nn.functional.conv2d(x[run], weight, conv.linear.bias[run], stride=2)
        torch.testing.assert_close(conv(x)[run], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("shape", "strides"), [((4, 10, 10), (1,)), ((2, 84, 84), (5, 3, 2))])
def test_a_network_on_images_is_torchs(shape, strides):
    """After each layer, all units of a run are normalised, and go through LeakyReLU."""
    torch.manual_seed(0)
    network = Network(2, shape, (), 3).to(D)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, *shape, dtype=D)

    def active(h):
        return nn.functional.leaky_relu(nn.functional.layer_norm(h, h.shape))

    for run in range(2):
        h = x[run]
        for conv, stride in zip(network.convolutions, strides, strict=True):
            weight = conv.linear.weight[run].view(-1, h.shape[0], conv.kernel, conv.kernel)
            h = active(nn.functional.conv2d(h, weight, conv.linear.bias[run], stride=stride))
        h = h.flatten()
        for layer in network.hidden:
            h = active(layer.weight[run] @ h + layer.bias[run])
        torch.testing.assert_close(network(x)[run], network.out.weight[run] @ h + network.out.bias[run])


@pytest.mark.parametrize(
    ("shape", "out", "expected"), [((4, 10, 10), 3, 132_179), ((4, 84, 84), 4, 144_804), ((5,), 2, 1_314)]
)
def test_networks_have_the_sizes_of_the_official_ones(shape, out, expected):
    network = Network(1, shape, () if len(shape) == 3 else (32, 32), out)
    assert sum(p.numel() for p in network.parameters()) == expected
