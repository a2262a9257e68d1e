"""The command that prints exact answers about tables."""

import math
import runpy
import sys

import numpy as np
import pandas as pd
import pytest

from algos.errors import UserError
from benchmarks import horizon
from benchmarks.horizon import Args, gaps, main
from envs.tabular import Analysis, load_table
from envs.tabular.tasks import table_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True)
def tables(folder, monkeypatch):
    monkeypatch.setenv("SEEDBED_TABLES", str(folder))


def printed(capsys, *tasks: str, **options) -> dict[str, str]:
    """What the command prints about its last table, by column."""
    main(Args(tasks, **options))
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    words = " ".join(line for line in lines if line.startswith(" ")).split()
    return dict(zip(words[::2], words[1::2], strict=True))


def test_the_columns_of_a_gate(capsys):
    expected = {
        "S": "4", "A": "2", "H": "6", "rho": "0", "discount": "1", "J*": "1", "J_rand": "0.1875", "J_1": "0.25",
        "J_2": "0.25", "J_3": "1", "J_4": "1", "J_5": "1", "min_k": "3", "official": "3", "lucky_k": "2",
        "gap": "0.25", "epw": "4", "H_simple": "4", "digest": table_of("gate-0.25").digest(),
    }  # fmt: skip
    assert printed(capsys, "gate-0.25") == expected
    assert printed(capsys, "tabular/gate-0.25") == expected


def test_exact_and_official_differ_where_the_loss_is_small(capsys):
    columns = printed(capsys, "frozen-lake-4x4-slippery")
    assert [columns[name] for name in ("min_k", "official", "lucky_k", "epw")] == ["11", "1", "11", "12"]
    assert columns["J_1"] == "0.199132658" and columns["H_simple"] == "–"


def test_what_does_not_exist_is_a_dash(capsys):
    columns = printed(capsys, "chain-h3-sticky")
    assert [columns[name] for name in ("H", "rho", "J_3", "J_4", "J_5", "gap", "H_simple")] == [
        "3", "0.25", "0", "–", "–", "–", "–",
    ]  # fmt: skip


def test_a_discount_changes_all_values(capsys):
    columns = printed(capsys, "chain", discount=0.5)
    assert [columns[name] for name in ("discount", "J*", "J_1")] == ["0.5", "0.125", "0.125"]


def test_files_of_both_layouts(capsys, folder, tmp_path):
    table = table_of("lure-0.2")
    by_name = printed(capsys, "lure-0.2")
    assert printed(capsys, str(folder / "lure-0.2-h8.npz")) == by_name
    np.savez(tmp_path / "bridge.npz", transitions=table.next_state[..., 0], rewards=table.reward[..., 0])
    columns = printed(capsys, str(tmp_path / "bridge.npz"), horizon=8)
    assert columns.pop("digest") != by_name.pop("digest")  # a file of BRIDGE has no observations
    assert columns == by_name
    with pytest.raises(UserError, match=r"bridge\.npz has a table that cannot be used: .* give a horizon$"):
        main(Args((str(tmp_path / "bridge.npz"),)))


def test_all_tables_that_begin_alike(capsys):
    main(Args(("gate-0.25",), all_of="gate-0.1"))
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    names = ["gate-0.25", "gate-0.125", "gate-0.125-sticky", "gate-0.1875", "gate-0.1875-sticky"]
    assert heads == [f"{name} ({number} of 5)" for number, name in enumerate(names, 1)]


def test_a_card_has_rows_and_figures(capsys, tmp_path):
    main(Args(("gate-0.25", "gate-0.25-sticky", "chain-h3"), out=tmp_path / "new" / "card"))
    out = tmp_path / "new" / "card"
    rows = pd.read_csv(out / "horizon.csv", dtype={"min_k": "Int64"})
    assert rows["task"].tolist() == ["gate-0.25", "gate-0.25-sticky", "chain-h3"]
    assert rows["J_rand"].tolist() == [Analysis(table_of(name)).random_return for name in rows["task"]]
    assert rows["min_k"].tolist() == [3, rows["min_k"][1], 1] and math.isnan(rows["J_4"][2])
    text = (out / "horizon.md").read_text()
    assert r"| task | S | A | H | rho | discount | J\* | J_rand |" in text and "J_k is the return of" in text
    for task in rows["task"]:
        assert f"]({task}.png)" in text and (out / f"{task}.png").stat().st_size > 20_000
    assert capsys.readouterr().out.endswith("horizon.md\n")


