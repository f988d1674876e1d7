"""Fashion-MNIST.

Usual models: mclr and dnn, with the paper's split and to compare with its figures. With 20 clients, pfllib-cnn and the
split dirichlet(0.1) or labels(2), PFLlib's columns "Dirichlet(0.1)" (FedAvg 85.85, Ditto 97.47, FedRep 97.56) and
"pathological" (80.41, 99.44, 99.56), with care: PFLlib divides by another rule, into other sizes.

Reference: Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", 2017.
"""

from __future__ import annotations

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import by_one_number
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("fashion-mnist", "zalando-datasets/fashion_mnist", "fashion_mnist", ("image", "label"))


def fashion_mnist(data_dir: str | None, clients: int, seed: int) -> Pool:
    """Fashion-MNIST."""
    return table_pool(SOURCE, data_dir, classes=10, normalise=by_one_number)


DATASET = Dataset(
    fashion_mnist, paper_split, clients=100, labels_per_client=2, seed=1, models=("mclr", "dnn", "pfllib-cnn")
)
