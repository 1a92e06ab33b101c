"""Contact sheets and the list of the datasets."""

import dataclasses
import re

import numpy as np
import pytest
from dataset_helpers import columns
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.commands import datasets as command
from tf_contrastive.config import fields
from tf_contrastive.config.dataset import DATASETS, WithOptions


@pytest.mark.parametrize(
    ("name", "split", "words", "tiles"),
    [
        ("digits", "train[:5]", r"examples +5\n", (2, 3)),
        ("multidigits:count=3", "train[:4]", r"classes +10\n", (2, 2)),
        ("kbits:bits=3", "train[:4]", r"extra_channels +3 ", (2, 2)),
    ],
)
def test_contact_sheets(name, split, words, tiles, data_dir, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    options = {"show": name, "split": split, "data_dir": data_dir}
    options = fields.replace(command.Datasets(), **options, output=str(path))
    assert command.run(options) == 0
    assert re.search(words, capsys.readouterr().out)
    sheet = np.asarray(Image.open(path))
    assert sheet.shape == (96 * tiles[0], 96 * tiles[1], 3)
    if name == "digits":
        assert sheet[:, :96].std() > 30  # Digits are seen,
        assert sheet[96:, 192:].max() == 0  # and nothing where none is left.
    if not name.startswith("kbits"):
        return
    # A third of the last rows for each bit, and black above.
    bits = columns(datasets.source("kbits:bits=3", "train[:1]"))["extra"][0]
    stripes = sheet[88:96, :96, 0].reshape(8, 3, 32)
    assert [(s > 200).all() for s in stripes.swapaxes(0, 1)] == [*bits]
    assert sheet[:88].max() == 0


def test_the_command_lists_every_dataset_with_its_options(capsys):
    assert command.run(command.Datasets()) == 0
    listed = capsys.readouterr().out
    for declared in DATASETS.values():
        assert declared.form in listed
        if issubclass(declared, WithOptions):
            for field in dataclasses.fields(declared):
                assert f"{field.name}:" in listed
