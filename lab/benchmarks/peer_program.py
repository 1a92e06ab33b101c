"""SimCLR of lightly: a training step, on CPUs or a GPU, its input, or kNN.

A program of its own: `python peer_program.py CASE`, with a JSON object of the
arguments of a function in `TASKS`, and its name as "task". It needs torch,
torchvision and lightly, and imports nothing of this package. Its first line on
stdout describes what is measured. Then it waits; it measures once for each line
on stdin, and answers with the images per second: of the step, views; of kNN,
queries.
"""

import functools
import glob
import importlib.metadata
import itertools
import json
import os
import platform
import random
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
    gpu: bool,
    compiled: bool,
    steps: int,
    projections: list,
) -> tuple[dict[str, Any], Turn]:
    """Forward pass, NT-Xent, backward pass and update, on noise.

    Of the memory formats and numbers of threads, the fastest in a short trial
    are used, and `torch.compile` if it is faster still.

    Args:
      network: of torchvision.
      cifar_stem: whether it begins with a convolution of 3 x 3 pixels.
      side: of a view in pixels.
      images: per step, with two views each.
      bfloat16: whether the network computes in it, by autocast.
      temperature: of the loss.
      momentum: of SGD.
      weight_decay: of SGD.
      projection: dimension of the projections.
      cores: that it may use.
      gpu: whether the first GPU is used instead of them.
      compiled: whether `torch.compile` is tried.
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
    device = "cuda" if gpu else "cpu"
    if gpu:  # TF32 for matrices, as in TensorFlow; the fastest convolutions.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True

    layouts = {
        "contiguous": torch.contiguous_format,
        "channels last": torch.channels_last,
    }

    def prepare(
        layout: str, threads: int, how: str
    ) -> tuple[Any, Callable[[], None]]:
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
        forward = torch.compile(model) if how == "compiled" else model

        def one() -> None:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=bfloat16):
                projected = forward(views)
            loss = loss_of(*projected.float().chunk(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

        return model, one

    trials: dict[tuple[str, int, str], float] = {}

    def fastest(*settings: tuple[str, int, str]) -> tuple[str, int, str]:
        for setting in settings:
            _, one = prepare(*setting)
            _seconds(one, _WARM_UP, 0)
            trials[setting] = min(_seconds(one, 0, 1) for _ in range(3))
        return min(trials, key=trials.__getitem__)

    # PyTorch's own number is that of physical cores.
    counts = sorted({torch.get_num_threads()} | (set() if gpu else {cores}))
    best = fastest(*itertools.product(layouts, counts, ["eager"]))
    if compiled:
        best = fastest((*best[:2], "compiled"))
    model, one = prepare(*best)
    about = {
        "settings": "{}, {} threads, {}".format(*best),
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


class _Images:
    """A dataset of two views per image, without end."""

    def __init__(self, path: str, transform: Any) -> None:
        import numpy as np

        self._transform = transform
        self._arrays: Any = np.load(path) if path.endswith(".npy") else ()
        self._files = sorted(glob.glob(os.path.join(path, "*", "*.jpg")))
        random.Random(0).shuffle(self._files)
        self._count = len(self._files) or len(self._arrays)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        index %= self._count
        if not self._files:
            return self._transform(Image.fromarray(self._arrays[index]))
        with Image.open(self._files[index]) as image:
            return self._transform(image.convert("RGB"))


def views(
    path: str,
    side: int,
    strength: float,
    blur: bool,
    min_crop_area: float,
    batch_size: int,
    workers: int,
    seconds: float,
) -> tuple[dict[str, Any], Turn]:
    """Two views of each image, in batches of a DataLoader.

    Args:
      path: folder of JPEG files in folders, or an array [n, h, w, 3] as .npy.
      side: of a view in pixels.
      strength: of the colour jitter.
      blur: whether half of the views are blurred.
      min_crop_area: smallest area of a crop, as a fraction of the image's.
      batch_size: images per batch.
      workers: processes that make batches.
      seconds: length of a turn, at least.

    Returns:
      (what is measured, turn).
    """
    from lightly.transforms import SimCLRTransform
    from torch.utils.data import DataLoader

    # Standardization is left out, which is the encoder's in this package.
    transform = SimCLRTransform(
        input_size=side,
        cj_strength=strength,
        gaussian_blur=0.5 if blur else 0.0,
        min_scale=min_crop_area,
        normalize=None,
    )
    images = _Images(path, transform)

    def turn() -> float:
        # New processes, since others would prefetch during the other's turn.
        loader: Any = DataLoader(
            images, batch_size, num_workers=workers, prefetch_factor=2
        )
        batches = iter(loader)
        for _ in range(2 * workers):  # Those that were prefetched meanwhile.
            next(batches)
        count, start = 0, time.perf_counter()
        # Whole rounds, since the workers' batches come at about the same time.
        while time.perf_counter() - start < seconds or not count:
            for _ in range(workers):
                next(batches)
            count += workers * batch_size
        return count / (time.perf_counter() - start)

    return {"settings": f"{workers} workers"}, turn


def knn(
    path: str, neighbors: int, temperature: float, batch_sizes: list
) -> tuple[dict[str, Any], Turn]:
    """Classifies queries by their nearest neighbours in a bank.

    Args:
      path: an .npz file of `bank` [m, D], `labels` [m], `queries` [n, D] and
        their `classes` [n].
      neighbors: that vote.
      temperature: of their weights.
      batch_sizes: queries at a time, of which the fastest number is used.

    Returns:
      (what is measured, turn).
    """
    import numpy as np
    import torch
    from lightly.utils.benchmarking import knn_predict

    with np.load(path) as arrays:
        bank, labels, queries, classes = (
            torch.from_numpy(arrays[name])
            for name in ("bank", "labels", "queries", "classes")
        )
    count = int(labels.max()) + 1

    def predict(size: int, some: Any = queries) -> Any:
        normalize = torch.nn.functional.normalize
        features = normalize(bank, dim=1).t().contiguous()
        votes = [
            knn_predict(
                normalize(part, dim=1),
                features,
                labels,
                count,
                neighbors,
                temperature,
            )[:, 0]
            for part in some.split(size)
        ]
        return torch.cat(votes)

    few = queries[: max(batch_sizes)]
    times = {
        size: _seconds(functools.partial(predict, size, few), 1, 2)
        for size in batch_sizes
    }
    best = min(times, key=times.__getitem__)
    about = {
        "settings": f"{best} queries at a time",
        "correct": (predict(best) == classes).float().mean().item(),
    }
    return about, lambda: len(queries) / _seconds(lambda: predict(best), 0, 1)


TASKS: dict[str, Callable[..., tuple[dict[str, Any], Turn]]] = {
    "step": step,
    "views": views,
    "knn": knn,
}


def main() -> None:
    """Describes a case; then measures it once for each line on stdin."""
    case = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # Packages may print to stdout.
        about, turn = TASKS[case.pop("task")](**case)
        versions = {p: importlib.metadata.version(p) for p in _PACKAGES}
        versions["python"] = platform.python_version()
        about["versions"] = versions
        print(json.dumps(about), file=answers, flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn()), file=answers, flush=True)


if __name__ == "__main__":
    main()
