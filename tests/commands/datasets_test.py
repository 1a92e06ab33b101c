"""Contact sheets and the list of the datasets."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib import axes
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.commands import datasets as command
from tf_contrastive.config import fields
from tf_contrastive.config.dataset import DATASETS, WithOptions


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("digits", "train[:5]", r"examples +5\n"),
        ("multidigits:count=3", "train[:4]", r"classes +10\n"),
        ("kbits:bits=3", "train[:4]", r"extra_channels +3\n"),
    ],
)
def test_contact_sheets(name, split, words, data_dir, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    options = {"show": name, "split": split, "data_dir": data_dir}
    options = fields.replace(command.Datasets(), **options, output=str(path))
    assert command.run(options) == 0
    assert re.search(words, capsys.readouterr().out)
    sheet = np.asarray(Image.open(path).convert("RGB"))
    below = sheet[len(sheet) // 3 :]  # Of the heading and the captions.
    if name == "digits":
        assert below.std() > 30  # Digits are seen,
        assert below[:, -100:].min() == 255  # and nothing beside them.


def test_contact_sheets_show_each_class_and_every_name(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        axes.Axes, "set_title", lambda self, text, **style: shown.append(text)
    )
    names = {"b": ["1.png", "2.png"], "$ä$ & <c>": ["_.png"], "only_text": []}
    for place, (folder, files) in enumerate(names.items()):
        (tmp_path / folder).mkdir()
        for file in files:
            image = Image.new("RGB", (40, 10 + len(file)), (80 * place, 10, 20))
            image.save(tmp_path / folder / file)
    datasets.contact_sheet(datasets.source(f"folder:{tmp_path}", "train"))
    assert shown == ["$ä$ & <c>\n_.png", "b\n1.png", "b\n2.png"]
    shown.clear()
    images = np.zeros([200, 8, 8, 3], np.uint8)
    datasets.contact_sheet(datasets.from_arrays(images, np.arange(200) // 2))
    assert len(shown) == 64 and len({x.split("\n")[0] for x in shown}) == 64


def test_the_command_lists_every_dataset_with_its_options(capsys):
    assert command.run(command.Datasets()) == 0
    listed = capsys.readouterr().out
    for declared in DATASETS.values():
        assert declared.form in listed
        if issubclass(declared, WithOptions):
            for field in dataclasses.fields(declared):
                assert f"{field.name}:" in listed
