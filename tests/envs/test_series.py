"""Series: alignment of cumulants and returns by hand, the series that is made, and files as users have them."""

import numpy as np
import pytest
import torch

from envs import Episode
from envs.series import Series, SeriesEnvs, load_series, seasons, seen

TINY = Series("tiny", ("a", "y"), np.array([[5, 0], [6, 2], [7, 4], [8, 8], [9, 6], [4, 10.0]]), "y")


def test_a_row_comes_with_the_scaled_target_of_the_next_and_its_future_begins_after_that():
    assert TINY.steps == 4 and TINY.bounds() == (0, 10)
    assert TINY.cumulants().tolist() == pytest.approx([0.2, 0.4, 0.8, 0.6, 1.0])
    expected = [0.4 + 0.08 + 0.006 + 0.001, 0.8 + 0.06 + 0.01, 0.6 + 0.1, 1.0, 0.0]
    assert TINY.returns(0.1).tolist() == pytest.approx(expected)

    envs = SeriesEnvs(TINY, [3, 4], discount=0.1)
    assert envs.restarted and envs.obs.tolist() == [[5, 0], [5, 0]]
    sample = envs.receive()
    assert not envs.restarted
    assert sample.obs.tolist() == [[6, 2], [6, 2]] and sample.obs.dtype == torch.float64
    assert sample.cumulant.tolist() == pytest.approx([0.4, 0.4])
    assert sample.future.tolist() == pytest.approx([0.87, 0.87]) and sample.known.tolist() == [1, 1]
    last = [envs.receive() for _ in range(3)][-1]
    assert last.obs[0].tolist() == [9, 6] and last.cumulant[0] == 1 and last.known[0] == 0


def test_returns_that_lack_more_than_a_twentieth_are_not_known():
    assert [seen(discount) for discount in (0.0, 0.01, 0.05, 0.1, 0.99)] == [1, 1, 1, 2, 299]
    assert TINY.known(0.1) == 3  # row 2's lacks 0.1 ** 2 of its weight, row 3's 0.1
    assert TINY.known(0.0) == 4


def test_a_series_goes_on_where_it_was():
    envs, other = (SeriesEnvs(seasons(), [0], discount=0.9) for _ in range(2))
    for _ in range(10):
        envs.receive()
    other.load_state_dict(envs.state_dict())
    assert not other.restarted and torch.equal(envs.obs, other.obs)
    for ours, theirs in zip(envs.receive(), other.receive(), strict=True):
        assert torch.equal(ours, theirs)


def test_scores_that_were_added_are_given_once():
    envs = SeriesEnvs(TINY, [0, 0], discount=0.1)
    scores = [Episode(run, 0.5 + run, 2) for run in range(2)]
    envs.add_ended(scores[:1])
    envs.receive()
    envs.add_ended(scores[1:])
    assert envs.take_ended() == scores and envs.take_ended() == []
    envs.add_ended(scores)
    envs.load_state_dict(envs.state_dict())
    assert envs.take_ended() == []


def test_seasons_is_what_it_says():
    series = seasons()
    assert series.rows.shape == (69_680, 7) and series.target == series.columns[-1] == "oil_temperature"
    assert np.array_equal(series.rows, seasons().rows)
    assert [series.rows[0, 0], series.rows[-1, -1]] == pytest.approx([33.096239, 52.559723])
    oil = series.rows[:, -1] - series.rows[:, -1].mean()
    day = oil[:-96] @ oil[96:] / (oil @ oil)
    half_a_day = oil[:-48] @ oil[48:] / (oil @ oil)
    assert 0.7 < half_a_day < day < 1
    assert np.corrcoef(series.rows[:, :6].sum(1), series.rows[:, -1])[0, 1] > 0.25


ETT = """date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT
2016-07-01 00:00:00,41.13000106811523,12.48200035095215,36.53599929809571,9.354999542236328,4.423999786376953,1.311,38.6
2016-07-01 00:15:00,39.62200164794922,11.309000015258787,35.54399871826172,8.550999641418457,3.2090001106262207,1.2,37.1
2016-07-01 00:30:00,38.86800003051758,10.555000305175781,34.36500167846679,7.586999893188477,4.42,1.3,36.5
2016-07-01 00:45:00,35.518001556396484,9.213000297546387,32.569000244140625,8.711999893188477,4.4,1.2,36.1
2016-07-01 01:00:00,37.52799987792969,10.135000228881836,33.936000823974616,7.532000064849855,4.4,1.2,36.0
"""


FIVE = "1,2\n3,4\n5,6\n7,8\n9,0\n"


