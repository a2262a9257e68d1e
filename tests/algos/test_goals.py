"""The laws by which goals are drawn: the sheets' own numbers, counted over many draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from hiql import HIQL
from ota import OTA, Draws
from scripts import agent_type, module_of

from algos.data import Dataset
from algos.errors import UserError
from algos.goal_conditioned import transition_draws, transitions
from algos.goals import Clusters, GoalDraws, Goals, Mix, check_mix, goal_draws
from algos.per_run import PerRun
from algos.random import Random

MANY = 60_000


def episodes(*rows: int) -> Dataset:
    """Episodes with so many rows; the first number of a state is its row."""
    count = sum(rows)
    array = torch.zeros(count, 2 + 1 + 2)
    array[:, 0] = torch.arange(count)
    array[:, 2] = torch.arange(count) / 10
    ends = np.cumsum(rows) - 1
    index = torch.as_tensor(np.setdiff1d(np.arange(count), ends))
    return Dataset("made", array, index, 2, 1)


def draws(count: int = MANY, seed: int = 0) -> GoalDraws:
    g = torch.Generator().manual_seed(seed)
    uniform = [torch.rand(1, count, generator=g) for _ in range(3)]
    return GoalDraws(*uniform, torch.randint(1 << 62, (1, count), generator=g))


def at(row: int, count: int = MANY) -> torch.Tensor:
    return torch.full((1, count), row)


def shares(rows: torch.Tensor) -> dict[int, float]:
    found, counts = rows.unique(return_counts=True)
    return dict(zip(found.tolist(), (counts / rows.numel()).tolist(), strict=True))


def law(**kwargs):
    return pytest.approx(kwargs["of"], abs=0.01)


def test_the_last_goal_of_a_trajectory_is_its_last_state_with_an_action():
    goals = Goals(episodes(4, 6))
    assert goals.last(torch.tensor([[0, 2, 4, 8]])).tolist() == [[2, 2, 8, 8]]
    assert goals.ahead(torch.tensor([[0, 2, 4, 8]]), 3).tolist() == [[2, 2, 7, 8]]
    with_ends = Goals(episodes(4, 6), final_states=True)
    assert with_ends.last(torch.tensor([[0, 3, 4, 9]])).tolist() == [[3, 3, 9, 9]]


@pytest.mark.parametrize(("rows", "refused"), [((2, 2, 2, 3), True), ((2, 2, 3), False)])
def test_data_whose_trajectories_are_single_transitions_are_refused(rows, refused):
    if not refused:
        Goals(episodes(*rows))
        return
    with pytest.raises(UserError, match="in made, most transitions are trajectories of their own"):
        Goals(episodes(*rows))


def test_trajectories_that_share_a_row_keep_their_own_goals():
    """The last state of the first one is the first row of the second one."""
    data = episodes(9)
    data.rows[3, -1] = 1.0  # terminated
    data.index = torch.arange(8)
    goals = Goals(data, final_states=True)
    assert goals.last(torch.tensor([[0, 3, 4, 7]])).tolist() == [[4, 4, 8, 8]]


def test_the_two_ends_of_the_uniform_law_have_half_the_weight():
    goals = Goals(episodes(6, 3))
    assert shares(goals.uniform(at(0), draws().place)) == law(of={1: 1 / 6, 2: 1 / 3, 3: 1 / 3, 4: 1 / 6})
    assert shares(goals.uniform(at(4), draws().place)) == {4: 1.0}
    assert shares(goals.uniform(at(6), draws().place)) == {7: 1.0}


def test_the_geometric_law_gathers_at_the_end():
    goals = Goals(episodes(6, 3))
    expected = {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.125}
    assert shares(goals.geometric(at(0), draws().place, 0.5)) == law(of=expected)
    varied = goals.geometric(at(0).repeat(2, 1), draws().place.repeat(2, 1), PerRun([0.5, 0.9]))
    assert shares(varied[:1]) == law(of=expected)
    assert shares(varied[1:]) == law(of={1: 0.1, 2: 0.09, 3: 0.081, 4: 0.729})


def test_large_row_numbers_are_exact():
    goals, first = Goals(episodes(5)), (1 << 24) + 1  # beyond the whole numbers of float32
    goals.starts, goals.ends = goals.starts + first, goals.ends + first
    goals.final = goals.final + first
    row, (place, _, _, integers) = at(first, 1000), draws(1000)
    for drawn, distances in (
        (goals.uniform(row, place), (1, 2, 3)), (goals.evenly(row, place), (1, 2, 3)),
        (goals.geometric(row, place, 0.5), (1, 2, 3)), (goals.in_trajectory(integers, place), (0, 1, 2, 3)),
    ):  # fmt: skip
        assert set(shares(drawn)) == {first + d for d in distances}


def test_a_mix_has_the_shares_of_its_sources():
    """0.2, 0.5 and 0.3, where a random goal is any of 100 states."""
    goals = Goals(episodes(51, 51))
    drawn = goals.mixed(at(0), Mix(0.2, 0.5, 0.3), draws(), 0.99)
    near = (drawn == 0).float().mean().item()
    other = (drawn > 50).float().mean().item()
    assert near == pytest.approx(0.2 + 0.3 / 100, abs=0.01)
    assert other == pytest.approx(0.3 / 2, abs=0.01)
    assert set(shares(goals.mixed(at(3), Mix(1.0, 0.0, 0.0), draws(), 0.99))) == {3}
    assert (goals.mixed(at(3), Mix(0.0, 1.0, 0.0, True), draws(), 0.9) > 3).all()


def test_runs_draw_goals_of_their_own():
    def drawn(*seeds):
        random = Random(seeds)
        goals = goal_draws(random, "value", 8)
        return [goals() for _ in range(3)]

    together, alone = drawn(3, 7), drawn(7)
    assert all(torch.equal(a[1], b[0]) for x, y in zip(together, alone, strict=True) for a, b in zip(x, y, strict=True))
    assert not any(torch.equal(a[0], a[1]) for x in together for a in x)


def test_probabilities_must_sum_to_one():
    check_mix("--value-goals", (0.2, 0.5, 0.3))
    for mix in ((0.2, 0.5, 0.2), (-0.1, 0.8, 0.3)):
        with pytest.raises(UserError, match="--value-goals takes three probabilities that sum to 1"):
            check_mix("--value-goals", mix)


# -- hierarchies -------------------------------------------------------------------------------------------------------


def hierarchical(kind: str, **overrides):
    module = module_of(kind)
    defaults = {"hidden": (4,), "batch_size": MANY, "dataset": "local/pointmaze-medium-navigate-v0"}
    agent = {"hiql": HIQL, "ota": OTA}[kind]
    return agent(module.Args(**defaults, **overrides), episodes(4).task, (0,))


def rows_of(agent, goals: Goals) -> dict[str, torch.Tensor]:
    """The rows of all states of a batch, by the name of the field."""
    batch = agent.batch(goals, agent.draws(Random([0]))())
    parts = {"row": batch.obs, "next": batch.next_obs, "value": batch.value_goal.obs, "subgoal": batch.subgoal}
    parts |= {"goal": batch.goal, "target": batch.high_target}
    return {name: part[0, :, 0].long() for name, part in parts.items()}


@pytest.mark.parametrize("kind", ["hiql", "ota"])
def test_goals_of_a_high_policy_may_lie_at_a_geometric_distance(kind):
    """With a discount of 0.5, two steps ahead on average; drawn uniformly, half of what is left."""
    goals = Goals(episodes(400))
    for geometric in (True, False):
        rows = rows_of(hierarchical(kind, actor_geometric=geometric, discount=0.5, actor_goals=(0.0, 1.0, 0.0)), goals)
        ahead = (rows["goal"] - rows["row"]).double().mean().item()
        assert (1.9 < ahead < 2.1) if geometric else ahead > 50


@pytest.mark.parametrize("geometric", [True, False])
def test_goals_of_actors_and_values_lie_where_their_flags_say(geometric):
    args = module_of("gcivl").Args(
        batch_size=MANY, discount=0.5, value_goals=(0.0, 1.0, 0.0), actor_goals=(0.0, 1.0, 0.0),
        actor_geometric=geometric, value_geometric=not geometric,
    )  # fmt: skip
    batch = transitions(Goals(episodes(400)), args, transition_draws(Random([0]), MANY)())
    actor, value = ((goal - batch.obs)[0, :, 0].mean().item() for goal in (batch.goal, batch.value_goal))
    near, far = (actor, value) if geometric else (value, actor)
    assert 1.9 < near < 2.1 and far > 50


def test_a_transition_gives_minus_one_until_its_goal_is_reached():
    """Sheet, 2.2: it is reached if it is the state itself, and not the next one."""
    args = module_of("gcivl").Args(batch_size=MANY, value_goals=(0.5, 0.3, 0.2), actor_goals=(0.0, 1.0, 0.0))
    batch = transitions(Goals(episodes(40, 30)), args, transition_draws(Random([0]), MANY)())
    rows = {name: getattr(batch, name)[0, :, 0] for name in ("obs", "next_obs", "value_goal", "goal")}
    assert torch.equal(rows["next_obs"], rows["obs"] + 1)
    going = (rows["value_goal"] != rows["obs"]).float()
    assert torch.equal(batch.mask[0], going) and torch.equal(batch.reward[0], -going)
    assert 0.45 < going.mean() < 0.52  # half of the goals are the state itself, and some others are too
    assert (rows["goal"] > rows["obs"]).float().mean() > 0.9  # goals of the actor are later states


@pytest.mark.parametrize("kind", ["hiql", "ota"])
def test_values_of_a_hierarchy_give_minus_one_until_their_goal_is_reached(kind):
    """OTA's high value judges the end of an option."""
    agent = hierarchical(kind, subgoal_steps=7)
    batch = agent.batch(Goals(episodes(40, 30)), agent.draws(Random([0]))())
    pairs = [(batch.value_goal, batch.obs)]
    if isinstance(agent, OTA):
        pairs.append((batch.high_value_goal, batch.option_end))
    for goal, state in pairs:
        going = (goal.obs[..., 0] != state[..., 0]).float()
        assert torch.equal(goal.mask, going) and torch.equal(goal.reward, -going) and 0 < going.mean() < 1


