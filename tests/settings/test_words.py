import pytest

import pfedbred
from pfedbred import algorithms
from pfedbred.settings import declared, in_words


@pytest.mark.parametrize("name", [*pfedbred.ALGORITHMS, "mg-meta+am", "fedavg+ft", "fedavg+server(yogi)"])
def test_every_setting_is_explained(name):
    build = algorithms.factory(name)
    words = in_words(build)
    assert list(words) == list(declared(build))
    assert all(words.values()), words


def test_a_methods_own_words_come_before_those_of_what_it_passes_settings_on_to():
    assert in_words(pfedbred.ALGORITHMS["mg"])["lam"].startswith("lambda, the strength of the prior")
    assert in_words(algorithms.factory("fedavg+server(yogi)"))["beta_2"] == "how slowly v follows."
