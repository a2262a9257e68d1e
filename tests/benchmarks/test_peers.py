"""What peers learn from, and what their runs leave."""

import importlib
import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch
from dataset_files import last, npz, ogbench_arrays, trajectories

from algos.data import Dataset, load
from algos.errors import UserError
from algos.goals import Goals
from benchmarks import d3rlpy_peer, dsac_peer, dual_peer, peer_run, sb3, stream_peer
from benchmarks.load_scores import load as load_runs
from benchmarks.offlinerl_kit import suggested
from benchmarks.ogbench_peer import ALPHAS, PLACES, compact
from single_file import dqn, ppo, recoil, sac, td3, td3_bc, trpo


def test_ogbench_learns_from_the_same_states_actions_and_ends_of_episodes(tmp_path):
    data = load(npz(tmp_path / "data.npz", ogbench_arrays(trajectories(4, 1, 3, ends="timeout"))))
    rows = compact(data)
    assert rows["terminals"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    assert rows["valids"].tolist() == [1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0]
    goals, valid = Goals(data), np.flatnonzero(rows["valids"])
    everything = data.gather(torch.arange(len(data)))
    np.testing.assert_array_equal(rows["observations"][valid], everything.obs)
    np.testing.assert_array_equal(rows["observations"][valid + 1], everything.next_obs)
    np.testing.assert_array_equal(rows["actions"][valid], everything.action)
    last = [np.flatnonzero(rows["terminals"][i:])[0] + i for i in valid]  # final(i): the first row from i on with a 1
    np.testing.assert_array_equal(rows["observations"][last], data.obs[goals.last(data.index)])


@pytest.mark.parametrize("place", PLACES)
def test_ogbench_gets_the_alphas_of_our_defaults(place):
    for method, alpha in ALPHAS.items():
        assert importlib.import_module(f"single_file.{method}").Args(dataset=f"local/{place}-v0").alpha == alpha


def test_a_run_of_a_peer_is_read_like_others(tmp_path):
    rows = [(seed, step, episode, 10.0 * seed + step, 5) for seed in (0, 1) for step in (0, 4) for episode in (0, 1)]
    folder = tmp_path / "Hopper-v5" / "peer" / "default"
    folder.mkdir(parents=True)
    args = {"total_steps": 4, "eval_every": 4, "eval_episodes": 2, "out": tmp_path, "code": tmp_path / "clone"}
    peer_run.store(folder, "peer", args, rows, [], finished=True, env_id="Hopper-v5")
    scores = load_runs([tmp_path])
    assert scores.table.query("step == 4")["return"].tolist() == [4.0, 14.0]
    assert scores.sources[0]["status"] == "finished" and scores.sources[0]["versions"]["torch"]
    assert list(pd.read_parquet(folder / "eval.parquet").columns) == list(peer_run.COLUMNS)
    assert "clone" not in (folder / "config.json").read_text()  # where the peer's code lies is nobody's business
    with pytest.raises(UserError, match="holds a run already, finished or not"):
        peer_run.new_folder(folder)
    assert peer_run.new_folder(folder.with_name("other")).is_dir()


def test_hyperparameters_that_offlinerl_kit_suggests():
    assert suggested("local/walker2d-medium-replay-v0") == (1, 2.5)
    assert suggested("d4rl/halfcheetah-medium-v2") == (5, 0.5)
    with pytest.raises(UserError, match="got local/hopper-random-v0"):
        suggested("local/hopper-random-v0")


def test_the_commit_of_a_peer_is_that_of_its_own_clone(git, tmp_path):
    (tmp_path / "impls").mkdir()
    (tmp_path / "impls" / "a.py").touch()
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "theirs")
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "b.py").touch()
    assert peer_run.head_of(tmp_path / "impls") == git("rev-parse", "--short=12", "HEAD")
    assert peer_run.head_of(tmp_path / "unpacked") is None


