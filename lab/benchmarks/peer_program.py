"""SimCLR of lightly: a training step on CPUs or a GPU.

A program of its own: `python peer_program.py CASE`, with a JSON object of the
arguments of `step`. It needs torch, torchvision and lightly, and imports
nothing of this package. It answers each line on stdin: the first by what is
measured, each other by a measurement in views per second.
"""

import importlib.metadata
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

# Returns images per second.
Turn = Callable[[], float]

_PACKAGES = ("torch", "torchvision", "lightly", "pillow")
# Steps of a new model before one is timed.
_WARM_UP = 2


def step(
    network: str,
    cifar_stem: bool,
    side: int,
    images: int,
    bfloat16: bool,
    temperature: float,
    momentum: float,
    weight_decay: float,
    projection: int,
    cores: int,
    device: str,
    steps: int,
    projections: list,
) -> tuple[dict[str, Any], Turn]:
    """Forward pass, NT-Xent, backward pass and update, on noise.

    Of the memory formats and numbers of threads, the fastest in a short trial
    are used.

    Args:
      network: of torchvision.
      cifar_stem: whether it begins with a convolution of 3 x 3 pixels.
      side: of a view in pixels.
      images: per step, with two views each.
      bfloat16: whether the network computes in it, by autocast.
      temperature: of the loss.
      momentum, weight_decay: of SGD.
      projection: dimension of the projections.
      cores: that it may use.
      device: "cpu", or "cuda", where float32 is TF32 as in TensorFlow.
      steps: that a turn times.
      projections: [2, n, d], whose loss is described, too.

    Returns:
      (what is measured, turn).
    """
    import torch
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    loss_of = NTXentLoss(temperature=temperature)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    layouts = {
        "contiguous": torch.contiguous_format,
        "channels last": torch.channels_last,
    }

    def prepare(layout: str, threads: int) -> tuple[Any, Callable[[], None]]:
        torch.set_num_threads(threads)
        encoder = getattr(torchvision.models, network)()
        features = encoder.fc.in_features
        encoder.fc = torch.nn.Identity()
        if cifar_stem:
            encoder.conv1 = torch.nn.Conv2d(
                3, 64, kernel_size=3, padding=1, bias=False
            )
            encoder.maxpool = torch.nn.Identity()
        head = SimCLRProjectionHead(features, features, projection)
        model = torch.nn.Sequential(encoder, head)
        model = model.to(device, memory_format=layouts[layout])
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=0.01,
            momentum=momentum,
            weight_decay=weight_decay,
        )
        views = torch.rand(2 * images, 3, side, side, device=device)
        views = views.contiguous(memory_format=layouts[layout])

        def one() -> None:
            with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
                projected = model(views)
            loss = loss_of(*projected.float().chunk(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

        return model, one

    # PyTorch's own number is that of physical cores.
    counts = sorted({torch.get_num_threads(), cores})
    counts = counts if device == "cpu" else counts[:1]
    trials = {}
    for setting in itertools.product(layouts, counts):
        _, one = prepare(*setting)
        _seconds(one, _WARM_UP, 0)
        trials[setting] = min(_seconds(one, 0, 1) for _ in range(3))
    best = min(trials, key=trials.__getitem__)
    model, one = prepare(*best)
    about = {
        "settings": "{}, {} threads".format(*best),
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss_of(*map(torch.tensor, projections)).item(),
    }
    _seconds(one, _WARM_UP, 0)
    return about, lambda: 2 * images * steps / _seconds(one, 1, steps)


def _seconds(call: Callable[[], None], warm_up: int, count: int) -> float:
    """Returns the time of `count` calls after those of the warm-up."""
    for _ in range(warm_up):
        call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def main() -> None:
    """Describes a case, and measures it, as stdin asks."""
    case = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # Packages may print to stdout.
        about, turn = step(**case)
        versions = {p: importlib.metadata.version(p) for p in _PACKAGES}
        versions["python"] = platform.python_version()
        about["versions"] = versions
        sys.stdin.readline()
        print(json.dumps(about), file=answers, flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn()), file=answers, flush=True)


if __name__ == "__main__":
    main()
