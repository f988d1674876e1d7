"""Words as numbers."""

import numpy as np
import pytest

import pfedbred
from pfedbred.data import Assignment, from_arrays
from pfedbred.data.text import Text, WordVectors, learned_vocabulary, principal_components, tokens


def test_tokens():
    assert tokens("I DON'T like it... @you, #sun!") == [
        *("i", "don't", "like", "it", ".", ".", ".", "you", ",", "sun", "!"),
    ]
    assert tokens("  ") == []


def test_encoding_by_hand():
    text = Text(("good", "day"))
    encoded = text.encode(["Good good strange day", "", "day " * 9], length=5)
    assert encoded.tolist() == [[2, 2, 1, 3, 0], [0, 0, 0, 0, 0], [3, 3, 3, 3, 3]]
    assert text.count == 4


def test_the_vocabulary_is_the_most_frequent_words():
    texts = ["b b b a a", "a c c d", "e"]
    assert learned_vocabulary(texts).vocabulary == ("a", "b", "c")
    assert learned_vocabulary(texts, most=1).vocabulary == ("a",)


def test_the_vocabulary_knows_no_test_text():
    """Every text has a unique word, twice: those of the training texts are known, those of the test texts are not."""
    x = np.array([f"shared word{i} word{i}" for i in range(16)], object)
    federation = from_arrays(x, np.arange(16) % 2, np.repeat([0, 1], 8), test_fraction=0.25)
    assert len(federation.train.y) == 12
    assert len(federation.text.vocabulary) == 1 + 12
    assert (federation.train.x != 1).all()
    assert (federation.test.x[:, 1:3] == 1).all()  # unknown


def test_glove_vectors(tmp_path):
    """Unknown words and padding have zeros; words of test texts are known, because their vectors come from the file."""
    path = tmp_path / "glove.txt"
    path.write_text("the 9 9\nsun 1 2\nrain 3 -4\n")
    text, reduced = WordVectors(path, 2).vocabulary(["Sun and rain"])
    assert text.vocabulary == ("rain", "sun")
    assert not reduced
    np.testing.assert_array_equal(text.vectors, [[0, 0], [0, 0], [3, -4], [1, 2]])
    x, y, clients = np.array(["sun", "rain", "fog"] * 4, object), np.arange(12) % 2, np.repeat([0, 1], 6)
    assert from_arrays(x, y, clients).words.vectors is None
    with_glove = from_arrays(x, y, clients, glove=str(path))
    assert with_glove.words.vectors.shape == (4, 2)
    assert with_glove.about["embedding"] == f"from {path}"
    x[:] = [*["sun"] * 6, *["rain"] * 6]

    def halves(pool, *, seed):
        return Assignment([np.arange(6)], [np.arange(6, 12)])

    both = from_arrays(x, y, clients, glove=str(path), split=halves)
    assert both.test.x[:, 0].tolist() == [both.text.vocabulary.index("rain") + 2] * 6


def test_vectors_in_npz_are_those_of_the_text_format(tmp_path):
    words, vectors = ["sun", "the", "rain"], np.array([[1, 2], [9, 9], [3, -4]], np.float32)
    np.savez(tmp_path / "glove.npz", words=words, vectors=vectors)
    text, _ = WordVectors(tmp_path / "glove.npz").vocabulary(["Sun and rain"])
    assert text.vocabulary == ("rain", "sun")
    np.testing.assert_array_equal(text.vectors, [[0, 0], [0, 0], [3, -4], [1, 2]])


def test_principal_components_are_the_singular_vectors_of_the_centred_vectors():
    """Distances between the words are kept as far as any three dimensions can, and the sign is fixed."""
    vectors = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([5, 4, 3, 2, 1, 0.5]) + 7
    left, values, right = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    found = principal_components(vectors, 3)
    np.testing.assert_allclose(np.abs(found), np.abs(left[:, :3] * values[:3]), atol=1e-9)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-12)
    centred = vectors - vectors.mean(axis=0)
    directions = np.linalg.lstsq(centred, found, rcond=None)[0].T
    np.testing.assert_allclose(np.abs(directions), np.abs(right[:3]), atol=1e-9)
    assert all(each[np.abs(each).argmax()] > 0 for each in directions)


def test_longer_vectors_are_reduced(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.savez(tmp_path / "glove.npz", words=list("abcde"), vectors=vectors)
    text, reduced = WordVectors(tmp_path / "glove.npz", 2).vocabulary(["b c d", "e f"])
    assert reduced
    assert text.vectors.dtype == np.float32
    np.testing.assert_allclose(text.vectors[2:], principal_components(vectors[1:], 2), rtol=1e-5)
    np.testing.assert_array_equal(text.vectors[:2], 0)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"words": ["sun"]}, "has no array 'vectors'"),
        ({"words": ["sun"], "vectors": np.zeros((2, 3))}, "a row of numbers for each"),
        ({"words": [1], "vectors": np.zeros((1, 3))}, "expected texts in 'words'"),
        ({"words": ["sun"], "vectors": np.full((1, 3), np.nan)}, "finite numbers"),
        ({"words": ["fog"], "vectors": np.zeros((1, 3))}, "has none of the 2 words"),
    ],
)
def test_broken_npz_files_of_vectors(arrays, words, tmp_path):
    np.savez(tmp_path / "glove.npz", **arrays)
    with pytest.raises(pfedbred.SettingError, match=f"glove.npz.*{words}"):
        WordVectors(tmp_path / "glove.npz").vocabulary(["sun rain"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"sun 1 2\nrain 3\n", "line 2: expected a word and 2 numbers, found 1"),
        (b"sun\n", "line 1: expected a word"),
        (b"sun 1 x\n", "line 1: a vector must be numbers"),
        (b"sun 1 nan\n", "line 1: a vector must be finite"),
        (b"fog 1 2\n", "has none of the 2 words"),
        (b"\xff\xfe", "not a text file in UTF-8"),
    ],
)
def test_broken_glove_files_name_the_line(content, words, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    with pytest.raises(pfedbred.SettingError, match=f"glove.txt.*{words}"):
        WordVectors(path).vocabulary(["sun rain"])


def test_an_absent_glove_file(tmp_path):
    with pytest.raises(pfedbred.SettingError, match=r"cannot read .*No such file"):
        WordVectors(tmp_path / "nothing").vocabulary(["sun"])
