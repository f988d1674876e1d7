"""Words or characters as numbers: a tokeniser, a vocabulary, and word vectors from a GloVe file.

Id 0 is padding, id 1 an unknown word; the words of the vocabulary follow. The vocabulary is made from training texts
only, so that test texts contain unknown words, as they will in use. A vocabulary of characters is given beforehand.
Hugging Face's tokenizers would do this as well, but is a compiled dependency for one regular expression.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.strict import check_regular_file, reading

PADDING, UNKNOWN = 0, 1
LENGTH = 25
_SPECIAL = 2
_TOKEN = re.compile(r"[\w']+|[.,!?;]")


@dataclass(frozen=True)
class Text:
    """A vocabulary of word ids, or of ids of characters.

    Attributes:
      vocabulary: word k has the id k + 2.
      vectors: one row for each id, if given; otherwise the model learns them.
    """

    vocabulary: tuple[str, ...]
    vectors: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Number of ids."""
        return len(self.vocabulary) + _SPECIAL

    @property
    def unit(self) -> str:
        """What an id stands for, in words: a vocabulary with a blank is one of characters, as no word is one."""
        return "character" if " " in self.vocabulary else "word"

    def encode(self, texts: Iterable[str], length: int = LENGTH) -> np.ndarray:
        """One row of ``length`` ids for each text: its first words, or its last characters, then padding."""
        ids = {word: number for number, word in enumerate(self.vocabulary, _SPECIAL)}
        parts = (list(text)[-length:] if self.unit == "character" else tokens(text)[:length] for text in texts)
        rows = [[ids.get(part, UNKNOWN) for part in each] for each in parts]
        encoded = np.full((len(rows), length), PADDING, np.int32)
        for row, numbers in enumerate(rows):
            encoded[row, : len(numbers)] = numbers
        return encoded


def tokens(text: str) -> list[str]:
    """The words of a text in lower case, and its punctuation marks."""
    return _TOKEN.findall(text.lower())


def learned_vocabulary(texts: Iterable[str], *, most: int = 10_000, at_least: int = 2) -> Text:
    """Of the words that occur at least ``at_least`` times, the ``most`` most frequent ones, in that order."""
    counts = Counter(word for text in texts for word in tokens(text))
    ordered = sorted((-count, word) for word, count in counts.items() if count >= at_least)
    return Text(tuple(word for _, word in ordered[:most]))


def glove_vocabulary(texts: Iterable[str], path: str) -> Text:
    """The words of the texts that are in the file, with its vectors; unknown words get the mean, padding zeros."""
    wanted = {word for text in texts for word in tokens(text)}
    found = _read_glove(Path(path), wanted)
    if not found:
        raise SettingError(f"{path} has none of the {len(wanted)} words of the data")
    words = sorted(found)
    vectors = np.stack([found[word] for word in words])
    special = np.stack([np.zeros_like(vectors[0]), vectors.mean(axis=0)])
    return Text(tuple(words), np.concatenate([special, vectors]).astype(np.float32))


def _read_glove(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """The vectors of the wanted words. A line is a word and its numbers, separated by single spaces."""
    found: dict[str, np.ndarray] = {}
    width = None
    check_regular_file(path)
    try:
        with reading(path), path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *entries = line.rstrip("\n").split(" ")
                width = width or len(entries)
                if not entries or len(entries) != width:
                    raise SettingError(
                        f"{path}, line {number}: expected a word and {width or 'its'} numbers, found {len(entries)}"
                    )
                if word in wanted:
                    found[word] = _vector(path, number, entries)
    except UnicodeDecodeError:
        raise SettingError(f"cannot read {path}: it is not a text file in UTF-8") from None
    return found


def _vector(path: Path, line: int, entries: Sequence[str]) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is rejected below
            vector = np.array([float(entry) for entry in entries], np.float32)
    except ValueError:
        raise SettingError(f"{path}, line {line}: a vector must be numbers") from None
    if not np.all(np.isfinite(vector)):
        raise SettingError(f"{path}, line {line}: a vector must be finite numbers")
    return vector