@pytest.mark.parametrize("kind", ["hiql", "ota"])
def test_targets_of_the_high_policy_never_pass_a_goal_of_the_trajectory(kind):
    goals = Goals(episodes(40, 30))
    rows = rows_of(hierarchical(kind, subgoal_steps=7), goals)
    assert torch.equal(rows["next"], rows["row"] + 1)
    assert torch.equal(rows["subgoal"], goals.ahead(rows["row"], 7))
    assert torch.equal(rows["target"], torch.minimum(rows["subgoal"], rows["goal"]))
    rows = rows_of(hierarchical(kind, subgoal_steps=7, actor_goals=(0.0, 0.0, 1.0)), goals)
    assert torch.equal(rows["target"], rows["subgoal"])
    half = rows_of(hierarchical(kind, subgoal_steps=7, actor_goals=(0.0, 0.5, 0.5)), goals)
    apart = (half["goal"] < 40) != (half["row"] < 40)
    assert 0.15 < apart.double().mean() < 0.3  # half of the goals are random, and about half of these are elsewhere


def option(row: int, place: float, source: float, random: int, current: float = 0.99, n: int = 5):
    agent = hierarchical("ota", option_steps=n)
    d = GoalDraws(*(torch.tensor([[x]]) for x in (place, source, current)), torch.tensor([[random]]))
    end, goal = agent.option(Goals(episodes(12)), torch.tensor([[row]]), d)
    return end.item(), goal.item(), float(end == goal)


