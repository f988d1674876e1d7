"""Words as numbers."""

import numpy as np
import pytest

import pfedbred
from pfedbred.data import from_arrays
from pfedbred.data.text import Text, glove_vocabulary, learned_vocabulary, tokens


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
    path = tmp_path / "glove.txt"
    path.write_text("the 9 9\nsun 1 2\nrain 3 -4\n")
    text = glove_vocabulary(["Sun and rain"], str(path))
    assert text.vocabulary == ("rain", "sun")
    np.testing.assert_array_equal(text.vectors, [[0, 0], [2, -1], [3, -4], [1, 2]])
    federation = from_arrays(np.array(["sun", "rain", "fog"] * 4, object), np.arange(12) % 2, np.repeat([0, 1], 6))
    assert federation.words.vectors is None
    with_glove = from_arrays(
        np.array(["sun", "rain", "fog"] * 4, object), np.arange(12) % 2, np.repeat([0, 1], 6), glove=str(path)
    )
    assert with_glove.words.vectors.shape == (4, 2)
    assert with_glove.about["embedding"] == f"from {path}"


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
        glove_vocabulary(["sun rain"], str(path))


def test_an_absent_glove_file(tmp_path):
    with pytest.raises(pfedbred.SettingError, match=r"cannot read .*No such file"):
        glove_vocabulary(["sun"], str(tmp_path / "nothing"))
