"""Sentences of README and of results/findings.md agree with the stored tables."""

import json
import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from algos.model_based import ModelBasedArgs
from benchmarks.decide import combined, compare
from benchmarks.suite import ROOT, read_curves

LINES = " ".join((ROOT / "README.md").read_text().split())
# Sections of the findings, by the first report that each of them links.
FOUND = {
    re.search(r"\]\((\w+)/", text)[1]: " ".join(text.split())
    for text in re.split(r"^##+ ", (ROOT / "results" / "findings.md").read_text(), flags=re.MULTILINE)
    if re.match(r".*\]\(\w+/", text)
}
ALL = "all tasks"
CHEETAH, HOPPER, WALKER = (f"local/{name}-medium-replay-v0" for name in ("halfcheetah", "hopper", "walker2d"))
EXPERT = CHEETAH.replace("replay", "expert")


def stored(report: str, table: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "results" / report / f"{table}.csv")


def verdicts(report: str) -> pd.DataFrame:
    """Every verdict twice, once from the view of each of the two."""
    frame = stored(report, "verdicts")
    other = frame.rename(columns={"a": "b", "b": "a"})
    other["verdict"] = other["verdict"].replace({"better": "worse", "worse": "better"})
    columns = ["task", "a", "b", "verdict"]
    return pd.concat([frame[columns], other[columns]])


def board(dataset: str, report: str = "") -> pd.DataFrame:
    """Scores of the leaderboard by method: those of a report, or else the published ones."""
    frame = stored("leaderboard", "success").query("dataset == @dataset")
    return frame[frame["report"].fillna("") == report].set_index("method")


def beside(dataset: str, report: str, method: str, published: str = "") -> str:
    """A score of a report, as whole percent, and in brackets the published one with its spread."""
    other = board(dataset).loc[method]
    assert other["updates"] == 1_000_000
    return f"{board(dataset, report)['mean'][method]:.0f} ({other['mean']:.0f} ± {other['std']:.0f}{published})"


def assert_better(report: str, task: str, pairs: list[str]) -> None:
    """Fails unless the first of each pair is better than the second on the task; * stands for all others."""
    frame = verdicts(report).query("task == @task")
    names = set(frame["a"])
    for pair in pairs:
        better, worse = ([name] if name != "*" else sorted(names) for name in pair.split(" > "))
        both = [(a, b) for a in better for b in worse if a != b]
        found = frame.set_index(["a", "b"])["verdict"]
        assert both and all(found[couple] == "better" for couple in both)


def least(report: str, task: str, a: str, b: str) -> float:
    """The difference, in returns, that would have been shown between two on a task."""
    rows, score = stored(report, "final").query("task == @task"), headline(report)
    normalised = rows.get(f"{score}_normalised", rows[score])  # without references, scores are returns
    scale = np.ptp(rows[score]) / np.ptp(normalised)
    frame = stored(report, "verdicts").query("task == @task").set_index(["a", "b"])["least"]
    return frame[a, b] * scale


def headline(report: str) -> str:
    """The score of a report."""
    return json.loads((ROOT / "results" / report / "report.json").read_text())["score"]


def means(report: str) -> pd.Series:
    """Mean scores by task and algorithm."""
    frame = stored(report, "tasks")
    return frame[frame["score"] == headline(report)].set_index(["task", "algorithm"])["mean"]


@pytest.mark.parametrize(
    ("report", "sentence", "task", "pairs"),  # * stands for all others
    [
        ("on_policy_mujoco", "Over the four, PPO is better than TRPO, and both are better than MDPO;", ALL,
         ["ppo > trpo", "ppo > mdpo_on_policy", "trpo > mdpo_on_policy"]),
        ("on_policy_mujoco", "there, PPO is better than both, and MDPO better than TRPO", "Ant-v5",
         ["ppo > trpo", "ppo > mdpo_on_policy", "mdpo_on_policy > trpo"]),
        ("until_decided", "After the second look, with ten seeds, TRPO is better on InvertedDoublePendulum;",
         "InvertedDoublePendulum-v5", ["trpo > ppo"]),
        ("sqirl_mujoco", "With k = 1, SQIRL does not balance the pendulum, and PPO does.", "InvertedPendulum-v5",
         ["ppo > sqirl_k1"]),
        ("mujoco_short", "DSAC-T is worse so early in training", ALL, ["sac > dsac_t"]),
        ("on_policy_sensitivity", "Over both tasks, MDPO's step size 0.1 is worse than 1 and 3,", ALL,
         [f"mdpo_on_policy (step_size={more}) > mdpo_on_policy (step_size=0.1)" for more in (1, 3)]),
        ("on_policy_sensitivity", "one step of it an iteration is worse than ten", ALL,
         ["mdpo_on_policy (step_size=1) > mdpo_on_policy (mdpo_1_step)"]),
        ("on_policy_sensitivity", "PPO's clip 0.05 is worse than 0.2", ALL, ["ppo (clip=0.2) > ppo (clip=0.05)"]),
        ("offline_mujoco_short", "Over the three, TD3+BC, IQL and f-DVL are better than BC.", ALL,
         ["td3_bc > bc", "iql > bc", "f_dvl > bc"]),
        ("offline_mujoco_short", "On single tasks, all four are better than BC on Hopper, none is on HalfCheetah,",
         HOPPER, ["* > bc"]),
        ("offline_mujoco_short", "and all but TD3+BC are on Walker2d.", "local/walker2d-medium-replay-v0",
         ["iql > bc", "xql > bc", "f_dvl > bc"]),
        ("offline_mujoco_short", "On HalfCheetah, TD3+BC is better than IQL, XQL and f-DVL.", CHEETAH,
         ["td3_bc > iql", "td3_bc > xql", "td3_bc > f_dvl"]),
        ("offline_mujoco_shorter", "Over the six, BC is better than the others.", ALL, ["bc > *"]),
        ("iql_sensitivity", "On HalfCheetah's medium-replay data, a temperature of 1 is better than 10 at each "
         "expectile",         CHEETAH,
         [f"iql (expectile={e}, temperature=1) > iql (expectile={e}, temperature=10)" for e in (0.5, 0.7, 0.8, 0.9)]),
        ("recoil_short", "ReCOIL is better with 200 of them", "local/hopper-random-v0", ["recoil_200 > bc_200"]),
        ("recoil", "; ReCOIL is better.", "local/hopper-random-v0", ["recoil > bc"]),
        ("stitching", "Over the four, more goals are reached with it than without, with each probability and each "
         "number of groups that was tried.", ALL,
         ["* > gcbc (augment=0)"]),
        ("pointmaze_short", "Over both mazes with navigate data, QRL reaches more goals than GCIQL and GCBC.",
         "the 2 tasks of both", ["qrl > gciql", "qrl > gcbc"]),
        ("pointmaze_short", "Over the four datasets, GCIVL reaches more goals than GCIQL, and GCIQL more than GCBC;",
         ALL, ["gcivl > gciql", "gciql > gcbc", "gcivl > gcbc"]),
    ],
)  # fmt: skip
def test_what_is_called_better_is_decided(report, sentence, task, pairs):
    assert sentence in FOUND[report]
    assert_better(report, task, pairs)


@pytest.mark.parametrize(
    ("report", "sentence", "pattern"),  # nothing is decided where the pattern is found in "task | a | b"
    [
        ("on_policy_mujoco", "On HalfCheetah and Hopper alone, nothing is decided.", "^(HalfCheetah|Hopper)"),
        ("on_policy_mujoco", "On no other single task is it decided between PPO and TRPO.",
         "^(HalfCheetah|Hopper|Walker2d).* ppo \\| trpo$"),
        ("stream_series", "Between the decays, nothing is decided.", ""),
        ("ppo_vs_sb3", "Not decided.", ""),
        ("trpo_vs_sb3", "Not decided.", ""),
        ("dqn_vs_sb3", "Not decided.", ""),
        ("stream_q_vs_official", "Not decided.", ""),
        ("xql_vs_official", "Not decided, on Hopper's medium-replay data:", ""),
        ("on_policy_limits", "Not decided.", ""),
        ("until_decided", "; on Reacher nothing is decided by 25,", "^Reacher"),
        ("mdpo_off_policy", "SAC's means are the highest; nothing is decided.", ""),
        ("iql_sensitivity", "between expectiles at the same temperature, nothing is decided",
         r"\| .*temperature=(\d+)\) \| .*temperature=\1\)"),
        ("recoil_short", "with 30 it is not decided", r"\| recoil \| bc$"),
        ("edge_of_reach_mix", "Between mixtures, nothing is decided.", ""),
        ("offline_model_based", "Between methods with a model, nothing is decided.",
         r"\| (mo|ra)\w+( \(mbpo\))? \| (mo|ra)\w+( \(mbpo\))?$"),
        ("offline_mujoco_short", "none is on HalfCheetah,", r"halfcheetah-medium-replay-v0 \| bc \|"),
        ("offline_mujoco_short", "and all but TD3+BC are on Walker2d.", r"walker2d-medium-replay-v0 \| bc \| td3_bc"),
        ("stitching", "Between two of these, nothing is decided.",
         r"\| gcbc(_| \(augment=0\.).* \| gcbc(_| \(augment=0\.)"),
        ("pointmaze_short", "GCIVL 34 (45 ± 5), GCIQL 27 (34 ± 3) and GCBC 15 (29 ± 6); nothing is decided.",
         "pointmaze-large-navigate"),
        ("pointmaze_short", "On pointmaze-large-stitch, nothing is decided:", "pointmaze-large-stitch"),
        ("pointmaze_short", "between GCIVL and GCIQL, nothing is decided on any of the other three.",
         r"(navigate|large-stitch)-v0 \| gciql \| gcivl$"),
        ("pointmaze_short",
         "GCIQL reaches fewer goals than OTA, HIQL, GCIVL and GCBC, between which nothing is decided.",
         r"pointmaze-medium-stitch-v0 \| (gcbc|gcivl|hiql) \| (gcivl|hiql|ota)$"),
        ("antmaze_short", "which three seeds cannot decide", ""),
        ("bf16", "Not decided;", ""),
    ],
)  # fmt: skip
def test_what_is_called_undecided_is_so(report, sentence, pattern):
    assert sentence in FOUND[report]
    frame = verdicts(report)
    frame = frame[[bool(re.search(pattern, " | ".join(row))) for row in frame[["task", "a", "b"]].to_numpy()]]
    assert len(frame) and set(frame["verdict"]) == {"not decided"}
    named = re.findall(r"HalfCheetah|Hopper|Walker2d|Reacher", pattern)  # each of which has verdicts
    assert {task.partition("-")[0] for task in frame["task"]} >= set(named)