def test_sb3_is_evaluated_at_the_last_step_and_finishes_with_the_last_seed(tmp_path, monkeypatch):
    class Model(SimpleNamespace):
        def learn(self, steps, reset_num_timesteps):
            self.num_timesteps += steps

    stored = []

    def store(folder, *given, **facts):
        peer_run.store(folder, *given[:3], [], *given[4:], **facts)
        stored.append(json.loads((folder / "config.json").read_text())["status"])

    monkeypatch.setattr(sb3.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(sb3, "make_model", lambda args, seed: Model(num_timesteps=0))
    monkeypatch.setattr(sb3, "evaluate", lambda model, env_id, seed, episodes: [(float(model.num_timesteps), 5)])
    monkeypatch.setattr(sb3, "store", store)
    threads = torch.get_num_threads()
    sb3.main(sb3.Args("sac", "Pendulum-v1", ("0:2",), total_steps=10, eval_every=4, threads=threads, out=tmp_path))
    (path,) = tmp_path.rglob("eval.parquet")
    rows = pd.read_parquet(path)
    assert rows["seed"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert rows["step"].tolist() == rows["return"].tolist() == [0, 4, 8, 10] * 2
    assert stored == ["running", "finished"]


def test_sb3_s_dqn_gets_our_hyperparameters_and_our_epsilon(monkeypatch):
    """Its exploration goes on from one call of `learn` to the next."""
    names = {"lr": "learning_rate", "discount": "gamma", "train_every": "train_freq", "max_norm": "max_grad_norm"}
    names |= {"target_every": "target_update_interval"} | {name: name for name in ("buffer_size", "batch_size", "tau")}
    library = SimpleNamespace(DQN=lambda policy, env, **given: SimpleNamespace(**given))
    monkeypatch.setitem(sys.modules, "stable_baselines3", library)
    args = sb3.Args("dqn", "CartPole-v1", total_steps=1_000, learning_starts=0)
    model = sb3.make_dqn(args, seed=3)
    ours = dqn.Args(total_steps=1_000)
    assert {name: getattr(model, its) for name, its in names.items()} == {name: getattr(ours, name) for name in names}
    assert model.seed == 3 and model.learning_starts == ours.learning_starts == 0
    task = SimpleNamespace(obs_shape=(4,), obs_size=4, act_size=2, discrete=True)
    agent = dqn.DQN(ours, task, seeds=[0])
    for steps in (0, 1, 50, 100, 1_000):
        model.num_timesteps = steps
        agent.drawn.fill_(steps)
        assert model.exploration_schedule(0.123) == pytest.approx(float(agent.epsilon()), rel=1e-6)


def test_sb3_s_trpo_gets_our_hyperparameters(monkeypatch):
    names = {"horizon": "n_steps", "trace": "gae_lambda", "delta": "target_kl", "damping": "cg_damping"}
    names |= {"cg_steps": "cg_max_steps", "critic_lr": "learning_rate", "critic_epochs": "n_critic_updates"}
    names |= {"discount": "gamma", "batch_size": "batch_size"}
    wrappers = SimpleNamespace(
        DummyVecEnv=lambda makers: makers[0](), VecNormalize=lambda env, gamma: SimpleNamespace(env=env, gamma=gamma)
    )
    for name in ("stable_baselines3", "stable_baselines3.common"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", wrappers)
    library = SimpleNamespace(TRPO=lambda policy, env, **given: SimpleNamespace(env=env, **given))
    monkeypatch.setitem(sys.modules, "sb3_contrib", library)
    model = sb3.make_model(sb3.Args("trpo", "Pendulum-v1"), seed=3)
    ours = trpo.Args()
    assert {name: getattr(model, its) for name, its in names.items()} == {name: getattr(ours, name) for name in names}
    assert model.seed == 3 and model.env.gamma == ours.discount and model.env.env.spec.id == "Pendulum-v1"
    assert (model.line_search_shrinking_factor, model.line_search_max_iter) == (0.5, 10)
    assert not hasattr(model, "sub_sampling_factor")  # which would also leave samples out of the gradient


def test_sb3_s_ppo_gets_our_hyperparameters_and_our_learning_rate(monkeypatch):
    """Its rate falls from one iteration to the next as ours does, whatever its own progress is."""
    names = {"horizon": "n_steps", "epochs": "n_epochs", "trace": "gae_lambda", "clip": "clip_range"}
    names |= {"discount": "gamma", "batch_size": "batch_size", "max_norm": "max_grad_norm"}

    class Normalised:
        def __init__(self, env, gamma):
            self.env, self.gamma = env, gamma

        def step_wait(self):
            return "a step"

    wrappers = SimpleNamespace(DummyVecEnv=lambda makers: [make() for make in makers], VecNormalize=Normalised)
    library = SimpleNamespace(PPO=lambda policy, env, **given: SimpleNamespace(policy=policy, env=env, **given))
    monkeypatch.setitem(sys.modules, "stable_baselines3", library)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", wrappers)
    model = sb3.make_model(sb3.Args("ppo", "Pendulum-v1", total_steps=8 * 2048), seed=3)
    ours = ppo.Args(total_steps=8 * 2048)
    assert {name: getattr(model, its) for name, its in names.items()} == {name: getattr(ours, name) for name in names}
    assert (model.seed, model.device, model.policy, model.env.gamma) == (3, "cpu", "MlpPolicy", ours.discount)
    assert len(model.env.env) == ours.num_envs == 1 and model.env.env[0].spec.id == "Pendulum-v1"
    assert ours.clip_value and model.clip_range_vf == ours.clip and model.vf_coef == ours.value_weight / 2
    assert (ours.entropy_weight, ours.hidden) == (0.0, (64, 64))  # as in the library
    task = SimpleNamespace(obs_shape=(3,), obs_size=3, act_size=1, discrete=False, low=[-2.0], high=[2.0])
    agent, rates = ppo.PPO(ours, task, seeds=[0]), []
    for iteration in range(8):
        assert [model.env.step_wait() for _ in range(2048)] == ["a step"] * 2048
        agent.adam.count.fill_(iteration * 10 * 32)
        rates.append(model.learning_rate(0.123))
        assert rates[-1] == pytest.approx(float(agent.adam.rate()), rel=1e-6)
    assert rates[0] == 3e-4 and rates[-1] == pytest.approx(3e-4 / 8)


@pytest.fixture
def off_policy(monkeypatch):
    """A function that gives what Stable-Baselines3's SAC or TD3 is made with on Hopper-v5, its own defaults too."""
    usual = {"buffer_size": 1_000_000, "tau": 0.005, "gamma": 0.99, "batch_size": 256, "train_freq": 1}
    usual |= {"gradient_steps": 1}
    library = SimpleNamespace(
        SAC=lambda policy, env, **given: usual | {"learning_rate": 3e-4} | given | {"env": env.spec.id},
        TD3=lambda policy, env, **given: (
            usual
            | {"policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5}
            | given
            | {"env": env.spec.id}
        ),
    )
    noise = SimpleNamespace(NormalActionNoise=lambda mean, sigma: (mean.tolist(), sigma.tolist()))
    monkeypatch.setitem(sys.modules, "stable_baselines3", library)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.noise", noise)
    return lambda name: sb3.make_model(sb3.Args(name, "Hopper-v5", learning_starts=77), seed=3)


SHARED = {"buffer_size": "buffer_size", "tau": "tau", "discount": "gamma", "batch_size": "batch_size"}


def test_sb3_s_td3_gets_our_hyperparameters(off_policy):
    names = SHARED | {"actor_lr": "learning_rate", "critic_lr": "learning_rate", "actor_delay": "policy_delay"}
    names |= {"policy_noise": "target_policy_noise", "noise_clip": "target_noise_clip"}
    model, ours = off_policy("td3"), td3.Args()
    assert {name: model[its] for name, its in names.items()} == {name: getattr(ours, name) for name in names}
    assert model["policy_kwargs"] == {"net_arch": list(ours.hidden)}
    assert model["action_noise"] == ([0.0] * 3, [ours.exploration_noise] * 3)
    assert (model["train_freq"], model["gradient_steps"], model["learning_starts"]) == (1, 1, 77)
    assert (model["seed"], model["env"]) == (3, "Hopper-v5")


def test_sb3_s_sac_keeps_its_own_hyperparameters(off_policy):
    """The learning rates and the delay of our defaults are others, which the runs beside it are given."""
    model, ours = off_policy("sac"), sac.Args()
    assert {name: model[its] for name, its in SHARED.items()} == {name: getattr(ours, name) for name in SHARED}
    assert (model["learning_rate"], model["learning_starts"], model["seed"], model["env"]) == (3e-4, 77, 3, "Hopper-v5")
    assert ours.actor_lr == 3e-4 and "--critic-lr 3e-4 --temperature-lr 3e-4" in sb3.__doc__


@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "ppo"])
def test_sb3_s_random_start_is_that_of_our_script(name, monkeypatch):
    ours = getattr(importlib.import_module(f"single_file.{name}").Args(), "learning_starts", 0)
    starts = []

    def make_model(args, seed):
        starts.append(args.learning_starts)
        raise UserError("enough")

    monkeypatch.setattr(sb3.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(sb3, "make_model", make_model)
    monkeypatch.setattr(sb3, "new_folder", lambda folder: folder)
    threads, env_id = torch.get_num_threads(), "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    given = (None,) if name == "ppo" else (None, 0, 8)
    for start in given:
        with pytest.raises(UserError, match="enough"):
            sb3.main(sb3.Args(name, env_id, learning_starts=start, threads=threads))
    assert starts == [ours, 0, 8][: len(given)]


class Countdown(gym.Env):
    """Shows how many steps are left, at first `seed` modulo 4, and pays the action."""

    observation_space = gym.spaces.Box(0.0, 4.0, (1,))
    action_space = gym.spaces.Box(-100.0, 100.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.left = seed % 4
        return np.float32([self.left]), {}

    def step(self, action):
        self.left -= 1
        return np.float32([self.left]), float(action[0]), self.left == 0, False, {}


@pytest.mark.parametrize("normalised", [False, True])
def test_sb3_is_evaluated_with_its_best_actions_from_seeds_in_a_row(normalised, monkeypatch):
    """Episodes of seeds 9, 10 and 11 have 1, 2 and 3 steps, of which a limit leaves 2; an action is what is seen."""
    spec = gym.envs.registration.EnvSpec("Countdown-v0", entry_point=Countdown, max_episode_steps=2)
    monkeypatch.setitem(gym.registry, "Countdown-v0", spec)
    statistics = SimpleNamespace(normalize_obs=lambda obs: 10 * obs - 5)
    model = SimpleNamespace(
        get_vec_normalize_env=lambda: statistics if normalised else None,
        predict=lambda obs, deterministic=False: (obs if deterministic else obs + 7, None),
    )
    expected = [(5.0, 1), (20.0, 2), (40.0, 2)] if normalised else [(1.0, 1), (3.0, 2), (5.0, 2)]
    assert sb3.evaluate(model, "Countdown-v0", 9, 3) == expected


def test_sb3_s_dqn_is_refused_where_actions_are_continuous():
    with pytest.raises(UserError, match=r"^Pendulum-v1 has Box actions, where discrete ones are needed$"):
        sb3.main(sb3.Args("dqn", "Pendulum-v1"))
    with pytest.raises(UserError, match=r"^CartPole-v1 has Discrete actions, where continuous ones are needed$"):
        sb3.main(sb3.Args("sac", "CartPole-v1"))


def test_episodes_of_the_official_stream_ac_count_at_the_next_multiple():
    episodes = [(5, 1.0, 5), (6, 2.0, 1), (10, 3.0, 4), (12, 4.0, 2)]
    rows = [(3, 5, 0, 1.0, 5), (3, 10, 0, 2.0, 1), (3, 10, 1, 3.0, 4), (3, 13, 0, 4.0, 2)]
    assert stream_peer.table(3, episodes, every=5, total_steps=13) == rows
    late = [(6, 1.0, 6), (8, 2.0, 2), (19, 3.0, 11)]  # none ends up to step 5, and none from 11 to 15
    rows = [(at, i, total) for at in (10, 15) for i, total in enumerate((1.0, 2.0))]
    assert [row[1:4] for row in stream_peer.table(3, late, every=5, total_steps=20)] == [*rows, (20, 0, 3.0)]


class ThreeSteps(SimpleNamespace):
    """Episodes of three steps, whose rewards are the actions; the first one is cut."""

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action):
        self.t += 1
        end = self.t == 3
        self.done += end
        info = {"episode": {"r": 10.0 * self.done, "l": 3}} if end else {}
        return np.full(1, self.t), float(action), end and self.done > 1, end and self.done == 1, info


def streamed(algorithm, sample_action):
    """What the agent of an official script is given in seven steps, with arrays as their only number."""
    learned, env = [], ThreeSteps(seeds=[], done=0)
    agent = SimpleNamespace(sample_action=sample_action, update_params=lambda *given: learned.append(given))
    assert stream_peer.train(algorithm, env, agent, seed=7, total_steps=7) == [(3, 10.0, 3), (6, 20.0, 3)]
    assert env.seeds == [7, None, None]
    return [tuple(float(np.squeeze(x)) for x in given) for given in learned]


def test_the_official_stream_ac_learns_from_every_step_and_from_ends_of_both_kinds():
    episode = [(0, 0, 0, 1, False, 0.01), (1, 2, 2, 2, False, 0.01), (2, 4, 4, 3, True, 0.01)]
    assert streamed("ac", lambda state: 2 * state[0]) == [*episode, *episode, episode[0]]


def test_the_official_stream_q_is_told_which_actions_are_not_greedy():
    episode = [(0, 0, 0, 1, False, False), (1, 2, 2, 2, False, True), (2, 4, 4, 3, True, False)]
    assert streamed("q", lambda state: (2 * state[0], state[0] == 1)) == [*episode, *episode, episode[0]]


def test_the_official_stream_sarsa_begins_an_episode_with_the_action_that_it_drew_at_the_end_of_the_one_before():
    first = [(0, 0, 0, 1, 2, False), (1, 2, 2, 2, 4, False), (2, 4, 4, 3, 6, True)]
    later = [(0, 6, 6, 1, 2, False), *first[1:]]
    assert streamed("sarsa", lambda state: 2 * state[0]) == [*first, *later, later[0]]


def test_agents_of_the_official_streaming_code_get_sizes_and_settings():
    def made(name):
        return lambda *sizes, **settings: (name, sizes, settings)

    script = SimpleNamespace(StreamAC=made("ac"), StreamQ=made("q"), StreamSARSA=made("sarsa"))
    for algorithm, env_id, sizes in (("ac", "Pendulum-v1", (3, 1)), ("q", "CartPole-v1", (4, 2))):
        args = stream_peer.Args(algorithm=algorithm, code=Path(), env_id=env_id, total_steps=200)
        with closing(gym.make(env_id)) as env:
            steps = {} if algorithm == "ac" else {"total_steps": 200, "exploration_fraction": 0.05}
            assert stream_peer.make_agent(args, script, env) == (algorithm, sizes, {"gamma": 0.99} | steps)


def test_the_official_scripts_of_stream_q_and_sarsa_run_episodes_up_to_10_000_steps():
    wrappers = SimpleNamespace(ScaleReward=lambda env, gamma: env, NormalizeObservation=lambda env: env)
    for algorithm, env_id, limit in (("ac", "Pendulum-v1", 200), ("q", "CartPole-v1", 10_000)):
        args = stream_peer.Args(algorithm=algorithm, code=Path(), env_id=env_id)
        with closing(stream_peer.wrapped(args, wrappers, SimpleNamespace(AddTimeInfo=lambda env: env))) as env:
            assert env.spec.max_episode_steps == limit


@pytest.fixture
def official_dsac(tmp_path, monkeypatch):
    """A folder with code of the official form, whose agent does nothing, and the list of what it is given."""
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "training" / "replay_buffer.py").write_text(
        "given = []\n"
        "class ReplayBuffer:\n"
        "    def __init__(self, **settings): assert settings['buffer_max_size'] == 1_000_000\n"
        "    def store(self, *transition): given.append(transition)\n"
        "    def sample_batch(self, size): return size\n"
    )
    (tmp_path / "dsac_v2.py").write_text(
        "import torch, gym\n"
        "from gym.wrappers.time_limit import TimeLimit\n"
        "from types import SimpleNamespace as Names\n"
        "given = []\n"
        "class DSAC_V2:\n"
        "    def __init__(self, **settings):\n"
        "        def drawn(logits):\n"
        "            half = torch.full((len(logits), settings['action_dim']), 0.5)\n"
        "            return Names(mode=lambda: half, sample=lambda: (half, torch.zeros(len(logits))))\n"
        "        self.networks = Names(policy=lambda obs: obs, create_action_distributions=drawn)\n"
        "    def local_update(self, batch, iteration): given.append((batch, iteration))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("dsac_v2", "training", "gym")]:
        del sys.modules[name]


def test_the_official_dsac_t_learns_once_a_step_after_the_warm_up_and_not_from_time_limits(official_dsac, tmp_path):
    threads = torch.get_num_threads()
    dsac_peer.main(
        dsac_peer.Args(
            code=official_dsac, env_id="Pendulum-v1", seeds=("0", "1"), total_steps=204, learning_starts=201,
            eval_every=200, eval_episodes=2, threads=threads, out=tmp_path / "runs",
        )
    )  # fmt: skip
    stored, updates = sys.modules["training.replay_buffer"].given, sys.modules["dsac_v2"].given
    assert updates == [(256, 0), (256, 1), (256, 2)] * 2
    obs, _, _, _, after, terminated, *_ = zip(*stored[:204], strict=True)
    assert len(stored) == 408 and not any(terminated)
    follows = [np.array_equal(after[i], obs[i + 1]) for i in range(203)]
    assert follows == [i != 199 for i in range(203)]  # an episode of a pendulum is cut after 200 steps
    (path,) = (tmp_path / "runs").rglob("eval.parquet")
    rows = pd.read_parquet(path)
    assert rows["step"].tolist() == [0, 0, 200, 200, 204, 204] * 2 and (rows["length"] == 200).all()
    assert rows["return"].nunique() == 12  # every evaluation of every seed has starts of its own


def test_the_official_stream_ac_needs_a_time_limit(tmp_path):
    gym.register("Endless-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv")
    try:
        with pytest.raises(UserError, match="--env-id Endless-v0 has no time limit"):
            stream_peer.main(stream_peer.Args(algorithm="ac", code=tmp_path, env_id="Endless-v0", out=tmp_path))
    finally:
        del gym.registry["Endless-v0"]


def test_d3rlpy_s_td3_bc_makes_the_same_updates_from_the_same_weights_batches_and_noise(tmp_path, monkeypatch):
    d3rlpy = pytest.importorskip("d3rlpy")
    rng = np.random.default_rng(0)
    obs, action, reward = rng.normal(2, 3, (400, 4)), rng.uniform(-1, 1, (400, 2)), rng.normal(size=400)
    last = np.arange(400) % 20 == 19
    terminated = last & (rng.random(400) < 0.5)
    raw, data = (Dataset.of(obs, action, reward, np.roll(obs, -1, 0), terminated, last=last) for _ in range(2))
    data.standardise()
    agent = td3_bc.TD3BC(td3_bc.Args(), data.task, [0])
    learner, _ = d3rlpy_peer.learner_and_buffer("td3_bc", raw, 0)
    theirs, scaler = learner.impl._modules, learner.config.observation_scaler
    scaler.mean, scaler.std = (part.numpy() for part in data.obs_scaling)
    scaler.std = scaler.std - scaler.eps

    def copy(net, module, *place):
        layers = [part for part in module._encoder._layers if isinstance(part, torch.nn.Linear)] + [module._fc]
        for own, layer in zip([block[0] for block in net.hidden] + [net.out], layers, strict=True):
            layer.weight.data.copy_(own.weight[(0, *place)].T)
            layer.bias.data.copy_(own.bias[(0, *place)][0])

    for policy in (theirs.policy, theirs.targ_policy):
        copy(agent.actor.net, policy)
    for functions in (theirs.q_funcs, theirs.targ_q_funcs):
        for number, function in enumerate(functions):
            copy(agent.critic.net, function, number)
    for step in range(1, 11):
        rows = torch.from_numpy(rng.choice(400, (1, 256)))
        batch, noise = raw.gather(rows), torch.randn(1, 256, 2)
        theirs_batch = d3rlpy.torch_utility.TorchMiniBatch(
            scaler.transform(batch.obs[0]), batch.action[0], batch.reward[0, :, None],
            scaler.transform(batch.next_obs[0]), batch.action[0], batch.reward[0, :, None],
            batch.terminated[0, :, None].float(), torch.ones(256, 1), "cpu",
        )  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn", lambda *_, noise=noise, **__: noise[0])
            found = learner.impl.update(theirs_batch, step)
        ours = agent.update(data.gather(rows), td3_bc.Draws(noise), step % 2 == 0)
        for name in ours.keys() & {"critic_loss", "actor_loss"}:
            assert found[name] == pytest.approx(ours[name].item(), rel=1e-4), (step, name)


@pytest.mark.parametrize(
    ("method", "given", "temp", "flags"),
    [
        ("f_dvl", {}, 0.8, {"f": "chi-square"}),
        ("recoil", {"expert_trajectories": 5, "scale": 3.0}, 3.0, {}),
        ("xql", {"dataset": "d4rl/halfcheetah-medium-v2"}, 1.0, {"noise": True, "noise_std": 0.1}),
        ("xql", {"dataset": "d4rl/hopper-medium-expert-v2"}, 2.0, {"sample_random_times": 1}),
        ("xql", {"dataset": "d4rl/antmaze-medium-diverse-v0"}, 0.6, {"num_v_updates": 4}),
        ("xql", {"dataset": "d4rl/walker2d-medium-expert-v2"}, 2.0, {"max_clip": 5.0}),
    ],
)
def test_official_dual_code_gets_our_settings_as_its_flags(method, given, temp, flags):
    ours = importlib.import_module(f"single_file.{method}").Args(**given)
    got, theirs = dual_peer.flags_of(method, ours)
    assert got == temp
    if not theirs.noise:
        theirs = replace(theirs, noise_std=0.1)  # which nothing reads
    assert theirs == dual_peer.Flags(**flags)


def dual_data(monkeypatch):
    """Trajectories of 5 and 7 transitions, and an expert's of 3, 4 and 2; some actions are beyond their bounds."""
    made = {}
    for seed, (name, lengths) in enumerate({"others": (5, 7), "expert": (3, 4, 2)}.items()):
        episodes = trajectories(*lengths, ends="terminal", seed=seed)
        obs, action, after = (
            np.concatenate([part(t) for t in episodes])
            for part in (lambda t: t.obs[:-1], lambda t: 1.5 * t.action, lambda t: t.obs[1:])
        )
        ends = last(episodes, "terminal")
        reward = np.concatenate([t.reward for t in episodes])
        made[name] = lambda o=obs, a=action, r=reward, n=after, e=ends: Dataset.of(o, a, r, n, e, last=e)
    monkeypatch.setattr(dual_peer, "load", lambda name: replace(made[name](), digest=f"of {name}"))
    return made


def test_the_official_recoil_learns_from_the_mixture_and_the_expert_of_ours(monkeypatch):
    made = dual_data(monkeypatch)
    ours = recoil.Args(dataset="others", expert_dataset="expert", expert_trajectories=2, expert_transitions=5)
    facts, data, (mixed, labelled) = dual_peer.learning_data("recoil", ours)
    hidden = 3 + 4 - 1  # without the last transition of the last trajectory
    assert len(data) == 12 + hidden and labelled.is_expert is None
    np.testing.assert_array_equal(mixed.is_expert, [0] * 12 + [1] * hidden)
    others, expert = (made[name]().gather(torch.arange(len(made[name]()))) for name in ("others", "expert"))
    assert_same_transitions(mixed, [torch.cat([a, b[:hidden]]) for a, b in zip(others, expert, strict=True)])
    assert_same_transitions(labelled, [part[:5] for part in expert])
    assert facts["facts"] == {"digest": data.digest, "dataset_digest": "of others", "evaluated_in": None}
    assert data.digest != "of others"


def assert_same_transitions(theirs, ours):
    """The peer's transitions are ours, given as the parts of a batch, with actions clipped within their bounds."""
    obs, action, reward, next_obs, terminated = (np.asarray(part) for part in ours)
    wanted = (obs, action.clip(1e-5 - 1, 1 - 1e-5), reward, 1 - terminated, next_obs)
    for given, part in zip(theirs[:5], wanted, strict=True):
        np.testing.assert_allclose(given, part, rtol=1e-6)


def test_the_official_dual_code_learns_from_our_data_with_scaled_rewards(monkeypatch):
    made = dual_data(monkeypatch)
    facts, _, (source,) = dual_peer.learning_data("xql", SimpleNamespace(dataset="others", reward="range"))
    plain = made["others"]()
    plain.scale_rewards("range")
    assert_same_transitions(source, plain.gather(torch.arange(12)))
    assert facts["facts"] == {"digest": "of others", "evaluated_in": None}
    totals = [source.rewards[:5].sum(), source.rewards[5:].sum()]
    assert max(totals) - min(totals) == pytest.approx(1_000, rel=1e-5)


@pytest.fixture
def official_dual(tmp_path, monkeypatch):
    """A folder with code of the official form, whose learner does nothing but keep what it is given."""
    (tmp_path / "offline" / "configs").mkdir(parents=True)
    (tmp_path / "offline" / "configs" / "mujoco_config.py").write_text("def get_config(): return {'tau': 0.25}\n")
    (tmp_path / "offline" / "learner.py").write_text(
        "import jax\n"
        "from functools import partial\n"
        "learners, batches = [], []\n"
        "@partial(jax.jit, static_argnames=('kept', 'lost'))\n"
        "def act(kept): return kept\n"
        "assert act == ['kept'] and jax.tree_map is jax.tree_multimap\n"
        "class Learner:\n"
        "    def __init__(self, seed, observations, actions, **more):\n"
        "        learners.append((seed, observations.shape, actions.shape, more))\n"
        "        self.size = actions.shape[1]\n"
        "    def sample_actions(self, obs, temperature):\n"
        "        assert temperature == 0\n"
        "        return 0 * obs[:, : self.size]\n"
        "    def update(self, batch): batches.append(batch)\n"
    )
    tree_map = object()
    jax = SimpleNamespace(
        jit=lambda function, static_argnames=(): static_argnames, tree_util=SimpleNamespace(tree_map=tree_map)
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    flax = SimpleNamespace(config=SimpleNamespace(update=lambda name, value: frozen.append((name, value))))
    monkeypatch.setitem(sys.modules, "flax", flax)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(dual_peer, "store", lambda folder, *given, **facts: stored.append((folder, given, facts)))
    stored: list = []
    frozen: list = []
    yield tmp_path, stored
    assert frozen == [("flax_return_frozendict", True)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("learner", "configs")]:
        del sys.modules[name]


def test_the_official_dual_code_makes_one_update_a_step_and_every_seed_is_stored(official_dual, tmp_path, monkeypatch):
    code, stored = official_dual
    rng, ends = np.random.default_rng(0), np.arange(40) % 20 == 19
    obs, action = rng.normal(size=(40, 3)), rng.uniform(-1, 1, (40, 1))
    data = Dataset.of(obs, action, np.ones(40), np.roll(obs, -1, 0), ends, last=ends)
    data.env_id = "Pendulum-v1"
    monkeypatch.setattr(dual_peer, "learning_data", lambda method, ours: (made, data, [dual_peer.transitions(data)]))
    threads, made = torch.get_num_threads(), {"task": "made"}
    dual_peer.main(
        dual_peer.Args(
            method="xql", code=code, seeds=("3", "5"), total_steps=5, eval_every=2, eval_episodes=1, threads=threads,
            out=tmp_path / "runs",
        )
    )  # fmt: skip
    module = sys.modules["learner"]
    assert [seed for seed, *_ in module.learners] == [3, 5]
    assert module.learners[0][1:3] == ((1, 3), (1, 1))
    assert module.learners[0][3]["tau"] == 0.25 and module.learners[0][3]["max_steps"] == 5
    assert module.learners[0][3]["loss_temp"] == 2.0 and module.learners[0][3]["vanilla"] is False
    assert len(module.batches) == 10 and module.batches[0].observations.shape == (256, 3)
    assert not np.array_equal(module.batches[0].observations, module.batches[5].observations)
    rows = stored[-1][1][2]
    assert [(row[0], row[1]) for row in rows] == [(seed, step) for seed in (3, 5) for step in (0, 2, 4, 5)]
    assert [facts["finished"] for *_, facts in stored] == [False, True] and stored[0][2]["task"] == "made"


def test_another_folder_than_the_official_dual_code_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no offline/learner_imitate\.py: give a clone of recoil's official code"):
        dual_peer.official(tmp_path, "recoil")
