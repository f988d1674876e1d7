"""Custom parts of experiments, with an import path each, as a user's own would have."""

import jax.numpy as jnp
import numpy as np
from conftest import small_federation

import pfedbred
from pfedbred import Count, Metric, Positive, models
from pfedbred.aggregation import weighted_mean
from pfedbred.algorithms.fedavg import fedavg
from pfedbred.data.partition.cyclic import cyclic_labels
from pfedbred.engine import selection


def federation():
    return small_federation()


def on_demand():
    return pfedbred.data.population("synthetic", clients=3)


def rows(data_dir, clients, seed):
    """The samples of :func:`federation` before they are split."""
    whole = federation()
    x, y = (np.concatenate([getattr(part, name) for part in (whole.train, whole.test)]) for name in "xy")
    return pfedbred.Pool("small", x, y, whole.classes)


def as_they_were(pool):
    """The split of :func:`federation`."""
    whole, (first, last) = federation(), np.split(np.arange(len(pool.y)), [len(federation().train.y)])
    return pfedbred.Assignment(np.split(first, whole.train.offsets[1:-1]), np.split(last, whole.test.offsets[1:-1]))


small = pfedbred.Dataset(rows, as_they_were, clients=4, seed=5)
"""A dataset that no table names, which is split like :func:`federation`."""


def local_sgd(task, *, alpha: Positive = 0.01, R: Count = 20):
    return fedavg(task, alpha=alpha, R=R)


def choosy(task, *, alpha: Positive = 0.01):
    """The value of alpha decides how the program is built, and its type does not say so."""
    return fedavg(task, alpha=alpha, R=1 if alpha < 1 else 2)


built = fedavg(pfedbred.Task(models.mclr((64,), 10)), R=2)
"""An algorithm that is built already."""


def network(shape, classes):
    return models.mclr(shape, classes)


def uniform(count):
    """A builder of a selection."""
    return selection.uniform(count)


def uniform_pair(key, sizes):
    """A selection."""
    return selection.uniform(2)(key, sizes)


def average():
    """A builder of an aggregation rule."""
    return weighted_mean


def weighted(gathered):
    """An aggregation rule."""
    return weighted_mean(gathered)


def few_labels(pool, *, clients, labels_per_client, seed):
    """The split that ``paper`` stands for with the digits."""
    return cyclic_labels(pool, clients=clients, labels_per_client=labels_per_client, seed=seed)


def _confident_sums(predictions):
    best = jnp.max(predictions.outputs, axis=-1) > jnp.log(2.0)
    return {"n": jnp.sum(predictions.mask), "confident": jnp.sum(predictions.mask & best)}


def _confident_value(sums):
    n = np.asarray(sums["n"], float)
    return np.divide(sums["confident"], n, out=np.full(n.shape, np.nan), where=n > 0)


confident = Metric("confident", _confident_sums, _confident_value, True, "classification", True, "confident samples")
"""A metric that no table knows."""


def sure():
    """A builder of a metric."""
    return confident._replace(name="sure")


poisson = pfedbred.priors.poisson()
"""A prior that no function of its own name builds."""


def scaled_prior(sigma=None):
    """A builder of a prior."""
    return pfedbred.priors.gaussian(sigma)


def first_order(eta_a):
    """A builder of a mean."""
    return pfedbred.means.fo(eta_a)


def objects():
    """The parts of :func:`options` as objects, where those are builders."""
    task = pfedbred.Task(models.mclr((6,), 3))
    return {
        "algorithm": fedavg(task, R=2),
        "settings": {},
        "model": models.mclr((6,), 3),
        "select": uniform_pair,
        "aggregate": weighted,
        "dataset": small,
    }


def builders():
    return {
        "algorithm": local_sgd,
        "model": network,
        "select": uniform,
        "aggregate": average,
        "dataset": federation,
    }