@pytest.mark.parametrize("report", ["sac_vs_sb3", "iql_vs_d3rlpy", "mopo_vs_offlinerl_kit", "gcivl_vs_ogbench"])
def test_where_seeds_are_too_few_findings_say_that_they_cannot_decide(report):
    """With three against three, one in ten exchanges is as extreme as any."""
    told = "With three seeds, nothing is decided." if report == "sac_vs_sb3" else " seeds cannot decide"
    assert told in FOUND[report]  # SAC has two tasks, over which three could decide
    names = re.findall(r"\]\((\w+)/report.md", FOUND[report])
    assert report in names
    for name in names:
        frame = stored(name, "verdicts")
        assert frame[["seeds_a", "seeds_b"]].max(axis=None) == 3 and set(frame["verdict"]) == {"not decided"}


@pytest.mark.parametrize("report", list(FOUND))
def test_findings_take_no_intervals_that_overlap_for_a_test(report):
    assert "overlap" not in FOUND[report]


def test_findings_tell_what_would_have_been_shown():
    told = "Means are {:,.0f} here and {:,.0f} on HalfCheetah, and {:,.0f} and {:,.0f} on Hopper; differences of "
    ends, tasks = means("ppo_vs_sb3"), ("HalfCheetah-v5", "Hopper-v5")
    told = told.format(*(ends[task][name] for task in tasks for name in ("ppo", "sb3_ppo")))
    shown = (f"{least('ppo_vs_sb3', task, 'ppo', 'sb3_ppo'):,.0f}" for task in tasks)
    assert f"{told}{' and '.join(shown)} would have been shown." in FOUND["ppo_vs_sb3"]
    ends = means("trpo_vs_sb3")
    told = "Means are {:,.0f} here and {:,.0f} on HalfCheetah, and {:,.0f} and {:,.0f} on Hopper; differences of "
    told = told.format(*(ends[task][name] for task in tasks for name in ("trpo (sb3_settings)", "sb3_trpo")))
    shown = (f"{least('trpo_vs_sb3', task, 'sb3_trpo', 'trpo (sb3_settings)'):,.0f}" for task in tasks)
    assert f"{told}{' and '.join(shown)} would have been shown." in FOUND["trpo_vs_sb3"]
    ends, tasks = means("dqn_vs_sb3"), ("CartPole-v1", "Acrobot-v1")
    told = "Means are {:.0f} here and {:.0f} on CartPole, and {:.0f} and {:.0f} on Acrobot; differences of "
    told = told.format(*(ends[task][name] for task in tasks for name in ("dqn", "sb3_dqn")))
    shown = (f"{least('dqn_vs_sb3', task, 'dqn', 'sb3_dqn'):.0f}" for task in tasks)
    assert f"{told}{' and '.join(shown)} would have been shown." in FOUND["dqn_vs_sb3"]
    tasks = "HalfCheetah-v5", "Hopper-v5"
    sides = ("ppo", "ppo_bootstrap"), ("mdpo_on_policy", "mdpo_on_policy (mdpo_bootstrap)")
    first, second, third, fourth = (f"{least('on_policy_limits', t, *pair):,.0f}" for t in tasks for pair in sides)
    assert (
        f"Between bootstrapping and not, differences of {first} for PPO and {second} for MDPO on HalfCheetah, and of "
        f"{third} and {fourth} on Hopper, would have been shown." in FOUND["on_policy_limits"]
    )
    sac, iql = least("bf16", tasks[0], "sac", "sac (bf16)"), least("bf16", CHEETAH, "iql", "iql (bf16)")
    assert (
        f"differences of {sac:.0f} for SAC on HalfCheetah and {iql:.0f} for IQL on its medium-replay data would have "
        "been shown." in FOUND["bf16"]
    )


def test_bc_is_not_better_on_each_of_the_six_as_readme_and_findings_tell():
    """What `test_what_is_called_better_is_decided` holds is the mean over them."""
    assert "than IQL and XQL because of one of the six." in LINES
    row = FOUND["offline_mujoco_shorter"]
    assert (
        "On single ones, it is better than f-DVL on all of HalfCheetah and Walker2d, than TD3+BC on those of Walker2d, "
        "and than IQL and XQL on HalfCheetah's medium-expert data only; on Hopper's medium data, IQL's and XQL's means "
        "are above" in row
    )
    decided = verdicts("offline_mujoco_shorter").query("a == 'bc' and verdict == 'better' and task != 'all tasks'")
    names = decided["task"].str.removeprefix("local/").str.removesuffix("-v0").groupby(decided["b"]).agg(set)
    cheetah, walker = ({f"{name}-medium", f"{name}-medium-expert"} for name in ("halfcheetah", "walker2d"))
    one = {"halfcheetah-medium-expert"}
    assert names.to_dict() == {"f_dvl": cheetah | walker, "td3_bc": walker, "iql": one, "xql": one}
    # without that one, nothing between BC and these two is far from chance
    ends = stored("offline_mujoco_shorter", "final").query("task != 'local/halfcheetah-medium-expert-v0'")
    by = ends.groupby(["algorithm", "seed"])["last_normalised"].mean().unstack("algorithm")
    assert all(scipy.stats.ttest_ind(by["bc"], by[name], equal_var=False).pvalue > 0.05 for name in ("iql", "xql"))
    ends = means("offline_mujoco_shorter")["local/hopper-medium-v0"]
    assert min(ends["iql"], ends["xql"]) > ends["bc"]
    assert (
        "On three of the six, the two of Walker2d among them, every seed of TD3+BC ends below where it was after 5,000 "
        "updates." in row
    )
    curves = stored("offline_mujoco_shorter", "scores").query("algorithm == 'td3_bc'")
    by_step = curves.pivot(index=["task", "seed"], columns="step", values="return")
    falls = (by_step[25_000] < by_step[5_000]).groupby("task").all()
    assert falls.sum() == 3 and falls[falls.index.str.contains("walker2d")].sum() == 2


def test_findings_tell_what_single_tasks_decide_about_bc_on_medium_replay_data():
    row, frame = FOUND["offline_mujoco_short"], stored("offline_mujoco_short", "verdicts")
    frame = frame.set_index(["task", "a", "b"])
    assert f"XQL's mean is as high as theirs, and p is {frame['p_corrected'][ALL, 'bc', 'xql']:.3f}." in row
    over = stored("offline_mujoco_short", "final").groupby("algorithm")["last_normalised"].mean()
    others = over[["td3_bc", "iql", "f_dvl"]]
    assert over["xql"] > others.min() - 0.002 and others.min() > over["bc"] + 0.08
    spread = stored("offline_mujoco_short", "final").query("task == @CHEETAH").groupby("algorithm")["last"].std()
    assert "where BC's scores spread twelve times as widely as any other's" in row
    assert round(spread["bc"] / spread.drop("bc").max()) == 12


def test_findings_tell_what_single_mazes_decide_about_augmentation():
    row, none = FOUND["stitching"], "gcbc (augment=0)"
    decided = verdicts("stitching").query("b == @none and verdict == 'better' and task != 'all tasks'")
    assert decided[["task", "a"]].to_numpy().tolist() == [["local/stitching-umaze-v0", "gcbc (augment=0.25)"]]
    assert "only the umaze decides for it, with a probability of 0.25;" in row
    ends = means("stitching")["local/pointmaze-large-stitch-v0"]
    with_it = ends.drop(none)
    assert (
        f"on OGBench's large maze, {ends[none]:.0f}% of goals are reached without it and {with_it.min():.0f} to "
        f"{with_it.max():.0f}% with it." in row
    )


def test_iql_s_seeds_beside_d3rlpy_s_on_medium_expert_data_are_as_findings_tell():
    row, final = FOUND["iql_vs_d3rlpy"], stored("iql_medium_expert", "final").groupby("algorithm")["last"]
    assert "cut at 60,000 of our 100,000 updates, each of our three seeds is above both of d3rlpy's" in row
    assert f"means are {final.mean()['iql (longer)']:,.0f} and {final.mean()['d3rlpy_iql']:,.0f}." in row
    before = stored("iql_medium_expert", "scores").query("step == 50_000").groupby("algorithm")["return"].mean()
    ours, theirs = before["iql (longer)"], before["d3rlpy_iql"]
    assert f"After 50,000, d3rlpy's is the higher one: {theirs:,.0f} beside {ours:,.0f}." in row and theirs > ours
    replay = means("iql_vs_d3rlpy")[CHEETAH]
    told = f"means are {replay['iql (d3rlpy_settings)']:,.0f} here and {replay['d3rlpy_iql']:,.0f}."
    assert f"On HalfCheetah's medium-replay data, {told}" in row
    assert final.min()["iql (longer)"] > final.max()["d3rlpy_iql"]
    assert final.size().to_dict() == {"iql (longer)": 3, "d3rlpy_iql": 2}


def test_findings_tell_how_ppo_sac_td3_and_mopo_end_beside_other_code():
    ppo, final = FOUND["ppo_vs_sb3"], stored("ppo_vs_sb3", "final").query("task == 'HalfCheetah-v5'")
    ours, theirs = (np.sort(final.query("algorithm == @name")["mean"]) for name in ("ppo", "sb3_ppo"))
    assert "three of our ten seeds make the mean: the other seven are below all three of the library's." in ppo
    assert (len(ours), len(theirs), headline("ppo_vs_sb3")) == (10, 3, "mean")
    assert ours[6] < theirs[0] < theirs[2] < ours[7]
    sources = json.loads((ROOT / "results" / "ppo_vs_sb3" / "sources.json").read_text())
    versions = {c["algorithm"]: c["versions"]["gymnasium"] for c in sources}
    assert "ran with an earlier Gymnasium." in ppo and versions["sb3_ppo"] < versions["ppo"]
    assert not any(c["args"].get("bootstrap_limits") for c in sources if c["algorithm"] == "ppo")
    row = FOUND["sac_vs_sb3"]
    sac, td3 = means("sac_vs_sb3"), means("td3_vs_sb3")["HalfCheetah-v5"]
    cheetah, hopper = (sac[f"{task}-v5"] for task in ("HalfCheetah", "Hopper"))
    told = "SAC's means are {:,.0f} here and {:,.0f} on HalfCheetah, and {:,.0f} and {:,.0f} on Hopper."
    names = "sac (sb3_settings)", "sb3_sac"
    assert told.format(*(cheetah[name] for name in names), *(hopper[name] for name in names)) in row
    best = stored("td3_vs_sb3", "final").query("algorithm == 'td3'")["last"].max()
    told = (
        f"On HalfCheetah, TD3's are {td3['td3']:.0f} and {td3['sb3_td3']:.0f}, where one seed of {best:.0f} makes ours."
    )
    assert told in row and (best - td3["td3"]) > td3["td3"]
    (mopo,) = (frame for _, frame in means("mopo_vs_offlinerl_kit").groupby("task"))
    mopo = mopo.droplevel("task")
    assert f"means are {mopo['mopo']:.0f} here and {mopo['offlinerl_kit_mopo']:.0f}." in FOUND["mopo_vs_offlinerl_kit"]


