"""Data: from a source to a pool of samples, through a split, to a federation."""

from pfedbred.data import prepared
from pfedbred.data.addresses import HUB, PFLLIB, address, is_file, short_name
from pfedbred.data.client_arrays import from_clients
from pfedbred.data.datasets import DATASETS, Dataset
from pfedbred.data.federation import Federation, Split
from pfedbred.data.loading import find, find_split, from_arrays, from_dataset, load, population
from pfedbred.data.partition import SPLITS
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.pool import TEST_FRACTION, Assignment, Pool
from pfedbred.data.population import Population

__all__ = [
    "DATASETS",
    "HUB",
    "PFLLIB",
    "SPLITS",
    "TEST_FRACTION",
    "Assignment",
    "Dataset",
    "Federation",
    "Pool",
    "Population",
    "Split",
    "address",
    "find",
    "find_split",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "is_file",
    "load",
    "paper_split",
    "population",
    "prepared",
    "short_name",
]
