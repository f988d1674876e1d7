"""A new client's personal model: against a transcription in NumPy, from files and from the shell."""

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.runs.trained_model import load_model

OPTIONS = {"rounds": 3, "aggregated": 2, "batch_size": 50, "model": "mclr"}


def gradient(params, x, y):
    """Of the mean cross-entropy of a linear model."""
    logits = x @ params["weight"].T + params["bias"]
    likely = np.exp(logits - logits.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    wrong = (likely - np.eye(likely.shape[1])[y]) / len(y)
    return {"weight": wrong.T @ x, "bias": wrong.sum(0)}


@pytest.fixture(scope="module")
def data():
    return small_federation()


@pytest.fixture(scope="module")
def new():
    return small_federation(sizes=(13,), seed=5)


def test_it_is_what_the_method_does_with_a_new_client(data, new, tmp_path):
    """Ditto: v starts at w and takes R_personal steps in each of two rounds, near w, on all samples at once."""
    settings = {"lam": 0.7, "alpha": 0.05, "R_personal": 4}
    run = pfedbred.run(federation=data, algorithm="ditto", settings=settings, out=tmp_path / "run", **OPTIONS)
    x, y = new.train.x, new.train.y
    made = pfedbred.adapt(tmp_path / "run", x, y, rounds=2, batch_size=13, out=tmp_path / "new.safetensors")
    w = {name: np.asarray(leaf) for name, leaf in run.global_model()["output"].items()}
    v = dict(w)
    for _ in range(2 * 4):
        slope = gradient(v, x, y)
        v = {name: v[name] - 0.05 * (slope[name] + 0.7 * (v[name] - w[name])) for name in v}
    for name, leaf in v.items():
        np.testing.assert_allclose(made.params["output"][name], leaf, rtol=2e-4, atol=1e-6)
    again = load_model(tmp_path / "new.safetensors")
    assert (again.about["kind"], again.about["client_name"]) == ("personal", "new")
    assert again.predict(new.test.x) == made.predict(new.test.x)


@pytest.mark.parametrize(("algorithm", "model"), [("mg-meta", "dnn"), ("fedavg+ft", "mclr"), ("learned-prior", "mclr")])
@pytest.mark.full
def test_methods_with_personal_models_fit_the_client(algorithm, model, data, new, tmp_path):
    options = {**OPTIONS, "model": model, "federation": data, "algorithm": algorithm}
    run = pfedbred.run(**options, out=tmp_path / "run")
    x, y = new.train.x, new.train.y
    made = pfedbred.adapt(tmp_path / "run", x, y, rounds=20)

    def loss(logits):
        return np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])

    assert loss(made.logits(x)) < loss(run.trained().logits(x))


def test_batch_statistics_are_the_clients_own(new, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 8, 8)).astype(np.float32)
    y = np.arange(40) % 3
    data = pfedbred.from_clients([(x[:20], y[:20]), (x[20:], y[20:])], [(x[:5], y[:5]), (x[20:25], y[20:25])])
    options = {"federation": data, "model": "resnet8", "algorithm": "fedavg", "rounds": 1, "settings": {"R": 1}}
    run = pfedbred.run(**options, out=tmp_path / "run")
    made = pfedbred.adapt(tmp_path / "run", 5 + x, y, rounds=1)
    averaged, own = (np.asarray(each.statistics["stem"]["mean"]) for each in (run.global_model(), made.params))
    assert np.abs(averaged - own).max() > 0.1


def test_what_cannot_be_adapted_is_one_line(data, new, tmp_path):
    x, y = new.train.x, new.train.y
    pfedbred.run(federation=data, algorithm="fedamp", out=tmp_path / "fedamp", **OPTIONS)
    with pytest.raises(pfedbred.SettingError, match="clients of fedamp start from more than the global model"):
        pfedbred.adapt(tmp_path / "fedamp", x, y)
    pfedbred.run(federation=data, algorithm="fedavg", out=tmp_path / "fedavg", **OPTIONS)
    personal = pfedbred.export(tmp_path / "fedavg", client=0)
    for given, words in (
        ((tmp_path / "fedavg", x, y[:3]), "13 samples and 3 labels"),
        ((tmp_path / "fedavg", x[:, :2], y), r"samples have shape \(2,\), the model is for \(6,\)"),
        ((tmp_path / "fedavg", x, [7] * 13), "the model has no label '7'"),
        ((personal, x, y), "is a personal model: a new client starts from a global one"),
    ):
        with pytest.raises(pfedbred.SettingError, match=words):
            pfedbred.adapt(*given)
    spoiled = x.copy()
    spoiled[4, 1] = np.nan
    with pytest.raises(pfedbred.SettingError, match=r"^sample 4 has a feature that is not a finite number$"):
        pfedbred.adapt(tmp_path / "fedavg", spoiled, y)
    for options, words in (
        ({"rounds": 10**11}, r"rounds must be a whole number >= 1 and below 2\*\*31, not 100000000000"),
        ({"batch_size": 10**11}, "batch_size must be a whole number from 1 to 1000000, not 100000000000"),
    ):
        with pytest.raises(pfedbred.SettingError, match=words):
            pfedbred.adapt(tmp_path / "fedavg", x, y, **options)


@pytest.mark.full
def test_a_new_hospital_from_the_shell(call, tmp_path):
    """A table with a text column and a gap: raw columns go in, and the model predicts from raw columns again."""
    rng = np.random.default_rng(0)

    def table(names, shift):
        rows = ["hospital,age,sex,sick"]
        for i in range(60):
            age, sex = rng.normal(50, 10), rng.choice(["f", "m"])
            sick = "yes" if age + shift + 5 * (sex == "m") > 52 else "no"
            rows.append(f"{names[i % len(names)]},{'' if i == 7 else f'{age:.1f}'},{sex},{sick}")
        return "\n".join(rows)

    (tmp_path / "old.csv").write_text(table(["North", "South"], 0))
    (tmp_path / "new.csv").write_text(table(["East"], 8))
    columns = ["--client-column", "hospital", "--label-column", "sick"]
    options = ["--dataset", tmp_path / "old.csv", *columns, "--algorithm", "ditto", "--rounds", "3"]
    assert call("run", *options, "--out", tmp_path / "run")[0] == 0
    given = [tmp_path / "run", tmp_path / "new.csv", "--label-column", "sick", "--name", "East"]
    code, out, problem = call("adapt", *given, "--out", tmp_path / "east.safetensors")
    assert (code, problem) == (0, "")
    assert "personal model of East, 5 rounds from the global model" in out
    code, labels, said = call("predict", tmp_path / "east.safetensors", tmp_path / "new.csv", "--label-column", "sick")
    assert code == 0
    assert set(labels.split()) <= {"yes", "no"}
    assert said.startswith("personal model of client East, ditto")
    (tmp_path / "bare.csv").write_text("age,sex\n50,f\n")
    code, _, problem = call("adapt", tmp_path / "run", tmp_path / "bare.csv")
    assert (code, problem) == (
        2,
        f"pfedbred: {tmp_path / 'bare.csv'} has no labels: name their column with --label-column\n",
    )