def place_of(steps: int, discount: float = 0.99) -> float:
    """A uniform number that leads to a goal so many steps ahead."""
    return 1 - discount ** (steps - 0.5)


def test_options_end_where_the_sheet_says():
    """One episode of 12 rows, n = 5; draws of 0 take a goal of the trajectory, draws of 0.99 a random one."""
    assert option(0, place_of(3), 0.0, 0) == (3, 3, 1.0)
    assert option(0, place_of(9), 0.0, 0) == (5, 9, 0.0)
    assert option(0, 0.5, 0.99, 5) == (5, 5, 1.0)  # a coincidence counts
    assert option(0, 0.5, 0.99, 3) == (5, 3, 0.0)  # an option passes a random goal
    assert option(8, 0.5, 0.99, 2) == (10, 2, 0.0)
    assert option(0, place_of(9), 0.0, 0, current=0.0) == (5, 5, 1.0)  # the end of the option and not the state


def test_goals_of_options_have_the_shares_of_their_sources():
    """0.2 of the end of the option, 0.5 of later states, and 0.3 of any of 100; later states are hardly ever near."""
    agent = hierarchical("ota", option_steps=5, value_goals=(0.2, 0.5, 0.3), discount=0.9999)
    end, goal = agent.option(Goals(episodes(51, 51)), at(0), draws())
    assert (goal == end).float().mean().item() == pytest.approx(0.2 + 0.3 / 100, abs=0.01)
    assert (goal > 50).float().mean().item() == pytest.approx(0.3 / 2, abs=0.01)


