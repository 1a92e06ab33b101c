"""Random folders and lists of known (image, label, split) triples.

Exactly those come back, in each spelling that is read; of data with a fault,
either those, or an error or warning of one line.
"""

import io
import os
import random

import numpy as np
import pytest
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.base import errors

_STRAY = 201  # Of an image that is in no triple.
_CASES = 50  # Of each kind of data, without faults and with one.
_SPLITS = {
    "train": ["train", "Train", "TRAIN", "training", "train_set", "Train Data"],
    "test": ["test", "Test", "TEST", "testing", "test-set", "test_images"],
    "validation": [
        "validation",
        "val",
        "Val",
        "valid",
        "dev",
        "eval",
        "VALSET",
    ],
}
_CLASSES = [
    "cat",
    "Dog",
    "hot dog",
    "7",
    "caf\u00e9",
    "\u732b",
    "n01440764",
    "x#",
]
_JUNK = [".DS_Store", "Thumbs.db", "@eaDir/{}", "__MACOSX/._{}", "readme.txt"]


def _image(number):
    """An image file that holds its number: extension and content."""
    kind = number % 3
    buffer = io.BytesIO()
    image = Image.new("RGB", (2, 2), (number, 255 - number, 7))
    image.save(buffer, ("PNG", "BMP", "GIF")[kind])
    return (".png", ".BMP", ".Gif")[kind], buffer.getvalue()


def _write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _triples(draw):
    """Random triples: number of the image, label or None, split."""
    splits = ["train", *draw.sample(["test", "validation"], draw.randint(0, 2))]
    labels = draw.sample(_CLASSES, draw.randint(2, 3))
    if draw.random() < 0.2:
        labels = [None]
    pairs = [(label, split) for split in splits for label in labels]
    triples = [(n, *p) for n, p in enumerate(draw.choices(pairs, k=4) + pairs)]
    draw.shuffle(triples)
    return triples


def _spellings(draw, triples):
    """Split -> a spelling of its name."""
    present = sorted({split for _, _, split in triples})
    return {split: draw.choice(_SPLITS[split]) for split in present}


# ---- Writers: (root, triples, random, faulty) -> name of the dataset -------


def _folders(root, triples, draw, faulty):
    spelled = _spellings(draw, triples)
    if len(spelled) == 1 and draw.random() < 0.5:
        spelled = {"train": ""}
    for number, label, split in triples:
        deep = ["x", "2020/y", ""][draw.randrange(3)] if label else ""
        ending, content = _image(number)
        parts = (root, spelled[split], label or "", deep, f"{number}{ending}")
        _write(os.path.join(*parts), content)
    for folder, _, _ in list(os.walk(root)):
        for junk in draw.sample(_JUNK, draw.randint(0, 2)):
            ending, content = _image(200)
            _write(os.path.join(folder, junk.format(f"a{ending}")), content)
    if faulty:
        ending, content = _image(_STRAY)
        other_case = (triples[0][1] or "x").swapcase()
        stray, other = draw.choice(
            [
                ("", "stray"),
                ("train", "stray"),
                (spelled["train"], "stray"),
                (spelled["train"], f"{other_case}/stray"),
                (spelled["train"], "train/stray"),
                ("more", "stray"),
                ("Training", "cat/stray"),
                ("images/test", "stray"),
            ]
        )
        _write(os.path.join(root, stray, f"{other}{ending}"), content)
    return f"folder:{root}"


def _table(path, rows, draw, has_labels, faulty, splits=None):
    """Writes a list of (file, label, line of `splits`) in a random dialect."""
    columns = {"path": [row[0] for row in rows]}
    if has_labels:
        columns["label"] = [row[1] for row in rows]
    if splits:
        columns["split"] = splits
    if has_header := bool(splits) or draw.random() < 0.6:
        if draw.random() < 0.5:
            columns["id"] = [f"x{i}" for i in range(len(rows))]
        if has_labels and draw.random() < 0.3:
            columns["width"] = ["2"] * len(rows)
    order = list(columns)
    draw.shuffle(order)
    lines = [[columns[name][i] for name in order] for i in range(len(rows))]
    names = {
        "path": ["path", "Image", "file name"],
        "label": ["Label", "class"],
    }
    header = [draw.choice(names.get(name, [name])) for name in order]
    if faulty:
        fault = draw.randrange(6) if has_labels else draw.choice([1, 2, 4])
        line, column = draw.randrange(len(lines)), order.index("path")
        label = order.index("label") if has_labels else 0
        if fault == 0:
            lines[line][label] = ""
        elif fault == 1:
            lines[line][column] = f"C:\\images\\{lines[line][column]}"
        elif fault == 2:
            lines[line][column] = os.path.splitext(lines[line][column])[0]
        elif fault == 3:
            lines.append([*lines[line]])
            lines[-1][label] = "another"
        elif fault == 4:
            lines[line].append("more")
        else:
            del lines[line][draw.randrange(1, len(order)) :]
    delimiter, end = draw.choice(",;\t|"), draw.choice(["\n", "\r\n"])
    space = draw.choice(["", "", " "])
    quotes_all = draw.random() < 0.5

    # The only column is not separated from others.
    special = ",;" if len(order) == 1 else delimiter

    def cell(text):
        if {*special} & {*text} or quotes_all:
            return '"' + text.replace('"', '""') + '"'
        return text

    text = "".join(
        (delimiter + space).join(map(cell, line)) + end
        for line in [header] * has_header + lines
    )
    if draw.random() < 0.3:
        text = f'# a "comment{end}{end}{text}'
    encoding = draw.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"])
    _write(path, text.encode(encoding))


