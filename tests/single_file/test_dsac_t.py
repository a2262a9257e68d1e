"""DSAC-T against hand-computed values and known limits."""

import math

import dsac_t
import pytest
import torch
from dsac_t import huber_loss, paper_loss
from scripts import agent_of, batch_and_draws, needs_compiler

from algos.replay import Batch
from envs import Task

Q = torch.tensor([[[1.0, -2.0, 30.0]]])
STD = torch.tensor([[[0.5, 2.0, 4.0]]])
MEAN_TARGET = torch.tensor([[[2.0, -2.5, 100.0]]])
SAMPLE_TARGET = torch.tensor([[[4.0, -12.0, 120.0]]])
RUNNING_STD = torch.tensor([[[2.0]]])


def gradients(loss, q=Q, std=STD, mean_target=MEAN_TARGET, sample_target=SAMPLE_TARGET, running_std=RUNNING_STD):
    q, std = q.clone().requires_grad_(), std.clone().requires_grad_()
    value = loss(q, std, mean_target, sample_target, running_std)
    return value.detach(), *torch.autograd.grad(value.sum(), (q, std))


def test_paper_loss_by_hand():
    value, dq, dstd = gradients(paper_loss)
    torch.testing.assert_close(dq.squeeze(), torch.tensor([-3.9048, 0.1667, -5.9420]), atol=1e-4, rtol=0)
    torch.testing.assert_close(dstd.squeeze(), torch.tensor([-53.1481, -5.3992, -0.4264]), atol=1e-4, rtol=0)
    assert value.item() == pytest.approx(-221.57706, abs=1e-4)


def test_huber_loss_by_hand():
    value, dq, dstd = gradients(huber_loss)
    torch.testing.assert_close(dq.squeeze(), torch.tensor([-3.3333, 0.1626, -4.1408]), atol=1e-4, rtol=0)
    torch.testing.assert_close(dstd.squeeze(), torch.tensor([-23.6111, -2.1680, -0.0404]), atol=1e-4, rtol=0)
    assert value.item() == pytest.approx(171.73953, abs=1e-4)


def test_huber_loss_beyond_its_bounds_by_hand():
    """The scale 0.01 / 16.1 counts as 0.1, and 900 / 16.1 as 10; a clipped error of 90 counts 50 (90 - 25) = 3,250."""
    q, std, target = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 4.0), torch.full((1, 1, 1), 100.0)
    for running, scale, clipped in ((0.1, 0.1, 0.5 * 0.3**2), (30.0, 10.0, 3250.0)):
        _, dq, dstd = gradients(huber_loss, q, std, target, target, torch.full((1, 1, 1), running))
        assert dq.item() == pytest.approx(-50 * scale)
        assert dstd.item() == pytest.approx(scale * (16 - clipped) / 4.1)


def test_mean_target_is_not_clipped_and_sample_target_is():
    far = MEAN_TARGET + 1e3
    assert (gradients(paper_loss, mean_target=far)[1] < gradients(paper_loss)[1]).all()
    further = SAMPLE_TARGET + 1e3 * torch.sign(SAMPLE_TARGET - Q)
    torch.testing.assert_close(
        gradients(paper_loss, sample_target=further)[2][..., 1:], gradients(paper_loss)[2][..., 1:]
    )


def test_gradients_scale_with_the_returns(float64):
    q, std, mean_target, sample_target, m = (x.double() * 20 for x in (Q, STD, MEAN_TARGET, SAMPLE_TARGET, RUNNING_STD))
    small = gradients(paper_loss, q, std, mean_target, sample_target, m)
    large = gradients(paper_loss, *(100 * x for x in (q, std, mean_target, sample_target, m)))
    for a, b in zip(small[1:], large[1:], strict=True):
        torch.testing.assert_close(100 * a, b, rtol=2e-3, atol=0)  # 0.1 / sigma^2 = 1e-3 at sigma = 10


def test_constant_std_and_wide_clip_is_half_the_mean_squared_error():
    m = torch.full((1, 1, 1), 3.0)
    _, dq, _ = gradients(paper_loss, std=torch.full_like(STD, 3.0), running_std=m)
    torch.testing.assert_close(dq, (Q - MEAN_TARGET) / 3)