def test_findings_tell_what_is_left_between_on_policy_methods_without_ant():
    row, names = FOUND["on_policy_mujoco"], ("ppo", "trpo", "mdpo_on_policy")
    rows = stored("on_policy_mujoco", "final").query("task != 'Ant-v5'")
    rows = rows.assign(score=rows[f"{headline('on_policy_mujoco')}_normalised"])
    scores = rows.pivot(index=["task", "seed"], columns="algorithm", values="score")
    p = {}
    for a, b in combinations(names, 2):
        on_each = [
            compare(t, a, b, one.loc[t][a].to_dict(), one.loc[t][b].to_dict()) for t, one in scores.groupby("task")
        ]
        p[a, b] = combined("the three", on_each).p
    assert (
        "over the three without Ant, Welch's test still finds that both are better than MDPO, and nothing between PPO "
        f"and TRPO (p = {p['ppo', 'trpo']:.2f})" in row
    )
    assert 3 * max(p["ppo", "mdpo_on_policy"], p["trpo", "mdpo_on_policy"]) < 0.05 and len(rows) == 3 * 3 * 10
    assert scores.mean().idxmin() == "mdpo_on_policy"
    assert (
        "; without Ant, where all three end below their untrained policies, nothing is found between PPO and TRPO."
        in LINES
    )


def test_findings_tell_how_the_on_policy_methods_end_on_ant():
    assert (
        "On Ant, all three end below their untrained policies; there, PPO is better than both"
        in FOUND["on_policy_mujoco"]
    )
    scores = stored("on_policy_mujoco", "scores")
    ant = scores[scores["task"] == "Ant-v5"].groupby(["algorithm", "step"])["return"].mean().unstack()
    assert len(ant) == 3 and (ant[1_000_000] < ant[0]).all() and ant[1_000_000].idxmax() == "ppo"


def test_sac_has_the_highest_means_beside_mdpo():
    assert "SAC's means are the highest" in FOUND["mdpo_off_policy"]
    last = means("mdpo_off_policy").unstack()
    assert set(last.idxmax(axis=1)) == {"sac"}


def test_findings_tell_how_dsac_t_begins_in_both_codes():
    row, ends = FOUND["dsac_t_vs_official"], means("dsac_t_vs_official").droplevel("task")
    scores = stored("dsac_t_vs_official", "scores").groupby(["algorithm", "step"])["return"].mean().unstack("algorithm")
    assert "the mean stays below 200 up to 40,000 steps and rises then" in row
    both = scores.dropna()  # ours was evaluated twice as often
    assert both.loc[:40_000].max(axis=None) < 200 and (both.loc[40_000:].diff().iloc[1:] > 0).all(axis=None)
    told = f"to {ends['dsac_t']:,.0f} here and to {ends['official_dsac_t']:,.0f} in the official code"
    assert told in row and both.index.max() == 50_000
    verdict = verdicts("dsac_t_vs_official")
    shown = least("dsac_t_vs_official", "HalfCheetah-v5", "dsac_t", "official_dsac_t")
    assert f"Not decided; a difference of {shown:,.0f} would have been shown, which is as much as the mean here." in row
    assert abs(shown / ends["dsac_t"] - 1) < 0.01 and set(verdict["verdict"]) == {"not decided"}


def test_findings_tell_how_much_larger_the_trust_region_of_sb3_s_trpo_is():
    runs = json.loads((ROOT / "results" / "trpo_vs_sb3" / "sources.json").read_text())
    ours = {run["task"]: run["args"] for run in runs if run["algorithm"] == "trpo"}
    usual = json.loads((ROOT / "results" / "on_policy_mujoco" / "sources.json").read_text())
    (delta,) = {run["args"]["delta"] for run in usual if run["algorithm"] == "trpo"}
    assert {task: round(args["delta"] / delta, 9) for task, args in ours.items()} == {
        "HalfCheetah-v5": 6,
        "Hopper-v5": 3,
    }
    scores = stored("on_policy_mujoco", "scores").query("task == 'HalfCheetah-v5' and algorithm == 'trpo'")
    mean = scores.query("step == 500_000")["return"].mean()
    told = "its trust region is six times as large as our default on HalfCheetah and three times on Hopper;"
    assert told in FOUND["trpo_vs_sb3"]
    assert f"TRPO's mean on HalfCheetah is {mean:,.0f} after as many steps." in FOUND["trpo_vs_sb3"]


def test_findings_tell_how_stream_ac_begins_in_both_codes():
    report = "stream_ac_vs_official"
    ends = means(report).droplevel("task")
    told = f"the mean of the last 10% is {ends['stream_ac']:.0f} here and {ends['official_stream_ac']:.0f} in the"
    assert told in FOUND[report] and headline(report) == "mean"
    assert FOUND[report].count("Not decided:") == 1 and set(verdicts(report)["verdict"]) == {"not decided"}
    shown = least(report, "HalfCheetah-v5", "official_stream_ac", "stream_ac")
    assert f"and a difference of {shown:.0f} would have been shown." in FOUND[report]


def test_findings_tell_how_stream_q_and_sarsa_end_in_both_codes():
    for target in ("q", "sarsa"):
        report = f"stream_{target}_vs_official"
        ends, pair = means(report), (f"official_stream_{target}", f"stream_q ({target})")
        numbers = [round(ends[task][name]) for task in ("CartPole-v1", "Acrobot-v1") for name in reversed(pair)]
        shown = (f"{least(report, task, *pair):,.0f}" for task in ("CartPole-v1", "Acrobot-v1"))
        told = "means of the last 10% are {:,} here and {:,} on CartPole, and {:,} and {:,} on Acrobot, and differences"
        assert (
            f"{told.format(*numbers)} of {' and '.join(shown)} would have been shown." in FOUND["stream_q_vs_official"]
        )
        assert headline(report) == "mean" and set(verdicts(report)["verdict"]) == {"not decided"}


def test_findings_tell_how_xql_f_dvl_and_recoil_end_beside_their_official_code():
    row, numbers, shown = FOUND["xql_vs_official"], [], []
    for name in ("xql", "f_dvl", "recoil"):
        report, official = f"{name}_vs_official", f"official_{name}"
        (task,) = set(stored(report, "scores")["task"])
        assert task == ("local/hopper-random-v0" if name == "recoil" else "local/hopper-medium-replay-v0")
        ends = means(report)[task]
        numbers += [ends[name], ends[official]]
        shown.append(least(report, task, *sorted([name, official])))
        assert set(verdicts(report)["verdict"]) == {"not decided"} and headline(report) == "last"
        assert ends[official] > ends[name]
        if name != "recoil":
            curves = stored(report, "scores").groupby(["algorithm", "step"])["return"].mean()
            assert curves[official, 2_500] > max(curves[name, 2_500], curves[official, 0], curves[official, 5_000])
    told = "means are {:.0f} here and {:.0f} for XQL, and {:.0f} and {:.0f} for f-DVL, and differences of {:.0f} and "
    assert f"{told.format(*numbers[:4], shown[0])}{shown[1]:.0f} would have been shown." in row
    told = "means are {:.0f} and {:.0f}, and a difference of {:.0f} would have been shown."
    assert told.format(*numbers[4:], shown[2]) in row
    pairs = stored("recoil_vs_official", "final").pivot(index="seed", columns="algorithm", values="last")
    assert len(pairs) == 5 and (pairs["official_recoil"] > pairs["recoil"]).all()
    paired = scipy.stats.ttest_rel(pairs["official_recoil"], pairs["recoil"]).pvalue
    assert f"a paired test, which no rule had fixed before, would have p = {paired:.3f}." in row
    assert "that all three official means are the higher ones may be chance." in row
    early, later = [], []
    for name in ("xql", "f_dvl"):
        curves = stored(f"{name}_vs_official", "scores").groupby(["algorithm", "step"])["return"].mean()
        early.append([curves[f"official_{name}", 2_500], curves[name, 2_500]])
        later.append([curves[name, 10_000], curves[f"official_{name}", 10_000]])
        assert early[-1][0] > early[-1][1] and later[-1][0] > later[-1][1]
    told = (
        "For XQL, the official mean is {:.0f} and ours {:.0f} after 2,500 updates, and {:.0f} and {:.0f} after 10,000; "
        "for f-DVL, they are {:.0f} and {:.0f}, and then {:.0f} and {:.0f}."
    )
    assert told.format(*early[0], *later[0][::-1], *early[1], *later[1][::-1]) in row


def test_findings_tell_how_td3_bc_ends_beside_d3rlpy_s_and_why_it_has_more_seeds():
    row, verdict = FOUND["td3_bc_vs_d3rlpy"], stored("td3_bc_vs_d3rlpy", "verdicts")
    assert "Not decided on HalfCheetah's medium-expert data, with ten seeds of d3rlpy and fifteen here" in row
    assert verdict[["seeds_a", "seeds_b", "verdict"]].to_numpy().tolist() == [[10, 15, "not decided"]]
    ends, final = means("td3_bc_vs_d3rlpy"), stored("td3_bc_vs_d3rlpy", "final")
    assert f"means are {ends.max():,.0f} and {ends.min():,.0f}." in row and ends.idxmax()[1] == "d3rlpy_td3_bc"
    p = {}
    for seeds in (5, 10):
        theirs, ours = (rows["last"] for _, rows in final[final["seed"] < seeds].groupby("algorithm"))
        assert len(theirs) == len(ours) == seeds and theirs.mean() > ours.mean()
        p[seeds] = scipy.stats.ttest_ind(theirs, ours, equal_var=False).pvalue
    assert f"had decided for d3rlpy (p = {p[5]:.3f}), by no rule that was fixed before" in row
    assert f"ten of each have p = {p[10]:.2f}, and all have {verdict['p'][0]:.2f}." in row
    assert (
        "TD3+BC was given more seeds, by no rule that was fixed before, because five of each had decided for d3rlpy."
        in LINES
    )


def test_findings_tell_how_stream_ac_ends_beside_published_runs():
    ends = means("stream_mujoco").droplevel("algorithm")
    assert headline("stream_mujoco") == "mean"
    table = pd.read_csv(ROOT / "benchmarks" / "published" / "stream_x.csv")
    table = table[(table["algorithm"] == "stream AC") & table["protocol"].str.contains("1M")]
    score = table.set_index("task")["score"]
    assert (
        f"The mean of the last 10% is {ends['HalfCheetah-v5']:,.0f} on HalfCheetah, where a published chart ends at "
        f"about {score['HalfCheetah-v5']:,.0f}, and {ends['Ant-v5']:,.0f} on Ant, where {score['Ant-v4']:,.0f} is "
        "logged for v4," in FOUND["stream_mujoco"]
    )
    assert set(score.index) == {"HalfCheetah-v5", "Ant-v4"} and set(table["seeds"]) == {1}


