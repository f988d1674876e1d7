"""Models for other runtimes: what they answer there is what they answer here."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.trained import NORMALISED, SHAPES, VOCABULARY, samples, trained

import pfedbred
from pfedbred import models
from pfedbred.runs import exporting, layout, locks, onnx_model, torch_state
from pfedbred.runs.saved_models import write_models

DOCS = Path(__file__).parent.parent.parent / "docs"
NETWORKS = [(name, norm) for name in SHAPES for norm in (("local", "group") if name in NORMALISED else ("local",))]
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.full


def session(path):
    """A runtime with that file."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, which runs exported models, is not installed")
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def answers(path, **inputs):
    """What a runtime answers, by the names of the outputs."""
    running = session(path)
    return dict(zip([each.name for each in running.get_outputs()], running.run(None, inputs), strict=True))


def written(model, folder):
    path = folder / "model.onnx"
    onnx_model.write_onnx(path, model)
    return path


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def softmax(logits, temperature=1.0):
    z = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    return z / z.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def _needs_onnx(request):
    if "torch" not in request.node.name:
        pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pfedbred[onnx]'")


def test_every_named_network_is_among_those_tested():
    assert set(SHAPES) == set(models.MODELS)


@pytest.mark.few_cases(5)
@pytest.mark.parametrize(("name", "norm"), NETWORKS)
def test_a_network_answers_the_same_in_a_runtime(name, norm, tmp_path):
    """One file for any number of samples, with their normalisation."""
    model = trained(name, batch_norm=norm)
    path, x = written(model, tmp_path), samples(model, 7)
    every = np.asarray(jax.jit(model.outputs)(model.params, x))
    assert every.std(axis=0).min() > 0.01  # else nothing would be compared
    for count in (1, 7):
        found, logits = answers(path, x=x[:count]), every[:count]
        close(found["logits"], logits)
        close(found["probabilities"], softmax(logits))
        assert found["label"].tolist() == np.argmax(logits, axis=1).tolist()


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_given_word_vectors_are_in_the_file(name, tmp_path):
    vectors = RNG.normal(size=(len(VOCABULARY) + 2, 4)).astype(np.float32)
    model = trained(name, vectors=vectors)
    x = samples(model, 5)
    x[4] = 0  # nothing but padding
    close(answers(written(model, tmp_path), x=x)["logits"], model.logits(x))


@pytest.mark.parametrize("name", ["dnn", "lstm"])
def test_half_precision_is_computed_in_single_precision(name, tmp_path):
    model = trained(name, precision="bfloat16")
    x = samples(model, 6)
    found = answers(written(model, tmp_path), x=x)["logits"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.logits(x), rtol=0.05, atol=0.05)


def test_the_traces_for_other_runtimes_have_no_kernels_of_this_machine(tmp_path, monkeypatch):
    """On a machine with a GPU the LSTM's layers are kernels."""
    from pfedbred.models import lstm_on_gpu

    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(lstm_on_gpu, "usable", lambda params: True)
    model = trained("lstm")
    path = written(model, tmp_path)
    monkeypatch.undo()
    close(answers(path, x=samples(model, 3))["logits"], model.logits(samples(model, 3)))


# Kinds of tasks and models ------------------------------------------------------------------------------------------


def test_a_calibrated_model_has_calibrated_probabilities(tmp_path):
    found = {"coverage": 0.9, "temperature": 2.5, "threshold": 0.5, "own": True, "samples": 10}
    model = trained("dnn", calibration=found)
    x = samples(model, 4)
    said = answers(written(model, tmp_path), x=x)
    close(said["probabilities"], model.probabilities(x))
    close(said["probabilities"], softmax(model.logits(x), 2.5))


def test_binary_and_several_labels(tmp_path):
    binary = trained("dnn", task="binary", classes=2)
    x = samples(binary, 6)
    found, z = answers(written(binary, tmp_path), x=x), binary.logits(x)
    assert found["logits"].shape == (6, 1)
    close(found["probabilities"], np.hstack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))]))
    assert found["label"].tolist() == binary.predict(x)
    several = trained("dnn", task="multi-label")
    found, z = answers(written(several, tmp_path), x=x), several.logits(x)
    close(found["probabilities"], 1 / (1 + np.exp(-z)))
    assert [tuple(np.flatnonzero(row)) for row in found["labels"]] == several.predict(x)


