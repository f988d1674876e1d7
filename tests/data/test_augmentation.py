"""Augmentation: every image is a crop or a mirror image of itself, at random, and the same in a run made again."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pfedbred
from pfedbred.data import augmentation

IMAGES = np.arange(40 * 6 * 5 * 2, dtype=np.float32).reshape(40, 6, 5, 2) + 1


def test_flip_mirrors_about_half_of_the_images():
    flipped = np.asarray(augmentation.flip(jax.random.key(0), IMAGES))
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(flipped, IMAGES, strict=True)]
    same = [np.array_equal(new, old) for new, old in zip(flipped, IMAGES, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 10 < sum(mirrored) < 30


def test_crop_is_a_window_of_the_padded_image():
    cropped = np.asarray(augmentation.crop(jax.random.key(0), IMAGES))
    padded = np.pad(IMAGES, ((0, 0), (4, 4), (4, 4), (0, 0)))
    corners = []
    for new, old in zip(cropped, padded, strict=True):
        found = [(i, j) for i in range(9) for j in range(9) if np.array_equal(new, old[i : i + 6, j : j + 5])]
        assert found
        corners.append(found[0])
    assert len(set(corners)) > 20


def test_images_without_channels_can_be_augmented():
    assert augmentation.crop_flip(jax.random.key(1), IMAGES[..., 0]).shape == (40, 6, 5)


@pytest.mark.full
def test_training_sees_changed_images_and_the_same_ones_again():
    rng = np.random.default_rng(0)
    samples = [(rng.normal(size=(12, 6, 6)).astype(np.float32), rng.integers(0, 2, 12)) for _ in range(3)]
    federation = pfedbred.from_clients(samples, samples)

    def trained(augment: str | None) -> np.ndarray:
        run = pfedbred.run(federation=federation, algorithm="fedavg", settings={"R": 2}, rounds=1, augment=augment)
        return np.asarray(run.global_model()["output"]["weight"])

    np.testing.assert_array_equal(trained("crop"), trained("crop"))
    assert not np.allclose(trained("crop"), trained(None))


def test_only_images_can_be_augmented():
    with pytest.raises(pfedbred.SettingError, match=r"augmentation needs images of shape .* not \(64,\)"):
        pfedbred.run(clients=5, rounds=1, algorithm="fedavg", augment="flip")
    with pytest.raises(pfedbred.SettingError, match=r"unknown augmentation 'flop'.*did you mean 'flip'"):
        pfedbred.run(clients=5, rounds=1, augment="flop")
