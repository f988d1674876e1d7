"""Augmentation: random changes to training images, on the device, minibatch by minibatch.

dm-pix flips and crops JAX arrays too, image by image, and leaves the padding to its caller: for these few changes the
functions of JAX that it builds on are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError, nearest
from pfedbred.types import Array, Key

Augment: TypeAlias = Callable[[Key, Array], Array]
"""``augment(key, x)``: the inputs of a minibatch, changed at random."""

_PADDING = 4


def flip(key: Key, x: Array) -> Array:
    """Each image mirrored from left to right with probability 1/2."""
    _check(x)
    mirrored = jax.random.bernoulli(key, 0.5, (len(x),))
    return jnp.where(mirrored.reshape(-1, *(1,) * (x.ndim - 1)), x[:, :, ::-1], x)


def crop(key: Key, x: Array) -> Array:
    """Each image padded with four rows and columns of zeros on all sides, and cropped to its size at a random place."""
    _check(x)
    edges = [(0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING), *[(0, 0)] * (x.ndim - 3)]
    padded = jnp.pad(x, edges)
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * _PADDING + 1, jnp.int32)

    def cut(image: Array, corner: Array) -> Array:
        start = (*corner, *(jnp.int32(0) for _ in image.shape[2:]))
        return jax.lax.dynamic_slice(image, start, x.shape[1:])

    return jax.vmap(cut)(padded, corners)


def crop_flip(key: Key, x: Array) -> Array:
    """Crop, then flip, as is usual for CIFAR-10."""
    first, second = jax.random.split(key)
    return flip(second, crop(first, x))


AUGMENTATIONS: dict[str, Augment] = {"crop": crop, "crop-flip": crop_flip, "flip": flip}
"""Every named augmentation. To add one, write a function ``(key, x) -> x`` and a line here."""


def get(augment: str | Augment | None) -> Augment | None:
    """The augmentation of that name, or the function given; None for none."""
    if augment is None or callable(augment):
        return augment
    if augment not in AUGMENTATIONS:
        raise SettingError(f"unknown augmentation {augment!r}{nearest(augment, AUGMENTATIONS)}")
    return AUGMENTATIONS[augment]


def _check(x: Array) -> None:
    if x.ndim < 3:
        raise SettingError(
            f"augmentation needs images of shape (height, width) or (height, width, channels), not {x.shape[1:]}"
        )