@pytest.mark.parametrize("geometric", [True, False])
def test_goals_of_options_lie_where_their_flag_says(geometric):
    """With a discount of 0.5, two steps ahead on average; drawn uniformly, half of 400."""
    agent = hierarchical("ota", option_steps=5, value_goals=(0.0, 1.0, 0.0), value_geometric=geometric, discount=0.5)
    end, goal = agent.option(Goals(episodes(401)), at(0), draws())
    assert goal.double().mean().item() == (pytest.approx(2, abs=0.1) if geometric else pytest.approx(200, abs=5))
    assert torch.equal(end, goal.clamp(max=5))


def test_values_of_a_chain_are_those_of_the_sheet():
    """The fixed points of the batches' own next states, rewards and masks, on a chain, for goals of the trajectory."""
    count, n, discount = 102, 5, 0.99
    goals = Goals(episodes(count + 1))
    agent = hierarchical("ota", option_steps=n, value_goals=(0.0, 1.0, 0.0))
    low, high = np.zeros((2, count, count))
    goal = count - 1
    for row in range(goal - 1, -1, -1):
        place, zero, one = torch.tensor([[place_of(goal - row)]]), torch.zeros(1, 1), torch.ones(1, 1)
        d = GoalDraws(place, zero, one, zero.long())
        batch = agent.batch(goals, Draws(torch.tensor([[row]]), d, d, d))
        near, far = batch.value_goal, batch.high_value_goal
        assert near.obs[0, 0, 0] == far.obs[0, 0, 0] == goal
        after, end = (int(x[0, 0, 0]) for x in (batch.next_obs, batch.option_end))
        low[row, goal] = near.reward + discount * near.mask * low[after, goal]
        high[row, goal] = far.reward + discount * far.mask * high[end, goal]
    for d, expected in {1: -1, 5: -4.901, 10: -9.5618, 100: -63.3968}.items():
        assert low[goal - d, goal] == pytest.approx(expected, abs=1e-4)
    for d, expected in {1: 0, 5: 0, 10: -1, 100: -17.3831}.items():
        assert high[goal - d, goal] == pytest.approx(expected, abs=1e-4)
        assert high[goal - d, goal] == pytest.approx(
            -(1 - discount ** (math.ceil(d / n) - 1)) / (1 - discount), abs=1e-4
        )
    assert min(low.min(), high.min()) > -1 / (1 - discount)


