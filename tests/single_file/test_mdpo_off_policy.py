"""Off-policy MDPO. The values are those of the MDPO sheet, section 9, where nothing else is said."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mdpo_off_policy import MDPO, Args, Gaussian, log_q
from scripts import Feed, agent_of, differing, state_of
from torch import Tensor

from algos.errors import UserError
from algos.replay import Batch
from envs import Task

TASK = Task("Made-v0", (1,), 2, False, (-1.0, -1.0), (1.0, 1.0), 50)
BOUNDED = Task("Made-v0", (1,), 2, False, (-0.4, -3.0), (0.4, 3.0), 50)
CHEETAH = Task("Made-v0", (17,), 6, False, (-1.0,) * 6, (1.0,) * 6, 50)
LAMBDA = 0.2


def gaussian(mean: tuple[float, float], log_std: tuple[float, float]) -> Gaussian:
    return Gaussian(*(torch.tensor([[values]], requires_grad=True) for values in (mean, log_std)))


def agent_with(new: Gaussian, old: Gaussian, q: float, c: float, task: Task = TASK) -> MDPO:
    """An agent with given policies, whose first action value is -sum a^2 + sum a / 2, and whose second is -9."""
    agent = agent_of("mdpo_off_policy", seeds=(0,), task=task, q=q, kl_weight=c, entropy_weight=LAMBDA)
    agent.actor.forward, agent.old_actor.forward = lambda obs: new, lambda obs: old

    def values(obs: Tensor, action: Tensor) -> Tensor:
        first = (-action.square() + 0.5 * action).sum(-1)
        return torch.stack([first, torch.full_like(first, -9.0)], 1)

    agent.critic.forward = values
    return agent


NEW, OLD = ((0.3, -0.4), (-0.5, -1.0)), ((0.1, -0.1), (-0.4, -0.8))
NOISE = (0.2, -0.6)


def policy_loss(
    q: float, c: float, old: tuple = OLD, task: Task = TASK
) -> tuple[float, float, list[float], list[float]]:
    """The loss, log_q pi, and the gradients with respect to mean and log standard deviation.

    The second action value is smaller than the first one: the state's value learns from it, and the policy does not.
    """
    new = gaussian(*NEW)
    agent = agent_with(new, gaussian(*old), q, c, task)
    loss, log_new, min_value, _ = agent.policy_loss(torch.zeros(1, 1, 1), torch.tensor([[NOISE]]))
    assert min_value.item() == -9.0
    gradients = torch.autograd.grad(loss.sum(), new)
    return loss.item(), log_new.item(), *(g.flatten().tolist() for g in gradients)


@pytest.mark.parametrize(
    ("q", "c", "log_new", "loss", "mean", "log_std"),
    [
        (1.0, 1.0, -0.002557, 1.248892, (0.980730, -3.399782), (-0.881568, -0.250663)),
        (1.0, 0.2, -0.002557, 0.539769, (0.408668, -1.336447), (-0.150962, 0.093902)),
        (1.4, 1.0, 0.025583, 1.477905, (0.889619, -3.735013), (-0.791521, -0.288001)),
        (2.0, 1.0, 0.068086, 1.756371, (0.777623, -4.092036), (-0.672296, -0.399860)),
    ],
)
def test_the_policys_loss(q, c, log_new, loss, mean, log_std, float64):
    values = policy_loss(q, c)
    assert values[0] == pytest.approx(loss, abs=1e-6)
    assert values[1] == pytest.approx(log_new, abs=1e-6)
    assert values[2] == pytest.approx(mean, abs=1e-6)
    assert values[3] == pytest.approx(log_std, abs=1e-6)


def test_the_policys_loss_is_in_units_of_one_whatever_the_tasks_bounds(float64):
    assert policy_loss(1.4, 1.0, task=BOUNDED) == policy_loss(1.4, 1.0)


@pytest.mark.parametrize(
    ("env_id", "weight"),
    [
        ("HalfCheetah-v5", 0.3), ("HalfCheetah-v4", 0.3), ("gymnasium:HalfCheetah-v5", 0.3), ("Walker2d-v5", 1.0),
        ("Hopper-v5", 1.0),
    ],
)  # fmt: skip
def test_the_weight_of_the_distance_depends_on_the_task(env_id, weight):
    assert Args(env_id=env_id).kl_weight == weight
    assert Args(env_id=env_id, kl_weight=0.7).kl_weight == 0.7


def test_other_defaults_are_those_of_the_sheet():
    args = Args()
    assert (args.refresh_every, args.learning_starts, args.buffer_size, args.batch_size) == (1_000, 10_000, 10**6, 256)
    assert (args.entropy_weight, args.q, args.discount, args.tau) == (0.2, 1.0, 0.99, 0.005)
    assert (args.actor_lr, args.critic_lr, args.hidden) == (3e-4, 3e-4, (256, 256))
    assert (args.explore, args.value_loss) == ("sample", "per_state")


def test_log_standard_deviations_are_clipped_without_a_gradient_beyond():
    actor = agent_of("mdpo_off_policy", seeds=(0,), task=TASK).actor
    actor.net.out.weight.data.zero_()
    actor.net.out.bias.data[0, 0] = torch.tensor([0.0, 0.0, 5.0, -30.0])
    log_std = actor(torch.zeros(1, 1, 1)).log_std
    assert log_std.flatten().tolist() == [2.0, -20.0]
    (slope,) = torch.autograd.grad(log_std.sum(), actor.net.out.bias)
    assert not slope.any()


def test_networks_begin_as_tensorflows_dense_layers_and_have_the_sheets_sizes():
    """In the last layer, mean and log standard deviation begin as two layers of their own."""
    agent = agent_of("mdpo_off_policy", seeds=(0,), task=CHEETAH, hidden=(256, 256))
    layers = [
        (agent.actor.net.hidden[0][0], 17, 256), (agent.actor.net.hidden[1][0], 256, 256),
        (agent.actor.net.out, 256, 6),
        (agent.critic.twins.hidden[0][0], 23, 256), (agent.critic.state.net.hidden[0][0], 17, 256),
    ]  # fmt: skip
    for layer, fan_in, fan_out in layers:
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert 0.995 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    sizes = [sum(p.numel() for p in net.parameters()) for net in (agent.actor, agent.critic.twins, agent.critic.state)]
    assert sizes == [73_484, 144_386, 70_657]


@pytest.mark.parametrize(("q", "expected"), [(1.0, -0.888960), (1.4, -0.814322), (2.0, -0.717503)])
def test_the_old_policys_density_is_of_the_new_policys_action(q, expected, float64):
    new, old = gaussian(*NEW), gaussian(*OLD)
    x = new.mean + new.log_std.exp() * torch.tensor([[NOISE]])
    action = torch.tanh(x)
    assert action.flatten().tolist() == pytest.approx((0.398030, -0.551634), abs=1e-6)
    assert log_q(old.log_density(x, action), q).sum().item() == pytest.approx(expected, abs=1e-6)


def test_with_equal_weights_the_old_policy_plays_no_part_and_this_is_sac(float64):
    here, elsewhere = policy_loss(1.0, LAMBDA), policy_loss(1.0, LAMBDA, old=((1.0, 1.0), (0.5, 0.5)))
    assert here == elsewhere
    loss, log_pi, *_ = here
    value = -0.539531
    assert loss == pytest.approx(LAMBDA * log_pi - value + 0.00075, abs=1e-6)
    assert policy_loss(1.0, 1.0) != policy_loss(1.0, 1.0, old=((1.0, 1.0), (0.5, 0.5)))


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (1.0, (-13.815511, -2.302585, -0.693147, 0, 0.693147)),
        (1.4, (-2.490047, -1.504732, -0.605354, 0, 0.798770)),
        (2.0, (-0.999999, -0.9, -0.5, 0, 1)),
    ],
)
def test_logarithms_of_tsallis(q, expected, float64):
    x = torch.tensor([1e-8, 0.1, 0.5, 1, 2])
    assert log_q(x.log(), q).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_logarithm_is_continuous_in_q_and_flat_below_the_floor(float64):
    log_p = torch.tensor([-20.0, -3.0, 0.0, 2.0], requires_grad=True)
    torch.testing.assert_close(log_q(log_p, 1.0), log_q(log_p, 1 + 1e-9), atol=1e-7, rtol=0)
    for q in (1.0, 1.4, 2.0):
        (slope,) = torch.autograd.grad(log_q(log_p, q).sum(), log_p)
        assert slope.tolist() == pytest.approx([0.0, *torch.exp((q - 1) * log_p[1:]).tolist()])


@pytest.mark.parametrize(
    ("kind", "loss", "gradient"), [("per_state", 1.525, (-0.45, -1.15)), ("broadcast", 1.425, (-0.55, -1.05))]
)
def test_the_states_values_loss(kind, loss, gradient, float64):
    """Pitfall 19 of the sheet."""
    agent = agent_of("mdpo_off_policy", seeds=(0,), task=TASK, entropy_weight=LAMBDA, value_loss=kind)
    value = torch.zeros(1, 2, requires_grad=True)
    zeros = torch.zeros(1, 2)
    agent.critic.forward, agent.target_value.forward = lambda obs, action: torch.zeros(1, 2, 2), lambda obs: zeros
    agent.critic.state.forward = lambda obs: value
    batch = Batch(torch.zeros(1, 2, 1), torch.zeros(1, 2, 2), zeros, torch.zeros(1, 2, 1), zeros)
    ours, _ = agent.critic_loss(batch, torch.tensor([[0.5, -1.5]]), torch.tensor([[1.0, 2.0]]))
    assert ours.item() == pytest.approx(loss)
    (slope,) = torch.autograd.grad(ours.sum(), value)
    assert slope[0].tolist() == pytest.approx(gradient)


def test_action_values_learn_towards_the_target_value_half_squared(float64):
    agent = agent_of("mdpo_off_policy", seeds=(0,), task=TASK, discount=0.9)
    agent.critic.forward = lambda obs, action: torch.tensor([[[1.0, 2.0], [3.0, 5.0]]])
    agent.critic.state.forward = lambda obs: torch.zeros(1, 2)
    agent.target_value.forward = lambda obs: torch.tensor([[10.0, 10.0]])
    zeros = torch.zeros(1, 2)
    rewards, terminated = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])
    batch = Batch(torch.zeros(1, 2, 1), torch.zeros(1, 2, 2), rewards, torch.zeros(1, 2, 1), terminated)
    _, metrics = agent.critic_loss(batch, zeros, zeros)  # targets 10 and 2
    assert metrics["action_loss"].item() == pytest.approx(0.5 * ((81 + 0) / 2 + (49 + 9) / 2))


# -- exact steps over three actions: what the loss must lead to, by these tests' own arithmetic and the script's log_q -


def exact_step(old: Tensor, value: Tensor, q: float, c: float, weight: float) -> Tensor:
    """The policy over finitely many actions that minimises what the loss estimates, by its stationary condition.

    The derivative of pi log_q pi is (q p^(q-1) - 1) / (q - 1), and that of the rest is q (weight - c) log_q p_old - Q.
    The sum of the probabilities fixes the multiplier, by bisection.
    """
    log_old = log_q(old.log(), q)

    def policy(multiplier: float) -> Tensor:
        level = (value - q * (weight - c) * log_old + multiplier) / c
        if q == 1:
            return torch.exp(level - 1)
        return (((q - 1) * level + 1) / q).clamp(min=0) ** (1 / (q - 1))

    low, high = -50.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if policy(middle).sum() < 1 else (low, middle)
    return policy(low)


PRIOR, VALUES = (0.5, 0.3, 0.2), (1.0, 0.0, -1.0)


@pytest.mark.parametrize(
    ("q", "c", "weight", "expected"),
    [
        (1.0, 1.0, 0.2, (0.763655, 0.186691, 0.049654)),
        (1.0, 0.2, 0.2, (0.993262, 0.006693, 0.000045)),
        (1.0, 0.5, 0.0, (0.918672, 0.074597, 0.006730)),
        (1.0, 2.0, 0.0, (0.661783, 0.240835, 0.097382)),  # the step of the on-policy method with t = 0.5
        (1.4, 1.0, 0.2, (0.79877, 0.19153, 0.00970)),
        (2.0, 1.0, 0.2, (0.83, 0.17, 0.0)),
    ],
)
def test_the_exact_step(q, c, weight, expected, float64):
    policy = exact_step(torch.tensor(PRIOR), torch.tensor(VALUES), q, c, weight)
    assert policy.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("q", "c"), [(1.0, 1.0), (1.4, 1.0), (2.0, 1.0), (1.0, 0.2)])
def test_the_loss_has_its_minimum_at_the_exact_step(q, c, float64):
    """Natural gradient descent on its mean over three actions, each of which is the action of one run."""
    old, value, zero = torch.tensor(PRIOR), torch.tensor(VALUES), torch.zeros(3, 1, 1)
    agent = agent_of("mdpo_off_policy", (0, 1, 2), TASK, q=q, kl_weight=c, entropy_weight=LAMBDA)

    def policy(log_p: Tensor) -> SimpleNamespace:
        return SimpleNamespace(mean=zero, log_std=zero, log_density=lambda *_: log_p[:, None, None])

    agent.old_actor.forward = lambda obs: policy(old.log())
    agent.critic.forward = lambda obs, action: value[:, None, None].expand(3, 2, 1)
    logits = old.log().requires_grad_()
    for _ in range(100):
        log_p = logits.log_softmax(0)
        agent.actor.forward = lambda obs, log_p=log_p: policy(log_p)
        terms, *_ = agent.policy_loss(zero, zero)
        (slope,) = torch.autograd.grad((log_p.exp() * terms).sum(), logits)
        logits = (logits - 0.5 * slope / log_p.exp()).detach().requires_grad_()
    expected = exact_step(old, value, q, c, LAMBDA)
    torch.testing.assert_close(logits.softmax(0).detach(), expected, atol=1e-5, rtol=0)


def test_iterations_converge_to_the_soft_optimal_policy(float64):
    policy, value = torch.full((3,), 1 / 3), torch.tensor(VALUES)
    first = []
    for _ in range(60):
        policy = exact_step(policy, value, 1.0, 1.0, LAMBDA)
        first.append(policy[0].item())
    assert [first[k] for k in (0, 1, 2, 9)] == pytest.approx((0.665241, 0.838488, 0.913444, 0.988475), abs=1e-6)
    torch.testing.assert_close(policy, (value / LAMBDA).softmax(0), atol=1e-5, rtol=0)


# -- the update --------------------------------------------------------------------------------------------------------


def test_the_old_policy_moves_only_when_it_is_due_and_then_becomes_the_present_one():
    agent = agent_of("mdpo_off_policy", refresh_every=3)
    for _, (batch, draws, due) in zip(range(6), Feed(agent), strict=False):
        before = state_of(agent)
        agent.update(batch, draws, due)
        moved = {name.partition(".")[0] for name in differing(before, state_of(agent))}
        always = {"actor", "critic", "actor_adam", "critic_adam", "target_value"}
        assert moved == always | ({"old_actor"} if due else set())
        if due:
            for old, new in zip(agent.old_actor.net.parameters(), agent.actor.parameters(), strict=True):
                assert torch.equal(old, new)


def test_an_update_equals_the_algorithm_written_for_one_run(float64):
    """All losses come from the parameters before the update, and only their own parameters move."""
    flags = {"kl_weight": 0.7, "q": 1.4, "actor_lr": 0.01, "critic_lr": 0.02}
    agent, twin, run = agent_of("mdpo_off_policy", **flags), agent_of("mdpo_off_policy", **flags), 1
    batch, draws, _ = next(Feed(agent))
    agent.update(batch, draws, False)
    policy_loss, log_new, min_value, _ = twin.policy_loss(batch.obs, draws.action)
    critic_loss, _ = twin.critic_loss(batch, log_new, min_value)
    parts = (policy_loss, twin.actor, agent.actor, 0.01), (critic_loss, twin.critic, agent.critic, 0.02)
    for loss, module, optimised, lr in parts:
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss[run], parameters)
        for p, g, moved in zip(parameters, gradients, optimised.parameters(), strict=True):
            expected = p[run] - lr * g[run] / (g[run].abs() + 1e-8)  # the first step of Adam
            torch.testing.assert_close(moved[run], expected, atol=1e-10, rtol=0)
    targets = zip(agent.target_value.net.parameters(), twin.critic.state.parameters(), strict=True)
    for (target, start), new in zip(targets, agent.critic.state.parameters(), strict=True):
        torch.testing.assert_close(target, 0.995 * start + 0.005 * new, atol=1e-12, rtol=0)


def test_actions_are_in_the_tasks_bounds_and_learned_from_in_units_of_one():
    agent = agent_of("mdpo_off_policy", task=BOUNDED)
    action = agent.act(torch.zeros(2, 500, 1), 5 * torch.randn(2, 500, 2)).abs().amax((0, 1))
    assert 0.39 < action[0] <= 0.4
    assert 2.9 < action[1] <= 3.0
    seen = []
    agent = agent_of("mdpo_off_policy", task=replace(BOUNDED, low=(-0.2, -4.0), high=(0.6, 2.0)))
    forward = agent.critic.forward
    agent.critic.forward = lambda obs, action: seen.append(action) or forward(obs, action)
    zeros = torch.zeros(2, 1)
    batch = Batch(torch.zeros(2, 1, 1), torch.tensor([[[0.4, -4.0]]] * 2), zeros, torch.zeros(2, 1, 1), zeros)
    agent.critic_loss(batch, zeros, zeros)
    torch.testing.assert_close(seen[0], torch.tensor([[[0.5, -1.0]]] * 2))


def test_the_entropy_that_is_logged_is_that_of_the_actions():
    agent = agent_of("mdpo_off_policy")
    _, log_new, _, metrics = agent.policy_loss(torch.randn(2, 8, 7), torch.randn(2, 8, 2))
    torch.testing.assert_close(metrics["entropy"], -log_new.mean(-1))


def test_with_explore_mean_noise_does_nothing():
    obs, noise = torch.randn(2, 3, 7), torch.randn(2, 3, 2)
    sampling, plain = agent_of("mdpo_off_policy"), agent_of("mdpo_off_policy", explore="mean")
    assert torch.equal(plain.act(obs, noise), sampling.policy(obs))
    assert not torch.equal(sampling.act(obs, noise), sampling.policy(obs))


def test_exploring_actions_have_the_policys_spread():
    agent = agent_of("mdpo_off_policy", seeds=(0,), task=TASK)
    agent.actor.forward = lambda obs: gaussian((0.1, -0.2), (-2.0, -1.0))
    noise = torch.tensor([[[1.0, -0.5]]])
    expected = torch.tanh(torch.tensor([0.1 + math.exp(-2.0), -0.2 - 0.5 * math.exp(-1.0)]))
    torch.testing.assert_close(agent.act(torch.zeros(1, 1, 1), noise).flatten(), expected)


def test_learning_begins_after_the_random_steps_and_the_old_policy_is_renewed_on_time(train, monkeypatch):
    """Steps count from 1 here and from 0 in the sheet, by which the copy is made at the multiples of m."""
    due, update = [], MDPO.update
    monkeypatch.setattr(MDPO, "update", lambda agent, *given: due.append(given[-1]) or update(agent, *given))
    short = {"env_id": "Pendulum-v1", "batch_size": 4, "hidden": (8,), "eval_episodes": 0}
    train("mdpo_off_policy", learning_starts=3, refresh_every=2, total_steps=8, **short)
    assert due == [False, True, False, True, False]  # steps 3 to 7, counted from 0


@pytest.mark.parametrize(
    ("flags", "got"), [({"kl_weight": 0.1}, "0.1 and 0.2"), ({"vary": ("kl_weight=1,0.05",)}, "0.05 and 0.2")]
)
def test_a_weight_with_which_the_policy_does_not_converge_is_refused(flags, got):
    with pytest.raises(UserError, match=rf"--kl-weight must be above half of --entropy-weight.*got {got}"):
        agent_of("mdpo_off_policy", task=TASK, **flags)


def test_at_the_weight_that_is_refused_an_exact_step_only_turns_the_preferences_round(float64):
    policy, value = torch.tensor(PRIOR), 0.1 * torch.tensor(VALUES)
    twice = exact_step(exact_step(policy, value, 1.0, LAMBDA / 2, LAMBDA), value, 1.0, LAMBDA / 2, LAMBDA)
    torch.testing.assert_close(twice, policy, atol=1e-6, rtol=0)
    assert not math.isclose(exact_step(policy, value, 1.0, LAMBDA / 2, LAMBDA)[0].item(), policy[0].item())