def test_findings_tell_how_well_stream_td_predicts():
    assert "leave about a third of the variance" in (row := FOUND["stream_series"])
    last = means("stream_series")
    assert len(last) == 3 and (1 - last).between(0.28, 0.4).all()
    assert "in two of twelve stretches, the first and the seventh, they are on average worse" in row
    stretches = stored("stream_series", "scores").groupby("step")["return"].mean()
    assert np.flatnonzero(stretches < 0).tolist() == [0, 6] and len(stretches) == 12


def test_findings_tell_how_ensembles_predict():
    row = FOUND["ensembles"]
    frame = stored("ensembles", "ensembles").query("elite")
    frame["unexplained"] = frame["error"] / frame["variance"]
    by = frame.groupby("task")[["unexplained", "inside_90"]].mean()
    assert "about 1% of the variance is unexplained on HalfCheetah's medium-replay data and less on Hopper's" in row
    assert 0.009 < by["unexplained"][CHEETAH] < 0.014
    assert by["unexplained"]["local/hopper-medium-expert-v0"] < by["unexplained"][CHEETAH]
    assert f"intervals of 90% hold {by['inside_90'][CHEETAH]:.0%}" in row and len(by) == 2


@pytest.mark.parametrize(
    ("report", "told", "pairs"),
    [
        ("offline_model_based",
         "MOBILE earns more than BC and IQL on HalfCheetah, and MBPO more than BC over the three tasks. IQL earns more "
         "than BC on Walker2d and over the three; on Walker2d it earns more than MBPO, MOPO and MOBILE too.",
         {(CHEETAH, "mobile", "bc"), (CHEETAH, "mobile", "iql"), (ALL, "mopo (mbpo)", "bc"), (WALKER, "iql", "bc"),
          (ALL, "iql", "bc"), *((WALKER, "iql", name) for name in ("mopo (mbpo)", "mopo", "mobile"))}),
        ("offline_model_based_other",
         "MBPO earns more than BC and IQL on HalfCheetah, and more than BC over the three tasks. MOPO earns more than "
         "BC on HalfCheetah, and less than IQL on Walker2d. IQL earns more than BC on Hopper, on Walker2d and over the "
         "three.",
         {(CHEETAH, "mopo (mbpo)", "bc"), (CHEETAH, "mopo (mbpo)", "iql"), (ALL, "mopo (mbpo)", "bc"),
          (CHEETAH, "mopo", "bc"), (WALKER, "iql", "mopo"), (HOPPER, "iql", "bc"), (WALKER, "iql", "bc"),
          (ALL, "iql", "bc")}),
        ("edge_of_reach",
         "Over the six datasets, RAVL with MuJoCo itself earns more than the base with a learned model. Nothing else "
         "is decided.",
         {*((CHEETAH, "ravl_true", name) for name in ("mopo (base)", "mopo (base_true)", "mopo")),
          *((EXPERT, name, "mopo (base)") for name in ("ravl", "ravl_true")),
          *((WALKER, name, "mopo") for name in ("mopo (base_true)", "ravl_true")), (ALL, "ravl_true", "mopo (base)")}),
        ("pointmaze_short",
         "On pointmaze-medium-navigate, all others reach more goals than GCBC; nothing else is decided there.",
         {*(("local/pointmaze-medium-navigate-v0", name, "gcbc") for name in ("crl", "gciql", "gcivl", "qrl")),
          ("the 2 tasks of both", "qrl", "gcbc"), ("the 2 tasks of both", "qrl", "gciql"),
          *(("local/pointmaze-medium-stitch-v0", name, "gciql") for name in ("gcbc", "gcivl", "hiql", "ota")),
          (ALL, "gcivl", "gcbc"), (ALL, "gciql", "gcbc"), (ALL, "gcivl", "gciql")}),
    ],
)  # fmt: skip
def test_findings_tell_all_that_is_decided(report, told, pairs):
    assert told in FOUND[report]
    frame = verdicts(report).query("verdict == 'better'")
    assert set(frame[["task", "a", "b"]].itertuples(index=False, name=None)) == pairs


@pytest.mark.parametrize("report", ["offline_model_based", "offline_model_based_other", "pointmaze_seven"])
def test_methods_of_a_report_saw_the_same_data(report):
    runs = json.loads((ROOT / "results" / report / "sources.json").read_text())
    assert all(run["facts"]["digest"] for run in runs)
    assert len({(run["task"], run["facts"]["digest"]) for run in runs}) == len({run["task"] for run in runs})


def test_findings_tell_how_methods_with_a_model_were_trained():
    row = FOUND["offline_model_based"]
    assert "five seeds of one method took six to seven minutes on an H200." in row
    both = runs, others = [
        json.loads((ROOT / "results" / name / "sources.json").read_text())
        for name in ("offline_model_based", "offline_model_based_other")
    ]
    for run in (*runs, *others):
        assert run["device"] == "NVIDIA H200" and run["seeds"] == list(range(5))
        assert run["status"] == "finished" and run["step"] == 100_000
    same = [[(run["task"], run["commit"]) for run in part if run["algorithm"] in ("bc", "iql")] for part in both]
    assert same[0] == same[1] and len(same[0]) == 6
    runs, others = ([run for run in part if run["algorithm"] not in ("bc", "iql")] for part in both)
    minutes = [(run["seconds"] + run["evaluation_seconds"]) / 60 for run in runs]
    assert len(runs) == 12 and min(minutes) > 6 and max(minutes) < 7
    assert "with a thirtieth of published updates and a tenth of their rollouts" in row
    assert {run["args"]["rollouts"] for run in runs} == {5_000}
    assert ModelBasedArgs.total_steps == 30 * 100_000 and ModelBasedArgs.rollouts == 10 * 5_000
    ensembles = [{(run["task"], run["facts"]["dynamics_digest"]) for run in part} for part in (runs, others)]
    assert len(ensembles[0]) == len(ensembles[1]) == 3 and not ensembles[0] & ensembles[1]
    assert "RAVL has four critics instead of ten, and ensembles and ends of episodes of the others;" in row
    ravl = [run["args"] for run in runs if run["algorithm"] == "ravl"]
    assert {(args["critics"], args["form"]) for args in ravl} == {(4, "offlinerl_kit")}
    now, before = (
        stored(name, "tasks").query("algorithm == 'mopo (mbpo)' and score == 'mean'").set_index("task")["mean"][CHEETAH]
        for name in ("offline_model_based", "offline_model_based_other")
    )
    assert f"On HalfCheetah, MBPO's mean is {before / now - 1:.0%} above" in FOUND["offline_model_based_other"]


def test_every_seed_of_ota_is_above_every_one_of_hiql_on_the_ant_maze():
    row = FOUND["antmaze_short"]
    assert "Every seed of OTA reaches more goals than every one of HIQL, and these more than those of GCIVL," in row
    found = stored("antmaze_short", "final").groupby("algorithm")[headline("antmaze_short")]
    assert found.min()["ota"] > found.max()["hiql"] and found.min()["hiql"] > found.max()["gcivl"]
    assert "All three are below published runs, which are ten times as long and of larger networks." in row
    board = stored("leaderboard", "success").query("dataset == 'antmaze-medium-navigate-v0'")
    published = board[board["runs"] == "published"].set_index("method")[["mean", "updates"]]
    ours = board[board["runs"] != "published"].set_index("method")[["mean", "updates"]]
    assert len(ours) == 3 and (ours["mean"] < published["mean"][ours.index]).all()
    assert (published["updates"][ours.index] == 10 * ours["updates"]).all()
    runs = json.loads((ROOT / "results" / "antmaze_short" / "sources.json").read_text())
    assert all(run["args"]["hidden"] == [256] * 3 for run in runs)  # of 512 in OGBench's and OTA's runs


def test_findings_tell_how_often_students_intervals_hold():
    low, high = map(int, re.search(r"hold the mean in (\d+) to (\d+)% where", FOUND["coverage"]).groups())
    frame = stored("coverage", "coverage").query("interval == 'Student'")
    even = 100 * frame[frame["scores"].str.contains("HalfCheetah|Reacher")]["coverage"]
    assert (low, high) == (round(even.min()), round(even.max())) and len(even) == 8


def test_sac_at_a_million_steps_is_beside_published_curves_as_findings_tell():
    mean = stored("mujoco_1m_cpu", "scores").groupby("step")["return"].mean()
    late = mean[mean.index > 500_000]
    above = {}
    for name in ("sac_simba_v2", "td3_authors", "sac_tianshou"):
        curve = read_curves(name)
        theirs = curve[curve["task"].str.startswith("Hopper-")].groupby("step")["return"].mean()
        above[name] = (late > np.interp(late.index, theirs.index, theirs)).mean()
    assert above["sac_simba_v2"] > 0.5 > max(above["td3_authors"], above["sac_tianshou"]) and len(late) == 50
    assert (
        "In the second half, its mean is above that of SimbaV2's SAC in most evaluations, and in most below those of "
        "TD3 by its authors and of Tianshou's SAC." in FOUND["mujoco_1m_cpu"]
    )
    said = json.loads((ROOT / "results" / "mujoco_1m_cpu" / "report.json").read_text())
    assert set(above) == set(said["curves"]) and "So far, SAC on Hopper is done." in said["purpose"]
    assert stored("mujoco_1m_cpu", "tasks")[["task", "algorithm"]].drop_duplicates().values.tolist() == [
        ["Hopper-v5", "sac"]
    ]


SAME_RECOIL = ("recoil_short", "recoil_200"), ("recoil_vs_official", "recoil")


def test_recoil_comes_to_the_expert_as_findings_tell():
    row, scores = FOUND["recoil"], stored("recoil", "scores").set_index("algorithm")
    late = scores.loc["recoil"].query("step >= 130_000")
    assert "from 130,000 updates on, every evaluation of every seed is above a D4RL score of 100" in row
    assert late["normalised"].min() > 1 and late["seed"].nunique() == 5
    assert "[ReCOIL comes to the expert](results/recoil/report.md) after 250,000 updates" in LINES
    ends = 100 * scores.query("step == 250_000").groupby("algorithm")["normalised"].mean()
    published = pd.read_csv(ROOT / "benchmarks" / "published" / "recoil.csv").set_index("task")["score"]
    assert f"ends at {ends['recoil']:.0f}, where {published['d4rl/hopper-random-v2']:.0f} is published" in row
    assert f"BC, which imitates the random actions too, ends at {ends['bc']:.0f};" in row


