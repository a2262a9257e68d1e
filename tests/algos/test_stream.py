"""The values are those of the stream-x sheet, section 9, computed with the official classes in float64."""

import math

import pytest
import torch
from torch import nn

from algos.errors import UserError
from algos.nn import initialise
from algos.random import generators
from algos.stream import (
    Clock,
    Conv,
    Features,
    Network,
    ObGD,
    RewardScaler,
    SparseLinear,
    Statistics,
    activate,
    time_limit,
)
from envs import Task

D = torch.float64


class Two(nn.Module):
    """Two parameters of one run, as a module."""

    def __init__(self, runs=1, size=2):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(runs, size, dtype=D))


def feed(obgd, network, delta, direction, reset=0.0):
    before = network.w.detach().clone()
    obgd.step(torch.tensor([delta], dtype=D), [torch.tensor([direction], dtype=D)], torch.tensor([reset], dtype=D))
    return (network.w - before)[0].tolist()


def test_obgd():
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.792)
    assert feed(obgd, network, 0.5, (1, -0.5)) == pytest.approx([1 / 6, -1 / 12])
    assert obgd.trace0[0].tolist() == [1, -0.5]
    assert feed(obgd, network, -2.0, (0.2, 2)) == pytest.approx([-0.191063174, -0.308936826])
    assert obgd.trace0[0].tolist() == pytest.approx([0.992, 1.604])
    assert feed(obgd, network, 3.0, (0.001, 0), reset=1.0) == pytest.approx([0.191213360, 0.308786640])
    assert obgd.trace0[0].tolist() == [0, 0]
    assert feed(obgd, network, 0.01, (0.001, -0.002)) == pytest.approx([1e-5, -2e-5])


def test_adaptive_obgd():
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.792, adaptive=True).double()
    assert feed(obgd, network, 0.5, (1, -0.5)) == pytest.approx([0.125, -0.125], abs=1e-7)
    assert feed(obgd, network, -2.0, (0.2, 2), reset=1.0) == pytest.approx([-0.246533451, -0.253466549])
    assert feed(obgd, network, 3.0, (0.001, 0)) == pytest.approx([0.002539695, 0], abs=1e-9)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("delta", [-3.0, 0.4, 1.0])
def test_a_bounded_step_has_its_length_whatever_the_network(adaptive, delta):
    torch.manual_seed(0)
    network = Two(3, 50)
    obgd = ObGD(network, kappa=3.0, trace_decay=0.792, adaptive=adaptive)
    for _ in range(5):
        before = network.w.detach().clone()
        obgd.step(torch.full((3,), delta, dtype=D), [torch.randn(3, 50, dtype=D)], torch.zeros(3, dtype=D))
    moved = (network.w - before).abs().sum(1)
    torch.testing.assert_close(moved, torch.full((3,), min(abs(delta), 1) / 3, dtype=D).detach())


def test_one_norm_is_of_the_whole_network_and_of_one_run():
    network = nn.ModuleList([Two(2), Two(2)])
    obgd = ObGD(network, kappa=2.0, trace_decay=0.0)
    one = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=D)
    two = torch.tensor([[3.0, 4.0], [0.0, 0.1]], dtype=D)
    bound = obgd.step(torch.ones(2, dtype=D), [one, two], torch.zeros(2, dtype=D))
    assert bound.tolist() == pytest.approx([20.0, 0.2])


@pytest.mark.parametrize(("trace", "expected"), [(0.8, (0.220982143, 0.279017857)), (0.0, (0.0, 0.5))])
def test_two_state_chain(trace, expected):
    network = Two()
    obgd = ObGD(network, kappa=2.0, trace_decay=0.99 * trace)
    states = torch.eye(2, dtype=D)
    for t, (reward, done) in enumerate([(0.0, 0.0), (1.0, 1.0)]):
        value = (network.w * states[t]).sum(1)
        following = 0.99 * (1 - done) * (network.w * states[1]).sum(1)
        obgd.step((reward + following - value).detach(), obgd.gradients(value), torch.tensor([done], dtype=D))
    assert network.w[0].tolist() == pytest.approx(list(expected), abs=1e-8)


def test_small_kappa_is_plain_td_with_traces_and_no_error_is_no_step():
    network, plain = Two(), torch.zeros(2, dtype=D)
    obgd = ObGD(network, kappa=1e-6, trace_decay=0.5, lr=0.1)
    trace = torch.zeros(2, dtype=D)
    for delta, g in ((0.5, (1.0, 2.0)), (-3.0, (0.5, 0.0)), (0.0, (9.0, 9.0))):
        feed(obgd, network, delta, g)
        trace = 0.5 * trace + torch.tensor(g, dtype=D)
        plain += 0.1 * delta * trace
    torch.testing.assert_close(network.w[0].detach(), plain)


def test_welford():
    statistics = Statistics(1, 1)
    expected = [(2, 1, 0), (3, 2, 0.707107), (5, 13, 1.109400), (3.5, 17.6667, -1.070620)]
    for x, (mean, variance, normalised) in zip((2.0, 4.0, 9.0, -1.0), expected, strict=True):
        sample = torch.tensor([[x]], dtype=D)
        statistics.update(sample)
        assert statistics.mean.item() == pytest.approx(mean)
        assert statistics.variance().item() == pytest.approx(variance, abs=1e-4)
        assert statistics.normalise(sample).item() == pytest.approx(normalised, abs=1e-6)


