"""Hyper-parameters: declared in signatures, checked by type, read from text."""

from pfedbred.settings.signatures import (
    declared,
    hints,
    is_whole_number,
    parse_call,
    resolve,
    resolve_call,
    settled,
)
from pfedbred.settings.values import Count, Fraction, NonNegative, Positive, Seed, check
from pfedbred.settings.words import allowed, in_words

__all__ = [
    "Count",
    "Fraction",
    "NonNegative",
    "Positive",
    "Seed",
    "allowed",
    "check",
    "declared",
    "hints",
    "in_words",
    "is_whole_number",
    "parse_call",
    "resolve",
    "resolve_call",
    "settled",
]
