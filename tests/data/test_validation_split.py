"""Validation samples: a part of each client's training samples that is kept out of training."""

import dataclasses

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import data
from pfedbred.data.federation import check
from pfedbred.errors import SettingError


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
    with pytest.raises(SettingError, match=r"validation = 0\.01 keeps no sample of any client"):
        pfedbred.run(federation=small_federation(), validation=0.01, rounds=1)