def test_figures_are_the_same_each_time(tmp_path):
    for name in ("first", "second"):
        main(Args(("gate-0.25",), out=tmp_path / name))
    first, second = ((tmp_path / name / "gate-0.25.png").read_bytes() for name in ("first", "second"))
    assert first == second


def test_figures_of_files_with_one_name_do_not_replace_each_other(folder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        table_of("chain")
        (tmp_path / name / "x.npz").write_bytes((folder / "chain-h8.npz").read_bytes())
    main(Args((str(tmp_path / "a" / "x.npz"), str(tmp_path / "b" / "x.npz")), out=tmp_path / "card"))
    assert sorted(path.name for path in (tmp_path / "card").glob("*.png")) == ["x-2.png", "x.png"]


def test_gaps_over_time():
    """From state 0 of a gate, L is wrong from k = 3 on and greedy below; later, R is worth as much as it is likely."""
    least = gaps(Analysis(table_of("gate-0.25")), range(1, 6))
    nan = math.nan
    np.testing.assert_array_equal(
        least,
        [
            [0, 0.25, 0.5, 1, nan, nan],
            [0, 0.5, 1, 1, nan, nan],
            [0.25, 1, 1, 1, nan, nan],
            [0.75, 1, 1, 1, nan, nan],
            [0.75, 1, 1, 1, nan, nan],
        ],
    )


def test_gaps_of_sticky_actions_are_those_of_choices():
    plain = table_of("gate-0.25")
    sticky = Analysis(plain.with_sticky(0.25))
    least = gaps(sticky, range(4, 5))[0]
    np.testing.assert_allclose(least[:4], [0.75, 0.75, 0.75, 0.75])


@pytest.mark.parametrize("name", ["chain", "lure-0.05", "lure-0.2"])
def test_gaps_count_the_states_that_random_actions_reach(name):
    task = Analysis(table_of(name))
    q, best, reached, by_hand = task.q(1), task.best, {0}, []
    for t in range(8):
        own = []
        for s in reached:
            right = best[t, s].argmax()
            if best[t, s, right] > best[t, s, 1 - right] + 1e-9:
                own.append(max(q[t, s, right] - q[t, s, 1 - right], 0))
        by_hand.append(min(own, default=math.nan))
        reached = {int(following) for s in reached for following in task.table.next_state[s, :, 0]} - {-1}
    np.testing.assert_allclose(gaps(task, range(1, 2))[0], by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks": ()}, "^name at least one table, such as "),
        ({"tasks": ("chain", "gate-0.26")}, r"^there is no table 'gate-0.26'; the closest names are gate-0.25"),
        ({"tasks": ("chain",), "horizon": 5}, r"^--horizon is for \.npz files: write chain-h5 "),
        ({"tasks": ("chain",), "horizon": -1}, "^--horizon must lie in "),
        ({"tasks": ("chain",), "discount": 0.0}, "^--discount must lie in "),
        ({"tasks": (), "all_of": "chess"}, "^--all-of chess: no table has a name that begins so; names are chain, "),
        ({"tasks": ("nowhere.npz",)}, r"^there is no table nowhere\.npz$"),
        ({"tasks": ("cart-pole-h20",)}, r"^the tree of cart-pole-h20 has up to 2\^20 ways"),
    ],
)
def test_bad_arguments_are_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        main(Args(**options))


def test_names_are_looked_up_before_the_work_begins(monkeypatch):
    monkeypatch.setattr(horizon, "Analysis", None)
    with pytest.raises(UserError, match=r"there is no table 'gate-0\.26'"):
        main(Args(("chain", "gate-0.26")))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out: cannot write to .*file"):
        main(Args(("chain",), out=tmp_path / "file" / "card"))


def test_an_error_is_one_sentence_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["horizon.py", "chane"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(horizon.__file__, run_name="__main__")
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    assert said.err.startswith("error: there is no table 'chane'; the closest names are chain")
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_a_minigrid_of_a_thousand_states(capsys, folder):
    pytest.importorskip("minigrid")
    columns = printed(capsys, "minigrid-fourrooms-sticky")
    assert [columns[name] for name in ("S", "min_k", "official", "J_rand")] == ["1036", "9", "9", "0.00148668354"]
    assert load_table(folder / "minigrid-fourrooms-h100.npz").sticky == 0
