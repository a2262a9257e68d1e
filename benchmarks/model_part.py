"""The part of a report on methods that learn from a model: values beyond any return, and how good the model is."""

from benchmarks import figures
from benchmarks.analysis import Results, curves_by_task, each
from benchmarks.figures import LINEAR
from benchmarks.parts import Part
from benchmarks.tables import Table, number, word


def model_part(results: Results) -> Part:
    """Values of the policy against their bound, penalties, spreads of critics, and errors of the model."""
    long = results.scores.watched
    keys = ["task", "algorithm", "seed"]
    metrics = results.scores.late(long).pivot_table(index=keys, columns="metric", values="value")
    played = results.scores.late(results.scores.table).groupby(keys)["return"].mean()
    metrics = metrics.join(played.rename("return")).reset_index()
    errors = sorted((n for n in metrics if str(n).startswith("model_error_")), key=lambda n: int(str(n).split("_")[-1]))
    columns = ["policy_value", "return", "value_bound", "penalty", "last_step_share", "spread_start", "spread_last"]
    columns = [name for name in [*columns, *errors] if name in metrics]
    table = Table(["task", "algorithm", *(str(name).replace("_", " ") for name in columns), "seeds"], [])
    for task, algorithm, frame in each(metrics, results.scores):
        cells = [number(frame[name].mean()) for name in columns]
        table.rows.append([word(task), word(algorithm), *cells, number(len(frame), 0)])
    text = (
        "What the critics promise for the policy's actions in states of the dataset (the least of them), beside the "
        "bound that no sum of discounted rewards of the dataset exceeds, drawn as a dotted line: a value above it is "
        "more than the data's rewards allow, and far above it has exploded. Between value and bound stands the "
        "undiscounted return of the same policies in their evaluations: where rewards are positive, a value far above "
        "it is a promise that the policy does not keep. Then the mean penalty of a predicted step, the share of "
        "predicted steps that are the last of a whole rollout (one in k if none of k steps ends early; not the share "
        "of states beyond reach), the standard deviation of the critics in states of the dataset and after those last "
        "steps, and the distance of the ensemble from the simulator after so many steps, in standard deviations of "
        "the data: it is of the ensemble alone, and only earlier versions logged it for mixtures. The table has "
        "means over the last 10%, without seeds that diverged. In the figure, an axis of values that are not all "
        f"positive is linear from -{LINEAR:g} to {LINEAR:g}, where it is shaded, and logarithmic beyond."
    )
    part = Part("Values and the model", text, tables=[("Values, spreads and errors", table)], figures_in_markdown=True)
    values = long[long["metric"] == "policy_value"]
    bounds = long[long["metric"] == "value_bound"].groupby("task")["value"].max().to_dict()
    panels = curves_by_task(results, values, "value")
    if panels:
        figure = figures.grid(
            panels, results.styles, results.scores.steps, "discounted value of the policy",
            "mean over seeds with 95% intervals", results.names, results.names_are,
            bounds=("bound by the data's rewards", bounds),
        )  # fmt: skip
        part.figures.append(("policy_values", figure, "Values that critics promise for the policy's actions"))
    return part
