"""Hyper-parameters: declared in signatures, checked by type, read from text."""

from pfedbred.settings.signatures import (
    declared,
    hints,
    is_whole_number,
    parse_call,
    resolve,
    resolve_call,
    same_settings,
)
from pfedbred.settings.values import (
    Count,
    Few,
    Fraction,
    Minority,
    NonNegative,
    NonNegativeCount,
    Positive,
    Seed,
    check,
)

__all__ = [
    "Count",
    "Few",
    "Fraction",
    "Minority",
    "NonNegative",
    "NonNegativeCount",
    "Positive",
    "Seed",
    "check",
    "declared",
    "hints",
    "is_whole_number",
    "parse_call",
    "resolve",
    "resolve_call",
    "same_settings",
]