def test_findings_tell_of_two_results_with_the_same_settings():
    row = FOUND["recoil_short"]
    ends = [means(name)["local/hopper-random-v0", algorithm] for name, algorithm in SAME_RECOIL]
    assert f"With 200, its mean is {ends[0]:.0f}; with the same settings, later code and an expert's data" in row
    assert f"it is {ends[1]:.0f} [above](recoil_vs_official/report.md)" in row
    runs = []
    for name, algorithm in SAME_RECOIL:
        sources = json.loads((ROOT / "results" / name / "sources.json").read_text())
        runs.append(next(run for run in sources if algorithm in (run["algorithm"], run["variant"])))
    for setting in ("batch_size", "scale", "hidden", "lr", "tau", "discount", "clip", "total_steps"):
        assert runs[0]["identity"][setting] == runs[1]["identity"][setting]
    facts = [run["facts"] for run in runs]
    assert facts[0]["dataset_digest"] == facts[1]["dataset_digest"]
    assert facts[0]["hidden_expert"] != facts[1]["hidden_expert"]  # of other episodes of the expert


def test_findings_tell_what_length_does_to_bc():
    row, names = FOUND["hopper_replay_1m"], ("hopper_replay_1m", "offline_mujoco_short")
    long, short = (means(name)[HOPPER, "bc"] for name in names)
    assert f"ends at {long:.0f}, below the {short:.0f} of five seeds after 50,000 updates of the same data" in row
    tasks = [stored(name, "tasks").set_index(["task", "algorithm"]).loc[(HOPPER, "bc")] for name in names]
    assert [set(table["steps"]) for table in tasks] == [{1_000_000}, {50_000}] and set(tasks[1]["seeds"]) == {5}
    runs = [json.loads((ROOT / "results" / name / "sources.json").read_text()) for name in names]
    one, other = (next(c for c in part if (c["task"], c["algorithm"]) == (HOPPER, "bc")) for part in runs)
    assert one["facts"]["digest"] == other["facts"]["digest"] and len(runs[0]) == 1
    assert all(one["args"][name] == other["args"][name] for name in ("batch_size", "lr"))
    score = 100 * stored("hopper_replay_1m", "scores").query("step == 1_000_000")["normalised"].mean()
    first, second = (
        pd.read_csv(ROOT / "benchmarks" / "published" / f"{name}.csv").set_index(["task", "algorithm"])["score"]
        for name in ("offline", "corl")
    )
    cell = "d4rl/hopper-medium-replay-v2", "BC"
    assert f"it is {score:.0f}, and {first[cell]:.0f} and {second[cell]:.0f} are published for D4RL's own data" in row


def test_findings_tell_what_length_does_to_gcbc():
    row = FOUND["pointmaze_longer"]
    places = [f"local/pointmaze-{name}-v0" for name in ("large-navigate", "medium-stitch")]
    scores = stored("pointmaze_longer", "scores")

    def course_of(place: str) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
        seeds = scores[scores["task"] == place].pivot(index="step", columns="seed", values="return")
        parts = (seeds.loc[steps].mean() for steps in ([60_000, 80_000, 100_000], [360_000, 380_000, 400_000]))
        return seeds, *parts

    seeds, early, late = course_of(places[0])
    at = seeds.mean(axis=1).round().astype(int)
    assert (
        f"its mean is {at[20_000]} after 20,000 updates, {at[100_000]} after 100,000, {at[200_000]} after 200,000, "
        f"{at[220_000]} after 220,000 and {at[400_000]} at the end." in row
    )
    assert f"is {early.mean():.0f} after 100,000 updates and {late.mean():.0f} at the end, higher for each seed" in row
    assert (late > early).all() and len(early) == 5 and seeds.index.max() == 400_000
    course = stored("pointmaze_short", "scores").query("algorithm == 'gcbc' and task == @places[0]")
    course = course.groupby("step")["return"].mean()
    assert (
        f"The {means('pointmaze_short')[places[0], 'gcbc']:.0f} in [the shorter runs]" in row
        and "is the end of such a fall" in row
    )
    assert course.idxmax() == 10_000 and course.iloc[-1] == course.iloc[1:].min() < course.max() / 2
    published = board("pointmaze-large-navigate-v0").loc["GCBC"]
    assert f"higher for each seed; {published['mean']:.0f} ± {published['std']:.0f} is published." in row
    seeds, early, late = course_of(places[1])
    published = board("pointmaze-medium-stitch-v0").loc["GCBC"]
    assert (
        f"down: it is {early.mean():.0f} after 100,000 updates and {late.mean():.0f} at the "
        f"end, lower for each seed; {published['mean']:.0f} ± {published['std']:.0f} is published." in row
    )
    assert (late < early).all() and len(early) == 5 and seeds.index.max() == 400_000
    assert published["mean"] < late.mean() < published["mean"] + published["std"] < early.mean()
    runs = json.loads((ROOT / "results" / "pointmaze_longer" / "sources.json").read_text())
    assert not any(run["in_bf16"] for run in runs) and "In float32." in row


def test_the_order_of_ota_s_values_beside_hiql_s_is_as_findings_tell():
    frame = stored("pointmaze_seven", "watched").query("metric == 'order_of_values' and algorithm in ('hiql', 'ota')")
    mean = frame.pivot_table(index="step", columns="algorithm", values="value")
    first, last = mean.loc[10_000], mean.loc[70_000]
    assert (
        "values (means over 30 points) rise within 25 steps more often by OTA's high value than by HIQL's value from "
        f"10,000 to 40,000 updates ({first['ota']:.0%} and {first['hiql']:.0%} at first), and no longer from 50,000 on "
        f"({last['ota']:.0%} and {last['hiql']:.0%} at the end)" in FOUND["pointmaze_seven"]
    )
    ahead = mean["ota"] > mean["hiql"]
    assert ahead.loc[10_000:40_000].all() and not ahead.loc[50_000:].any() and mean.index.max() == 70_000


def test_gcbc_beside_ogbench_s_code_is_as_findings_tell():
    row, ends = FOUND["gcivl_vs_ogbench"], means("gcbc_vs_ogbench").droplevel("task")
    scores = stored("gcbc_vs_ogbench", "scores").query("~task.str.contains(': ') and step > 0")
    by_step = scores.pivot_table(index="step", columns="algorithm", values="return")
    assert headline("gcbc_vs_ogbench") == "three" and (by_step.idxmax() == 4_000).all() and len(scores) == 60
    first, low, high = by_step.loc[4_000], scores["return"].min(), scores["return"].max()
    assert (
        f"GCBC scores {ends['gcbc']:.0f} here and {ends['ogbench_gcbc']:.0f} with OGBench's code; with both, the mean "
        f"is highest in the first evaluation, after 4,000 updates, with {first['gcbc']:.0f} and "
        f"{first['ogbench_gcbc']:.0f}, and a seed's single evaluations lie between {low:.0f} and {high:.0f}." in row
    )


def test_curves_beside_ogbench_s_code_are_as_findings_tell():
    row = FOUND["gcivl_vs_ogbench"]
    means = {
        name: stored(f"{name}_vs_ogbench", "scores")
        .query("~task.str.contains(': ')")
        .pivot_table(index="step", columns="algorithm", values="return")
        for name in ("gcivl", "hiql")
    }
    apart = (means["gcivl"]["gcivl"] - means["gcivl"]["ogbench_gcivl"]).abs()
    assert "the curves lie on each other for GCIVL from 28,000 updates on" in row
    assert apart.loc[28_000:].max() < 2 < apart[24_000]
    below = (means["hiql"]["ogbench_hiql"] - means["hiql"]["hiql"]).loc[20_000:]
    assert f"from 20,000 updates on, by up to {below.max():.0f}, and by less than 1 in the last evaluation." in row
    ends = [stored(f"{name}_vs_ogbench", "tasks").query("score == 'three'")["mean"].round() for name in ("hiql", "crl")]
    assert (
        "HIQL scores {:.0f} here and {:.0f} with OGBench's code, and CRL {:.0f} and {:.0f}.".format(*ends[0], *ends[1])
        in row
    )
    assert (below > 0).all() and below.iloc[-1] < 1


def test_total_variation_with_the_least_lambda_is_worse_than_most():
    assert "total variation with 0.6 is worse than most." in FOUND["f_dvl_lambda"]
    frame = verdicts("f_dvl_lambda").query("a == 'f_dvl (tv_0.6)'")["verdict"]
    assert (frame == "worse").sum() > len(frame) / 2 > 3


