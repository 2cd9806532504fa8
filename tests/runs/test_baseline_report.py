"""A run says what its baselines reach, and warns if it is worse; earlier summaries say nothing."""

import numpy as np
import pytest

from method_records import by_method
from mixdim.runs import models, train
from mixdim.runs.baseline_report import (
    advice_on_boosting,
    baselines_in_words,
    baselines_line,
    warning_below_baseline,
)
from mixdim.runs.report.page import report_page
from mixdim.runs.summary import advice_after
from mixdim.runs.sweeps.measure import SolvedRun, known_baselines, train_and_measure
from mixdim.runs.sweeps.tables import comparison_table, sweep_table
from mixdim.training import baselines
from mixdim.training.baselines import baselines_of
from mixdim.training.random_effects import effects_of
from report_records import finished
from small_runs import told, trained
from training_data import clicks, clicks_with_bags, ratings, small_config


def with_baselines(record, *, constant=1.25, biases=0.83, validation=0.0):
    objective = record.loss_name
    record.summary["baselines"] = {
        "constant": {"validation": {objective: constant}, "test": {objective: constant}},
        "biases": {"validation": {objective: biases + validation}, "test": {objective: biases}},
    }
    record.summary.update(steps=1000, optimizer="amsgrad")
    return record


def test_the_summary_has_the_baselines_of_its_data_whatever_the_seed(tmp_path):
    runs = [trained(told("mf", epochs=1, seed=s), tmp_path / str(s)).summary for s in (0, 1)]
    assert runs[0]["baselines"] == runs[1]["baselines"] == baselines_of(ratings())
    assert advice_after(runs[0])[0].startswith("baselines on test: constant ")


def test_a_hopeless_model_is_told_so_in_one_line_with_both_numbers(tmp_path):
    summary = trained(told("mf", epochs=1, lr=1e-9, mean=False), tmp_path / "run").summary
    own, simple = summary["validation"]["best"]["mse"], summary["baselines"]["biases"]["validation"]
    line = advice_after(summary)[-1]
    assert "\n" not in line
    assert line.startswith("warning: in validation this model is worse than shrunken biases: ")
    assert f"mse {own:.4f} against {simple['mse']:.4f}; it took only 8 steps" in line