def task_of(high=1.0, obs_size=3, act_size=2):
    return Task("Made-v0", (obs_size,), act_size, False, (-high,) * act_size, (high,) * act_size, 0)


@pytest.mark.parametrize(("half_range", "expected"), [(1.0, 0.0063252), (0.4, 1.8389067), (2.0, -1.3799691)])
def test_log_density_by_hand(half_range, expected, float64, monkeypatch):
    actor = dsac_t.Actor(1, task_of(half_range), (4,))
    mean, std, u = torch.tensor([[[0.0, -1.0]]]), torch.tensor([[[1.0, 0.5]]]), torch.tensor([[[0.3, -1.2]]])
    monkeypatch.setattr(actor, "forward", lambda obs: (mean, std.log()))
    action, log_prob = actor.sample(torch.zeros(1, 1, 3), (u - mean) / std)
    torch.testing.assert_close(action, half_range * torch.tanh(u))
    assert log_prob.item() == pytest.approx(expected, abs=2e-6)


def test_log_standard_deviations_of_actions_are_from_minus_20_to_a_half():
    agent = agent_of("dsac_t")
    agent.actor.net.out.weight.data.zero_()
    agent.actor.net.out.bias.data[:] = torch.tensor([1.5, -1.5, 0.6, -21.0])
    mean, log_std = agent.actor(torch.randn(2, 16, 7))
    torch.testing.assert_close(mean, torch.tensor([1.5, -1.5]).expand(2, 16, 2))
    torch.testing.assert_close(log_std, torch.tensor([0.5, -20.0]).expand(2, 16, 2))


def test_running_std_starts_at_the_first_batch_and_then_averages(float64, monkeypatch):
    agent = agent_of("dsac_t", seeds=(0,))
    batch, draws = batch_and_draws(agent)
    means = []
    for std in (1.0, 2.0, 0.5):
        monkeypatch.setattr(
            agent.critic, "forward", lambda o, a, s=std: (torch.zeros(1, 2, 16), torch.full((1, 2, 16), s))
        )
        agent.critic_loss(batch, draws.next_action, draws.returns)
        means.append(agent.running_std[0, 0, 0].item())
    assert means == pytest.approx([1, 1.005, 1.002475])


def snapshot(agent):
    modules = {name: list(module.parameters()) for name, module in agent.named_children()}
    state = {name: torch.cat([p.detach().flatten().clone() for p in ps]) for name, ps in modules.items() if ps}
    return state | {"log_alpha": agent.log_alpha.detach().clone()}


def test_actor_temperature_and_targets_move_at_every_second_update():
    agent = agent_of("dsac_t")
    for k in range(4):
        before = snapshot(agent)
        agent.update(*batch_and_draws(agent, k), k % agent.args.actor_delay == 0)
        after = snapshot(agent)
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        everything = {"actor", "critic", "target_actor", "target_critic", "log_alpha"}
        assert moved == (everything if k % 2 == 0 else {"critic"})


def test_actor_gradient_is_taken_before_the_critic_step():
    agent = agent_of("dsac_t")
    batch, draws = batch_and_draws(agent)
    loss, _ = agent.actor_loss(batch.obs, draws.action)
    expected = torch.autograd.grad(loss.sum(), list(agent.actor.parameters()))
    agent.update(batch, draws, True)
    for i, gradient in enumerate(expected):
        mean = agent.actor_adam.get_buffer(f"mean{i}")
        torch.testing.assert_close(mean, 0.1 * gradient)  # Adam's first moment after its first step


def test_target_action_comes_from_the_target_policy():
    agent = agent_of("dsac_t")
    batch, draws = batch_and_draws(agent)
    before = agent.targets(batch, draws.next_action, draws.returns)
    with torch.no_grad():
        for p in agent.actor.parameters():
            p.add_(1.0)
    for a, b in zip(before, agent.targets(batch, draws.next_action, draws.returns), strict=True):
        assert torch.equal(a, b)


