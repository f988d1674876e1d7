"""PFLlib's CNN and ResNet-18 with group normalisation in PyTorch, and a gradient step of one client at a time."""

from __future__ import annotations

import time
from typing import Any


def image_network(name: str, width: int = 64, groups: int = 8, classes: int = 10) -> Any:
    """``pfllib-cnn``, or ``resnet18`` whose first stage has ``width`` channels, for images of 3 x 32 x 32."""
    import torch
    from torch import nn as tn

    def conv(inputs: int, outputs: int, side: int, stride: int = 1) -> Any:
        return tn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)

    class Block(tn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            norm = lambda: tn.GroupNorm(groups, outputs)  # noqa: E731
            first = (conv(inputs, outputs, 3, stride), norm(), tn.ReLU())
            self.body = tn.Sequential(*first, conv(outputs, outputs, 3), norm())
            plain = stride == 1 and inputs == outputs
            self.skip = tn.Identity() if plain else tn.Sequential(conv(inputs, outputs, 1, stride), norm())

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.skip(x))

    if name == "pfllib-cnn":
        layers = [tn.Conv2d(3, 32, 5), tn.ReLU(), tn.MaxPool2d(2), tn.Conv2d(32, 64, 5), tn.ReLU(), tn.MaxPool2d(2)]
        layers += [tn.Flatten(), tn.Linear(1600, 512), tn.ReLU(), tn.Linear(512, classes)]
    else:
        sizes = [width * 2 ** (i // 2) for i in range(8)]
        before = [width, *sizes[:-1]]
        layers = [conv(3, width, 3), tn.GroupNorm(groups, width), tn.ReLU()]
        layers += [Block(a, b, 1 if a == b else 2) for a, b in zip(before, sizes, strict=True)]
        layers += [tn.AdaptiveAvgPool2d(1), tn.Flatten(), tn.Linear(sizes[-1], classes)]
    return tn.Sequential(*layers)


def torch_step(name: str, width: int, batch: int, steps: int, groups: int = 8, half: bool = False) -> float:
    """Milliseconds of one client's gradient step in PyTorch, which has to be installed; ``half`` is its autocast."""
    import torch
    from torch import nn as tn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = image_network(name, width, groups).to(device)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
    optimizer, best = torch.optim.SGD(net.parameters(), 0.01), float("inf")
    for _ in range(4):
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=half):
                loss = tn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begun) * 1e3 / steps)
    return best