def test_statistics_of_other_runs_stay_bitwise():
    statistics = Statistics(2, 3)
    for _ in range(5):
        statistics.update(torch.randn(2, 3, dtype=D))
    before = [b.clone() for b in statistics.buffers()]
    statistics.update(torch.full((2, 3), math.nan, dtype=D), here=torch.tensor([1.0, 0.0]))
    for old, new in zip(before, statistics.buffers(), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])


def test_rewards_are_scaled_and_a_last_reward_leaks_into_the_next_episode():
    scaler = RewardScaler(1, 0.99)
    stream = [(1, 0), (2, 0), (3, 1), (-1, 0), (0.5, 0)]
    totals, scaled = (1, 2.99, 3, 1.97, 2.4503), (1.0, 1.421320, 2.604563, -1.044352, 0.599116)
    for (reward, done), total, expected in zip(stream, totals, scaled, strict=True):
        out = scaler(torch.tensor([float(reward)], dtype=D), torch.tensor([float(done)], dtype=D))
        assert scaler.total.item() == pytest.approx(total)
        assert out.item() == pytest.approx(expected, abs=1e-6)


def test_the_first_reward_after_many_zeros_is_large():
    scaler = RewardScaler(1, 0.99)
    for reward in [0.0] * 99 + [1.0]:
        out = scaler(torch.tensor([reward], dtype=D), torch.zeros(1, dtype=D))
    assert out.item() == pytest.approx(10.0, abs=1e-5)


def test_time_begins_with_the_first_step():
    clock = Clock(2, 4)
    for _ in range(2):
        clock.start(torch.tensor([1.0, 0.0]))
        assert clock.time[0] == -0.5
        assert [clock.tick()[0].item() for _ in range(4)] == [-0.5, -0.25, 0.0, 0.25]
    assert clock.time[1] == 1.5  # of the run that did not begin anew


def test_features_of_the_first_observation_are_zero_and_the_time():
    features = Features(2, Task("Made-v0", (3,), 1, False, (-1.0,), (1.0,), 10))
    first = features.start(torch.randn(2, 3, dtype=D), torch.ones(2))
    assert first.tolist() == [[0, 0, 0, -0.5]] * 2


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
    initialise(layer, 3, generators([0, 1, 2], "x"))
    assert ((layer.weight != 0).sum(-1) == kept).all()
    assert layer.weight.abs().max() <= 1 / math.sqrt(inputs)
    assert (layer.bias == 0).all()
    assert kept == 0 or not torch.equal(layer.weight[0] != 0, layer.weight[1] != 0)


def test_zeros_of_the_start_are_learned():
    network = Network(1, (5,), (16, 16), 1)
    initialise(network, 1, generators([0], "x"))
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


def test_frames_are_stacked_as_they_were_normalised_and_the_first_fills_the_stack():
    features = Features(2, Task("Made-v0", (1, 84, 84), 3, True, (), (), 0))
    assert features.out_shape == (4, 84, 84)
    obs = torch.randn(4, 2, 84 * 84, dtype=D)
    assert (features.start(obs[0], torch.ones(2)) == 0).all()
    one, two = features(obs[1]).clone(), features(obs[2]).clone()
    assert torch.equal(two[:, 2], one[:, 3]) and (two[:, :2] == 0).all() and (two[:, 3] != 0).any()
    again = features.start(obs[3], torch.tensor([0.0, 1.0]))
    assert torch.equal(features.frames[0], two[0]) and torch.equal(features.frames[1], again[1])
    assert torch.equal(again[1, 0], again[1, 3])


@pytest.mark.parametrize(
    ("shape", "out", "expected"), [((4, 10, 10), 3, 132_179), ((4, 84, 84), 4, 144_804), ((5,), 2, 1_314)]
)
def test_networks_have_the_sizes_of_the_official_ones(shape, out, expected):
    network = Network(1, shape, () if len(shape) == 3 else (32, 32), out)
    assert sum(p.numel() for p in network.parameters()) == expected


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match="images of 64x64; this needs 10x10 or 84x84"):
        Features(1, Task("Made-v0", (3, 64, 64), 3, True, (), (), 0))


def test_all_of_adaptive_obgd_lives_where_its_network_does():
    network = Network(2, (12,), (16,), 1).to("meta")
    assert all(buffer.device.type == "meta" for buffer in ObGD(network, 2.0, 0.8, adaptive=True).buffers())


@pytest.mark.parametrize(("env_id", "wanted", "limit"), [("CartPole-v1", 0, 10_000), ("Hopper-v5", 0, None),
                                                          ("CartPole-v1", 500, 500), ("Hopper-v5", 7, 7)])  # fmt: skip
def test_classic_control_runs_longer(env_id, wanted, limit):
    assert time_limit(env_id, wanted).get("max_episode_steps") == limit


def test_images_have_no_clock():
    assert Features(1, Task("Made-v0", (4, 10, 10), 3, True, (), (), 500)).out_shape == (4, 10, 10)