def file_of(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    "text", [ETT, ETT.replace("\n", "\r\n"), "\ufeff" + ETT, ETT + "\n\n", "\n \n" + ETT, ETT.replace(",", ", ")]
)
def test_etts_published_form_loads_as_the_papers_task(tmp_path, text):
    series = load_series(file_of(tmp_path, text))
    assert series.columns == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT") and series.target == "OT"
    assert series.left_out == ("date",)
    assert series.rows.shape == (5, 7) and series.rows[0, 0] == 41.13000106811523
    assert load_series(series.name, "HULL").target == "HULL"


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,2\n3,\n5,6\n", "", r"data.csv, row 2, column b is empty or NA; fill or remove such cells first$"),
        ("a,b\n1,2\n3,NA\n5,6\n", "", r"data.csv, row 2, column b is empty or NA"),
        ("a,b\n1,2\n3,4\n5,inf\n", "", r"data.csv, row 3, column b is no finite number within ±1e\+150: inf"),
        ("a,b\n1,2\n3,x\n5,6\n,8\n", "", r"row 2, column b is no finite number within ±1e\+150: x.*\(1 more\)"),
        ("a,b\n1,2\n3,-1.1e150\n5,6\n", "", r"row 2, column b is no finite number within ±1e\+150: -1.1e\+150"),
        ("y\n1\n\n3\n4\n5\n", "", r"row 2, column y is empty"),
        ("y\n1\n2\n3\n4\n5\nNA\n\n", "", r"row 6, column y is empty or NA"),
        ("a,b\n1,2\n\n3,4\n5,\n", "", r"row 3, column b is empty"),
        ("a,b\n1,2\n3\n5,6\n", "", r"row 2, column b is empty"),
        ("a,b\n1,2\n3,4,5\n5,6\n", "", r"data.csv is no CSV file: .*line 3"),
        ("a,b\n1,2,3\n3,4,5\n5,6,7\n", "", r"more cells in a row than names"),
        ("a,b\n1,2\n3,4\n5,6\n7,8\n", "", r"data.csv has 4 rows, too few .* at least 5"),
        ("a,b\n", "", r"data.csv has .*(0 rows|no column)"),
        ("", "", r"data.csv is no CSV file"),
        ("a,b\n1,2\n3,4\n5,6\n", "OT", r"--target-column: .*data.csv has no column 'OT'; its .* are a, b"),
        ("a,b\nx,2\ny,4\nz,6\n", "a", r"--target-column: column a of .*data.csv has no numbers or no name"),
        ("a,b\n1,9\n3,8\n5,6\n7,7\n9,7\n", "", r"column b of .*data.csv, the target, is 7 in all rows from the fourth"),
        ("a;b\n1,5;7,0\n3,0;7,1\n5,0;1,0\n", "", r"more cells in a row|no column of numbers"),
        ("a;b\n1;7\n3;7\n5;1\n", "", r"no column of numbers: cells must be separated by commas"),
        ("1.5,2\n" + FIVE, "", r"data.csv has no header"),
        ("\n1.5,2\n" + FIVE, "", r"data.csv has no header"),
        ("3,4\n" + FIVE, "", r"data.csv has no header"),
        ("a,a\n" + FIVE, "", r"two columns named 'a'"),
        ("\na,a\n" + FIVE, "", r"two columns named 'a'"),
        (b"a,b\n1,\xff\n", "", r"data.csv is no CSV file: .*utf-8"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(tmp_path, text, target, message):
    with pytest.raises(ValueError, match=message) as refused:
        load_series(file_of(tmp_path, text), target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "columns", "left_out"),
    [
        ("a,b\n" + FIVE, ("a", "b"), ()),
        ("a, b\n" + FIVE, ("a", "b"), ()),
        ("0,1\n" + FIVE, ("0", "1"), ()),
        ("1,2\n" + FIVE, ("1", "2"), ()),
        ("nan,inf\n" + FIVE, ("nan", "inf"), ()),
        (",b\n" + FIVE, ("b",), ("Unnamed: 0",)),
        (",b,\n" + FIVE.replace("\n", ",\n"), ("b",), ("Unnamed: 0", "Unnamed: 2")),
        ("a,b,c\n" + FIVE.replace("\n", ",\n"), ("a", "b"), ("c",)),  # all empty
        ("a,b,c\n1,2,7\n3,4,8\n5,6,\n7,8,\n9,0,\n", ("a", "b"), ("c",)),
        ("y\n1\n2\n3\n4\n5\n\n\n", ("y",), ()),
    ],
)
def test_columns_with_a_name_and_with_numbers_in_half_their_cells_are_kept(tmp_path, text, columns, left_out):
    series = load_series(file_of(tmp_path, text))
    assert (series.columns, series.left_out, len(series.rows)) == (columns, left_out, 5)


def test_the_digest_tells_series_apart():
    def digest(columns, rows, target):
        return Series("some", columns, rows, target).digest()

    rows = np.arange(12.0).reshape(6, 2)
    digests = [
        digest(("a", "y"), rows, "y"),
        digest(("a", "y"), rows, "a"),
        digest(("b", "y"), rows, "y"),
        digest(("a", "y"), rows.reshape(4, 3), "y"),
        digest(("a", "y"), rows + 1, "y"),
    ]
    assert len(set(digests)) == len(digests) and digests[0] == digest(("a", "y"), rows.copy(), "y")


def test_what_is_no_series_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'seazons' is neither a series made here \(seasons\) nor a file .*\.csv"):
        load_series("seazons")
    with pytest.raises(ValueError, match=r"cannot read .*none.csv: No such file"):
        load_series(str(tmp_path / "none.csv"))
    with pytest.raises(ValueError, match=r"tiny has 6 rows, too few for sums with --discount 0.99, which take 303"):
        SeriesEnvs(TINY, [0], discount=0.99)
    SeriesEnvs(Series("long", ("y",), np.arange(303.0)[:, None], "y"), [0], discount=0.99)
    with pytest.raises(ValueError, match="302 rows"):
        SeriesEnvs(Series("short", ("y",), np.arange(302.0)[:, None], "y"), [0], discount=0.99)