def _files(root, triples, draw):
    """Writes the images; (path in a list, label, split) of each."""
    rows = []
    for number, label, split in triples:
        ending, content = _image(number)
        folder = draw.choice(["", "images", "my images", "a,b", "#1"])
        path = os.path.join(root, folder, f"{number}{ending}")
        _write(path, content)
        is_relative = draw.random() < 0.8
        rows.append(
            (os.path.relpath(path, root) if is_relative else path, label, split)
        )
    return rows


def _lists(root, triples, draw, faulty):
    rows = _files(root, triples, draw)
    spelled = _spellings(draw, triples)
    if len(spelled) == 1 and draw.random() < 0.5:
        _table(f"{root}/a.txt", rows, draw, triples[0][1], faulty)
        return f"csv:{root}/a.txt"
    for split, name in spelled.items():
        _table(
            f"{root}/{name}.csv",
            [row for row in rows if row[2] == split],
            draw,
            triples[0][1],
            faulty and split == "train",
        )
    if draw.random() < 0.5:
        other = [("0.png", "other", ""), ("1.png", "another", "")]
        _table(f"{root}/classes.csv", other, draw, True, False)
    return f"csv:{root}/{{split}}.csv"


def _column(root, triples, draw, faulty):
    rows = _files(root, triples, draw)
    spelled = _spellings(draw, triples)
    splits = [spelled[split] for _, _, split in rows]
    _table(f"{root}/a.tsv", rows, draw, triples[0][1], faulty, splits)
    return f"csv:{root}/a.tsv"


# ---- The property ------------------------------------------------------------


def _opened(name, split):
    """The triples of a split; labels by their names."""
    source = datasets.source(name, split)
    if source.paths is not None:
        images = [
            np.asarray(Image.open(path).convert("RGB")) for path in source.paths
        ]
    else:
        images = [e["image"] for e in source.examples().as_numpy_iterator()]
    labels = [None] * len(images)
    if source.info.has_labels:
        names = source.info.label_names
        labels = [names[n] if names else str(n) for n in source.labels()]
    return [
        (int(image[0, 0, 0]), label, split)
        for image, label in zip(images, labels, strict=True)
    ]


def _same(found, expected):
    """Whether triples are the same, but for a further image of a class."""
    known = (None, "more", *_CLASSES)
    found = [t for t in found if t[0] != _STRAY or t[1] not in known]
    return sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    "faulty", [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "write",
    [
        _folders,
        pytest.param(_lists, marks=pytest.mark.slow),
        pytest.param(_column, marks=pytest.mark.slow),
    ],
)
def test_exactly_the_known_triples_come_back(write, faulty, tmp_path, caplog):
    told = 0
    for seed in range(_CASES):
        draw = random.Random(f"{write.__name__} {faulty} {seed}")
        triples = _triples(draw)
        name = write(str(tmp_path / str(seed)), triples, draw, faulty)
        for split in sorted({split for _, _, split in triples}):
            caplog.clear()
            lines = []
            found = None
            try:
                found = _opened(name, split)
            except errors.UserError as error:
                lines = [str(error)]
            lines += [r.getMessage() for r in caplog.records if r.levelno > 20]
            expected = [triple for triple in triples if triple[2] == split]
            if found is None or not _same(found, expected):
                assert faulty and lines, (
                    seed,
                    name,
                    split,
                    expected,
                    found,
                    lines,
                )
                told += 1
            assert all("\n" not in line for line in lines)
    assert told >= _CASES // 2 if faulty else not told
