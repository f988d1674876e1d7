"""Validation samples: a part of each client's training samples that is kept out of training."""

import dataclasses

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import data
from pfedbred.data import prepared
from pfedbred.data.federation import check
from pfedbred.data.pool import Assignment, federate
from pfedbred.data.scaling import by_pixel
from pfedbred.errors import SettingError
from pfedbred.experiment.building import build
from pfedbred.report.terminal import show_federation


def rows(split, i):
    x, y = split.client(i)
    return sorted((*sample, label) for sample, label in zip(x.tolist(), y.tolist(), strict=True))


def test_they_are_a_part_of_each_clients_training_samples():
    federation = small_federation(sizes=(7, 1, 20))
    divided = federation.with_validation(0.3, seed=5)
    assert divided.validation.sizes.tolist() == [2, 0, 6]  # round(0.3 n), but one sample is left to train on
    assert list(divided.parts) == ["train", "validation", "test"]
    for i in range(3):
        assert sorted(rows(divided.train, i) + rows(divided.validation, i)) == rows(federation.train, i)
    np.testing.assert_array_equal(divided.test.x, federation.test.x)
    again, other = federation.with_validation(0.3, seed=5), federation.with_validation(0.3, seed=6)
    np.testing.assert_array_equal(again.validation.x, divided.validation.x)
    assert not np.array_equal(other.validation.x, divided.validation.x)
    assert (divided.facts["validation_samples"], divided.about["validation"]) == (8, 0.3)
    assert "validation_samples" not in federation.facts
    assert federation.with_validation(1.0, seed=0).train.sizes.tolist() == [1, 1, 1]


def test_a_client_alone_has_those_of_its_number():
    whole = small_federation().with_validation(0.5, seed=1)
    alone = small_federation().take(np.array([2])).with_validation(0.5, seed=1, numbers=[2])
    assert rows(alone.validation, 0) == rows(whole.validation, 2)
    assert rows(whole.take(np.array([3, 2])).validation, 1) == rows(whole.validation, 2)


