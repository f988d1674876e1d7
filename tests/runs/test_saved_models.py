"""Models as files: what is read back predicts what the run predicted."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors import safe_open

import pfedbred
from pfedbred import models
from pfedbred.runs import prediction, saved_models


def finished(tmp_path, **options):
    run = pfedbred.run(**{"rounds": 2, "clients": 5, "seeds": 2, "seed": 3, "settings": {"R": 3}, **options})
    keep(run, tmp_path)
    return run


@pytest.fixture(scope="module")
def dnn(tmp_path_factory):
    """A run whose models are kept, and its folder."""
    folder = tmp_path_factory.mktemp("dnn")
    return finished(folder, model="dnn"), folder


def keep(run, folder):
    saved_models.write_models(folder, run.experiment.plain(), run.backend, run.state, run.round)


@pytest.mark.parametrize(
    "algorithm",
    [
        "mg-meta",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("fedem", "fedavg", "per-fedavg", "fedamp", "fedper", "apfl+ft")
        ),
    ],
)
@pytest.mark.few_cases
def test_an_exported_model_predicts_the_same(algorithm, dnn, tmp_path):
    run, folder = dnn if algorithm == "mg-meta" else (finished(tmp_path, algorithm=algorithm, model="dnn"), tmp_path)
    x = run.backend.federation.test.client(2)[0]
    predict = run.backend.algorithm.predict
    for client, seed, params in (
        (2, 4, run.personal_model(2, seed=1)),
        (0, None, run.personal_model(0)),
        (None, 3, run.global_model()),
    ):
        path = saved_models.export(folder, client=client, seed=seed)
        model = pfedbred.load_model(path)
        np.testing.assert_allclose(model.logits(x), predict(params, x), rtol=1e-5, atol=1e-6)
        assert model.predict(x) == np.argmax(predict(params, x), axis=1).tolist()
    jax.tree.map(np.testing.assert_allclose, model.params, run.global_model())


def test_the_file_describes_itself(dnn):
    """Named tensors and the model's settings, for people who do not have this library."""
    run, folder = dnn
    path = saved_models.export(folder, client=4)
    assert path == folder / "client-4.safetensors"
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"hidden.weight", "hidden.bias", "output.weight", "output.bias"}
        np.testing.assert_array_equal(file.get_tensor("hidden.weight"), run.personal_model(4)["hidden"]["weight"])
        said = file.metadata()
    assert said["model"] == "dnn"
    assert said["algorithm"] == "mg-meta"
    assert json.loads(said["settings"])["R"] == 3
    assert (said["client"], said["seed"], said["round"], said["classes"]) == ("4", "3", "2", "10")
    assert json.loads(said["shape"]) == [64]


def test_normalisation_words_and_labels_travel_along(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 3, 3), dtype=np.uint8)
    federation = pfedbred.from_arrays(x, np.array(["a", "b"] * 20), np.repeat([5, 7], 20))
    run = pfedbred.run(federation=federation, algorithm="local", rounds=1, settings={"R": 3})
    keep(run, tmp_path)
    model = pfedbred.load_model(saved_models.export(tmp_path, client=1, out=tmp_path / "mine.safetensors"))
    expected = run.backend.algorithm.predict(run.personal_model(1), x.astype(np.float32) / 255)
    np.testing.assert_allclose(model.logits(x), expected, rtol=1e-5, atol=1e-6)
    assert model.predict(x) == [("a", "b")[best] for best in np.argmax(expected, axis=1)]
    assert model.about["client_name"] == "7"


