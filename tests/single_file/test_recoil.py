"""ReCOIL against hand-computed values, and the data that it mixes."""

import math

import h5py
import numpy as np
import pytest
import recoil
import torch
from offline_data import BATCH, Plain, at_random, batch_of, draws_of, offline_agent, seen_data, write_hdf5

from algos.data import Dataset, load


def expert_batch(k=0):
    """A batch of the expert's transitions."""
    return batch_of(at_random(16, seed=1), k)


def agent(**overrides):
    return offline_agent("recoil", **overrides)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_critic_loss_by_hand():
    """Targets are 7.9 and -200, those of the expert 200; each critic's loss is 23165.6025."""
    q = torch.tensor([0.0, 100.0, 150.0, 190.0]).expand(2, 2, 4)
    next_value, terminated = torch.tensor([[10.0, 1e6]]).expand(2, 2), torch.tensor([[0.0, 1.0]]).expand(2, 2)
    loss = agent(discount=0.99).critic_loss(q, next_value, terminated)
    torch.testing.assert_close(loss, torch.full((2,), 2 * 23165.6025))
    q = torch.tensor([7.9, -200.0, 200.0, 200.0]).expand(2, 2, 4)
    assert agent(discount=0.99).critic_loss(q, next_value, terminated).abs().max() < 1e-6


def test_value_loss_is_of_the_mixed_half_scaled_by_the_greatest_of_both():
    loss = agent(scale=1.0, clip=7.0).value_loss
    mixed, expert = torch.tensor([[1.0, -1.0], [1.0, -1.0]]), torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    torch.testing.assert_close(loss(mixed, expert), torch.full((2,), 0.0734980), atol=1e-6, rtol=0)
    losses = [loss(torch.tensor([[d, d]]), expert[:1]).item() for d in (1.0, -1.0)]
    assert losses == pytest.approx([0.0972089, 0.0497871], abs=1e-6)
    wide = agent(scale=2.0).value_loss(2 * mixed, 2 * expert)
    torch.testing.assert_close(wide, torch.full((2,), 0.0734980), atol=1e-6, rtol=0)


def test_the_greatest_counts_as_minus_1_at_least():
    loss = agent(scale=1.0).value_loss(torch.tensor([[-3.0, -2.0]]), torch.tensor([[-4.0, -5.0]]))
    expected = [math.exp(z + 1) - z * math.e - math.e for z in (-3.0, -2.0)]
    torch.testing.assert_close(loss, torch.tensor([sum(expected) / 2]))


