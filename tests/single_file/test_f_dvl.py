"""f-DVL against hand-computed values, with chi-square and with total variation."""

import f_dvl
import pytest
import torch
from offline_data import (
    BATCH,
    Plain,
    at_random,
    batch_of,
    chain_values,
    derivative,
    huber,
    learned_chain,
    offline_agent,
    trained_value,
)

from algos.arguments import check
from algos.errors import UserError

D = torch.tensor([[-6.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0]])


def agent(**overrides):
    return offline_agent("f_dvl", **overrides)


@pytest.mark.parametrize(
    ("f", "optimism", "losses"),
    [
        ("chi2", 0.8, [3.6, 0.8, 0.4, 0.2, 0.0, 0.8, 2.0]),
        ("chi2", 0.6, [4.2, 1.6, 0.8, 0.4, 0.0, 0.35, 1.0]),
        ("tv", 0.8, [1.2, 0.8, 0.4, 0.2, 0.0, 0.6, 1.2]),
        ("tv", 0.6, [2.4, 1.6, 0.8, 0.4, 0.0, 0.2, 0.4]),
    ],
)
def test_value_loss_by_hand(f, optimism, losses):
    torch.testing.assert_close(agent(f=f, optimism=optimism).value_loss(D), torch.tensor([losses]))


def test_critic_loss_by_hand():
    """Half the squared error up to 20, and 20 (|error| - 10) beyond: of the twins' means here, 200.25 and 100."""
    one = agent()
    one.critic.forward = lambda obs, action: torch.tensor([[[1.0, 30.0], [0.0, -20.0]]] * 2)
    loss = one.critic_loss(None, None, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(loss, torch.tensor([200.25 + 100.0, 200.0 + 100.25]))


@pytest.mark.parametrize(
    ("f", "advantages", "slopes"),
    [("chi2", [-6.0, -3.0, -1.0, 0.5], [1.8, 0.2, 0.2, -0.8]), ("tv", [-1.0, 1.0], [0.2, -0.6])],
)
def test_derivative_of_the_value_loss_by_hand(f, advantages, slopes):
    loss, q = agent(f=f, optimism=0.8).value_loss, torch.tensor(advantages)[:, None]
    torch.testing.assert_close(derivative(loss, q, torch.zeros(len(q))), torch.tensor(slopes))


@pytest.mark.parametrize(
    ("f", "optimism", "q", "low", "high"),
    [
        ("chi2", 0.5, [0, 1, 2, 3], 1.0, 1.0),
        ("chi2", 0.6, [0, 1, 2, 3], 1.8333, 1.8333),
        ("chi2", 0.8, [0, 1, 2, 3], 3.0, 3.0),
        ("chi2", 0.8, [0, 10], 6.5, 6.5),
        ("chi2", 0.8, [0, 100], 51.5, 51.5),  # where V is far above Q, it is pulled down
        ("tv", 0.6, [0, 1, 2, 3], 1.0, 1.0),
        ("tv", 0.8, [0, 1, 2, 3], 2.0, 3.0),
    ],
)
def test_a_trained_value_is_the_minimum(f, optimism, q, low, high, float64):
    loss = agent(f=f, optimism=optimism).value_loss
    value = trained_value(loss, [float(x) for x in q], start=40.0 if 100 in q else 0.0)
    assert low - 2e-3 < value < high + 2e-3


@pytest.mark.parametrize(
    ("f", "optimism", "values"),
    [
        ("chi2", 0.7, [0.6561, 0.729, 0.81, 0.9, 1.0]),
        ("chi2", 0.65, [0.0261, 0.1999, 0.3931, 0.6077, 0.8462]),
        ("chi2", 0.6, [0.0, 0.0, 0.0, 0.0, 0.3333]),
        ("chi2", 0.55, [0.0, 0.0, 0.0, 0.0, 0.0]),
        ("tv", 0.7, [0.6561, 0.729, 0.81, 0.9, 1.0]),
        ("tv", 0.6, [0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_values_of_the_chain(f, optimism, values, float64):
    learned = chain_values(agent(f=f, optimism=optimism).value_loss)
    torch.testing.assert_close(learned, torch.tensor(values), atol=1e-4, rtol=0)


@pytest.mark.parametrize("f", ["chi2", "tv"])
def test_three_updates_equal_the_algorithm_written_for_one_run(f, float64):
    """The agent has dropout, and a learning rate that falls along a cosine."""
    data, one = at_random(), agent(f=f, dropout=0.3, total_steps=4, lr=0.01, tau=0.1)

    def loss(d):
        y = d + d**2 / 4 if f == "chi2" else d
        return 0.8 * torch.maximum(y, torch.zeros(())) - 0.2 * d

    plain = Plain(one, 1, loss, decay=4)
    for k in range(3):
        torch.manual_seed(k)
        batch, uniform = batch_of(data, k), torch.rand(2, 2, BATCH, 8)
        plain.update(batch, huber, uniform[1])
        one.update(batch, f_dvl.Draws(uniform))
    plain.assert_same(one)


@pytest.mark.parametrize("f", ["chi2", pytest.param("tv", marks=pytest.mark.slow)])
def test_it_learns_to_walk_right(f):
    action, value = learned_chain("f_dvl", f=f, optimism=0.8)
    assert (action > 0.05).all()
    greatest = torch.tensor([0.6561, 0.729, 0.81, 0.9, 1.0])
    torch.testing.assert_close(value, greatest.expand(2, 5), atol=0.15, rtol=0)


def test_the_weight_must_be_above_a_half_and_at_most_1():
    check(f_dvl.Args(optimism=1.0))
    for optimism in (0.5, 1.1, 5.0):
        with pytest.raises(UserError, match="--optimism must lie in"):
            check(f_dvl.Args(optimism=optimism))


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        ("d4rl/hopper-medium-v2", ("range", 3.0, 0.0, "cosine")),
        ("d4rl/antmaze-large-play-v0", ("minus_one", 10.0, 0.0, "none")),
        ("d4rl/kitchen-complete-v0", ("none", 0.5, 0.1, "cosine")),
        ("d4rl/door-human-v0", ("none", 0.5, 0.1, "cosine")),
    ],
)
def test_settings_depend_on_the_domain(dataset, settings):
    args = f_dvl.Args(dataset=dataset)
    assert (args.reward, args.temperature, args.dropout, args.decay) == settings
    assert (args.batch_size, args.f, args.optimism, args.total_steps) == (1024, "chi2", 0.8, 1_000_000)