def test_with_constant_std_and_online_targets_the_critic_gradient_is_half_of_sacs(float64, monkeypatch):
    """Delay 1, target policy and critics equal to the online ones, no clip: half the mean squared error's gradient."""
    agent = agent_of("dsac_t")
    batch, draws = batch_and_draws(agent)
    forward = agent.critic.forward
    monkeypatch.setattr(agent.critic, "forward", lambda o, a: (forward(o, a)[0], torch.full((2, 2, 16), 40.0)))
    ours = agent.critic_adam.gradients(agent.critic_loss(batch, draws.next_action, draws.returns)[0])[:-1]

    with torch.no_grad():
        next_action, next_log_prob = agent.actor.sample(batch.next_obs, draws.next_action)
        value = forward(batch.next_obs, next_action)[0].amin(1) - math.e * next_log_prob
        y = batch.reward + 0.99 * (1 - batch.terminated) * value
    mean = forward(batch.obs, batch.action)[0]
    half = 0.5 * (mean - y[:, None]).square().mean(-1).sum()
    theirs = torch.autograd.grad(half, list(agent.critic.parameters()))[:-1]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_targets_follow_the_smaller_mean_and_clamp_z(monkeypatch):
    agent = agent_of("dsac_t", seeds=(0,))
    # the third is a tie, where the second critic's sample counts; the fourth is terminal
    mean = torch.tensor([[[1.0, 5.0, 2.0, 7.0], [3.0, 4.0, 2.0, 8.0]]])
    std = torch.tensor([[[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]])
    z = torch.tensor([[[10.0, 1.0, 1.0, 1.0], [1.0, -10.0, 1.5, 1.0]]])
    monkeypatch.setattr(agent.target_critic, "forward", lambda o, a: (mean, std))
    monkeypatch.setattr(agent.target_actor.net, "sample", lambda o, n: (torch.zeros(1, 4, 2), torch.full((1, 4), 0.5)))
    reward, terminated = torch.tensor([[0.0, 1.0, 0.0, 2.0]]), torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    batch = Batch(torch.zeros(1, 4, 3), torch.zeros(1, 4, 2), reward, torch.zeros(1, 4, 3), terminated)
    mean_target, sample_target = agent.targets(batch, torch.zeros(1, 4, 2), z)
    entropy = -math.e * 0.5
    means = [0.99 * (1 + entropy), 1 + 0.99 * (4 + entropy), 0.99 * (2 + entropy), 2.0]
    samples = [0.99 * (4 + entropy), 1 + 0.99 * (-2 + entropy), 0.99 * (5 + entropy), 2.0]
    torch.testing.assert_close(mean_target[0, 0], torch.tensor(means))
    torch.testing.assert_close(sample_target[0, 0], torch.tensor(samples))


def test_actor_and_temperature_losses_are_their_formulas(float64):
    """Means over the batch of alpha log pi - min Q; the temperature's gradient is -(mean log pi + H), H = -A."""
    agent = agent_of("dsac_t")
    batch, draws = batch_and_draws(agent)
    obs = batch.obs
    loss, log_prob = agent.actor_loss(obs, draws.action)
    action, log_probs = agent.actor.sample(obs, draws.action)
    first, second = agent.critic(obs, action)[0].unbind(1)
    torch.testing.assert_close(loss, (math.e * log_probs - torch.minimum(first, second)).mean(1))
    torch.testing.assert_close(log_prob, log_probs.mean(1))
    (gradient,) = agent.alpha_adam.gradients(agent.alpha_loss(log_prob))
    torch.testing.assert_close(gradient, -(log_probs.mean(1) - 2))
    assert agent.alpha_adam.lr == 3e-4 and agent.actor_adam.lr == agent.critic_adam.lr == 1e-4


@pytest.mark.parametrize(("loss", "expected"), [(paper_loss, 1.995), (huber_loss, 1.362)])
def test_std_settles_at_its_fixed_point(loss, expected):
    """Constant mean 0, returns N(0, 2^2), no bootstrapping; the huber variant settles at 2/sqrt(2) less the clip."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.zeros(1, 1, 1, requires_grad=True)
    adam, running, history = torch.optim.Adam([raw], lr=2e-2), torch.ones(1, 1, 1), []
    for step in range(2_000):
        std = torch.nn.functional.softplus(raw).expand(1, 1, 512)
        sample = 2 * torch.randn(1, 1, 512, generator=generator)
        running = running + 0.05 * (std.detach().mean(-1, keepdim=True) - running)
        adam.zero_grad()
        loss(torch.zeros(1, 1, 512), std, torch.zeros(1, 1, 512), sample, running).sum().backward()
        adam.step()
        if step >= 1_000:
            history.append(std[0, 0, 0].item())
    assert sum(history) / len(history) == pytest.approx(expected, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "low", "high"), [(paper_loss, 1.11, 1.14), (huber_loss, 0.42, 0.442)])
def test_tabular_self_loop(loss, low, high):
    """One state, r ~ N(1, 0.5^2), discount 0.9, no entropy: the sheet's Q and sigma after 20,000 Adam steps.

    Q is short of 10 because the targets lag.
    """
    generator = torch.Generator().manual_seed(1)
    table = torch.full((2, 2), 0.01).requires_grad_()  # critic x (mean, raw std)
    target, running = table.detach().clone(), None
    adam, history = torch.optim.Adam([table], lr=3e-3), []
    for step in range(20_000):
        reward = 1 + 0.5 * torch.randn(256, generator=generator)
        z = torch.randn(2, 256, generator=generator).clamp(-3, 3)
        target_mean, target_std = target[:, 0], torch.nn.functional.softplus(target[:, 1])
        j = 0 if target_mean[0] < target_mean[1] else 1
        mean_target = reward + 0.9 * target_mean[j]
        sample_target = reward + 0.9 * (target_mean[j] + z[j] * target_std[j])
        std = torch.nn.functional.softplus(table[:, 1])
        current = std.detach()[None, :, None]
        running = current if running is None else running + 0.005 * (current - running)
        mean = table[:, 0][None, :, None].expand(1, 2, 256)
        adam.zero_grad()
        loss(
            mean, std[None, :, None].expand(1, 2, 256), mean_target[None, None], sample_target[None, None], running
        ).sum().backward()
        adam.step()
        if step % 2 == 0:
            target.lerp_(table.detach(), 0.005)
        if step >= 18_000:
            history.append(torch.stack([mean[0, :, 0].detach(), std.detach()]))
    q, sigma = torch.stack(history).mean(0)
    assert ((q > 9.87) & (q < 9.93)).all(), q
    assert ((sigma > low) & (sigma < high)).all(), sigma


def test_twenty_environment_steps_per_update(train):
    result = train(
        "dsac_t", env_id="Pendulum-v1", total_steps=100, env_steps_per_update=20, learning_starts=40, batch_size=8,
        eval_every=100, eval_episodes=1, checkpoint_every=60, log_every=20, hidden=(16,),
    )  # fmt: skip
    assert result.config["step"] == 100
    assert result.parameters["agent/updates"].item() == 3  # at steps 60, 80 and 100


def test_parameter_counts_are_the_published_ones():
    """Section 3 of the authors' settings: 3 x 256, HalfCheetah (17, 6) and Hopper (11, 3)."""
    for (obs, act), critic, policy in [
        ((17, 6), 138_242, 139_276),
        ((11, 3), 135_938, 136_198),
        ((3, 1), 133_378, 133_122),
    ]:
        task = task_of(1.0, obs, act)
        hidden = dsac_t.Args().hidden
        assert sum(p[0, 0].numel() for p in dsac_t.Critic(1, task, hidden).parameters()) == critic
        assert sum(p[0].numel() for p in dsac_t.Actor(1, task, hidden).parameters()) == policy


@pytest.mark.slow
@needs_compiler
def test_the_compiled_update_is_the_same(train):
    """Whole runs, eager and compiled, agree to the rounding of float32."""
    short = {
        "env_id": "Pendulum-v1", "seeds": ("0", "1"), "total_steps": 30, "learning_starts": 20, "batch_size": 16,
        "hidden": (16,), "eval_every": 30, "eval_episodes": 1, "log_every": 10,
    }  # fmt: skip
    eager = train("dsac_t", out="eager", **short).parameters
    compiled = train("dsac_t", out="compiled", compile=True, **short).parameters
    for name, tensor in eager.items():
        if "agent" in name and "adam" not in name:
            torch.testing.assert_close(tensor, compiled[name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
