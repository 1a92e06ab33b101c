"""Contact sheets and the list of the datasets."""

import dataclasses
import re

import numpy as np
import pytest
from dataset_helpers import columns
from PIL import Image, ImageDraw

from tf_contrastive import datasets
from tf_contrastive.commands import datasets as command
from tf_contrastive.config import fields
from tf_contrastive.config.dataset import DATASETS, WithOptions

_CELL = 120  # Pixels from one image to the next; the first is at (8, 24).


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("digits", "train[:5]", r"examples +5\n"),
        ("multidigits:count=3", "train[:4]", r"classes +10\n"),
        ("kbits:bits=3", "train[:4]", r"extra_channels +3 "),
    ],
)
def test_contact_sheets(name, split, words, data_dir, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    options = {"show": name, "split": split, "data_dir": data_dir}
    options = fields.replace(command.Datasets(), **options, output=str(path))
    assert command.run(options) == 0
    assert re.search(words, capsys.readouterr().out)
    sheet = np.asarray(Image.open(path))
    if name == "digits":
        # A heading and a row of one image for each of five classes.
        assert sheet.shape == (8 + 5 * (24 + _CELL + 16), 8 + 3 * _CELL, 3)
        assert sheet[24:136, 8:120].std() > 30  # Digits are seen,
        assert sheet[24:136, 130:].min() == 255  # and nothing beside them.
    if not name.startswith("kbits"):
        return
    # A third of the last rows for each bit, and black above.
    bits = columns(datasets.source("kbits:bits=3", "train[:1]"))["extra"][0]
    stripes = sheet[128:136, 8:120, 0]
    shown = [bool((s > 200).all()) for s in np.array_split(stripes, 3, axis=1)]
    assert shown == [bool(bit) for bit in bits]
    assert sheet[24:128, 8:120].max() == 0


def test_contact_sheets_show_each_class_and_every_name(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, *style: drawn.append(text),
    )
    long = "a_long_name_that_does_not_fit_below_its_image_1.png"
    names = {"b": ["1.png", "2.png"], "ä & <c>": [long], "only_text": []}
    for place, (folder, files) in enumerate(names.items()):
        (tmp_path / folder).mkdir()
        for file in files:
            color = (80 * place, 10, 20)
            size = (40, 10 + len(file))
            Image.new("RGB", size, color).save(tmp_path / folder / file)
    source = datasets.source(f"folder:{tmp_path}", "train")
    datasets.contact_sheet(source)
    *others, cut = drawn
    assert others == ["b: 2 images", "1.png", "2.png", "ä & <c>: 1 images"]
    first, last = cut.split("…")
    assert long.startswith(first) and long.endswith(last) and len(cut) > 10


def test_contact_sheets_of_many_classes_say_how_many_they_show(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, *style: drawn.append(text),
    )
    images = np.zeros([200, 8, 8, 3], np.uint8)
    datasets.contact_sheet(datasets.from_arrays(images, np.arange(200) // 2))
    headings = [text for text in drawn if "class" in text]
    assert headings[0] == "class 0: 2 images"
    assert headings[-2:] == [
        "class 99: 2 images",
        "68 more classes are not shown",
    ]
    assert len(headings) == 33 and len(drawn) == 33 + 64


def test_the_command_lists_every_dataset_with_its_options(capsys):
    assert command.run(command.Datasets()) == 0
    listed = capsys.readouterr().out
    for declared in DATASETS.values():
        assert declared.form in listed
        if issubclass(declared, WithOptions):
            for field in dataclasses.fields(declared):
                assert f"{field.name}:" in listed
