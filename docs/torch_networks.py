"""PyTorch modules for exported models: ``pfedbred export RUN --client NAME --format torch``.

    saved = torch.load("client-3.pt", weights_only=True)
    network = CNN(channels=3, sides=(32, 32), classes=10).eval()
    network.load_state_dict(saved["state_dict"])

Inputs are normalised beforehand: (x - saved["input"]["shift"]) * saved["input"]["scale"], where these are given. Images
are (n, channels, height, width), except for MCLR and DNN, which flatten samples as the data holds them. Ids of words or
characters end with zeros as padding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class MCLR(nn.Module):
    """mclr: multi-class logistic regression."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.output(x.flatten(1))


class DNN(nn.Module):
    """dnn: two linear layers."""

    def __init__(self, inputs: int, classes: int, hidden: int = 100) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.output(functional.leaky_relu(self.hidden(x.flatten(1)), 0.1))


def pooled(side: int, kernel: int) -> int:
    """What two convolutions without padding, each with pooling by two, leave of a side."""
    return ((side - kernel + 1) // 2 - kernel + 1) // 2


class CNN(nn.Module):
    """cnn: LeNet-5 with ReLU."""

    def __init__(self, channels: int, sides: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.hidden1 = nn.Linear(16 * pooled(sides[0], 5) * pooled(sides[1], 5), 120)
        self.hidden2 = nn.Linear(120, 84)
        self.output = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for conv in (self.conv1, self.conv2):
            x = functional.relu(functional.max_pool2d(conv(x), 2))
        x = x.flatten(1)
        for layer in (self.hidden1, self.hidden2):
            x = functional.relu(layer(x))
        return self.output(x)


class PFLlibCNN(nn.Module):
    """pfllib-cnn."""

    def __init__(self, channels: int, sides: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(64 * pooled(sides[0], 5) * pooled(sides[1], 5), 512)
        self.output = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for conv in (self.conv1, self.conv2):
            x = functional.relu(functional.max_pool2d(conv(x), 2))
        return self.output(functional.relu(self.hidden(x.flatten(1))))


class CNN1d(nn.Module):
    """cnn1d: for signals, (n, channels, length)."""

    def __init__(self, channels: int, length: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, 32, 9)
        self.conv2 = nn.Conv1d(32, 64, 9)
        self.hidden = nn.Linear(64 * pooled(length, 9), 128)
        self.output = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for conv in (self.conv1, self.conv2):
            x = functional.relu(functional.max_pool1d(conv(x), 2))
        return self.output(functional.relu(self.hidden(x.flatten(1))))


def normalisation(norm: str, channels: int) -> nn.Module:
    """``batch``, or ``group`` for a run with --batch-norm group."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(2, channels)


class Block(nn.Module):
    """Two convolutions and what is added to them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = normalisation(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = normalisation(norm, outputs)
        self.downsample = nn.Identity()
        if inputs != outputs:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, normalisation(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(x + ...)."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(self.downsample(x) + y)


class ResNet(nn.Module):
    """resnet18; resnet8 with widths (16, 32, 64) and one block. Names are torchvision's, whose resnet18 fits too.

    With torchvision: ``resnet18(num_classes=10, norm_layer=...)``, whose ``conv1`` is replaced by a convolution of 3x3
    with stride 1, and ``maxpool`` by ``Identity``.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: int = 2,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = normalisation(norm, widths[0])
        before = widths[0]
        for number, width in enumerate(widths, 1):
            strides = [2 if number > 1 else 1] + [1] * (blocks - 1)
            inputs = [before] + [width] * (blocks - 1)
            made = [Block(each, width, stride, norm) for each, stride in zip(inputs, strides, strict=True)]
            setattr(self, f"layer{number}", nn.Sequential(*made))
            before = width
        self.stages = len(widths)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for number in range(1, self.stages + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


def lengths(ids: Tensor) -> Tensor:
    """How long each sample is without its padding, at least 1."""
    places = torch.arange(1, ids.shape[1] + 1)
    return torch.where(ids != 0, places, 0).amax(1).clamp(min=1)


class LSTM(nn.Module):
    """lstm: two bidirectional layers. ``words`` counts the ids: the vocabulary, padding and unknown words."""

    def __init__(self, words: int, classes: int, dimensions: int = 50, hidden: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dimensions)
        self.lstm = nn.LSTM(dimensions, hidden, 2, batch_first=True, bidirectional=True)
        self.hidden = nn.Linear(6 * hidden, 100)
        self.output = nn.Linear(100, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits; every sample has at least one word."""
        length = lengths(ids)
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(ids), length, batch_first=True, enforce_sorted=False)
        out, (last, _) = self.lstm(packed)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        end = outputs[torch.arange(len(ids)), length - 1]
        features = torch.cat([end, *last], 1)
        return self.output(functional.leaky_relu(self.hidden(features), 0.1))


class CharLSTM(nn.Module):
    """charlstm: two layers that read forward. ``characters`` counts the ids."""

    def __init__(self, characters: int, classes: int, dimensions: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, dimensions)
        self.lstm = nn.LSTM(dimensions, hidden, 2, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits; every sample has at least one character."""
        outputs, _ = self.lstm(self.embedding(ids))
        return self.output(outputs[torch.arange(len(ids)), lengths(ids) - 1])


def encoder(width: int, layers: int, heads: int) -> nn.TransformerEncoder:
    """Pre-norm layers and a norm after the last."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)


class Transformer(nn.Module):
    """transformer, whose vectors are learned. ``words`` counts the ids."""

    def __init__(self, words: int, length: int, classes: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.encoder = encoder(width, layers, heads)
        self.output = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits; every sample has at least one word."""
        length = lengths(ids)
        padding = torch.arange(ids.shape[1]) >= length[:, None]
        out = self.encoder(self.embedding(ids) + self.positions, src_key_padding_mask=padding)
        return self.output(out[torch.arange(len(ids)), length - 1])


class ViT(nn.Module):
    """vit: patches of 4 by 4."""

    def __init__(
        self, channels: int, sides: tuple[int, int], classes: int, width: int = 128, layers: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        rows, columns = (-(-side // 4) for side in sides)
        self.padding = (0, 4 * columns - sides[1], 0, 4 * rows - sides[0])
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.positions = nn.Parameter(torch.zeros(rows * columns, width))
        self.encoder = encoder(width, layers, heads)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        patches = self.patches(functional.pad(x, self.padding)).flatten(2).transpose(1, 2)
        return self.output(self.encoder(patches + self.positions).mean(1))