def test_an_option_longer_than_the_way_to_a_subgoal_is_warned_about_once(train_short, capsys):
    train_short("ota", option_steps=4, subgoal_steps=3)
    assert capsys.readouterr().err.count("--option-steps 4 is more than --subgoal-steps 3") == 1


@pytest.mark.parametrize("script", ["gcivl", "hiql", "ota"])
def test_each_goal_of_a_batch_has_random_numbers_of_its_own(script):
    """For values, actors and high levels: 0.05 is six standard deviations of a correlation of chance."""
    module = module_of(script)
    agent = agent_type(script)(module.Args(hidden=(4,), batch_size=15_000), episodes(4).task, (0,))
    made = agent.draws(Random([0]))()
    numbers = [made.row, *itertools.chain(*(kind for kind in made if isinstance(kind, GoalDraws)))]
    assert len(numbers) == {"gcivl": 9, "hiql": 9, "ota": 13}[script]
    correlations = np.corrcoef(torch.cat([x.double() for x in numbers]).numpy())
    assert np.abs(correlations - np.eye(len(numbers))).max() < 0.05


# -- temporal goal augmentation ----------------------------------------------------------------------------------------


def gcbc(**overrides):
    module = module_of("gcbc")
    defaults = {"hidden": (4,), "anchors": "trajectories", "augment": 1.0, "batch_size": 100_000}
    return module.GCBC(module.Args(**(defaults | overrides)), episodes(4).task, (0,))


def toy(labels: list[int]) -> tuple[Goals, Clusters]:
    """Two episodes of four rows, and the group of each row."""
    goals = Goals(episodes(4, 4), final_states=True)
    clusters = Clusters(goals, 2, 2)
    clusters.set(np.arange(8), np.array(labels))
    return goals, clusters


def test_cloning_draws_transitions_and_goals_by_the_law_of_ogbench():
    """Each transition counts alike, and the last goal is the last state with an action."""
    goals, agent = Goals(episodes(3, 21)), gcbc(anchors="transitions", augment=0.0)
    rows, drawn, _ = agent.rows(goals, None, agent.draws(Random([0]))())
    assert (rows < 2).double().mean().item() == pytest.approx(2 / 22, abs=0.01)
    for row in (3, 10):
        reach = 22 - (row + 1)
        inner = dict.fromkeys(range(row + 2, 22), 1 / reach)
        assert shares(drawn[rows == row]) == law(of={row + 1: 0.5 / reach, **inner, 22: 0.5 / reach})


def test_anchors_are_of_all_trajectories_alike_however_long_they_are():
    """As RvS draws them: the two transitions of the first count as much as the twenty of the second."""
    goals, agent = Goals(episodes(3, 21), final_states=True), gcbc(augment=0.0)
    rows, drawn, _ = agent.rows(goals, None, agent.draws(Random([0]))())
    assert (rows < 3).double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert shares(rows[rows > 2]) == law(of=dict.fromkeys(range(3, 23), 1 / 20))
    assert shares(drawn[rows == 3]) == law(of=dict.fromkeys(range(4, 24), 1 / 20))
    assert shares(drawn[rows == 1]) == {2: 1.0}


@pytest.mark.parametrize(("anchors", "final"), [("transitions", False), ("trajectories", True)])
def test_a_run_of_cloning_has_last_states_as_goals_only_where_anchors_are_trajectories(monkeypatch, anchors, final):
    asked = {}
    module = module_of("gcbc")

    def noted(args, name, **kwargs):
        asked.update(kwargs)
        raise InterruptedError

    monkeypatch.setattr(module, "goal_run", noted)
    with pytest.raises(InterruptedError):
        module.main(module.Args(anchors=anchors))
    assert asked["final_states"] is final


