"""Words or characters as numbers: a tokeniser, a vocabulary, and word vectors from a file.

Id 0 is padding, id 1 an unknown word; the words of the vocabulary follow. A vocabulary with learned vectors is built
from training texts only, so that test texts contain unknown words, as they will in use. One with vectors from a file
has all words of the texts that are in the file, as none of their meaning comes from these texts. A vocabulary of
characters is fixed. Hugging Face's tokenizers would do this as well, but is a compiled dependency for one regular
expression.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.npy import Npz
from pfedbred.io.strict import check_regular_file, reading

PADDING, UNKNOWN = 0, 1
LENGTH = 25
_SPECIAL = 2
_TOKEN = re.compile(r"[\w']+|[.,!?;]")


@dataclass(frozen=True)
class Text:
    """A vocabulary of word ids or character ids.

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
        """What an id stands for: a vocabulary with a blank is one of characters, as no word is a blank."""
        return "character" if " " in self.vocabulary else "word"

    def encode(self, texts: Iterable[str], length: int = LENGTH) -> np.ndarray:
        """One row of ``length`` ids per text: its first words, or its last characters, then padding."""
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
    """The ``most`` most frequent words that occur at least ``at_least`` times, by frequency."""
    counts = Counter(word for text in texts for word in tokens(text))
    ordered = sorted((-count, word) for word, count in counts.items() if count >= at_least)
    return Text(tuple(word for _, word in ordered[:most]))


class WordVectors(NamedTuple):
    """A file of word vectors, in GloVe's format or as .npz with the arrays words and vectors.

    Attributes:
      path: the file.
      dimensions: longer vectors are reduced to this many principal components; None for no limit.
    """

    path: Path
    dimensions: int | None = None

    def vocabulary(self, training: Iterable[str], others: Iterable[str] = ()) -> tuple[Text, bool]:
        """The words of the texts that are in the file, with their vectors, and whether these were reduced.

        Principal components are those of words in training texts. Unknown words and padding have zeros, as in the
        paper's experiments.
        """
        trained = {word for text in training for word in tokens(text)}
        wanted = trained | {word for text in others for word in tokens(text)}
        found = (_read_npz if self.path.suffix == ".npz" else _read_glove)(self.path, wanted)
        if not found:
            raise SettingError(f"{self.path} has none of the {len(wanted)} words of the data")
        words = sorted(found)
        vectors = np.stack([found[word] for word in words])
        reduced = False
        if self.dimensions is not None and vectors.shape[1] > self.dimensions:
            among = np.array([word in trained for word in words])
            vectors, reduced = principal_components(vectors, self.dimensions, among), True
        special = np.zeros((_SPECIAL, vectors.shape[1]))
        return Text(tuple(words), np.concatenate([special, vectors]).astype(np.float32)), reduced


def principal_components(vectors: np.ndarray, count: int, among: np.ndarray | None = None) -> np.ndarray:
    """The vectors in the directions in which they vary most, measured from their mean: (v - mean) V.

    V are the leading eigenvectors of the covariance, with signs that make their largest entries positive. Mean and
    covariance are those of the vectors in the mask ``among``; by default of all.
    """
    fitted = vectors if among is None else vectors[among]
    centred = vectors.astype(np.float64) - fitted.mean(axis=0, dtype=np.float64)
    own = centred if among is None else centred[among]
    _, directions = np.linalg.eigh(own.T @ own)  # by increasing eigenvalue
    leading = directions[:, ::-1][:, :count]
    largest = np.take_along_axis(leading, np.abs(leading).argmax(axis=0)[None], axis=0)
    return centred @ (leading * np.sign(largest))


def _read_npz(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """The vectors of the wanted words."""
    with Npz(path) as arrays:
        missing = [name for name in ("words", "vectors") if name not in arrays.names]
        if missing:
            raise SettingError(f"{path} has no array {missing[0]!r}: word vectors are the arrays words and vectors")
        words, vectors = arrays["words"], arrays["vectors"]
    if words.dtype.kind != "U" or vectors.dtype.kind != "f" or vectors.ndim != 2 or words.shape != vectors.shape[:1]:
        raise SettingError(f"{path}: expected texts in 'words', and a row of numbers for each in 'vectors'")
    if not np.isfinite(vectors).all():
        raise SettingError(f"{path}: a vector must be finite numbers")
    return {word: vector for word, vector in zip(words.tolist(), vectors, strict=True) if word in wanted}


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
        with np.errstate(over="ignore"):  # overflow becomes infinite, and is rejected below
            vector = np.array([float(entry) for entry in entries], np.float32)
    except ValueError:
        raise SettingError(f"{path}, line {line}: a vector must be numbers") from None
    if not np.all(np.isfinite(vector)):
        raise SettingError(f"{path}, line {line}: a vector must be finite numbers")
    return vector
