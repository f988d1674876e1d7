"""A new client's personal model: against a transcription in NumPy, from files and from the shell."""

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.algorithms import ALGORITHMS
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


def two_layers(params, x, y):
    """The gradient of the mean cross-entropy of a network with one hidden layer of leaky rectified units."""
    first, second = params["hidden"], params["output"]
    z = x @ first["weight"].T + first["bias"]
    hidden = np.where(z > 0, z, 0.1 * z)
    last = gradient(second, hidden, y)
    logits = hidden @ second["weight"].T + second["bias"]
    likely = np.exp(logits - logits.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    back = (likely - np.eye(likely.shape[1])[y]) / len(y) @ second["weight"] * np.where(z > 0, 1, 0.1)
    return {"hidden": {"weight": back.T @ x, "bias": back.sum(0)}, "output": last}


def moved(params, slope, alpha, parts=("hidden", "output")):
    step = {k: {n: params[k][n] - alpha * slope[k][n] for n in params[k]} for k in parts}
    return {**params, **step}


def fedper(start, x, y):
    """Body and head move together, but only the head is kept from round to round."""
    head = start["output"]
    for _ in range(2):
        own = {**start, "output": head}
        for _ in range(4):
            own = moved(own, two_layers(own, x, y), 0.05)
        head = own["output"]
    return {**start, "output": head}


def fedrep(start, x, y):
    """The head moves alone, on the body received."""
    for _ in range(2 * 3):
        start = moved(start, two_layers(start, x, y), 0.05, ["output"])
    return start


def fedbabu(start, x, y):
    """Clients keep nothing: both parts are fine-tuned for the test."""
    for _ in range(5):
        start = moved(start, two_layers(start, x, y), 0.05)
    return start


PARTS = {
    "fedper": (fedper, {"R": 4, "alpha": 0.05}),
    "fedrep": (fedrep, {"R_head": 3, "R": 2, "alpha": 0.05}),
    "fedbabu": (fedbabu, {"R": 4, "tune_steps": 5, "alpha": 0.05}),
}


@pytest.mark.parametrize("algorithm", PARTS)
def test_a_new_client_gets_a_head_of_its_own(algorithm, data, new, tmp_path):
    transcribed, settings = PARTS[algorithm]
    options = {**OPTIONS, "rounds": 1, "model": "dnn", "algorithm": algorithm, "settings": settings}
    run = pfedbred.run(federation=data, out=tmp_path / "run", **options)
    x, y = new.train.x, new.train.y
    made = pfedbred.adapt(tmp_path / "run", x, y, rounds=2, batch_size=13)
    start = {k: {n: np.asarray(leaf) for n, leaf in part.items()} for k, part in run.global_model().items()}
    expected = transcribed(start, x, y)
    assert np.abs(expected["output"]["weight"] - start["output"]["weight"]).max() > 1e-3
    for part, leaves in expected.items():
        for name, leaf in leaves.items():
            np.testing.assert_allclose(made.params[part][name], leaf, rtol=2e-3, atol=1e-5)


@pytest.mark.full
def test_a_new_client_gets_mixture_weights_by_em(data, new, tmp_path):
    """Two rounds are two iterations of EM for pi, on the components as they are."""
    settings = {"M": 3, "R": 20, "alpha": 0.5}
    run = pfedbred.run(federation=data, algorithm="fedem", settings=settings, out=tmp_path / "run", **OPTIONS)
    x, y = new.train.x, new.train.y
    made = pfedbred.adapt(tmp_path / "run", x, y, rounds=2)
    components = run.global_model().components["output"]
    weight, bias = np.asarray(components["weight"]), np.asarray(components["bias"])
    np.testing.assert_array_equal(made.params.components["output"]["weight"], weight)
    logits = np.einsum("bi,mci->mbc", x, weight) + bias[:, None]
    likely = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    of_label, pi = likely[:, np.arange(len(y)), y], np.full(3, 1 / 3)
    for _ in range(2):
        q = pi[:, None] * of_label
        pi = (q / q.sum(0)).mean(1)
    assert np.ptp(pi) > 0.01
    np.testing.assert_allclose(np.exp(made.params.log_weights), pi, rtol=1e-4)


@pytest.mark.full
def test_a_new_client_of_fedamp_starts_at_the_mean_and_stays_near_it(data, new, tmp_path):
    settings = {"lam": 0.2, "alpha_k": 0.1, "alpha": 0.05, "R": 4}
    run = pfedbred.run(federation=data, algorithm="fedamp", settings=settings, out=tmp_path / "run", **OPTIONS)
    x, y = new.train.x, new.train.y
    made = pfedbred.adapt(tmp_path / "run", x, y, rounds=2, batch_size=13)
    u = {name: np.asarray(leaf) for name, leaf in run.global_model()["output"].items()}
    w = dict(u)
    for _ in range(2 * 4):
        slope = gradient(w, x, y)
        w = {name: w[name] - 0.05 * (slope[name] + 0.2 / 0.1 * (w[name] - u[name])) for name in w}
    for name, leaf in w.items():
        np.testing.assert_allclose(made.params["output"][name], leaf, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", [*sorted(set(ALGORITHMS) - {"fedbn"}), "fedavg+server", "fedem+am"])
@pytest.mark.few_cases(2)
@pytest.mark.full
def test_every_method_has_something_for_a_new_client(algorithm, data, new, tmp_path):
    pfedbred.run(federation=data, algorithm=algorithm, out=tmp_path / "run", **{**OPTIONS, "rounds": 1, "model": "dnn"})
    made = pfedbred.adapt(tmp_path / "run", new.train.x, new.train.y, rounds=1)
    assert np.isfinite(made.logits(new.test.x)).all()


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
    options = ["--dataset", tmp_path / "old.csv", *columns, "--algorithm", "fedavg", "--rounds", "1"]
    assert call("run", *options, "--out", tmp_path / "fedavg")[0] == 0
    code, _, problem = call("adapt", tmp_path / "fedavg", *given[1:])
    assert (code, problem) == (0, "pfedbred: note: P of fedavg is the global model itself: nothing was adapted\n")
    (tmp_path / "bare.csv").write_text("age,sex\n50,f\n")
    code, _, problem = call("adapt", tmp_path / "run", tmp_path / "bare.csv")
    assert (code, problem) == (
        2,
        f"pfedbred: {tmp_path / 'bare.csv'} has no labels: name their column with --label-column\n",
    )


@pytest.mark.broad
@pytest.mark.parametrize("labels", [("0.0", "1.0"), ("v1.0", "v2.0"), ("0.5", "1.0")])
def test_labels_that_look_like_decimals_are_known_again(labels, tmp_path, call):
    """Both commands find all labels of the model's own file, and of one with a single label, predicted perfectly."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], 40)
    (tmp_path / "all.csv").write_text("a,label\n" + "".join(f"{each},{labels[int(each > 0)]}\n" for each in x))
    (tmp_path / "ones.csv").write_text("a,label\n" + 15 * f"1.0,{labels[1]}\n")
    said = ["--dataset", tmp_path / "all.csv", "--clients", "2", "--split", "iid", "--task", "classification"]
    assert call("run", *said, "--algorithm", "ditto", "--rounds", "20", "--out", tmp_path / "run")[0] == 0
    for file, samples in (("all.csv", 40), ("ones.csv", 15)):
        code, out, problem = call("adapt", tmp_path / "run", tmp_path / file, "--out", tmp_path / "new.safetensors")
        assert (code, problem) == (0, "")
        assert f"{samples} of {samples} labels agree" in out
        said = call("predict", tmp_path / "new.safetensors", tmp_path / file)[2]
        assert f"{samples} of {samples} labels agree" in said