def test_numbers_are_in_the_units_of_the_labels(tmp_path):
    model = trained("mclr", task="regression", classes=1, target={"mean": 100.0, "std": 7.0})
    x = samples(model, 6)
    found = answers(written(model, tmp_path), x=x)
    assert list(found) == ["prediction"]
    close(found["prediction"], model.predict(x))
    assert np.all(np.abs(found["prediction"] - 100) > 1e-3)


def test_a_gap_in_a_table_that_had_none_is_the_mean(tmp_path):
    model = trained("mclr", features=[f"f{i}" for i in range(5)])
    x = samples(model, 3)
    x[1, 2] = np.nan
    close(answers(written(model, tmp_path), x=x)["logits"], model.logits(x))
    assert np.isfinite(model.logits(x)).all()


def kept(folder, **options):
    """A finished run of a few steps, in a folder."""
    given = {"rounds": 1, "clients": 4, "settings": {"R": 2}, **options}
    run = pfedbred.run(**given)
    write_models(folder, run.experiment.plain(), run.backend, run.state, run.round)
    return run


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "mg-meta", "model": "dnn"},
        {"algorithm": "fedem", "model": "dnn"},
        {"algorithm": "fedem", "model": "cnn", "dataset": "images"},
        {"algorithm": "fedper", "posterior": "laplace"},
        {"algorithm": "apfl+ft"},
        {"algorithm": "pfedbayes", "settings": {"R": 1}},
    ],
    ids=lambda options: "-".join(map(str, list(options.values())[:2])),
)
@pytest.mark.full
@pytest.mark.few_cases(2)
def test_models_of_runs_answer_the_same(options, tmp_path):
    """G and P, of one network or several, with a posterior."""
    options = dict(options)
    if options.pop("dataset", None):
        x = RNG.integers(0, 256, (48, 16, 16), dtype=np.uint8)
        options["federation"] = pfedbred.from_arrays(x, np.array(["a", "b", "c"] * 16), np.repeat(np.arange(4), 12))
        options["clients"] = None
    run = kept(tmp_path, **{name: value for name, value in options.items() if value is not None})
    x = run.backend.federation.test.client(1)[0]
    for client in (None, 1):
        model = pfedbred.load_model(pfedbred.export(tmp_path, client=client))
        path = pfedbred.export(tmp_path, client=client, format="onnx")
        assert path.name == ("global.onnx" if client is None else "client-1.onnx")
        found = answers(path, x=x.astype(np.float32))
        close(found["logits"], model.logits(x))
        names = model.about["labels"] or range(10)
        assert [names[i] for i in found["label"]] == model.predict(x)


