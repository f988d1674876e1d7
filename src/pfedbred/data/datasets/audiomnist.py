"""AudioMNIST: spoken digits as spectrograms.

Source: AudioMNIST's recordings as log-mel spectrograms (16 kHz, 32 bands, one second, 80 dB) in images of 32 x 32:
``audiomnist/audiomnist_logmel32.parquet``, with the columns image, label and speaker.

Natural clients: 60 speakers, who said each digit 50 times; a quarter of each speaker's 500 recordings is for testing.

Usual model: cnn. Published figures to compare with: none with these clients (Becker et al. divide the speakers, and use
larger networks on other spectrograms).

Reference: Becker et al., "AudioMNIST: Exploring Explainable Artificial Intelligence for Audio Analysis on a Simple
Benchmark", Journal of the Franklin Institute, 2024.
"""

from __future__ import annotations

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_unit_interval
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("audiomnist", None, "audiomnist", ("image", "label", "speaker"))


def audiomnist(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Spoken digits as log-mel spectrograms of 32 x 32, their speakers as clients."""
    return table_pool(SOURCE, data_dir, classes=10, normalise=to_unit_interval)


DATASET = Dataset(audiomnist, column, models=("cnn",))