@pytest.mark.full
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.few_cases
def test_texts_are_given_as_texts(frozen, tmp_path):
    """Word vectors from a file are not among the params, which are trained and sent; a file holds them once."""
    texts = np.array(["good day", "bad day", "good sun", "bad rain"] * 10, object)
    (tmp_path / "glove.txt").write_text("good 1 2 3\nbad -1 0 2\nday 0 1 0\n")
    glove = str(tmp_path / "glove.txt") if frozen else None
    federation = pfedbred.from_arrays(texts, np.array([1, 0, 1, 0] * 10), np.repeat([0, 1], 20), glove=glove)
    run = pfedbred.run(federation=federation, model="lstm", rounds=1, settings={"R": 2, "K": 1})
    keep(run, tmp_path)
    model = pfedbred.load_model(saved_models.export(tmp_path, client=0))
    encoded = federation.text.encode(texts[:4])
    expected = run.backend.algorithm.predict(run.personal_model(0), encoded)
    np.testing.assert_allclose(model.logits(texts[:4]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.logits(list(texts[:4])), expected, rtol=1e-5, atol=1e-6)
    assert ("embedding" in model.params) == (not frozen)
    with safe_open(tmp_path / "client-0.safetensors", "numpy") as file:
        assert ("input.vectors" in file.keys()) == frozen  # noqa: SIM118  (not a mapping)
    if frozen:
        sun = federation.text.encode(["sun"]).tolist()  # has no vector
        assert sun == federation.text.encode(["moon"]).tolist() != federation.text.encode(["day"]).tolist()


def test_a_client_is_named_or_numbered(tmp_path):
    """A text is a name first: clients called by numbers are not confused with their places."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 2
    clients = np.array(["Berlin", "3", "Paris", "0"])[np.arange(60) % 4]
    np.savez(tmp_path / "own.npz", x=x, y=y, client=clients)
    federation = pfedbred.load(str(tmp_path / "own.npz"))
    keep(pfedbred.run(federation=federation, algorithm="local", rounds=1, settings={"R": 1}), tmp_path)
    for place, name in enumerate(federation.names):
        for given in (place, name):
            assert saved_models.facts(saved_models.export(tmp_path, client=given))["client_name"] == name
    assert saved_models.facts(saved_models.export(tmp_path, client="2"))["client"] == 2  # nobody has that name
    with pytest.raises(pfedbred.SettingError, match="there is no client called 'berlin'; did you mean 'Berlin'"):
        saved_models.export(tmp_path, client="berlin")


def test_a_model_needs_no_file_of_its_prior(tmp_path):
    np.save(tmp_path / "sigma.npy", np.linspace(1, 2, 650))
    finished(tmp_path, settings={"R": 2, "sigma": str(tmp_path / "sigma.npy")}, rounds=1, seeds=1)
    (tmp_path / "sigma.npy").unlink()
    assert pfedbred.load_model(saved_models.export(tmp_path, client=1)).logits(np.zeros((1, 64))).shape == (1, 10)


def halved(round_):
    return 0.1 / 2**round_


@pytest.mark.parametrize("schedule", [{"schedule": "cosine", "start": 0.1}, halved], ids=["named", "function"])
def test_a_model_trained_with_a_schedule(schedule, tmp_path):
    run = finished(tmp_path, algorithm="fedavg", settings={"R": 2, "alpha": schedule})
    model = pfedbred.load_model(saved_models.export(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, model.params, run.global_model())
    rounds = run.experiment.rounds
    last = 0.05 * (1 + np.cos(np.pi * (rounds - 1) / rounds)) if isinstance(schedule, dict) else None
    assert model.about["settings"].get("alpha") == pytest.approx(last)


def test_a_custom_network(tmp_path):
    own = models.Model(lambda key: {"w": jax.random.normal(key, (10, 64))}, lambda w, x: x @ w["w"].T)
    run = finished(tmp_path, model=own, algorithm="local", seeds=1)
    path = saved_models.export(tmp_path, client=1)
    with pytest.raises(pfedbred.SettingError, match="holds a custom network"):
        pfedbred.load_model(path)
    x = run.backend.federation.test.x
    np.testing.assert_allclose(pfedbred.load_model(path, own).logits(x), x @ run.personal_model(1)["w"].T, rtol=1e-4)


def test_mistakes_are_named(dnn, tmp_path):
    with pytest.raises(pfedbred.SettingError, match=r"models.safetensors: the run is not finished"):
        saved_models.export(tmp_path)
    for file, words in (("sweep.json", "is a sweep, which keeps no models"), ("table.json", "choose one of the runs")):
        (tmp_path / file).touch()
        with pytest.raises(pfedbred.SettingError, match=words):
            saved_models.export(tmp_path)
        with pytest.raises(pfedbred.SettingError, match=r"is a run|no personal model"):
            prediction.find_model(tmp_path)
        (tmp_path / file).unlink()
    shutil.copytree(dnn[1], tmp_path, dirs_exist_ok=True)
    for options, words in (
        ({"client": 5}, "there is no client 5; clients are 0 to 4"),
        ({"client": -1}, "there is no client -1"),
        ({"client": "5"}, "there is no client 5; clients are 0 to 4"),
        ({"client": "five"}, "there is no client called 'five'; choose one of: 0, 1, 2, 3, 4"),
        ({"client": 0, "seed": 0}, "the run has no seed 0; its seeds are 3, 4"),
        ({"out": tmp_path / "absent" / "x"}, "cannot write"),
    ):
        with pytest.raises(pfedbred.SettingError, match=words):
            saved_models.export(tmp_path, **options)
    with pytest.raises(pfedbred.SettingError, match="is not a pfedbred model file"):
        pfedbred.load_model(tmp_path / "models.safetensors")
    (tmp_path / "broken").write_bytes(b"nothing")
    with pytest.raises(
        pfedbred.SettingError, match="broken is not a model written by 'pfedbred export', or it is damag"
    ):
        pfedbred.load_model(tmp_path / "broken")
    model = pfedbred.load_model(saved_models.export(tmp_path))
    with pytest.raises(pfedbred.SettingError, match=r"samples have shape \(3,\), the model is for \(64,\)"):
        model.logits(np.zeros((1, 3)))
