"""The types of settings: allowed values are converted, all others are one line."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from pfedbred.errors import SettingError
from pfedbred.settings.values import (
    LARGEST_FLOAT,
    Count,
    Few,
    Fraction,
    Minority,
    NonNegative,
    NonNegativeCount,
    Positive,
    Seed,
    check,
    parse_number,
)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (Positive, 3, 3.0),
        (Positive, "1e-3", 0.001),
        (NonNegative, 0, 0.0),
        (Fraction, np.float32(0.5), 0.5),
        (Minority, 0, 0.0),
        (Count, "7", 7),
        (Count, 2.0, 2),
        (Count, 2**31 - 1, 2**31 - 1),
        (Few, np.int64(1000), 1000),
        (Seed, 2**32 - 1, 2**32 - 1),
        (NonNegativeCount, 0, 0),
        (Count | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (bool, True, True),
        (str | list[int], [1], [1]),
        (str | Callable, len, len),
    ],
)
def test_allowed_values(kind, given, expected):
    found = check("x", given, kind)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Positive, 0, "x must be a number > 0, not 0"),
        (Positive, float("nan"), "x must be a number > 0, not nan"),
        (Positive, 10 * LARGEST_FLOAT, "x must be a number that 32 bits can hold"),
        (NonNegative, -1e-9, "x must be a number >= 0"),
        (Fraction, 1.1, "x must be a number from 0 to 1"),
        (Minority, 0.5, "x must be a number >= 0 and below 0.5"),
        (Count, 0, "x must be a whole number >= 1"),
        (Count, 2**31, "x must be a whole number >= 1 and below"),
        (Count, 1.5, "x must be a whole number >= 1"),
        (Count, True, "x must be a whole number >= 1"),
        (Few, 1001, "x must be a whole number from 1 to 1000"),
        (Seed, 2**32, "x must be a whole number from 0"),
        (Count | None, "many", "x must be a whole number >= 1"),
        (Literal["norms", "both"], "norm", "x must be one of norms, both, not 'norm'; did you mean 'norms'"),
        (bool, 1, "x must be true or false, not 1"),
        (str, 1, "x must be a name, not 1"),
        (str | list[int] | Callable, 1.5, "x must be a name, a list or a function, not 1.5"),
    ],
)
def test_other_values_are_one_line(kind, given, words):
    with pytest.raises(SettingError) as refused:
        check("x", given, kind)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("-2", -2), ("1e-3", 0.001), ("0.5", 0.5), ("x", None), ("", None)]
)
def test_numbers_in_texts(text, number):
    assert parse_number(text) == number
    assert type(parse_number(text)) is type(number)
