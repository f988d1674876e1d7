"""What a Run does by itself: predictions against NumPy, a folder as the command line's, tables and one-line texts."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.experiment.callbacks import Interruption
from pfedbred.runs.config_file import read_config

OPTIONS = {"rounds": 3, "eval_every": 1, "aggregated": 2, "batch_size": 3, "seeds": 2, "model": "mclr"}


@pytest.fixture(scope="module")
def data():
    return small_federation()


@pytest.fixture(scope="module")
def run(data):
    return pfedbred.run(federation=data, algorithm="ditto", **OPTIONS)


def logits(params, x):
    return x @ np.asarray(params["output"]["weight"]).T + np.asarray(params["output"]["bias"])


@pytest.mark.parametrize(("client", "seed"), [(None, 0), (None, 1), (2, 0), (2, 1), ("3", 0)])
def test_predictions_are_those_of_its_models(run, data, client, seed):
    params = run.global_model(seed) if client is None else run.personal_model(int(client), seed)
    x = data.test.x[:9]
    expected = logits(params, x)
    likely = np.exp(expected - expected.max(1, keepdims=True))
    assert run.predict(x, client, seed) == expected.argmax(1).tolist()
    np.testing.assert_allclose(run.probabilities(x, client, seed), likely / likely.sum(1, keepdims=True), rtol=1e-5)


def test_a_calibrated_run_has_calibrated_probabilities(data):
    run = pfedbred.run(federation=data, algorithm="fedavg", validation=0.3, coverage=0.8, **OPTIONS)
    x, model = data.test.x[:5], run.trained()
    scaled = logits(run.global_model(), x) / model.about["calibration"]["temperature"]
    likely = np.exp(scaled - scaled.max(1, keepdims=True))
    np.testing.assert_allclose(run.probabilities(x), likely / likely.sum(1, keepdims=True), rtol=1e-5)


def test_unknown_clients_and_seeds_are_one_line(run, data):
    for given, words in (({"client": "nobody"}, "no client called 'nobody'"), ({"client": 9}, "no client 9")):
        with pytest.raises(pfedbred.SettingError, match=words):
            run.predict(data.test.x[:1], **given)
    with pytest.raises(pfedbred.SettingError, match="seed must be a position from 0 to 1, not 2"):
        run.predict(data.test.x[:1], seed=2)


def test_a_custom_network_predicts(data):
    run = pfedbred.run(federation=data, **{**OPTIONS, "model": pfedbred.models.mclr((6,), 3), "rounds": 1})
    assert run.predict(data.test.x[:4]) == logits(run.global_model(), data.test.x[:4]).argmax(1).tolist()


def test_the_table_has_every_figure(run):
    rows = run.table()
    parts = [scores for point in run.points for model in ("global", "personal") for scores in _parts(point, model)]
    assert len(rows) == sum(2 * len(scores.values) for scores in parts)
    found = {(each["round"], each["seed"]): each["value"] for each in rows if _is(each, "P", "test", "accuracy")}
    for place, point in enumerate(run.points):
        for seed in range(2):
            assert found[point.round, seed] == run.accuracy("personal")[place, seed]
    frame = pytest.importorskip("pandas", reason="pandas is not installed") and run.table(pandas=True)
    assert len(frame) == len(rows)
    assert list(frame.columns) == list(rows[0])


def _parts(point, model):
    return point.scores.of(model).parts.values()


def _is(row, model, part, metric):
    return (row["model"], row["part"], row["metric"]) == (model, part, metric)


def test_a_saved_run_is_the_folder_of_the_command_line(run, data, tmp_path, call):
    """Metrics, models and summary are those that a run into a folder writes; nothing but times differs."""
    saved = run.save(str(tmp_path / "saved"))
    written = pfedbred.run(federation=data, algorithm="ditto", out=tmp_path / "written", **OPTIONS).folder

    def content(folder):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        return [{**line, "seconds": 0} for line in lines], {**summary, "seconds": 0}

    assert content(saved) == content(written)
    assert read_config(saved / "config.yaml") == read_config(written / "config.yaml")
    assert (saved / "models.safetensors").read_bytes() == (written / "models.safetensors").read_bytes()
    for command in (("report", saved), ("export", saved, "--client", "1")):
        assert call(*command)[0] == 0
    np.save(tmp_path / "x.npy", data.test.x[:5])
    _, out, _ = call("predict", saved / "client-1.safetensors", tmp_path / "x.npy")
    assert out.split() == [str(each) for each in run.predict(data.test.x[:5], client=1)]
    with pytest.raises(pfedbred.SettingError, match=r"; choose another folder, or overwrite it \(overwrite=True\)$"):
        run.save(saved)


def test_an_interrupted_run_is_not_saved(data, tmp_path):
    run = pfedbred.run(federation=data, callbacks=[Interruption(time_limit=0.0)], **OPTIONS)
    with pytest.raises(pfedbred.SettingError, match=r"was interrupted \(time limit\) and has no outcome"):
        run.save(tmp_path / "run")


def test_texts_are_one_line(run, data):
    accuracy = {letter: 100 * run.accuracy(which)[-1].mean() for letter, which in (("G", "global"), ("P", "personal"))}
    expected = f"test accuracy G {accuracy['G']:.2f} %, P {accuracy['P']:.2f} %"
    assert repr(run) == f"Run(ditto on small, mclr, 3 of 3 rounds: {expected})"
    counts = f"{len(data.train.y)} train + {len(data.test.y)} test samples"
    assert repr(data) == f"Federation(small: 4 clients, {counts}, 3 labels)"


def test_notebooks_show_the_picture(run):
    html = run._repr_html_()
    assert html.startswith("<p>Run(ditto on small")
    assert 'src="data:image/png;base64,iVBORw0KGgo' in html


@pytest.mark.broad
def test_a_client_has_a_name_and_a_number(data):
    named = dataclasses.replace(data, names=("A", "B", "C", "0"))
    run = pfedbred.run(federation=named, algorithm="ditto", **OPTIONS)
    for client, number in (("B", 1), ("0", 3), ("2", 2)):
        jax.tree.map(np.testing.assert_array_equal, run.personal_model(client), run.personal_model(number))
    with pytest.raises(pfedbred.SettingError, match="there is no client called 'D'"):
        run.personal_model("D")