def test_augmented_goals_have_the_law_of_the_sheet():
    goals, clusters = toy([0, 1, 2, 3, 4, 3, 5, 6])  # rows 3 and 5 are near each other
    agent = gcbc()
    rows, drawn, _ = agent.rows(goals, clusters, agent.draws(Random([0]))())
    assert shares(rows) == law(of=dict.fromkeys((0, 1, 2, 4, 5, 6), 1 / 6))
    assert shares(drawn[rows == 2]) == law(of={3: 1 / 2, 5: 1 / 6, 6: 1 / 6, 7: 1 / 6})
    assert shares(drawn[rows == 0]) == law(of={1: 1 / 9, 2: 5 / 18, 3: 4 / 9, 5: 1 / 18, 6: 1 / 18, 7: 1 / 18})


def test_every_state_its_own_group_keeps_goals_in_the_trajectory():
    """Uniform over the rest, and then uniform over the rest of that: later goals than without augmentation."""
    goals, clusters = toy(list(range(8)))
    agent = gcbc()
    rows, drawn, _ = agent.rows(goals, clusters, agent.draws(Random([0]))())
    assert shares(drawn[rows == 0]) == law(of={1: 1 / 9, 2: 1 / 9 + 1 / 6, 3: 1 / 9 + 1 / 6 + 1 / 3})


def test_without_augmentation_the_plain_law_stays_bit_for_bit():
    goals, clusters = toy([0] * 8)
    agent = gcbc()
    never = gcbc()
    never.args.augment = 0.0
    numbers = agent.draws(Random([0]))()
    ours, plain = never.rows(goals, clusters, numbers), agent.rows(goals, None, numbers)
    assert torch.equal(ours[0], plain[0]) and torch.equal(ours[1], plain[1])
    assert not ours[2].any() and plain[2] is None and agent.rows(goals, clusters, numbers)[2].all()


def test_the_probability_of_augmentation_may_differ_between_runs():
    """The first of two runs with the same random numbers never replaces a goal, and the second always does."""
    goals, clusters = toy([0] * 8)
    agent = gcbc()
    numbers = agent.draws(Random([0, 0]))()
    agent.args.augment = PerRun([0.0, 1.0])
    rows, drawn, replaced = agent.rows(goals, clusters, numbers)
    assert torch.equal(drawn[0], agent.rows(goals, None, numbers)[1][0]) and not torch.equal(drawn[0], drawn[1])
    assert not replaced[0].any() and replaced[1].all() and torch.equal(rows[0], rows[1])


def test_twice_the_same_episodes_leave_the_law_as_it_is():
    agent, numbers = gcbc(), gcbc().draws(Random([0]))()
    goals, clusters = toy([0, 1, 2, 3, 4, 3, 5, 6])
    once = [x % 8 for x in agent.rows(goals, clusters, numbers)[:2]]
    twice = Goals(episodes(4, 4, 4, 4), final_states=True)
    doubled = Clusters(twice, 2, 2)
    doubled.set(np.arange(16), np.array([0, 1, 2, 3, 4, 3, 5, 6] * 2))
    again = [x % 8 for x in agent.rows(twice, doubled, numbers)[:2]]
    for row in (0, 2, 5):
        assert shares(again[1][again[0] == row]) == law(of=shares(once[1][once[0] == row]))


def test_groups_are_of_neighbours_and_depend_on_the_data_only(monkeypatch):
    data = episodes(40, 40)
    data.rows[40:, 0] += 1000
    goals = Goals(data, final_states=True)
    one, two = (Clusters(goals, 2, 1) for _ in range(2))
    assert len(set(one.label[:40].tolist())) == 1 and len(set(one.label.tolist())) == 2
    assert torch.equal(one.label, two.label) and one.size.tolist() == [40, 40]
    with pytest.raises(UserError, match="--clusters 81 is more than the 80 states"):
        Clusters(goals, 81, 1)
    monkeypatch.setattr("algos.goals.FITTED", 20)
    sampled = Clusters(goals, 2, 1)  # found from a sample of the states, and then all join
    assert torch.equal(sampled.label == sampled.label[0], torch.arange(80) < 40) and sampled.size.tolist() == [40, 40]
    with pytest.raises(UserError, match="--clusters 21 is more than the 20 states from which groups are found"):
        Clusters(goals, 21, 1)
