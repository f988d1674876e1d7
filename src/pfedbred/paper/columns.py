"""The columns of the paper's tables: a dataset, a model and the settings used for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedbred import algorithms, data
from pfedbred import settings as settings_
from pfedbred.data.datasets import cifar10
from pfedbred.data.federation import Federation
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment

_PART_OF_FEMNIST = "a part of FEMNIST, not the writers that the paper sampled"
_OTHER_WRITERS = "digits of 198 other writers of the same NIST forms, not the paper's FEMNIST, which has letters too"
_OTHER_TWEETS = "other tweets of Sent140 than the paper sampled"

Facts = Mapping[str, Any]
"""What a record says about its data, as ``Federation.facts``."""


def _of_pixels(facts: Facts) -> str | None:
    if facts.get("source") == cifar10.ORIGINAL:
        return None
    return "a JPEG copy of the images: accuracies may be slightly lower than with the originals"


def _of_tweets(facts: Facts) -> str:
    return f"{facts['train_samples'] + facts['test_samples']:,} tweets, word vectors {facts.get('embedding')}"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
      title: shown in tables and figures.
      dataset: name of the dataset.
      model: name of the model.
      rounds: rounds of training in the paper.
      lam: lambda of pFedMe and pFedBreD.
      aggregated: clients averaged per round.
      batch_size: samples per minibatch.
      eval_every: rounds between evaluations, of which the best counts.
      not_compared: why its figures cannot be compared with the paper's; None if they can.
      note: what else to know about figures measured on such data.
      partition: how the data is split, if not as in the paper.
    """

    title: str
    dataset: str
    model: str
    rounds: int
    lam: float = 15.0
    aggregated: int = 20
    batch_size: int = 20
    eval_every: int = 1
    not_compared: str | None = None
    note: Callable[[Facts], str | None] = lambda facts: None
    partition: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self, algorithm: str, *, seeds: int, rounds: int | None, **options: Any) -> Experiment:
        """A method in this column; ``options`` override the column's, and ``settings`` in them the method's."""
        known = settings_.declared(algorithms.builder(algorithm))
        own = {"lam": self.lam} if "lam" in known and not algorithm.startswith(_OWN_LAMBDA) else {}
        settings = {**own, **options.pop("settings", {})}
        total = rounds or self.rounds
        given = {
            "aggregated": self.aggregated,
            "eval_every": min(self.eval_every, total),
            **self.partition,
            **options,
        }
        return Experiment(
            dataset=self.dataset,
            model=self.model,
            algorithm=algorithm,
            rounds=total,
            seeds=seeds,
            batch_size=self.batch_size,
            settings=settings,
            **given,
        )

    @property
    def prepared_file(self) -> str:
        """The name of its prepared federation, such as mnist-paper.fed or cifar10-dirichlet(0.1)-20.fed."""
        return "-".join([self.dataset, *map(str, self.partition.values())]) + data.prepared.SUFFIX

    def fitted(self, experiment: Experiment, federation: Federation) -> Experiment:
        """The experiment for the data at hand: with too few clients, a third of them are averaged."""
        if self.not_compared is None or (experiment.aggregated or 0) <= federation.clients:
            return experiment
        return dataclasses.replace(experiment, aggregated=max(1, federation.clients // 3))

    def difference(self, measured: float | None, printed: float | None) -> float | None:
        """Measured minus printed, if both exist for the same data."""
        if measured is None or printed is None or self.not_compared is not None:
            return None
        return measured - printed

    def different_data(self, data: Mapping[str, Facts | None]) -> list[tuple[list[str], str]]:
        """Rows measured on the same data, and what sets that data apart; empty if all rows are of one kind.

        Records of earlier versions do not say what they were measured on.
        """
        kinds = self._kinds(data)
        if len(kinds) < 2:
            return []
        names = dict.fromkeys(name for facts, _ in kinds for name in facts)
        differing = [name for name in names if any(facts.get(name) != kinds[0][0].get(name) for facts, _ in kinds)]
        found = []
        for facts, rows in kinds:
            said = [f"{name} {facts[name]}" for name in differing if name in facts]
            found.append((rows, "; ".join(filter(None, [*said, self.note(facts)]))))
        return found

    def notes(self, data: Mapping[str, Facts | None]) -> list[str]:
        """What to know about the data of its rows; above all, whether they were measured on different data."""
        different = self.different_data(data)
        if not different:
            return [note for facts, _ in self._kinds(data) if (note := self.note(facts))]
        return [
            "these rows were measured on different data and cannot be compared with each other",
            *(f"rows {', '.join(rows)}: {words}" for rows, words in different),
        ]

    @staticmethod
    def _kinds(data: Mapping[str, Facts | None]) -> list[tuple[Facts, list[str]]]:
        """The kinds of data that the rows were measured on, each with its rows."""
        kinds: list[tuple[Facts, list[str]]] = []
        for row, facts in data.items():
            same = next((rows for each, rows in kinds if each == facts), None)
            if same is not None:
                same.append(row)
            elif facts:
                kinds.append((facts, [row]))
        return kinds


# Their lambda means something else, so they keep their own default.
_OWN_LAMBDA = ("fedamp", "heurfedamp", "fedu", "ditto")

COLUMNS: dict[str, Column] = {
    "femnist-mclr": Column("FEMNIST, MCLR", "femnist", "mclr", 1200, eval_every=5, not_compared=_PART_OF_FEMNIST),
    "femnist-dnn": Column("FEMNIST, DNN", "femnist", "dnn", 1200, 30.0, eval_every=5, not_compared=_PART_OF_FEMNIST),
    "fmnist-mclr": Column("Fashion-MNIST, MCLR", "fashion-mnist", "mclr", 200),
    "fmnist-dnn": Column("Fashion-MNIST, DNN", "fashion-mnist", "dnn", 200, 30.0),
    "mnist-mclr": Column("MNIST, MCLR", "mnist-paper", "mclr", 200),
    "mnist-dnn": Column("MNIST, DNN", "mnist-paper", "dnn", 200, 30.0),
    "cifar10-cnn": Column("CIFAR-10, CNN", "cifar10", "cnn", 2000, aggregated=4, eval_every=5, note=_of_pixels),
    "sent140-lstm": Column(
        "Sent140, LSTM",
        "sent140",
        "lstm",
        800,
        aggregated=4,
        batch_size=400,
        eval_every=5,
        not_compared=_OTHER_TWEETS,
        note=_of_tweets,
    ),
}
"""The columns of Table 2, in its order."""

STAND_INS: dict[str, Column] = {
    "writers-mclr": Column(
        "MNIST's writers, MCLR", "mnist-writers-leaf", "mclr", 1200, eval_every=5, not_compared=_OTHER_WRITERS
    ),
    "writers-dnn": Column(
        "MNIST's writers, DNN", "mnist-writers-leaf", "dnn", 1200, 30.0, eval_every=5, not_compared=_OTHER_WRITERS
    ),
}
"""Stand-ins for data that is not available: as many writers as the paper's FEMNIST, with its settings."""

TRUE_LABELS: dict[str, Column] = {
    "mnist-true-mclr": Column("MNIST, true labels, MCLR", "mnist", "mclr", 200),
    "mnist-true-dnn": Column("MNIST, true labels, DNN", "mnist", "dnn", 200, 30.0),
}
"""Beyond the paper: the MNIST columns without the label noise of its split."""

_SKEWED = {"split": "dirichlet(0.1)", "clients": 20}

SKEWED: dict[str, Column] = {
    "skewed-cnn": Column(
        "CIFAR-10 by Dirichlet(0.1), CNN", "cifar10", "cnn", 300, eval_every=10, note=_of_pixels, partition=_SKEWED
    ),
    "skewed-resnet18": Column(
        "CIFAR-10 by Dirichlet(0.1), ResNet-18",
        "cifar10",
        "resnet18",
        40,
        eval_every=5,
        note=_of_pixels,
        partition=_SKEWED,
    ),
}
"""Beyond the paper: all images of CIFAR-10 over 20 clients with very different shares of the classes."""

ALL = {**COLUMNS, **STAND_INS, **TRUE_LABELS, **SKEWED}


@dataclass
class Federations:
    """The data of the columns; each dataset is read once.

    Attributes:
      data_dir: searched first for named datasets.
      prepared: a folder of prepared federations, named as ``Column.prepared_file``, used where they exist.
    """

    data_dir: str | None = None
    prepared: Path | None = None
    _loaded: dict[tuple[str, str], Federation] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether the user chose the data's source, so that it may differ from that of earlier records."""
        return self.data_dir is not None or self.prepared is not None

    def of(self, column: Column) -> Federation:
        """The federation of a column."""
        name, key = column.dataset, (column.dataset, str(column.partition))
        if key not in self._loaded:
            file = self.prepared and self.prepared / column.prepared_file
            if file and file.exists():
                self._loaded[key] = data.load(str(file))
            elif self.prepared and not self.prepared.is_dir():
                raise SettingError(f"there is no folder {self.prepared}")
            else:
                self._loaded[key] = data.load(name, data_dir=self.data_dir, **column.partition)
        return self._loaded[key]