def test_findings_tell_what_choosing_a_policy_costs():
    row = FOUND["iql_budget"]
    curve, best = (stored("iql_budget", name) for name in ("curves", "best_of"))
    best = best.set_index("policies")
    share = curve.set_index("episodes")["return"][10] / best["best"][8]
    assert f"ten episodes find one of eight that earns, on average, {share:.0%} of what the best of them does" in row
    policies = stored("iql_budget", "episodes").groupby("policy")[["value", "return"]].mean()
    assert "27 policies" in row and len(policies) == 27
    assert (
        "the policy of eight to which the critic gives the highest value earns less, on average, than a random one"
        in row
    )
    assert best["by_value"][8] < policies["return"].mean() and len(best) == 8
    ranks = scipy.stats.spearmanr(policies["value"], policies["return"]).statistic
    # Bonett and Wright 2000, doi 10.1007/BF02294183
    half = scipy.stats.norm.ppf(0.975) * np.sqrt((1 + ranks**2 / 2) / (len(policies) - 3))
    low, high = np.tanh(np.arctanh(ranks) + np.array([-half, half]))
    assert f"ranks of values and returns correlate by {ranks:.2f} (95%: {low:.2f} to {high:.2f})." in row


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ("edge_of_reach", "The learning rate of the actors of base and MOPO falls to 0 within these {} epochs, and "
         "in published runs within {:,}; RAVL's stays constant."),
        ("offline_model_based", "The learning rate of the actors of MBPO, MOPO and MOBILE falls to 0 within these {} "
         "epochs, and in published runs within {:,}."),
    ],
)  # fmt: skip
def test_findings_tell_how_fast_the_rates_of_actors_fall(report, told):
    runs = json.loads((ROOT / "results" / report / "sources.json").read_text())
    args = [run["args"] for run in runs if run["algorithm"] in ("mopo", "mobile")]
    (epochs,) = {own["total_steps"] // own["updates_per_epoch"] for own in args}
    assert told.format(epochs, ModelBasedArgs.total_steps // ModelBasedArgs.updates_per_epoch) in FOUND[report]
    assert {own["rollout_length"] for own in args if report == "edge_of_reach" or own["dataset"] != WALKER} == {5}


def test_values_at_the_edge_of_reach_are_as_findings_tell():
    row = FOUND["edge_of_reach"]
    ends = means("edge_of_reach")[EXPERT]
    names = ("mopo (base)", "ravl", "ravl_true", "mopo", "mopo (base_true)")
    assert (
        "means are {:,.0f}, and {:,.0f} and {:,.0f}; MOPO's is {:,.0f}, and that of the base with MuJoCo itself "
        "{:,.0f}.".format(*(ends[name] for name in names))
        in row
    )
    assert (
        "On HalfCheetah's medium-replay data, RAVL with MuJoCo itself earns more than the base with either model, and "
        "than MOPO. On HalfCheetah's medium-expert data, the base with a learned model earns less than RAVL with "
        "either model:" in row
    )
    assert "On Walker2d's medium-replay data, MOPO earns less than base and RAVL do with MuJoCo itself." in row
    assert "values stay below what the data's rewards allow" in row
    watched = stored("edge_of_reach", "watched").pivot(
        index=["task", "algorithm", "seed", "step"], columns="metric", values="value"
    )
    assert (watched["policy_value"] < watched["value_bound"]).all() and len(watched) > 1000
    assert (
        "On Walker2d's medium-expert data, the base's discounted values are nevertheless above the undiscounted "
        "returns that its policies then earn, on average over seeds and with both kinds of model." in row
    )
    task = WALKER.replace("replay", "expert")
    value = watched["policy_value"].loc[task].groupby(["algorithm", "step"]).mean()
    earned = means("edge_of_reach")[task]
    assert all(value[name, 50_000] > earned[name] for name in ("mopo (base)", "mopo (base_true)"))


def test_sqirl_balances_no_pendulum():
    """`test_what_is_called_better_is_decided` has the sentence."""
    final = stored("sqirl_mujoco", "final").query("task == 'InvertedPendulum-v5'").groupby("algorithm")["last"]
    assert final.min()["ppo"] == 1_000 and final.max()["sqirl_k1"] < 500


def test_a_temperature_of_one_has_the_highest_mean_at_each_expectile():
    scores = means("iql_sensitivity")[CHEETAH]
    for expectile in (0.5, 0.7, 0.8, 0.9):
        of_three = [scores[f"iql (expectile={expectile}, temperature={t})"] for t in (1, 3, 10)]
        assert of_three[0] == max(of_three)
    assert "and better than 3 at two of four; between expectiles" in FOUND["iql_sensitivity"]
    found = verdicts("iql_sensitivity").set_index(["a", "b"])["verdict"]
    name = "iql (expectile={}, temperature={})".format
    assert sum(found[name(e, 1), name(e, 3)] == "better" for e in (0.5, 0.7, 0.8, 0.9)) == 2


def test_findings_tell_how_ppo_and_trpo_end_on_reacher():
    scores = stored("until_decided", "scores").query("task == 'Reacher-v5'")
    by_step = scores.groupby(["algorithm", "step"])["return"].mean().unstack()
    (untrained,), ends = set(by_step[0]), by_step.iloc[:, -1]
    assert ends.max() < untrained
    assert (
        f"the means of both, {ends['ppo']:.0f} for PPO and {ends['trpo']:.0f} for TRPO, are below the {untrained:.0f} "
        "of their untrained policies." in FOUND["until_decided"]
    )


def test_readme_says_by_how_many_seeds_it_is_decided():
    seeds = stored("until_decided", "verdicts").set_index("task")[["seeds_a", "seeds_b"]]
    assert (seeds.loc["InvertedDoublePendulum-v5"] == 10).all() and (seeds.loc["Reacher-v5"] == 25).all()
    assert "on HalfCheetah and Hopper, by ten seeds against three.*" in LINES  # the caption of the first figure
    assert {tuple(sorted(x)) for x in stored("ppo_vs_sb3", "verdicts")[["seeds_a", "seeds_b"]].to_numpy()} == {(3, 10)}


def test_findings_tell_how_sqirl_does_on_tables():
    row, tasks = FOUND["effective_horizon"], stored("effective_horizon", "tasks")
    known = {name: tasks[f"N {name}"].notna() for name in ("sqirl", "ppo", "dqn", "gorp")}  # inf where it is not solved
    solved = {name: np.isfinite(tasks[f"N {name}"]) for name in known}
    count = {name: cells.sum() for name, cells in solved.items()}
    assert (
        f"SQIRL solves {count['sqirl']} of {len(tasks)} tables and PPO {count['ppo']}; DQN solves {count['dqn']} of "
        f"{known['dqn'].sum()}, among them all that SQIRL solves there; and GORP solves {count['gorp']}." in row
    )
    p = {}
    for pair in combinations(known, 2):
        both = known[pair[0]] & known[pair[1]]
        alone = [(both & solved[a] & ~solved[b]).sum() for a, b in (pair, pair[::-1])]
        p[pair] = scipy.stats.binomtest(min(alone), sum(alone)).pvalue
        assert pair != ("sqirl", "dqn") or alone[0] == 0
    by_p = sorted(p, key=lambda pair: p[pair])
    steps = np.maximum.accumulate([p[pair] * (len(p) - place) for place, pair in enumerate(by_p)])
    holm = dict(zip(by_p, steps, strict=True))
    assert min(holm["sqirl", "ppo"], holm["sqirl", "dqn"]) > 0.05
    assert {pair for pair, value in holm.items() if value < 0.05} == {("dqn", "gorp")} and count["dqn"] > count["gorp"]
    assert "DQN solves more than GORP; no other pair is decided." in row
    assert (
        "Sign tests, corrected for the six pairs of these four methods, decide neither between SQIRL and PPO nor "
        f"between SQIRL and DQN; for the latter, p is {p['sqirl', 'dqn']:.3f} without the correction, and "
        f"{holm['sqirl', 'dqn']:.3f} with it." in row
    )
    page = (ROOT / "results" / "effective_horizon" / "page.md").read_text()
    one = {name: re.search(rf"\n\| {name} (?:\|[^|]*){{4}}\| (\d+) \| {len(tasks)} \|", page)[1] for name in known}
    told = f"SQIRL solves {one['sqirl']}, PPO {one['ppo']} and DQN {one['dqn']}."
    assert f"With the one setting that solves most, {told}" in row
    assert f"With one setting for all tables, SQIRL solves {one['sqirl']} and PPO {one['ppo']}." in LINES
    steps = (tasks["N sqirl"] / tasks["N ppo"])[solved["sqirl"] & solved["ppo"]].median()
    assert f"Where SQIRL and PPO both solve a table, SQIRL needs {steps:.2f} of PPO's steps (median)." in row
    settings = stored("effective_horizon", "samples").groupby(["task", "algorithm"])["setting"].nunique().unstack()
    maze = settings.index.str.contains("minigrid")
    assert settings["sqirl"].groupby(maze).unique().map(list).to_dict() == {False: [15], True: [12]}
    assert settings[["ppo", "dqn"]].stack().unique().tolist() == [2]
    assert (
        "Each has the best of its settings on each table, SQIRL of 15, or of 12 on MiniGrid's, and PPO and DQN of two."
        in row
    )
    assert (
        f"[SQIRL solves {count['sqirl']} of {len(tasks)} tables](results/effective_horizon/page.md), PPO "
        f"{count['ppo']}, and DQN {count['dqn']} of the {known['dqn'].sum()} that count for it; between SQIRL and the "
        f"others, nothing is decided. Where SQIRL and PPO both solve one, SQIRL needs {steps:.2f} of PPO's steps "
        "(median). On each table, both have the best of their settings, SQIRL of 12 or 15 and PPO of two, and" in LINES
    )
    found = stored("effective_horizon", "correlations").query("tasks == 'solved'").set_index(["a", "b"])
    first, second = (found.loc[pair] for pair in (("ppo", "sqirl"), ("dqn", "sqirl")))
    assert min(first["low"], second["low"]) > 0
    assert (
        "The more steps PPO or DQN need for a table that both solve, the more SQIRL needs: rank correlations are "
        f"{first['value']:.2f} and {second['value']:.2f}, whose intervals lie above 0 and are not corrected." in row
    )


def test_findings_tell_what_more_episodes_do():
    assert (
        "With too small a k, SQIRL finds an optimal policy in up to 23 of 100 runs with 8 or 32 episodes in an "
        "iteration, and in none with 512 or more." in FOUND["more_data"]
    )
    share = stored("more_data", "seeds").groupby(["task", "k", "m"])["optimal"].mean().unstack()
    fails = share[share[share.columns.max()] < 0.5]
    assert len(fails) and (fails[share.columns.max()] <= fails[share.columns.min()]).all()
    assert (fails[[m for m in fails if m >= 512]] == 0).all().all()
    assert round(100 * fails[[8, 32]].max().max()) == 23


def test_verdicts_are_wrong_as_often_as_findings_say():
    row = FOUND["coverage"]
    assert "Verdicts are wrong at most about as often as they say where both algorithms have the same scores" in row
    errors = stored("coverage", "errors")
    alike, unlike = (
        errors[errors["case"].isin(cases)]["share"] for cases in (["no difference", "pairs"], ["other spread"])
    )
    assert alike.max() < 0.06
    some = 100 * unlike[unlike > 0]  # three seeds never decide
    assert f"can be wrong far more often, in {some.min():.0f} to {some.max():.0f}% of draws on a single task" in row
    assert unlike.max() > 0.5 and errors.query("case == 'other spread' and seeds < others")["share"].max() > 0.5
    over = errors[errors["case"].str.contains("over tasks") & ~errors["case"].str.contains("one wide")]
    wrong, found = (100 * over[over["case"].str.startswith("difference") == there]["share"] for there in (False, True))
    assert (
        f"Verdicts are wrong there in {wrong.min():.0f} to {wrong.max():.0f}% of draws, also where spreads differ, "
        f"and find {found.min():.0f} to {found.max():.0f}% of the differences of which 80% are to "
        "be found." in row
    )
    assert len(wrong) == 12 and len(found) == 6 and set(over["scores"]) == {"all 6, as tasks"}
    held = 100 * stored("coverage", "coverage").query("scores == 'all 6, as tasks'")["coverage"]
    assert f"intervals of aggregates hold {held.min():.0f} to {held.max():.0f}%." in row and len(held) == 4 * 5
    alike, unlike = (
        100 * errors[errors["case"] == f"over tasks, one wide{more}"]["share"] for more in ("", ", other spread")
    )
    assert (
        f"Where one task makes 90% of the variance, they are wrong in {alike.min():.0f} to {alike.max():.0f}%, and in "
        f"{unlike.min():.0f} to {unlike.max():.0f}% where spreads differ too." in row
    )
    assert len(alike) == len(unlike) == 6


def test_findings_tell_scores_on_point_mazes_beside_published_ones():
    row, short, names = FOUND["pointmaze_short"], "pointmaze_short", ("QRL", "CRL", "GCIVL", "GCIQL", "GCBC")
    medium, large, stitch, least = (
        f"pointmaze-{name}-v0" for name in ("medium-navigate", "large-navigate", "large-stitch", "medium-stitch")
    )
    qrl, *told = (beside(medium, short, name, ", published" * (name == "QRL")) for name in names)
    assert f"QRL scores {qrl}, CRL {told[0]}, GCIVL {told[1]}, GCIQL {told[2]} and GCBC {told[3]}." in row
    early = board(medium, "gcivl_vs_ogbench")["mean"]["GCIVL"]
    assert f"Another run of GCIVL scores {early:.0f} after 40,000 updates:" in row
    assert stored("gcivl_vs_ogbench", "tasks").query("algorithm == 'gcivl'")["steps"].unique() == [40_000]
    navigate = [beside(large, short, name) for name in ("QRL", "GCIVL", "GCIQL", "GCBC")]
    told = "QRL scores {}, GCIVL {}, GCIQL {} and GCBC {}; nothing is decided.".format(*navigate)
    ends = stored(short, "final").query("algorithm == 'qrl' and task.str.endswith(@large)")["last"]
    assert f"{told} QRL's seeds end between {ends.min():.0f} and {ends.max():.0f}." in row
    p = stored(short, "verdicts").query("task.str.endswith(@stitch)").set_index(["a", "b"])["p_corrected"]
    assert f"between GCIVL and GCBC, p is {p['gcbc', 'gcivl']:.3f}." in row
    assert f"GCIQL scores {beside(stitch, short, 'GCIQL')}. GCIVL only" in row
    assert f"It scores {beside(stitch, short, 'GCIVL')}, and GCBC {beside(stitch, short, 'GCBC')}" in row
    last = [beside(least, short, name) for name in ("OTA", "HIQL", "GCIVL", "GCBC", "GCIQL")]
    assert f"OTA scores {last[0]}, HIQL {last[1]}, GCIVL {last[2]}, GCBC {last[3]} and GCIQL {last[4]}." in row
    assert set(stored(short, "tasks")["seeds"]) == {5}


def test_findings_tell_what_the_scores_on_point_mazes_are():
    text = " ".join((ROOT / "results" / "findings.md").read_text().split())
    assert (
        "Scores on point mazes are the success in percent, as the mean of the last three evaluations, and with "
        "temporal goal augmentation that of the last. All data are made here by the recipes of papers, and each goal "
        "has 20 episodes, or 10 with augmentation. Published scores are on OGBench's own data, for a million updates "
        "with larger networks and batches and 50 episodes" in text
    )
    assert headline("stitching") == "last"
    for path in (ROOT / "results").glob("*/sources.json"):
        runs = [run for run in json.loads(path.read_text()) if re.search("pointmaze|stitching", run["task"])]
        assert all(run["task"].startswith("local/") for run in runs)
        assert {run["args"]["eval_episodes"] for run in runs} <= {10 if path.parent.name == "stitching" else 20}
    for report in ("pointmaze_short", "pointmaze_seven", "pointmaze_longer"):
        assert headline(report) == "three"
        for run in json.loads((ROOT / "results" / report / "sources.json").read_text()):
            assert run["args"]["hidden"] == [256] * 3 and run["args"]["batch_size"] == 256
    names = stored("leaderboard", "success").query("runs == 'published' and dataset.str.startswith('pointmaze')")
    assert set(names["updates"]) == {1_000_000}


def test_findings_tell_which_goals_gcivl_and_gciql_reach():
    row = FOUND["pointmaze_short"]
    scores = stored("pointmaze_short", "scores").query("algorithm == 'gcivl' and task.str.contains('large-stitch')")
    curve = scores.pivot(index="step", columns="seed", values="return")
    mean = curve.mean(axis=1)
    assert f"its mean rises to {mean.max():.0f} after {mean.idxmax():,} updates and falls to {mean.iloc[-1]:.0f}" in row
    assert "though two of five seeds rise then" in row
    assert (
        "Published scores put GCIQL well ahead of GCIVL, and here nothing is decided between them: GCIQL is below its "
        "published score and GCIVL above," in row
    )
    ours = stored("pointmaze_short", "tasks").query("task.str.contains('large-stitch') and score == 'three'")
    ours = ours.set_index("algorithm")["mean"]
    board = stored("leaderboard", "success").query("dataset == 'pointmaze-large-stitch-v0' and runs == 'published'")
    theirs = board.set_index("method")["mean"]
    assert theirs["GCIQL"] - theirs["GCIVL"] > 15 > 5 > abs(ours["gciql"] - ours["gcivl"])
    assert ours["gciql"] < theirs["GCIQL"] and ours["gcivl"] > theirs["GCIVL"]
    assert (curve.iloc[-1] > curve.loc[mean.idxmax()]).sum() == 2 and curve.shape[1] == 5

    watched = stored("pointmaze_short", "watched").query("algorithm == 'gcivl' and metric.str.startswith('success/')")
    by = watched.groupby(["task", "metric", "step"])["value"].mean().unstack()
    assert "GCIVL only ever reaches two of five goals" in row and len(by) == 20
    assert (by.loc["local/pointmaze-large-stitch-v0"] > 0).any(axis=1).sum() == 2
    assert "GCIVL at the end reaches three of five goals nearly always and the other two never" in row
    assert "GCIVL reaches three of five goals nearly always and the other two never, from 80,000 updates on;" in row
    for name in ("navigate", "stitch"):
        end = by.loc[f"local/pointmaze-medium-{name}-v0"].loc[:, 80_000:]
        assert (end > 95).all(axis=1).sum() == 3 and (end == 0).all(axis=1).sum() == 2
    told = "GCIQL always reaches one of the three, another in about a third of its episodes, and no other."
    watched = stored("pointmaze_short", "watched").query("algorithm == 'gciql' and metric.str.startswith('success/')")
    end = watched[watched["task"].str.endswith("medium-stitch-v0") & (watched["step"] >= 80_000)]
    rates = end.groupby("metric")["value"].mean()
    assert told in row and rates.tolist() == pytest.approx([100.0, 100 / 3, 0.0, 0.0, 0.0], abs=3.0)


def test_findings_tell_how_hiql_does_on_a_point_maze():
    row = FOUND["pointmaze_short"]
    tables = {name: stored("pointmaze_short", name) for name in ("watched", "scores")}
    watched, scores = (table[table["task"] == "local/pointmaze-medium-stitch-v0"] for table in tables.values())
    watched = (
        watched[watched["metric"].str.startswith("success/") & (watched["step"] >= 80_000)]
        .groupby(["algorithm", "metric"])["value"]
        .mean()
        .unstack()
    )
    rates, others = watched.loc["hiql"], watched.loc["gcivl"] > 50
    assert others.sum() == 3 and rates[~others].min() < 1
    assert (
        f"HIQL reaches the same three goals as GCIVL in {rates[others].min():.0f} to {rates[others].max():.0f}% of "
        f"episodes, and a fourth in {rates[~others].max():.0f}%;" in row
    )
    means = scores.query("algorithm == 'hiql' and step >= 60_000").groupby("step")["return"].mean()
    assert f"its mean swings between {means.min():.0f} and {means.max():.0f} from 60,000 updates on." in row
    means = scores.query("algorithm == 'ota'").groupby("step")["return"].mean()
    told = f"OTA's mean rises to {means.max():.0f} after {means.idxmax():,} updates"
    assert f"{told} and is {means[100_000]:.0f} at the end." in row


def test_findings_tell_how_crl_does_in_both_codes():
    row = FOUND["gcivl_vs_ogbench"]
    tasks = stored("crl_vs_ogbench", "tasks").query("score == 'last'").set_index("algorithm")
    ours, theirs = (f"{tasks['mean'][code]:.0f}" for code in ("crl", "ogbench_crl"))
    assert (
        f"In its last evaluation, after 10,000 updates, CRL is at {ours} here and at {theirs} with OGBench's code"
        in row
    )
    assert set(tasks["steps"]) == {10_000}
    published = board("pointmaze-medium-navigate-v0").loc["CRL"]
    assert f"{published['mean']:.0f} ± {published['std']:.0f} is published: our code is not the reason" in row
    three = stored("crl_vs_ogbench", "tasks").query("score == 'three'").set_index("algorithm")["mean"]
    told = f"By the mean of three evaluations, as published scores are, both are above {published['mean']:.0f}, too."
    assert told in row and three.min() > published["mean"] + published["std"]
    # the intervals of both codes lie above the published score and its spread
    assert tasks["low"].min() > published["mean"] + published["std"]


def test_findings_tell_how_cells_on_point_mazes_were_trained():
    row, name = FOUND["pointmaze_short"], "pointmaze-medium-navigate-v0"
    watched = stored("pointmaze_short", "watched").query(
        "metric.str.startswith('success/') and task.str.endswith(@name)"
    )
    by = watched.groupby(["algorithm", "metric", "step"])["value"].mean().unstack()
    end, other = by.loc["gciql"].iloc[:, -3:], by.loc["gcivl"].iloc[:, -3:]
    assert "and GCIQL reaches the same three most of the time, and the other two never" in row
    assert (end > 80).all(axis=1).sum() == 3 and (end == 0).all(axis=1).sum() == 2
    assert ((end > 80) == (other > 80)).all(axis=None)
    runs = json.loads((ROOT / "results" / "pointmaze_short" / "sources.json").read_text())
    without = {(run["algorithm"], run["task"]) for run in runs if run.get("in_bf16") is False}
    assert without == {
        ("crl", f"local/{name}"),
        ("gciql", f"local/{name}"),
        ("gcivl", "local/pointmaze-large-stitch-v0"),
        ("gcivl", "local/pointmaze-large-navigate-v0"),
        ("gcivl", "local/pointmaze-medium-stitch-v0"),
        ("qrl", f"local/{name}"),
        ("qrl", "local/pointmaze-large-navigate-v0"),
    }
    on_gpu = {(run["algorithm"], run["task"]) for run in runs if run["identity"]["device"] == "cuda"}
    assert on_gpu == {("qrl", f"local/{name}")}
    assert (
        "QRL was trained on a GPU on pointmaze-medium-navigate, and in float32 on pointmaze-large-navigate; CRL's "
        "cell, GCIQL's on pointmaze-medium-navigate and GCIVL's on the three other datasets are in float32, and all "
        "others in bfloat16." in row
    )  # the others are of earlier versions, which do not say what they did
    assert "All seven methods have cells so far, OTA on one dataset." in row
    assert len({run["algorithm"] for run in runs}) == 7
    assert len({run["task"] for run in runs if run["algorithm"] == "ota"}) == 1


def test_findings_tell_how_all_seven_do_on_a_point_maze():
    row, frame = FOUND["pointmaze_seven"], verdicts("pointmaze_seven")
    better = set(frame[frame["verdict"] == "better"][["a", "b"]].itertuples(index=False, name=None))
    assert "OTA reaches more goals than any other, and GCBC fewer than any other." in row
    assert "HIQL reaches more than GCIVL and GCIQL; QRL and CRL, like GCIVL, more than GCIQL." in row
    others = {"crl", "gciql", "gcivl", "hiql", "qrl"}
    told = {("ota", name) for name in (*others, "gcbc")} | {(name, "gcbc") for name in others}
    told |= {("hiql", "gcivl"), ("hiql", "gciql"), ("qrl", "gciql"), ("crl", "gciql"), ("gcivl", "gciql")}
    assert "Between CRL, QRL and HIQL, and between GCIVL and CRL or QRL, nothing is decided" in row
    assert better == told and len(frame) == 2 * 21
    names, place = ("OTA", "HIQL", "CRL"), "pointmaze-medium-navigate-v0"
    ota, hiql, crl = (beside(place, "pointmaze_seven", name, " is published" * (name == "OTA")) for name in names)
    assert f"OTA scores {ota}, HIQL {hiql} and CRL {crl}." in row and len(board(place, "pointmaze_seven")) == 7
    assert (
        "of QRL, CRL and GCIVL, at the end of the same runs ([above](pointmaze_short/report.md)), none reaches "
        "decidedly more than GCIQL." in row
    )
    later = verdicts("pointmaze_short").query("task.str.contains('medium-navigate')").set_index(["a", "b"])["verdict"]
    assert {later["crl", "gciql"], later["gcivl", "gciql"], later["qrl", "gciql"]} == {"not decided"}
    early, late = (
        stored(name, "scores").query("task.str.contains('medium-navigate') and step <= 70_000")
        .set_index(["algorithm", "seed", "step"])["return"].sort_index()
        for name in ("pointmaze_seven", "pointmaze_short")
    )  # fmt: skip
    assert late.equals(early[early.index.isin(late.index)]) and len(late) == 5 * 5 * 8
    runs = json.loads((ROOT / "results" / "pointmaze_seven" / "sources.json").read_text())
    where: dict[str, set] = {}
    for run in runs:
        where.setdefault(run["algorithm"], set()).add((run["identity"]["device"], run.get("in_bf16")))
    assert "HIQL, OTA and QRL were trained on a GPU, GCIQL and CRL in float32, and the other two in bfloat16" in row
    assert all(where[name] == {("cuda", False)} for name in ("hiql", "ota", "qrl"))
    assert all(where[name] == {("cpu", False)} for name in ("gciql", "crl"))
    assert all(where[name] <= {("cpu", None), ("cpu", True)} for name in ("gcbc", "gcivl"))  # early runs do not tell
    going = {(run["algorithm"], len(run["seeds"]), run["step"]) for run in runs if run["status"] != "finished"}
    assert going == {("ota", 5, 70_000), ("hiql", 5, 80_000), ("crl", 3, 70_000)}
    assert (
        "All runs are cut at seven tenths of their 100,000 updates, where OTA was stopped; HIQL was stopped after "
        "eight, and three of five seeds of CRL were still training." in row
    )


@pytest.mark.parametrize(
    ("sentence", "report", "task", "pairs"),  # * stands for all others
    [
        ("[PPO is better than TRPO, and both are better than on-policy MDPO](results/on_policy_mujoco/report.md);",
         "on_policy_mujoco", ALL, ["ppo > *", "trpo > mdpo_on_policy"]),
        ("On HalfCheetah and Hopper, after 50,000 steps with five seeds, [DSAC-T is worse than "
         "SAC](results/mujoco_short/report.md),", "mujoco_short", "HalfCheetah-v5", ["sac > dsac_t"]),
        ("after 50,000 steps with five seeds, [DSAC-T is worse than SAC](results/mujoco_short/report.md),",
         "mujoco_short", "Hopper-v5", ["sac > dsac_t"]),
        ("Over [medium-replay data](results/offline_mujoco_short/report.md) of three tasks, after 50,000 updates, "
         "TD3+BC, IQL and f-DVL are better than BC;", "offline_mujoco_short", ALL,
         ["td3_bc > bc", "iql > bc", "f_dvl > bc"]),
        ("over their [medium and medium-expert data](results/offline_mujoco_shorter/report.md), after 25,000, BC is "
         "better than these and XQL,",
         "offline_mujoco_shorter", ALL, ["bc > *"]),
        ("Of the seven methods with goals, [OTA reaches the most goals](results/pointmaze_seven/report.md) of a point "
         "maze after 70,000 of 100,000 updates, where its run was stopped;", "pointmaze_seven",
         "local/pointmaze-medium-navigate-v0", ["ota > *"]),
        ("Over four mazes, behaviour cloning reaches more [with temporal goal "
         "augmentation](results/stitching/report.md) than without.", "stitching", ALL, ["* > gcbc (augment=0)"]),
    ],
)  # fmt: skip
def test_what_readme_calls_better_is_decided(sentence, report, task, pairs):
    assert sentence in LINES
    assert_better(report, task, pairs)


def test_what_readme_says_without_verdicts_is_said_and_held_in_the_findings_too():
    assert "within 50,000 updates, with learned models or with MuJoCo itself, with RAVL or without." in LINES
    assert "At this length no values run away, with any model:" in FOUND["edge_of_reach"]


def test_readme_counts_the_methods_that_were_set_beside_other_code():
    assert "Nineteen methods were set beside other code:" in LINES
    assert "and the stream methods AC, Q and SARSA. No difference is decided, which does not mean that" in LINES
    assert (
        "Eight methods have three seeds of each code, which cannot decide on one task, and two more have three of the "
        "peer." in LINES
    )
    seeds, fewest = {}, {}
    for folder in (ROOT / "results").glob("*_vs_*"):
        frame = verdicts(folder.name)
        assert set(frame["verdict"]) == {"not decided"}
        of_each = stored(folder.name, "verdicts")[["seeds_a", "seeds_b"]]
        name = folder.name.partition("_vs_")[0]
        seeds[name], fewest[name] = of_each.max(axis=None), of_each.min(axis=None)
    assert len(seeds) == 19 and sum(count == 3 for count in seeds.values()) == 8
    assert sorted(name for name in seeds if fewest[name] == 3 < seeds[name]) == ["dsac_t", "ppo"]


def test_readme_names_the_methods_that_learned_for_a_million_steps():
    assert "only the on-policy ones, stream AC and, on one task, SAC were trained for a million steps." in LINES
    assert "no longer run of DSAC-T on MuJoCo is stored." in LINES
    long = set()
    for path in (ROOT / "results").glob("*/sources.json"):
        for run in json.loads(path.read_text()):
            assert run["algorithm"] != "dsac_t" or not run["task"].endswith("-v5") or run["step"] <= 50_000
            ours = (ROOT / "single_file" / f"{run['algorithm']}.py").exists()
            if ours and run["task"].endswith("-v5") and run.get("step", 0) >= 1_000_000:
                long.add((run["algorithm"], run["task"]))
    assert {name for name, _ in long} == {"ppo", "trpo", "mdpo_on_policy", "stream_ac", "sac"}
    assert len({task for name, task in long if name == "sac"}) == 1


def test_readme_tells_how_much_shorter_offline_runs_are_than_published_ones():
    """Published ones have a million updates."""
    assert "offline mostly by ten times or more; of offline methods, only BC was trained as long, on [one data" in LINES
    updates: dict[tuple[str, str], int] = {}  # of the longest run
    for path in (ROOT / "results").glob("*/sources.json"):
        for run in json.loads(path.read_text()):
            dataset = run.get("identity", {}).get("dataset")
            if dataset and (ROOT / "single_file" / f"{run['algorithm']}.py").exists():
                key = run["algorithm"], dataset
                updates[key] = max(updates.get(key, 0), run["step"])
    assert [key for key, steps in updates.items() if steps >= 1_000_000] == [("bc", "local/hopper-medium-replay-v0")]
    short = sum(steps <= 100_000 for steps in updates.values())
    assert len(updates) / 2 < short < len(updates)  # mostly


def test_readme_tells_how_fast_some_scripts_are():
    ratio = {}
    for part in ("on_policy", "discrete", "scripts"):
        measured = json.loads((ROOT / "results" / "throughput" / f"{part}.json").read_text())
        assert measured["device"] == "CPU, 2 threads of 2 cores"
        ratio |= {row["name"]: (row.get("ratio to sb3"), row.get("ratio to sbx")) for row in measured["rows"]}
    told = (
        "eight seeds of PPO, which is compiled by default, together make {:.1f} times the steps per second of one run "
        "of Stable-Baselines3's, and eight of DQN {:.1f} times; one seed of each makes {:.1f} and {:.1f} times. "
        "Several runs of the library at once were not measured. One seed of SAC makes {:.1f} times the steps per "
        "second of Stable-Baselines3's and {:.1f} times those of SBX's; with `--compile --bf16`, it makes {:.1f} "
        "and {:.1f} times."
    )
    several = [ratio[f"{name}, {seeds}"][0] for seeds in ("8 seeds", "1 seed") for name in ("ppo", "dqn")]
    assert told.format(*several, *ratio["sac, 1 seed"], *ratio["sac --compile --bf16, 1 seed"]) in LINES
    devices = [json.loads(path.read_text())["device"] for path in (ROOT / "results" / "throughput").glob("*.json")]
    assert "Speed on a GPU was not measured." in LINES and all(device.startswith("CPU") for device in devices)


def test_readme_tells_how_often_intervals_of_means_hold():
    runs = json.loads((ROOT / "results" / "coverage" / "sources.json").read_text())
    assert all(len(run["identity"]["seeds"]) == 100 for run in runs)
    table = stored("coverage", "coverage").query("interval == 'Student'")
    assert table.groupby("seeds").size().loc[[3, 5, 10]].eq(6).all()
    held = (100 * table.groupby("seeds")["coverage"].agg(["min", "max"])).round().astype(int)
    told = "on six sets of scores of a hundred seeds, 95% intervals of means hold the truth in {} to {}% of draws of "
    told += "three seeds, {} to {}% of five, and {} to {}% of ten."
    assert told.format(*held.loc[[3, 5, 10]].to_numpy().ravel()) in LINES


def test_readme_counts_the_datasets_of_the_leaderboard():
    found = re.search(r"has published scores on (\w+) datasets, and ours on (\w+) of them", LINES)
    board = stored("leaderboard", "success")
    published = set(board[board["runs"] == "published"]["dataset"])
    ours = set(board[board["runs"] != "published"]["dataset"])
    assert found.groups() == ({30: "thirty"}[len(published)], {5: "five", 6: "six"}[len(ours & published)])


def test_the_caption_of_the_first_figure_is_true():
    scores = stored("on_policy_mujoco", "scores").query("task == 'Ant-v5'")
    ant = scores.groupby(["algorithm", "step"])["return"].mean().unstack()
    assert "untrained policies of Ant earn nearly 1,000, more than any of the three does at the end" in LINES
    assert ant[0].between(950, 1_000).all() and ant[0].min() > ant[1_000_000].max()
