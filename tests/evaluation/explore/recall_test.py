"""Planted copies, near copies and wrong labels in CIFAR-10 are found.

`docs/guide/explore.md` has the table, which `pytest -s` prints.
"""

import io

import numpy as np
import pytest
from image_helpers import PREPARED, needs_prepared
from PIL import Image, ImageEnhance

from tf_contrastive import datasets, exporting
from tf_contrastive.base import terminal
from tf_contrastive.config import fields
from tf_contrastive.config.explore import Exploration
from tf_contrastive.evaluation.explore import images, report

_IMAGES, _COPIES, _WRONG = 2_000, 40, 100
_ENCODERS = ("cifar10-supcon-resnet10", "cifar10-simclr-resnet10")


def _jpeg(image):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return Image.open(buffer)


def _crop(image):
    width, height = image.size
    return image.crop((3, 0, width, height - 3)).resize(image.size)


_KINDS = {
    "exact copies": lambda image: image,
    "JPEG of quality 50": _jpeg,
    "resized to 60 % and back": lambda x: x.resize((19, 19)).resize(x.size),
    "brightness of 130 %": lambda x: ImageEnhance.Brightness(x).enhance(1.3),
    "mirrored": lambda image: image.transpose(Image.FLIP_LEFT_RIGHT),
    "cropped to 90 %": _crop,
}


@needs_prepared
@pytest.mark.slow
@pytest.mark.parametrize("name", _ENCODERS)
def test_planted_copies_and_wrong_labels_are_found(name):
    source = datasets.source(
        "cifar10", f"test[:{_IMAGES}]", data_dir=str(PREPARED)
    )
    pixels = np.stack([x["image"].numpy() for x in source.examples()])
    labels = source.labels()
    random = np.random.RandomState(0)
    rows = random.choice(_IMAGES, _COPIES * len(_KINDS) + _WRONG, False)
    rows, wrong = rows[:-_WRONG], rows[-_WRONG:]
    copies = [
        np.asarray(make(Image.fromarray(pixels[row])).convert("RGB"))
        for make, some in zip(
            _KINDS.values(), np.split(rows, len(_KINDS)), strict=True
        )
        for row in some
    ]
    given = np.concatenate([labels, labels[rows]])
    given[wrong] = (labels[wrong] + random.randint(1, 10, _WRONG)) % 10
    planted = datasets.from_arrays(
        np.concatenate([pixels, copies]), given, name="planted", split="all"
    )
    encoder = exporting.load(f"pretrained:{name}")
    split = images.embed(encoder, planted, 256, "embedding")
    options = fields.replace(Exploration(), map="pca")
    found = report.explore(name, [split], options)

    pairs = [(row, _IMAGES + i) for i, row in enumerate(rows)]
    groups = [
        {*map(frozenset, _pairs(found[f"{kind}_duplicates"]))}
        for kind in ("exact", "near")
    ]
    table = [("planted", "number", "recall")]
    for k, kind in enumerate(_KINDS):
        some = map(frozenset, pairs[k * _COPIES : (k + 1) * _COPIES])
        recall = np.mean([pair in groups[k > 0] for pair in some])
        table.append((kind, str(_COPIES), f"{recall:.3f}"))
        assert recall == 1.0 if k == 0 else recall >= 0.9, kind
    # Others are near copies that CIFAR-10 itself has, most of one car.
    others = groups[1] - {*map(frozenset, pairs)}
    table.append(("near copies not planted", str(len(others)), "-"))
    assert len(others) <= 30
    suspects = [image["id"] for image in found["suspects"]]
    for first in (_WRONG // 2, _WRONG, 2 * _WRONG):
        hits = len({*suspects[:first]} & {*wrong.tolist()})
        title = f"wrong labels, of the first {first} suspects"
        right = f"precision {hits / first:.2f}, recall {hits / _WRONG:.2f}"
        table.append((title, str(_WRONG), right))
    print(f"\n{name}, {found['agreement']:.1%} of the labels agree")
    print(terminal.format_table(table, texts=(0, 2)))
    assert hits >= 0.4 * _WRONG


def _pairs(groups):
    for group in groups:
        rows = [image["id"] for image in group["images"]]
        yield from ((a, b) for a in rows for b in rows if a < b)