def test_the_columns_of_a_table_are_encoded_in_the_file(tmp_path):
    """Numbers with gaps, texts with gaps and unknown ones: by the client's own statistics, or everyone's for G."""
    rows = ["age,job,dose,label,client"]
    for i in range(40):
        age = "" if i % 7 == 3 else 20 + i
        job = ("nurse", "cook", "")[i % 3] if i % 5 else "clerk"
        rows.append(f"{age},{job},{1e6 + i * 0.25},{('no', 'yes')[i % 2]},{('north', 'south')[i % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    federation = pfedbred.load(str(tmp_path / "table.csv"), standardise="client")
    kept(tmp_path, federation=federation, algorithm="local", clients=2)
    cells = [(25.0, "nurse", 1e6), (None, "cook", 1e6 + 9), (40.0, None, 1e6 + 3), (30.5, "pilot", 1e6 + 5)]
    age = np.array([np.nan if row[0] is None else row[0] for row in cells])
    job = np.array([row[1] or "" for row in cells], object)
    dose = np.array([row[2] for row in cells])
    seen = []
    for client in (None, "north", "south"):
        model = pfedbred.load_model(pfedbred.export(tmp_path, client=client))
        path = pfedbred.export(tmp_path, client=client, out=tmp_path / "it.onnx")
        found = answers(path, age=age, job=job, dose=dose)
        close(found["logits"], model.logits(cells))
        names = json.loads(session(path).get_modelmeta().custom_metadata_map["labels"])
        assert [names[i] for i in found["label"]] == model.predict(cells)
        seen.append(found["logits"])
    assert not np.allclose(seen[1], seen[2])


def test_the_file_says_what_it_is(tmp_path):
    model = trained("dnn", labels=["a", "b", "c"], kind="personal", client=3, client_name="Oslo", dataset="\udcff")
    running = session(written(model, tmp_path))
    said = running.get_modelmeta().custom_metadata_map
    assert said["dataset"] == "\\udcff"  # from a path that is not valid text
    assert (said["client_name"], said["algorithm"], json.loads(said["labels"])) == ("Oslo", "fedavg", ["a", "b", "c"])
    assert [(each.name, each.shape, each.type) for each in running.get_inputs()] == [
        ("x", ["n", 4, 3], "tensor(float)")
    ]
    assert [(each.name, each.shape) for each in running.get_outputs()] == [
        ("logits", ["n", 3]),
        ("probabilities", ["n", 3]),
        ("label", ["n"]),
    ]


def test_a_custom_network_is_given_again(tmp_path):
    own = models.Model(
        lambda key: {"w": jnp.ones((10, 64), jnp.float32)}, lambda w, x: jnp.sin(x.astype(jnp.float32) @ w["w"].T)
    )
    run = kept(tmp_path, model=own, algorithm="local")
    with pytest.raises(pfedbred.SettingError, match="holds a custom network: give it"):
        pfedbred.export(tmp_path, format="onnx")
    x = run.backend.federation.test.client(0)[0].astype(np.float32)
    path = pfedbred.export(tmp_path, client=0, format="onnx", model=own)
    close(answers(path, x=x)["logits"], run.backend.algorithm.predict(run.personal_model(0), x))
    odd = own._replace(apply=lambda w, x: jnp.sort(x.astype(jnp.float32) @ w["w"].T))
    with pytest.raises(pfedbred.SettingError, match="this model computes 'sort'"):
        pfedbred.export(tmp_path, client=0, format="onnx", model=odd, out=tmp_path / "odd.onnx")
    assert not (tmp_path / "odd.onnx").exists()


# PyTorch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def networks(monkeypatch):
    """The documented modules."""
    pytest.importorskip("torch", reason="PyTorch, which is not a dependency, is not installed")
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("torch_networks")


IN_TORCH = {
    "mclr": lambda module, norm: module.MCLR(5, 3),
    "dnn": lambda module, norm: module.DNN(12, 3),
    "cnn": lambda module, norm: module.CNN(3, (17, 20), 3),
    "pfllib-cnn": lambda module, norm: module.PFLlibCNN(1, (16, 18), 3),
    "resnet8": lambda module, norm: module.ResNet(3, 3, (16, 32, 64), 1, norm),
    "resnet18": lambda module, norm: module.ResNet(3, 3, norm=norm),
    "vit": lambda module, norm: module.ViT(3, (10, 9), 3),
    "cnn1d": lambda module, norm: module.CNN1d(2, 30, 3),
    "lstm": lambda module, norm: module.LSTM(len(VOCABULARY) + 2, 3),
    "charlstm": lambda module, norm: module.CharLSTM(len(VOCABULARY) + 2, 3),
    "transformer": lambda module, norm: module.Transformer(len(VOCABULARY) + 2, 6, 3),
}


@pytest.mark.parametrize(("name", "norm"), [each for each in NETWORKS if each[0] in IN_TORCH])
def test_a_documented_torch_module_answers_the_same(name, norm, networks, tmp_path):
    import torch

    model = trained(name, batch_norm=norm)
    torch_state.write_torch(tmp_path / "model.pt", model)
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    network = IN_TORCH[name](networks, "group" if norm == "group" else "batch").eval()
    network.load_state_dict(saved["state_dict"], strict=True)
    x = samples(model, 5)
    given = torch.from_numpy(x)
    if model.text is None:
        given = (given - saved["input"]["shift"]) * saved["input"]["scale"]
        if name not in ("mclr", "dnn"):
            given = given[:, None] if name == "pfllib-cnn" else given.movedim(-1, 1)
    with torch.no_grad():
        close(network(given).numpy(), jax.jit(model.outputs)(model.params, x))
    assert saved["about"]["model"] == name


def test_torch_names_of_a_mobilenet(tmp_path):
    """There is no documented module: names follow the library's, layouts PyTorch's."""
    found = torch_state.state_dict(trained("mobilenet"))
    assert found["block2.depthwise.conv.weight"].shape == (96, 1, 3, 3)
    assert found["block2.depthwise.norm.running_var"].shape == (96,)
    assert found["output.weight"].shape == (3, 1280)


def test_torch_state_dicts_have_given_vectors_and_frozen_params(tmp_path):
    vectors = RNG.normal(size=(len(VOCABULARY) + 2, 4)).astype(np.float32)
    found = torch_state.state_dict(trained("lstm", vectors=vectors))
    np.testing.assert_array_equal(found["embedding.weight"], vectors)
    assert found["lstm.weight_ih_l1_reverse"].shape == (200, 100)


def test_torch_needs_one_network(tmp_path):
    kept(tmp_path, algorithm="fedem", model="dnn")
    pytest.importorskip("torch", reason="PyTorch, which is not a dependency, is not installed")
    with pytest.raises(pfedbred.SettingError, match="P of fedem is not the params of one network alone"):
        pfedbred.export(tmp_path, client=0, format="torch")


# Choosing a format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_", "out", "chosen"),
    [
        (None, None, "safetensors"),
        (None, "a.onnx", "onnx"),
        (None, "a.PT", "torch"),
        (None, "a.pth", "torch"),
        (None, "a.model", "safetensors"),
        ("onnx", "a.model", "onnx"),
        ("torch", "a.pth", "torch"),
    ],
)
def test_the_suffix_decides_unless_a_format_is_given(format_, out, chosen):
    assert exporting.chosen_format(format_, out) == chosen