def test_clients_made_on_demand_have_the_same_ones():
    whole = pfedbred.load("synthetic", clients=6, seed=4).with_validation(0.2, seed=4)
    made = data.population("synthetic", clients=6, seed=4).with_validation(0.2, seed=4)
    some = np.array([5, 1])
    for one, other in zip(made.take(some).parts.values(), whole.take(some).parts.values(), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert made.facts["validation"] == 0.2


def test_what_is_wrong_with_them_is_said():
    divided = small_federation().with_validation(0.5, seed=0)
    with pytest.raises(SettingError, match="small already has validation samples: leave validation out"):
        divided.with_validation(0.5, seed=0)
    spoiled = divided.validation._replace(y=np.full_like(divided.validation.y, 9))
    with pytest.raises(SettingError, match=r"client 0, sample 0 of the validation set: label 9 is not one of 0 to 2"):
        check(dataclasses.replace(divided, validation=spoiled))
    with pytest.raises(SettingError, match=r"validation = 0\.01 holds out no samples"):
        pfedbred.run(federation=small_federation(), validation=0.01, rounds=1)


# What training samples decide ----------------------------------------------------------------------------------------

NUMBERS = [[float(row), float(row % 5)] for row in range(24)]
TABLES = {
    "numbers": (("a", "b"), NUMBERS, [1e6, -1e6], {}),
    "by client": (("a", "b"), NUMBERS, [1e6, -1e6], {"standardise": "client"}),
    "gaps and texts": (
        ("a", "b"),
        [["" if row % 4 == 1 else row, "red" if row % 3 else "blue"] for row in range(24)],
        [1e6, "never seen"],
        {"missing": "median"},
    ),
    "texts": (("text",), [["good day" if row % 2 else "bad day"] for row in range(24)], ["unheard words"], {}),
}


def table(path, names, rows):
    """A CSV file of four clients, in which the label of a sample is the number of its row."""
    lines = [",".join(["client", "label", *names])]
    lines += [",".join(map(str, [f"c{number % 4}", number, *row])) for number, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def decided(federation):
    """All that training samples decide."""
    found = {name: getattr(federation, name) for name in ("shift", "scale", "features")}
    found |= {} if federation.encoding is None else federation.encoding.arrays()
    found |= {"columns": federation.encoding and repr(federation.encoding.columns)}
    found |= {"vocabulary": federation.text and federation.text.vocabulary}
    return {**found, "train": federation.train.x, "test": federation.test.x, "target": federation.target}


@pytest.mark.parametrize("kind", TABLES)
def test_validation_and_test_samples_decide_nothing_of_the_inputs(kind, tmp_path):
    """Whatever is in them: the training samples alone say what inputs, and the models' targets, are."""
    names, rows, odd, options = TABLES[kind]
    task = None if kind == "texts" else "regression"
    for part in ("validation", "test"):
        before = pfedbred.load(table(tmp_path / "a.csv", names, rows), task=task, **options).with_validation(0.4, 7)
        held = set(before.parts[part].y.astype(int).tolist())
        assert len(held) >= 4
        changed = [odd if number in held else row for number, row in enumerate(rows)]
        after = pfedbred.load(table(tmp_path / "b.csv", names, changed), task=task, **options).with_validation(0.4, 7)
        assert set(after.parts[part].y.astype(int).tolist()) == held
        one, other = decided(before), decided(after)
        for name in one.keys() - ({"test"} if part == "test" else set()):
            np.testing.assert_array_equal(one[name], other[name], err_msg=f"{part}: {name}")


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("kind", TABLES)
def test_held_out_clients_decide_nothing_of_the_inputs(kind, validation, tmp_path):
    """Whatever they hold: inputs and targets are what the clients that train make of them."""
    names, rows, odd, options = TABLES[kind]
    task = None if kind == "texts" else "regression"

    def held_out(name, rows):
        whole = pfedbred.load(table(tmp_path / name, names, rows), task=task, **options)
        return (whole.with_validation(0.4, 7) if validation else whole).hold_out(0.25, 1)

    training, new = held_out("a.csv", rows)
    theirs = {int(y) for split in new.parts.values() for y in split.y}
    assert len(theirs) == 6
    changed = [odd if number in theirs else row for number, row in enumerate(rows)]
    one, other = decided(training), decided(held_out("b.csv", changed)[0])
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert new.shape == training.shape


def test_a_prepared_file_says_that_its_inputs_stay(tmp_path, capsys):
    """What its training samples decided cannot be undone."""
    made = pfedbred.load(table(tmp_path / "a.csv", ("a", "b"), NUMBERS), task="regression")
    prepared.save(made, tmp_path / "a.fed")
    said = []
    for dataset in ("a.csv", "a.fed"):
        for options in ({"validation": 0.4}, {"held_out_clients": 0.25}, {}):
            show_federation(
                build(pfedbred.Experiment(dataset=str(tmp_path / dataset), task="regression", **options)).backend
            )
            said.append("inputs encoded as prepared" in capsys.readouterr().out)
    assert said == [False] * 3 + [True, True, False]


def test_the_mean_is_that_of_the_remaining_samples(tmp_path):
    whole = pfedbred.load(table(tmp_path / "a.csv", ("a", "b"), NUMBERS), task="regression")
    divided = whole.for_task("regression").with_validation(0.4, 7)
    used = np.asarray(NUMBERS)[divided.train.y.astype(int)]
    np.testing.assert_allclose(divided.shift, used.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(1 / divided.scale, used.std(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(divided.test.x, whole.test.x)  # as they are stored, before shift and scale
    assert not np.allclose(divided.shift, whole.shift)


def test_the_papers_pixels_are_normalised_over_all_of_them():
    """As the paper did, test samples included: what is kept for validation changes nothing."""
    pool = data.Pool("p", np.arange(24, dtype=np.uint8).reshape(12, 2), np.arange(12) % 2, 2, normalise=by_pixel)
    whole = federate(pool, Assignment([np.arange(8)], [np.arange(8, 12)]), about={})
    np.testing.assert_array_equal(whole.shift, pool.x.mean(axis=0))
    np.testing.assert_array_equal(whole.with_validation(0.5, 0).shift, whole.shift)
