"""What a report says of the looks of a sweep that added seeds until two algorithms were told apart."""

from typing import Any

from benchmarks.looks import LEVEL
from benchmarks.parts import Part
from benchmarks.tables import Table, number, word


def looks_part(every: list[dict[str, Any]]) -> Part:
    """Which looks were taken, and what they decided."""
    columns = ["task", "a", "b", "look", "seeds each", "mean of a", "mean of b", "size", "decides above", "a is"]
    table = Table(columns, [])
    sentences = []
    for looks in every:
        for task, taken in looks["tasks"].items():
            for look in taken:
                means = [number(mean) for mean in look["means"]]
                table.rows.append(
                    [word(task), word(looks["a"]), word(looks["b"]), word(f"{look['number']} of {looks['most']}"),
                     number(look["seeds"], 0), *means, number(look["statistic"]), number(look["boundary"]),
                     word(look["decision"])]
                )  # fmt: skip
            if taken:
                last = taken[-1]
                end = "the budget was spent" if last["number"] == looks["most"] else "the sweep was broken off"
                sentences.append(
                    f"{looks['a']} is {last['decision']} than {looks['b']} on {task}, by {last['seeds']} seeds of each."
                    if last["decision"] != "not decided"
                    else f"Between {looks['a']} and {looks['b']} on {task} nothing was decided before {end}, "
                    f"after {last['seeds']} seeds of each."
                )
    levels = ", ".join(dict.fromkeys(f"{looks['level']:.2g}" for looks in every))
    text = (
        "Seeds were added in batches until a group-sequential permutation test decided (AdaStop, arXiv 2306.10882), "
        f"with the level {levels} for each task, so that any wrong decision on a pair, over all tasks, has a "
        f"probability of at most {LEVEL:.0%}, however many looks there were. Other sections of this report do not "
        "count the looks: where they say something else of such a pair, this one holds. If seeds are few and one "
        "algorithm's scores spread far more than the other's, this test too is wrong more often than its aim. The size "
        "is that of the sum of differences of batches."
    )
    part = Part("Looks", text, tables=[("Looks at the scores while seeds were added", table)])
    part.sentences = sentences
    return part