@pytest.mark.parametrize(
    ("format_", "needed"), [("onnx", r"pip install 'pfedbred\[onnx\]'"), ("torch", "pip install torch")]
)
def test_a_format_without_its_library_torch_or_onnx(format_, needed, finished, monkeypatch):
    monkeypatch.setitem(sys.modules, format_, None)
    with pytest.raises(pfedbred.SettingError, match=f"the format {format_} needs .*: {needed}"):
        pfedbred.export(finished / "run", format=format_, out=finished / "not-written")
    assert not (finished / "not-written").exists()


def test_an_exported_file_is_converted(finished, call, tmp_path):
    """As a client does whose personal model never leaves its machine."""
    source = tmp_path / "mine.safetensors"
    source.write_bytes((finished / "run" / "client-1.safetensors").read_bytes())
    code, out, _ = call("export", source, "--format", "onnx")
    assert (code, out) == (0, f"model: {tmp_path / 'mine.onnx'}, client 1 (1), seed 0, after round 2\n")
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    close(answers(tmp_path / "mine.onnx", x=x)["logits"], pfedbred.load_model(source).logits(x))


def test_the_command_line_exports_what_predict_predicts(finished, call, tmp_path):
    code, out, _ = call("export", finished / "run", "--client", 2, "--seed", 1, "--out", "two.onnx")
    assert code == 0
    assert out.startswith("model: two.onnx, client 2 ")
    call("export", finished / "run", "--client", 2, "--seed", 1, "--out", "two.safetensors")
    x = RNG.normal(size=(9, 3)).astype(np.float32)
    np.save("x.npy", x)
    predicted = call("predict", "two.safetensors", "x.npy")[1].split()
    assert list(map(str, answers("two.onnx", x=x)["label"])) == predicted


def test_a_run_that_is_overwritten_takes_its_exported_models_with_it(finished, tmp_path):
    """Beside a new run they would be taken for its own."""
    shutil.copytree(finished / "run", tmp_path / "run")
    assert tuple(each.suffixes[0] for each in exporting.FORMATS.values()) == layout.EXPORTED
    for client in (None, 2):
        pfedbred.export(tmp_path / "run", client=client, format="onnx")
        (tmp_path / "run" / f"{'global' if client is None else 'client-2'}.pt").touch()
    (tmp_path / "run" / "notes.onnx").touch()
    layout.new_folder(tmp_path / "run", overwrite=True)
    assert {each.name for each in (tmp_path / "run").iterdir()} - {locks.LOCK} == {"notes.onnx"}


def test_mistakes_are_one_line(finished, call):
    run, file = finished / "run", finished / "run" / "client-1.safetensors"
    for arguments, words in {
        (run, "--format", "onx"): "unknown format 'onx'; did you mean 'onnx'?",
        (run, "--format", "onnx", "--out", "a.pt"): "a.pt has the suffix of the format torch, but the format is onnx",
        (file, "--client", "1", "--format", "onnx"): "holds one model: choose a client or a seed of a run's folder",
        (file,): "is in the format safetensors already: choose onnx or torch",
        (run, "--client", "9", "--format", "onnx"): "there is no client 9",
        (run, "--format", "onnx", "--model", "nowhere:net"): "nowhere",
        (finished / "sweep", "--format", "onnx"): "is a sweep, which keeps no models",
        (run, "--out", finished / "nowhere" / "a.onnx"): "cannot write",
    }.items():
        code, out, err = call("export", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert words in err
