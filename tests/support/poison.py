"""Faulty clients: any algorithm with some clients that send what they should not."""

import jax
import jax.numpy as jnp


def _each(function):
    return lambda start, upload: jax.tree.map(function, start, upload)


POISONS = {
    "nan": _each(lambda start, upload: upload * jnp.nan),
    "one infinity": _each(lambda start, upload: upload.at[(0,) * upload.ndim].set(jnp.inf)),
    "zeros": _each(lambda start, upload: jnp.zeros_like(upload)),
    "flipped": _each(lambda start, upload: start - (upload - start)),
    "scaled": _each(lambda start, upload: start + 1000 * (upload - start)),
    "flipped ten times": _each(lambda start, upload: start - 10 * (upload - start)),
}
"""By name: ``poison(start, upload)``, what is sent in place of the upload of a client that started there."""


def numbered(number):
    """The poison with that number, which may be traced; none if there is no such number."""

    def poison(start, upload):
        for i, each in enumerate(POISONS.values()):
            chosen = number == i
            upload = jax.tree.map(
                lambda bad, good, chosen=chosen: jnp.where(chosen, bad, good), each(start, upload), upload
            )
        return upload

    return poison


def poisoned(algorithm, bad, poison=POISONS["nan"], *, state_too=False, answers_too=False):
    """The algorithm with a poison in what the ``bad`` clients upload, keep, or answer before training.

    A client is told by its message whether it is bad.
    """
    client, server = algorithm.client, algorithm.server
    numbers = jnp.asarray(bad)

    def send(state, i):
        return server.send(state, i), jnp.any(i == numbers)

    def either(is_bad, start, tree):
        return jax.tree.map(lambda one, other: jnp.where(is_bad, one, other), poison(start, tree), tree)

    def train(message, state, data):
        received, is_bad = message
        upload, kept, *info = client.train(received, state, data)
        if state_too:
            return upload, either(is_bad, state, kept), *info
        return (upload if answers_too else either(is_bad, client.unchanged(received), upload)), kept, *info

    def prepare(message, state, data):
        received, is_bad = message
        answer = client.prepare(received, state, data)
        return either(is_bad, answer, answer) if answers_too else answer

    return algorithm._replace(
        client=client._replace(
            init=lambda message: client.init(message[0]),
            train=train,
            model=lambda message, state, data: client.model(message[0], state, data),
            prepare=prepare if client.prepare else None,
            unchanged=lambda message: client.unchanged(message[0]),
        ),
        server=server._replace(send=send),
    )
