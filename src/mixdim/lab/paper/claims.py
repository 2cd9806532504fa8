"""What records say about the paper's claims, in sentences with numbers. Draws and trains nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mixdim.lab.paper.captions import listed
from mixdim.lab.paper.comparisons import (
    Interval,
    Saving,
    best_setting,
    best_uniform,
    in_loss,
    in_percent,
    paired,
    reproduces,
    savings,
)
from mixdim.lab.paper.curves import (
    Measure,
    by_line,
    by_setting,
    embedding_parameters,
    mean_of,
    num_parameters,
    objective,
    objective_label,
    on_test,
    summary_of,
    temperature,
    train_seconds,
)
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.records import Record

LIFTED, POOLED = "lifted uniform", "pooled bands"


def fewer_parameters(records: Sequence[Record], *, at_equal_accuracy: bool = False) -> str:
    """At the loss of the best uniform width, how many times fewer parameters each temperature has.

    Or at its accuracy; the width is the same.
    """
    accuracy = on_test("accuracy")
    errors = (lambda record: 1 - accuracy(record)) if at_equal_accuracy else None
    embeddings = savings(records, embedding_parameters, errors)
    models = savings(records, num_parameters, errors)
    parts = [
        f"{label}: {found}"
        if of_model == found
        else f"{label}: {found.of(' in embeddings')}; {of_model.of(' in the whole model')}"
        for (label, found), of_model in zip(embeddings.items(), models.values(), strict=True)
    ]
    measure = accuracy if at_equal_accuracy else on_test(objective(records))
    mixed = best_setting([record for record in records if temperature(record) > 0])
    parts.append(
        f"the best mixed model by validation loss: {method_of(mixed[0])}, "
        f"{num_parameters(mixed[0]):,.0f} parameters, {mean_of(mixed, measure):.4f}"
    )
    reference = _reference(records, accuracy if at_equal_accuracy else None)
    return listed(f"Times fewer parameters at {reference}", parts)


def sixteen_times(records: Sequence[Record]) -> str:
    """Whether some temperature needs 16 times fewer parameters at equal loss.

    Decided by the embeddings: with far fewer rows than Criteo's, MLPs weigh more here than in the paper.
    """
    found = savings([r for r in records if r.config["plan"] is None], embedding_parameters)
    verdict = _verdict(_with_every_seed(found), at_least=16)
    parts = (fewer_parameters(records), _against_sixteen_times_the_width(records), lifting(records))
    return "\n".join([f"{verdict}.", *filter(None, parts)])


def _against_sixteen_times_the_width(records: Sequence[Record]) -> str:
    """The loss within a budget minus that of uniform at 16 times the width, where both were measured."""
    lines, loss = by_line(records), on_test(objective(records))
    uniform = {summary_of(same[0])["base_dim"]: same for same in by_setting(lines["uniform"])}
    parts = []
    for width in (width for width in uniform if 16 * width in uniform):
        budget, wide = uniform[width][0].config["model_budget"], uniform[16 * width]
        for label, runs in lines.items():
            for same in by_setting(runs):
                if temperature(same[0]) > 0 and same[0].config["model_budget"] == budget:
                    difference = in_loss(paired(same, wide, loss))
                    parts.append(f"{label} within the budget of width {width}: {difference}")
    return listed("Loss minus that of uniform with 16 times the width", parts) if parts else ""


def lifting(records: Sequence[Record]) -> str:
    """How much of what mixed gains over uniform comes from the wider base_dim alone."""
    lines = by_line(records)
    loss = on_test(objective(records))
    parts = []
    for lifted in by_setting(lines.get(LIFTED, [])):
        uniform = _largest_below(num_parameters(lifted[0]), by_setting(lines["uniform"]))
        base_dim = summary_of(lifted[0])["base_dim"]
        mixed = [
            same
            for same in by_setting([r for r in records if temperature(r) > 0])
            if summary_of(same[0])["base_dim"] == base_dim
            and same[0].config["model_budget"] == uniform[0].config["model_budget"]
        ]
        for same in mixed:
            whole, alone = paired(same, uniform, loss), paired(lifted, uniform, loss)
            width = summary_of(uniform[0])["base_dim"]
            share = f", {alone.mean / whole.mean:.0%} of it" if whole.mean < 0 else ""
            parts.append(
                f"at the budget of width {width}, {method_of(same[0])} changes the loss by "
                f"{whole.mean:+.4f}, and width {width} lifted to its base_dim {base_dim} by "
                f"{alone.mean:+.4f}{share}"
            )
    return listed("From base_dim alone", parts) if parts else ""


def half_the_parameters(records: Sequence[Record]) -> str:
    """Accuracy near temperature 0.2 within a budget, minus that of uniform at twice the width."""
    lines = by_line(records)
    mixed = [label for label in lines if label.startswith("temperature")]
    label = min(mixed, key=lambda label: abs(temperature(lines[label][0]) - 0.2))
    wide = {summary_of(same[0])["base_dim"]: same for same in by_setting(lines["uniform"])}
    differences = {}
    for same in by_setting(lines[label]):
        width = next(
            (
                w
                for w, u in wide.items()
                if u[0].config["model_budget"] == same[0].config["model_budget"]
            ),
            None,
        )
        if width is not None and 2 * width in wide:
            differences[width] = paired(same, wide[2 * width], on_test("accuracy"))
    verdict = _verdict(list(differences.values()), at_least=0.001)
    parts = [
        f"budget of width {width} against uniform width {2 * width}: {in_percent(found)}"
        for width, found in differences.items()
    ]
    return f"{verdict}.\n" + listed(f"Accuracy of {label} minus uniform with twice the width", parts)


def faster(records: Sequence[Record]) -> str:
    """At the loss of the best uniform width, how many times less time each temperature trains."""
    found = savings(records, train_seconds)
    verdict = _verdict(_with_every_seed(found), at_least=2)
    parts = [f"{label}: {saving}" for label, saving in found.items()]
    return f"{verdict}.\n" + listed(f"Times less training time at {_reference(records)}", parts)


def feature_blocks(records: Sequence[Record]) -> str:
    """Accuracy of blocks by feature minus that of bands pooled over all features, at equal budgets."""
    lines = by_line(records)
    label = next(label for label in lines if label.startswith("temperature"))
    differences = {}
    for pooled in by_setting(lines[POOLED]):
        featured = next(
            same
            for same in by_setting(lines[label])
            if same[0].config["model_budget"] >= num_parameters(pooled[0])
        )
        budget = featured[0].config["model_budget"]
        differences[budget] = paired(featured, pooled, on_test("accuracy"))
    verdict = _verdict(list(differences.values()), at_least=0.01)
    parts = [f"within {budget:,} parameters {in_percent(d)}" for budget, d in differences.items()]
    return f"{verdict}.\n" + listed("Accuracy of blocks by feature minus pooled bands", parts)


def _reference(records: Sequence[Record], accuracy: Measure | None = None) -> str:
    best = best_uniform(records)
    width, size = summary_of(best[0])["base_dim"], num_parameters(best[0])
    name = "accuracy" if accuracy else objective_label(records)
    mean = mean_of(best, accuracy or on_test(objective(records)))
    return (
        f"the test {name} of the best uniform width by validation loss, {width} "
        f"({size:,.0f} parameters, {mean:.4f})"
    )


def _verdict(found: Sequence[Interval], *, at_least: float) -> str:
    """Whether the claim holds for the best of some lines or budgets."""
    if not found:
        return "Did not reproduce"
    best = max(found, key=lambda interval: interval.mean)
    return reproduces(best, at_least).capitalize()


def _with_every_seed(found: Mapping[str, Saving]) -> list[Interval]:
    """The ratios of the lines that got there with every seed: the others prove nothing.

    Where the smallest model got there, there is no upper end: a smaller one was not tried.
    """
    return [
        saving.ratio._replace(high=math.inf) if saving.at_least else saving.ratio
        for saving in found.values()
        if saving.ratio is not None and saving.ratio.seeds == saving.seeds
    ]


def _largest_below(size: float, settings: Sequence[list[Record]]) -> list[Record]:
    return max(
        (same for same in settings if num_parameters(same[0]) <= size),
        key=lambda same: num_parameters(same[0]),
    )
