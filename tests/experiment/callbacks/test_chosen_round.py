"""The round chosen on validation samples: for each model and seed its own, its models kept, exported and resumed."""

import json
import re

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.engine.history import best_places
from pfedbred.errors import SettingError
from pfedbred.runs.record import RunRecord
from pfedbred.runs.trained_model import load_model

OPTIONS = {"algorithm": "pfedme", "settings": {"R": 2, "K": 1}, "aggregated": 2, "batch_size": 4, "seeds": 3}
OPTIONS |= {"validation": 0.4, "rounds": 6}
DATA = small_federation((7, 12, 9, 20))
MODELS = ("global", "personal")


class Stop(pfedbred.Callback):
    def __init__(self, round_):
        self.round = round_

    def stop_reason(self, progress):
        return "interrupted" if progress.round == self.round else None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pfedbred.run(**OPTIONS, federation=DATA, out=tmp_path_factory.mktemp("chosen") / "run")


def first_best(curve):
    """By hand: of each seed, the first round with the highest value."""
    return [1 + next(i for i, value in enumerate(seed) if value == max(seed)) for seed in curve.T.tolist()]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_the_first_of_the_best_evaluations_is_chosen():
    values = np.array([[np.nan, 0.5, np.nan], [0.3, 0.5, np.nan], [0.4, 0.1, np.nan]])
    assert best_places(values, True).tolist() == [2, 0, 0]
    assert best_places(values, False).tolist() == [1, 2, 0]


def test_each_model_and_seed_has_its_own_round(run):
    for model in MODELS:
        expected = first_best(run.curve("accuracy", model, "validation"))
        assert run.chosen.rounds[model].tolist() == expected
        assert run.record().summary[model]["chosen_round"] == expected
    chosen = np.concatenate([run.chosen.rounds[model] for model in MODELS])
    assert len(set(chosen.tolist())) > 2  # else this test could not fail


def test_the_summary_has_three_figures(run):
    summary, record = json.loads((run.folder / "summary.json").read_text()), RunRecord.read(run.folder)
    assert record.figures == ("chosen", "last", "best")
    for model in MODELS:
        for metric, best in (("accuracy", np.max), ("loss", np.min)):
            test, found = run.curve(metric, model), summary[model]["metrics"][metric]
            places = np.array(summary[model]["chosen_round"]) - 1  # of the first metric, whatever the figure's is
            by_hand = {"chosen": test[places, range(3)], "last": test[-1], "best": best(test, axis=0)}
            for figure, values in by_hand.items():
                np.testing.assert_array_equal(record.figure(figure, metric, model), values)
                assert found["final" if figure == "last" else figure]["mean"] == pytest.approx(values.mean())
        assert summary[model]["chosen_accuracy"] == summary[model]["metrics"]["accuracy"]["chosen"]


def test_the_models_are_those_of_the_chosen_rounds(run):
    """Of each seed and model, those of a run that ended there."""
    ended = {}
    for kind in MODELS:
        for seed, round_ in enumerate(run.chosen.rounds[kind].tolist()):
            if round_ not in ended:
                ended[round_] = pfedbred.run(**{**OPTIONS, "rounds": round_}, federation=DATA)
            if kind == "global":
                assert same(run.global_model(seed), ended[round_].global_model(seed, at="last"))
                continue
            for client in range(4):
                expected = ended[round_].personal_model(client, seed, at="last")
                assert same(run.personal_model(client, seed), expected)
                assert same(run.personal_model(client, seed, at="chosen"), expected)
    assert not same(run.global_model(0, at="last"), run.global_model(1))


@pytest.mark.full
def test_an_exported_model_says_which_round_it_is_of(run, tmp_path):
    for seed in range(3):
        for client, kind in ((None, "global"), (2, "personal")):
            path = pfedbred.export(run.folder, client=client, seed=seed, out=tmp_path / "one.safetensors")
            found = load_model(path)
            assert found.about["round"] == run.chosen.rounds[kind][seed]
            assert found.about["chosen_on"] == "validation"
            expected = run.global_model(seed) if client is None else run.personal_model(client, seed)
            assert same(found.params, expected)


@pytest.mark.parametrize("store", ["device", pytest.param("memory", marks=pytest.mark.full)])
@pytest.mark.few_cases
@pytest.mark.full
def test_a_resumed_run_has_the_models_of_the_uninterrupted_one(run, store, tmp_path):
    """Interrupted after the chosen rounds of some seeds, and before those of others."""
    options = {**OPTIONS, "store": store, "participation": "sample"} if store == "memory" else OPTIONS
    whole = run if store == "device" else pfedbred.run(**options, federation=DATA, out=tmp_path / "whole")
    at = int(np.median(np.concatenate(list(whole.chosen.rounds.values()))))
    stopped = pfedbred.run(**options, federation=DATA, out=tmp_path / "run", callbacks=[Stop(at)])
    assert (stopped.stopped, stopped.round) == ("interrupted", at)
    resumed = pfedbred.run(**options, federation=DATA, out=tmp_path / "run", resume=True)
    assert resumed.points[0].round == 1
    for model in MODELS:
        np.testing.assert_array_equal(resumed.chosen.rounds[model], whole.chosen.rounds[model])
    one, other = (folder / "models.safetensors" for folder in (resumed.folder, whole.folder))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.full
def test_models_that_were_not_kept_are_asked_for_in_vain(tmp_path, capsys):
    options = {**OPTIONS, "seeds": 1, "rounds": 2}
    run = pfedbred.run(**options, federation=DATA, keep_models=False)
    with pytest.raises(SettingError, match="the models of the chosen round were not kept: give keep_models=True"):
        run.global_model()
    assert run.global_model(at="last") is not None
    with pytest.raises(SettingError, match="at must be 'chosen' or 'last', not 'best'"):
        run.global_model(at="best")
    first = pfedbred.run(**options, federation=DATA, out=tmp_path, callbacks=[Stop(1)], keep_models=False)
    assert first.stopped
    pfedbred.run(**options, federation=DATA, out=tmp_path, resume=True)
    assert "the models of the chosen rounds were not kept from the start of the run" in capsys.readouterr().err
    assert not (tmp_path / "models.safetensors").exists()


@pytest.mark.full
def test_without_validation_nothing_is_chosen(tmp_path):
    options = {name: value for name, value in OPTIONS.items() if name != "validation"}
    run = pfedbred.run(**{**options, "rounds": 2}, federation=DATA, out=tmp_path)
    assert run.chosen is None
    assert same(run.global_model(), run.global_model(at="last"))
    summary = run.record().summary
    assert not any("chosen" in name for model in MODELS for name in summary[model])
    assert "chosen_on" not in load_model(pfedbred.export(tmp_path)).about
    with pytest.raises(SettingError, match=re.escape("no round was chosen")):
        run.global_model(at="chosen")