@pytest.mark.parametrize("objective", ["code", "paper"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_only_the_random_numbers_that_are_used_are_drawn(objective, rate):
    draws = draws_of(agent(objective=objective, dropout=rate))
    shapes = [None if numbers is None else tuple(numbers.shape) for numbers in (draws.dropout, draws.action)]
    assert shapes == [(2, 2, BATCH, 8) if rate else None, (2, BATCH, 2) if objective == "paper" else None]


def test_metrics_are_means_of_both_halves():
    one, mixed, expert = agent(), batch_of(at_random()), expert_batch()
    means = [one.critic(part.obs, part.action).detach().mean((1, 2)) for part in (mixed, expert)]
    metrics = one.update(mixed, expert, draws_of(one))
    torch.testing.assert_close([metrics["q_mixed"], metrics["q_expert"]], means)
    torch.testing.assert_close(metrics["value"], one.value(mixed.obs).detach().mean(-1))


def test_a_clipped_sample_has_no_gradient():
    both = torch.tensor([[8.0, 1.0], [9.0, 0.0]], requires_grad=True)
    gradient = torch.autograd.grad(agent(scale=1.0, clip=7.0).value_loss(*both[:, None]).sum(), both)[0]
    assert gradient[0, 0] == 0 and gradient[0, 1] > 0 and gradient[1].eq(0).all()


def test_sampled_actions_have_a_bounded_spread_and_stay_within_bounds():
    """Logarithms 9 and -9 of the standard deviation count as 2 and -5."""
    one = agent()
    one.actor.log_std.data[0], one.actor.log_std.data[1] = 9.0, -9.0
    obs = 0.01 * torch.randn(2, 16, one.task.obs_size)
    mean, noise = one.actor(obs), torch.full((2, 16, one.task.act_size), 1e-3)
    spread = torch.tensor([math.exp(2), math.exp(-5)])[:, None, None] * noise
    torch.testing.assert_close(one.actor.sample(obs, noise) - mean, spread, atol=1e-6, rtol=1e-3)
    assert one.actor.sample(obs, 1e6 * noise).eq(1).all() and one.actor.sample(obs, -1e6 * noise).eq(-1).all()


def test_paper_loss_by_hand():
    """beta 0.25: of each critic 0.25 (3 - 2) + (0.25 (0.25 + 6.25) + 0.75 (1 + 4)) / 2 / 4 = 0.921875."""
    one = agent(discount=0.5, beta=0.25)
    q = torch.tensor([1.0, 2.0, 1.5, 2.5]).expand(2, 2, 4)
    next_value = torch.tensor([[4.0, 8.0, 2.0, 0.0]]).expand(2, 4)  # halved: 2, 4, 1, 0
    loss = one.paper_loss(q, next_value, torch.tensor([2.0, 4.0]).expand(2, 2, 2))
    torch.testing.assert_close(loss, torch.full((2,), 2 * 0.921875))


# -- updates -----------------------------------------------------------------------------------------------------------


def gumbel(d):
    """The losses of the first half of d, divided by the greatest of both halves, with scale 0.5 and clip 2."""
    z = torch.minimum(d / 0.5, torch.tensor(2.0))
    m = max(z.max().item(), -1.0)
    return (torch.exp(z - m) - z * math.exp(-m) - math.exp(-m))[:BATCH]


@pytest.mark.parametrize("objective", ["code", "paper"])
def test_three_updates_equal_the_algorithm_written_for_one_run(objective, float64):
    settings = {"scale": 0.5, "clip": 2.0, "dropout": 0.3, "total_steps": 4, "lr": 0.01, "tau": 0.1, "beta": 0.3}
    one = agent(objective=objective, layer_norm="on", **settings)
    plain = Plain(one, 1, gumbel, decay=4)
    for k in range(3):
        torch.manual_seed(k)
        mixed, expert, uniform = batch_of(at_random(), k), expert_batch(k), torch.rand(2, 2, BATCH, 8)
        normal = torch.randn(2, BATCH, 2) if objective == "paper" else None
        obs, action = torch.cat([mixed.obs[1], expert.obs[1]]), torch.cat([mixed.action[1], expert.action[1]])
        plain.learn_value(obs, action)
        plain.learn_actor(mixed.obs[1], mixed.action[1], uniform[1])
        with torch.no_grad():
            following, of_expert = (plain.value(b.next_obs[1]).squeeze(-1) for b in (mixed, expert))
            own = torch.tanh(plain.actor(mixed.obs[1])) + plain.log_std.exp() * (0.0 if normal is None else normal[1])
            own = own.clamp(-1, 1)
        goes_on = 1 - mixed.terminated[1]

        def loss(q, mixed=mixed, expert=expert, following=following, of_expert=of_expert, own=own, goes_on=goes_on):
            of_data, labelled = q(mixed.obs[1], mixed.action[1]), q(expert.obs[1], expert.action[1])
            if objective == "code":
                y = -2 + 0.99 * goes_on * following + 0.99 * (1 - goes_on) * -200
                return (0.5 * (labelled - 200) ** 2 + 0.5 * (of_data - y) ** 2).mean()
            squares = (
                ((0.99 * goes_on * following - of_data) ** 2).mean(),
                ((0.99 * (1 - expert.terminated[1]) * of_expert - labelled) ** 2).mean(),
            )
            contrast = q(mixed.obs[1], own).mean() - labelled.mean()
            return 0.3 * contrast + 0.25 * (0.7 * squares[0] + 0.3 * squares[1])

        plain.learn_critics(loss)
        one.update(mixed, expert, recoil.Draws(uniform, normal))
    plain.assert_same(one)


@pytest.mark.parametrize("objective", ["code", "paper"])
def test_rewards_have_no_effect(objective):
    ends = []
    for reward in (0.0, 1e6):
        one = agent(objective=objective)
        batches = [
            batch._replace(reward=torch.full((2, BATCH), reward)) for batch in (batch_of(at_random()), expert_batch())
        ]
        one.update(*batches, draws_of(one))
        ends.append([*one.actor.parameters(), *one.critic.parameters(), *one.value.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "rows", "limit", "trajectories", "count"),
    [
        ([], 999_000, 1000, 200, 199_999),
        ([], 199_999, 1000, 200, 0),  # it is never reached
        ([], 200_000, 1000, 200, 199_999),
        ([2, 5], 20, 1000, 2, 5),  # the transition that ends it is left out
        ([2, 5], 20, 1000, 1, 2),
        ([1], 20, 3, 2, 4),  # steps are counted anew after a termination
        ([2], 20, 3, 2, 5),  # a termination at the limit counts once
        ([0], 5, 10, 1, 0),
    ],
)
def test_trajectories_are_counted_as_the_official_code_does(ends, rows, limit, trajectories, count):
    held = torch.zeros(rows + 1, 3)
    held[ends, -1] = 1.0
    data = Dataset("tiny", held, torch.arange(rows), 1, 0, limit=limit if limit < 1000 else 0)
    assert data.transitions_of(trajectories) == count


def test_trajectories_of_an_unknown_limit_are_those_of_the_data():
    index = torch.arange(30)[torch.arange(30) % 10 != 9]  # three of nine transitions, none of them terminated
    data = Dataset("tiny", torch.zeros(31, 3), index, 1, 0)
    assert [data.transitions_of(count) for count in (1, 2, 3, 4)] == [8, 17, 26, 0]


@pytest.mark.parametrize(
    ("trajectories", "transitions", "hidden"),
    [(2, 12, 19), (1, 25, 9), (99, 25, 0), (1, 5_000, 9)],
)
def test_the_data_are_the_others_and_the_first_of_the_experts(
    trajectories, transitions, hidden, train, tmp_path, capsys
):
    """The expert's file has episodes of ten steps: every other one terminates, and the others are cut."""
    others, experts = write_hdf5(tmp_path / "others.hdf5"), write_hdf5(tmp_path / "experts.hdf5", seed=1)
    with seen_data() as seen:
        train(
            "recoil", dataset=str(others), expert_dataset=str(experts), expert_trajectories=trajectories,
            expert_transitions=transitions, total_steps=1, batch_size=4, hidden=(4,), eval_episodes=0,
        )  # fmt: skip
    mixed, expert = seen
    assert ("so nothing of it is in the mixed data" in capsys.readouterr().err) == (not hidden)
    rows = []
    for path in (others, experts):
        with h5py.File(path) as file:
            action = file["actions"][:].clip(-1 + 1e-5, 1 - 1e-5)
            ends = file["terminals"][:][:, None]
            rows.append(np.concatenate([file["observations"], action, ends, file["next_observations"]], 1))

    def held(data):
        after = data.obs[data.index + 1]
        parts = [data.obs[data.index], data.action[data.index], data.terminated[data.index, None], after]
        return torch.cat(parts, 1).numpy()

    np.testing.assert_allclose(held(mixed), np.concatenate([rows[0], rows[1][:hidden]]), atol=1e-5)
    np.testing.assert_allclose(held(expert), rows[1][:transitions], atol=1e-5)


def test_it_is_stored_which_expert_was_used(train, tmp_path):
    others, experts = write_hdf5(tmp_path / "others.hdf5"), write_hdf5(tmp_path / "experts.hdf5", seed=1)
    short = {"dataset": str(others), "total_steps": 2, "eval_episodes": 0, "batch_size": 4, "hidden": (4,)}
    configs = [
        train("recoil", out=name, expert_dataset=str(path), expert_trajectories=2, **short).config
        for name, path in (("a", experts), ("b", others))
    ]
    digests = [config["facts"]["digest"] for config in configs]
    assert digests[0] != digests[1] != load(str(others)).digest
    assert configs[0]["identity"]["expert_transitions"] == 1000 and configs[0]["identity"]["temperature"] == 3.0


@pytest.mark.parametrize(
    ("dataset", "trajectories", "labelled", "temperature", "dropout", "norm"),
    [
        ("d4rl/hopper-random-v2", 200, 1000, 3.0, 0.0, False),
        ("d4rl/walker2d-medium-v2", 100, 1000, 3.0, 0.0, False),
        ("data/walker2d_random-v2.hdf5", 100, 1000, 3.0, 0.0, False),
        ("walker2d/hopper_random-v2.hdf5", 200, 1000, 3.0, 0.0, False),
        ("d4rl/ant-random-v2", 200, 1000, 3.0, 0.0, False),
        ("d4rl/pen-cloned-v0", 200, 100, 3.0, 0.1, True),
        ("minari/D4RL/pen/human-v2", 200, 100, 3.0, 0.1, True),
        ("local/pendulum-random-v0", 200, 1000, 3.0, 0.0, False),
        ("d4rl/door-human-v0", 200, 200, 3.0, 0.1, True),
        ("d4rl/hammer-cloned-v0", 200, 200, 3.0, 0.1, True),
        ("d4rl/relocate-human-v0", 200, 200, 3.0, 0.1, True),
        ("d4rl/kitchen-mixed-v0", 1, 183, 0.5, 0.1, True),
    ],
)
def test_settings_depend_on_the_task(dataset, trajectories, labelled, temperature, dropout, norm):
    args = recoil.Args(dataset=dataset)
    assert (args.expert_trajectories, args.expert_transitions) == (trajectories, labelled)
    assert (args.temperature, args.dropout, args.decay, args.total_steps) == (temperature, dropout, "cosine", 1_000_000)
    assert (args.batch_size, args.scale, args.clip, args.tau, args.discount) == (1024, 1.0, 7.0, 0.005, 0.99)
    assert len(list(agent(dataset=dataset).value.parameters())) == (10 if norm else 6)
    given = {"expert_trajectories": 200, "expert_transitions": 1000, "temperature": 3.0, "layer_norm": "off"}
    args = recoil.Args(dataset=dataset, **given)
    assert {name: getattr(args, name) for name in given} == given


# -- learning ----------------------------------------------------------------------------------------------------------


def point_data():
    """s' = s + a / 4: random walks of 10 steps with one way of an expert to the goal (1.2, 1.2); and this way alone."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, (5001, 10, 2))
    obs = np.empty((5001, 11, 2))
    obs[:, 0] = rng.uniform(-1.5, 1.5, (5001, 2))
    obs[-1, 0] = -1.2
    for t in range(10):
        action[-1, t] = ((1.2 - obs[-1, t]) * 4).clip(-1, 1)
        obs[:, t + 1] = obs[:, t] + action[:, t] / 4
    assert np.allclose(obs[-1, -1], 1.2)
    zeros = np.zeros((5001, 10))
    action = action.clip(-1 + 1e-5, 1 - 1e-5)
    parts = (obs[:, :-1], action, zeros, obs[:, 1:], zeros)
    return tuple(
        Dataset.of(*(x[which].reshape(-1, *x.shape[2:]) for x in parts)) for which in (slice(None), slice(-1, None))
    )


def nearest(actor):
    """Least distances to the goal on the way from where the expert begins: [R]."""
    obs, distances = torch.full((2, 1, 2), -1.2), []
    with torch.no_grad():
        for _ in range(14):
            obs = obs + actor(obs).clamp(-1, 1) / 4
            distances.append((obs - 1.2).norm(dim=-1).squeeze(1))
    return torch.stack(distances).amin(0)


def test_it_reaches_the_goal_of_the_expert_and_cloning_the_mixed_data_does_not():
    mixed, expert = point_data()
    own = {"scale": 5.0, "temperature": 1.0, "discount": 0.9, "tau": 0.02}
    settings = {"batch_size": 128, "hidden": (64, 64), "lr": 1.5e-3, "total_steps": 400}
    one, cloned = offline_agent("recoil", mixed, **own, **settings), offline_agent("bc", mixed, **settings)
    nothing, nothing_cloned = draws_of(one), draws_of(cloned)
    for k in range(400):
        one.update(batch_of(mixed, 2 * k, 128), batch_of(expert, 2 * k + 1, 128), nothing)
        cloned.update(batch_of(mixed, 2 * k, 128), nothing_cloned)
    assert (nearest(one.actor) < 0.4).all()
    assert (nearest(cloned.actor) > 1.5).all()
