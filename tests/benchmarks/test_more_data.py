"""The page on what more episodes do to SQIRL."""

import json

import gorp
import pandas as pd
import pytest
import sqirl

from algos.errors import UserError
from benchmarks.more_data import Args, main, shares


def test_shares_have_wilsons_interval():
    seeds = pd.DataFrame({"task": "t", "k": 1, "m": 8, "seed": range(10), "optimal": [True] * 9 + [False]})
    (row,) = shares(seeds).to_dict("records")
    assert (row["seeds"], row["share"]) == (10, 0.9)
    # Wilson (1927): (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n) with z = 1.96
    assert (row["low"], row["high"]) == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_more_episodes_help_only_if_k_is_large_enough(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "seeds": ("0:20",), "form": "table"}
    for k, m in ((1, 8), (1, 256), (3, 8), (3, 256)):
        flags = {"env_id": "tabular/gate-0.1875", "eval_every": 5_000_000, "variant": f"k{k}_m{m}"}
        sqirl.main(sqirl.Args(**common, **flags, k=k, m=m))
    main(Args((tmp_path / "runs",), tmp_path / "page"))
    table = shares(pd.read_csv(tmp_path / "page" / "seeds.csv")).set_index(["k", "m"])["share"]
    assert table[1, 256] <= 0.2 < table[1, 8] and table[3, 256] >= 0.9
    assert "| gate-0.1875 | 2 | 3 | 256 |" in (tmp_path / "page" / "page.md").read_text()
    assert (tmp_path / "page" / "figures" / "more_data.png").exists()
    main(Args((tmp_path / "page",), tmp_path / "again"))  # from what is stored
    for name in ("page.md", "seeds.csv", "sources.json"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "page" / name).read_text()


def test_every_run_counts_at_its_own_end(tmp_path):
    """A run of few steps beside it does not take away what a longer one learned later."""
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "seeds": ("0:4",), "form": "table", "k": 3}
    common |= {"env_id": "tabular/gate-0.1875"}
    sqirl.main(sqirl.Args(**common, m=256, total_steps=30_000, eval_every=1_000, variant="long"))
    config = next((tmp_path / "runs").rglob("config.json"))
    diverged = [{"seed": 3, "step": 30_000}]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"status": "diverged", "diverged": diverged}))
    main(Args((tmp_path / "runs",), tmp_path / "alone"))
    main(Args((tmp_path / "alone",), tmp_path / "again"))
    pages = [(tmp_path / name / "page.md").read_text() for name in ("alone", "again")]
    assert "> Seed 3 of sqirl (long)" in pages[0] and pages[0] == pages[1]
    sqirl.main(sqirl.Args(**common, m=8, total_steps=1_000, eval_every=1_000, variant="short"))
    main(Args((tmp_path / "runs",), tmp_path / "both"))
    alone, both = (pd.read_csv(tmp_path / name / "seeds.csv") for name in ("alone", "both"))
    assert alone["optimal"].sum() >= 3
    assert both[both["m"] == 256]["optimal"].tolist() == alone["optimal"].tolist()


@pytest.mark.parametrize(("discount", "least"), [(1.0, 3), (0.9, 4)])
def test_min_k_is_that_of_the_runs_discount(discount, least, tmp_path):
    """Of 0.9^3 / 2 at the gate, which is less than 0.375."""
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "form": "table", "k": 1, "m": 8}
    sqirl.main(sqirl.Args(**common, env_id="tabular/gate-0.375", total_steps=1_000, discount=discount))
    main(Args((tmp_path / "runs",), tmp_path / "page"))
    assert f"| gate-0.375 | {least} | 1 | 8 |" in (tmp_path / "page" / "page.md").read_text()
    main(Args((tmp_path / "page",), tmp_path / "runs"))
    with pytest.raises(UserError, match=r"holds seeds.csv, which this command stored, and also"):
        main(Args((tmp_path / "runs",), tmp_path / "again"))


def test_other_runs_are_refused(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "total_steps": 100, "eval_every": 100}
    gorp.main(gorp.Args(**common, env_id="tabular/chain"))
    with pytest.raises(UserError, match=r"gorp on tabular/chain is no run of sqirl.py on a table"):
        main(Args((tmp_path / "runs",), tmp_path / "page"))


def test_a_seed_under_two_names_is_refused(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "form": "table", "total_steps": 100}
    for variant in ("one", "other"):
        sqirl.main(sqirl.Args(**common, env_id="tabular/chain", eval_every=100, k=1, m=8, variant=variant))
    with pytest.raises(UserError, match=r"seed 0 of k=1, m=8 on tabular/chain is there twice"):
        main(Args((tmp_path / "runs",), tmp_path / "page"))
