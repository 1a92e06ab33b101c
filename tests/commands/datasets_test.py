"""Contact sheets and the list of the datasets."""

import dataclasses
import re

import numpy as np
import pytest
from dataset_helpers import columns
from PIL import Image, ImageDraw

from tf_contrastive import datasets
from tf_contrastive.base import errors
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


# ---- Plans of hosts ----


def _plan(capsys, **options):
    options = fields.replace(command.Datasets(), **options)
    options.validate()
    assert command.run(options) == 0
    heading, _, *rows = capsys.readouterr().out.splitlines()
    return heading, [re.split(" {2,}", row.strip()) for row in rows[1:]]


# (hosts, sharing) -> files, GB, slowest/mean, without a file, twice, all read,
# seconds until the first batch at 100 and at 1000 MB/s; worked out by hand for
# 256 files of 1,000 images and 100 MB, a batch of 1,024 and a buffer of 2,000.
_PLANS = {
    (4, "file"): [
        "64",
        "6.40",
        "1.00",
        "0",
        "0.0%",
        "1.00 x",
        "2.3 s",
        "0.2 s",
    ],
    # A host reads 1,000 images for the 250 of its rows.
    (512, "example"): [
        *("256", "25.60", "1.00", "256", "0.0%", "512.00 x", "3.0 s", "0.3 s")
    ],
    # It needs 500 images: one half of a file, after the other one or not.
    (512, "record"): [
        *("1", "0.05 to 0.10", "1.33", "256", "0.0%", "1.50 x"),
        *("1.0 s", "0.1 s"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "sharing"), _PLANS)
def test_plans_of_hosts(hosts, sharing, tmp_path, capsys):
    table = tmp_path / "sizes.txt"
    table.write_text("# one line\n1000,100000000,256\n")
    heading, rows = _plan(
        capsys,
        plan_hosts=str(hosts),
        plan_sizes=str(table),
        batch_size=1024,
        shuffle_buffer=2000,
        input_sharding=sharing,
    )
    assert "256,000 images in 256 files of 25.6 GB" in heading
    assert rows == [[str(hosts), sharing, *_PLANS[hosts, sharing]]]


def test_plans_of_a_dataset_say_what_to_do(tmp_path, capsys, caplog):
    images = np.zeros([40, 8, 8, 3], np.uint8)
    source = datasets.from_arrays(images, np.arange(40) % 2, name="x")
    for count in 4, 25:
        datasets.pack(source, str(tmp_path / str(count)), 8, file_images=count)
    name = f"packed:{tmp_path}/4"
    options = {"plan_hosts": "2,16", "dataset": name, "batch_size": 16}
    heading, (few, many) = _plan(capsys, split="all", **options)
    assert name in heading and "40 images in 10 files" in heading
    # Six of sixteen hosts have no file of their own.
    assert few[1] == "example" and many[1] == "record" and many[5] == "6"
    # One file has 25 images, the other 15: hosts would need twice as many.
    options |= {"dataset": f"packed:{tmp_path}/25", "plan_hosts": "2"}
    options |= {"split": "all", "input_sharding": "file"}
    assert command.run(fields.replace(command.Datasets(), **options)) == 0
    assert "input_sharding=record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plan_hosts": "4"}, "plan_sizes"),
        ({"plan_hosts": "4", "dataset": "digits", "plan_sizes": "x"}, "either"),
        ({"plan_sizes": "x"}, "plan_hosts"),
        ({"plan_hosts": "4", "dataset": "digits", "show": "digits"}, "one of"),
        ({"plan_hosts": "4", "dataset": "digits"}, "in memory"),
        ({"plan_hosts": "4", "plan_sizes": "absent.txt"}, "absent.txt"),
        ({"plan_hosts": "4", "plan_sizes": "1000"}, "line 1"),
        ({"plan_hosts": "4", "plan_sizes": "0,5"}, "line 1"),
        ({"plan_hosts": "4", "plan_sizes": "10,a"}, "line 1"),
        ({"plan_hosts": "4", "plan_sizes": "#"}, "empty"),
        ({"plan_hosts": "3", "plan_sizes": "9000,9"}, "batch_size"),
        ({"plan_hosts": "4", "plan_sizes": "9,9"}, "batch_size"),
    ],
)
def test_plans_that_cannot_be_made(options, words, tmp_path, capsys):
    options = dict(options)
    if "," in (text := options.get("plan_sizes", "")) or text in ("1000", "#"):
        path = tmp_path / "sizes.txt"
        path.write_text(text)
        options["plan_sizes"] = str(path)
    with pytest.raises(errors.UserError, match=words):
        _plan(capsys, **options)