def test_a_run_whose_start_stayed_the_best_is_told_so_instead(tmp_path):
    config = told("deepfm", epochs=2, from_baseline=True, lr=0.3, weight_decay=0.0)
    summary = trained(config, tmp_path / "run").summary
    best = summary["validation"]["best"]
    assert (best["step"], best["epoch"]) == (0, 0)
    assert best["log_loss"] == pytest.approx(
        summary["baselines"]["logistic"]["validation"]["log_loss"], rel=1e-5
    )
    warnings = [line for line in advice_after(summary) if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "so the run ends as that baseline" in warnings[0]


def test_matrix_factorisation_begins_as_the_biases_that_it_is_compared_with(tmp_path):
    for fitted in (True, False):
        config = told("mf", epochs=1, lr=1e-9, from_baseline=fitted)
        tables = trained(config, tmp_path / str(fitted)).model().biases.parameters()
        expected = [fitted * biases for biases in effects_of(ratings()).biases]
        for table, biases in zip(tables, expected, strict=True):
            np.testing.assert_allclose(table.detach()[:, 0], biases, atol=1e-6)
    assert max(map(np.ptp, effects_of(ratings()).biases)) > 0.1


@pytest.mark.parametrize("data", [clicks, clicks_with_bags])
def test_dlrm_begins_as_the_logistic_regression_that_it_is_compared_with(data, tmp_path, monkeypatch):
    fitted = []
    original = models.fit_logistic
    monkeypatch.setattr(
        models, "fit_logistic", lambda *a, **k: fitted.append(original(*a, **k)) or fitted[-1]
    )
    monkeypatch.setattr(baselines, "fit_logistic", None)  # once is enough
    asked = {"epochs": 1, "lr": 1e-9, "first_order": True, "from_baseline": True}
    config = small_config("dlrm", data(), **asked)
    summary = trained(config, tmp_path / "run").summary
    [logistic] = fitted
    assert summary["baselines"]["logistic"] == logistic.measured
    for split in ("validation", "test"):
        assert summary[split]["best"]["log_loss"] == pytest.approx(
            logistic.measured[split]["log_loss"], abs=1e-5
        )
    assert max(float(weights.abs().max()) for weights in logistic.model.of_ids().values()) > 0.01


def test_a_logistic_regression_that_diverges_leaves_dlrm_to_begin_with_nothing(tmp_path, monkeypatch):
    def diverges(*_, **__):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(models, "fit_logistic", diverges)
    config = told("dlrm", epochs=1, lr=1e-9, first_order=True, from_baseline=True)
    model = trained(config, tmp_path / "run").model()
    assert all(
        float(weight.detach().abs().max()) < 1e-6 for weight in model.first_order.weights.parameters()
    )
    assert float(model.top[-1].weight.detach().abs().max()) > 0.01


@pytest.mark.parametrize(
    ("steps", "best", "last", "remedy", "known"),
    [
        (1, 1, 1, "only 1 step: try a smaller --batch-size", {}),
        (1000, 1000, 1000, "best at its end: try more --epochs", {}),
        (1000, 300, 1000, "best before its end: try --tune, or a smaller --budget", {}),
        (1000, 300, 1000, "best before its end: try a smaller --budget", {"tuning": {}}),
        (1000, 300, 1000, "best before its end: try a smaller --budget", {"distributed": True}),
    ],
)
def test_what_to_try_depends_on_how_it_went(steps, best, last, remedy, known):
    summary = with_baselines(finished(0.9)).summary
    measured = summary["validation"]["best"]
    summary["validation"] = {"best": {**measured, "step": best}, "last": {**measured, "step": last}}
    assert remedy in warning_below_baseline({**summary, "steps": steps, **known})


def test_a_good_model_is_not_warned_of():
    assert warning_below_baseline(with_baselines(finished(0.8)).summary) is None
    # Only validation counts: on test it may have been luck.
    assert warning_below_baseline(with_baselines(finished(0.9), validation=0.1).summary) is None
    unmeasured = with_baselines(finished(0.9)).summary
    unmeasured["validation"] = {which: {"step": 1, "mse": None} for which in ("best", "last")}
    assert warning_below_baseline(unmeasured) is None


def test_tables_of_sweeps_end_with_a_line_of_baselines():
    line = "baselines on test: constant 1.2500, biases 0.8300"
    assert sweep_table([with_baselines(finished())]).endswith(f"\n\n{line}")
    assert comparison_table([with_baselines(by_method("cut", asked=800))]).endswith(f"\n\n{line}")
    splits = [with_baselines(finished(seed=0)), with_baselines(finished(seed=1, fingerprint="ab" * 16),
                                                               biases=0.85)]  # fmt: skip
    expected = "baselines on test: constant 1.2500, biases 0.8400 (means over 2 data sets)"
    assert sweep_table(splits).splitlines()[-1] == expected


def test_the_report_says_them_beside_each_data_set():
    page = report_page([with_baselines(finished())])
    assert '<th scope="col">baselines on test</th>' in page
    assert "<td>constant 1.2500, biases 0.8300</td>" in page


def test_runs_from_before_there_were_baselines_get_no_line():
    old = finished()
    assert baselines_in_words([old.summary]) == ""
    assert baselines_line([old.summary]) is None
    assert warning_below_baseline(old.summary) is None
    assert "baselines" not in sweep_table([old])
    assert "baselines on test" not in report_page([old])
    assert "constant 1.2500" in sweep_table([old, with_baselines(finished(seed=1))])


def test_baselines_that_a_record_has_are_not_measured_again(tmp_path, monkeypatch):
    first = train_and_measure(SolvedRun(told("mf", epochs=1), "a"), tmp_path / "a")
    known = known_baselines([first, finished()])
    assert known == {ratings().fingerprint: baselines_of(ratings())}
    monkeypatch.setattr(train, "baselines_of", None)
    asked = SolvedRun(told("mf", epochs=1, seed=1), "b", known_baselines=known)
    second = train_and_measure(asked, tmp_path / "b")
    assert second.summary["baselines"] == first.summary["baselines"]
    first.summary["version"] = "0.0.1"  # which may have measured them in another way
    assert known_baselines([first]) == {}


@pytest.mark.parametrize(("alone", "says"), [(0.45, True), (0.40, True), (0.55, False), (None, False)])
def test_boosting_is_worth_trying_where_dense_columns_carry_most_of_the_signal(alone, says):
    losses = {"constant": 0.65, "logistic": 0.42}
    found = {n: {split: {"log_loss": v} for split in ("validation", "test")} for n, v in losses.items()}
    found["logistic"]["dense_alone"] = alone
    summary = {"baselines": found, "test": {"best": {"log_loss": 0.4}}}
    line = advice_on_boosting(summary)
    assert (line is not None) == says
    if line is not None:
        assert "gradient boosting on the raw columns is worth trying" in line
        assert ("87%" if alone == 0.45 else "100%") in line
