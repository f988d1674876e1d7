"""Hyper-parameters: declared in signatures, checked by type, read from text."""

from pfedbred.settings.descriptions import allowed, described, plain
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

__all__ = [
    "Count",
    "Fraction",
    "NonNegative",
    "Positive",
    "Seed",
    "allowed",
    "check",
    "declared",
    "described",
    "hints",
    "is_whole_number",
    "parse_call",
    "plain",
    "resolve",
    "resolve_call",
    "settled",
]
