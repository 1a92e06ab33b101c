"""Tables of images: columns by their names, and what is refused."""

import codecs

import numpy as np
import pytest
from dataset_helpers import csv, encoded, labels, picture, read, refused, write
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading


@pytest.fixture
def five(tmp_path):
    for i in range(5):
        write(tmp_path / "images" / f"{i}.png", encoded(picture(i)))
    return tmp_path


def understood(name, split="train", **reading):
    """Returns number of an image -> its class; None for all: no labels."""
    source = datasets.source(name, split, reading=Reading(**reading))
    known = {np.asarray(picture(i)).tobytes(): i for i in range(5)}
    names = source.info.label_names
    classes = {}
    for example in read(source):
        label = example.get("label")
        image = known[example["image"].tobytes()]
        classes[image] = names[label] if names and label is not None else label
    return classes


def test_names_and_both_kinds_of_path(five):
    name = csv(
        five / "list.csv",
        "path,label\nimages/3.png,pear\nimages/1.png,apple\n"
        f'"{five}/images/0.png",pear\n\n',
    )
    source = datasets.source(name)
    assert source.info.label_names == ("apple", "pear")
    assert labels(source) == [1, 0, 1]
    for example, i in zip(read(source), (3, 1, 0), strict=True):
        np.testing.assert_array_equal(example["image"], np.asarray(picture(i)))


def test_numbers_and_paths_alone(five):
    lines = [f"images/{i}.png" for i in range(5)]
    rows = "".join(f"{p},{2 * i}\n" for i, p in enumerate(lines))
    source = datasets.source(
        csv(five / "n.csv", f"path,label\n{rows}"), "train[1:3]"
    )
    assert labels(source) == [2, 4]
    assert source.info.num_classes == 9
    bare = datasets.source(csv(five / "b.csv", "\n".join(["path", *lines])))
    assert bare.info.num_examples == 5 and not bare.info.has_labels


@pytest.mark.parametrize(
    "label", ["100000", str(2**31), str(2**63), "9" * 5000]
)
def test_a_label_beyond_the_classes_is_refused(label, five):
    name = csv(
        five / "large.csv", f"path,label\nimages/0.png,0\nimages/1.png,{label}"
    )
    assert len(refused("from 0", label[:5], name=name)) < 300
    if int(label[:20]) < 2**63:
        path = five / "large.tfrecord"
        image = encoded(picture(0))
        write_records(path, [{"image": image, "label": x} for x in (0, label)])
        refused("max_classes", label, name=f"tfrecord:{path}")


_AB = {0: "a", 1: "b"}
_ONE_TWO = {0: 1, 1: 2}
# What it is about -> (text, options, images -> classes, a word of the warning
# or error). {p} is "images/", and {} are refused.
_TABLES = {
    "semicolons": ("path;label\n{p}0.png;a\n{p}1.png;b\n", {}, _AB, ""),
    "tabs": ("path\tlabel\n{p}0.png\ta\n{p}1.png\tb\n", {}, _AB, ""),
    "blank lines": (
        "File_Name,Class\n\n{p}0.png,a\n , \n {p}1.png, b\n",
        {},
        _AB,
        "",
    ),
    "a comma in quotes": (
        'path,label\n{p}0.png,"a, b"\n{p}1.png,c\n',
        {},
        {0: "a, b", 1: "c"},
        "",
    ),
    "other columns": (
        "id,filename,width,target\n7,{p}0.png,9,a\n8,{p}1.png,9,b\n",
        {},
        _AB,
        "",
    ),
    "columns of other names": (
        "x,photo,kind\n1,{p}0.png,a\n2,{p}1.png,b\n",
        {"csv_path_column": "Photo", "csv_label_column": "kind"},
        _AB,
        "",
    ),
    "a column of paths of another name": (
        "photo,label\n{p}0.png,a\n",
        {},
        {},
        "csv_path_column",
    ),
    "no header": ("{p}0.png,a\n{p}1.png,b\n", {}, {}, "header"),
    "a column of labels of another name": (
        "path,breed\n{p}0.png,a\n{p}1.png,b\n",
        {},
        {},
        "csv_label_column=breed",
    ),
    "an absent column": (
        "path,label\n{p}0.png,a\n",
        {"csv_label_column": "kind"},
        {},
        "csv_label_column=kind",
    ),
    "empty columns": ("path,label,,\n{p}0.png,a,,\n", {}, {0: "a"}, ""),
    "a quote that is not closed": (
        'path,label\n"{p}0.png,a\n{p}1.png,b\n',
        {},
        {},
        "not a table",
    ),
    "a quote after a space": (
        'path,label\n{p}0.png, "a, b"\n',
        {},
        {},
        "",
    ),
    "a line without a path": (
        "path,label\n,a\n{p}1.png,b\n",
        {},
        {},
        "line 1 below the header has no path",
    ),
    "a label is missing": (
        "path,label\n{p}0.png,1.0\n{p}1.png,NaN\n",
        {},
        {},
        "1 of 2 images of train have no label",
    ),
    "an empty column of labels": (
        "path,label\n{p}0.png,\n{p}1.png,\n",
        {},
        {0: None, 1: None},
        "",
    ),
    "no lines": ("path,label\n", {}, {}, "is empty"),
    "zero bytes": ("path,label\n{p}0.png,\0\n", {}, {}, "zero bytes"),
    "integers from 1": (
        "path,label\n{p}0.png,1.0\n{p}1.png,2\n",
        {},
        _ONE_TWO,
        "1 of 3 classes have no image",
    ),
    "letter case": (
        "path,label\n{p}0.png,A\n{p}1.png,a\n",
        {},
        {0: "A", 1: "a"},
        "classes 'A' and 'a' differ in",
    ),
    "several classes of an image": (
        "path,label\n{p}0.png,a\n{p}1.png,b\n{p}2.png,a|b\n",
        {},
        {},
        "label a|b has several classes",
    ),
    "several classes, spaces": (
        "path,label\n{p}0.png,a b\n{p}1.png,b c\n{p}2.png,a\n",
        {},
        {0: "a b", 1: "b c", 2: "a"},
        "labels such as 'a b' are read as one class",
    ),
    "names of several words": (
        "path,label\n{p}0.png,polar bear\n{p}1.png,black bear\n{p}2.png,bear\n",
        {},
        {0: "polar bear", 1: "black bear", 2: "bear"},
        "",
    ),
    "several classes, bars": (
        "path,label\n{p}0.png,a|b\n{p}1.png,a|c\n{p}2.png,d\n",
        {},
        {},
        "a|b has several classes",
    ),
    "two labels of a file": (
        "path,label\n{p}0.png,a\n{p}1.png,b\n{p}../{p}0.png,b\n",
        {},
        {},
        "another label",
    ),
    "two labels of a file by a link": (
        "path,label\n{p}0.png,a\n{p}1.png,b\nfile://{root}/link/0.png,b\n",
        {},
        {},
        "another label",
    ),
    "a file twice": (
        "path,label\n{p}0.png,a\n{p}1.png,b\n{p}0.png,a\n",
        {},
        _AB,
        "1 of 3 lines repeat a file",
    ),
    "splits of another name": (
        "path,label,kind\n{p}0.png,a,train\n{p}1.png,b,test\n",
        {},
        {},
        "column kind has splits",
    ),
    "no split": (
        "path,label,split\n{p}0.png,a,train\n{p}1.png,b,\n",
        {},
        {},
        "not a split",
    ),
}


@pytest.mark.parametrize("about", _TABLES)
def test_tables_are_read_in_one_way_or_refused(about, five, caplog):
    text, reading, expected, word = _TABLES[about]
    (five / "link").symlink_to(five / "images")
    for mark, value in {"{p}": "images/", "{root}": str(five)}.items():
        text = text.replace(mark, value)
    name = csv(five / "list.csv", text)
    if not expected:
        refused(word, name=name, reading=Reading(**reading))
        return
    assert understood(name, **reading) == expected
    warnings = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING"
    ]
    assert any(word in line for line in warnings) == bool(word), warnings
    assert word or not warnings, warnings


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (b"", "utf-16-le"),
        (b"", "cp1252"),
    ],
)
def test_tables_have_a_mark_of_their_encoding_or_are_utf_8(
    mark, encoding, five
):
    text = "path,label\r\nimages/0.png,\u00e9\r\nimages/1.png,b\r\n"
    write(five / "list.csv", mark + text.encode(encoding))
    name = f"csv:{five}/list.csv"
    if mark:
        assert understood(name) == {0: "\u00e9", 1: "b"}
    else:
        refused("UTF-8", name=name)


_TRAIN = "path,label\nimages/0.png,a\nimages/1.png,b\n"


@pytest.mark.parametrize(
    "test",
    [
        "path\nimages/2.png\nimages/3.png\n",
        "path,width\nimages/2.png,7\nimages/3.png,8\n",
        "path,label\nimages/2.png,\nimages/3.png,\n",
    ],
)
def test_a_test_table_without_labels_adds_no_classes(test, five, caplog):
    csv(five / "train.csv", _TRAIN)
    csv(five / "test.csv", test)
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == _AB
    assert understood(name, "test") == {2: None, 3: None}
    assert "test has no labels, and train has" in caplog.text


def test_a_table_for_each_split(five, caplog):
    csv(five / "Training.csv", _TRAIN)
    csv(five / "VAL.csv", "path,label\nimages/2.png,b\nimages/3.png,c\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == _AB
    assert datasets.source(name).info.label_names == ("a", "b", "c")
    assert understood(name, "validation") == {2: "b", 3: "c"}
    assert "1 of the 2 classes of validation are not in train" in caplog.text
    refused("only train, validation", name=name, split="test")
    refused("test_fraction", name=name, reading=Reading(test_fraction=0.2))
    csv(five / "valid.csv", "path,label\nimages/2.png,b\n")
    refused("both mean", name=name, split="validation")
    (five / "test").mkdir()
    csv(five / "test" / "test.csv", "path,label\n../images/3.png,b\n")
    name = f"csv:{five}/{{split}}/{{split}}.csv"
    assert understood(name, "test") == {3: "b"}
    csv(five / "test" / "test.csv", "path,label\n../images/3.png,B\n")
    (five / "train").mkdir()
    csv(five / "train" / "train.csv", "path,label\n../images/3.png,b\n")
    refused("'B' and 'b'", name=name, split="test")


def test_a_column_has_the_splits(five, caplog):
    text = (
        "path,label,Split\nimages/0.png,a,train\nimages/1.png,b,Train\n"
        "images/2.png,a,test\nimages/3.png,,val\n"
    )
    name = csv(five / "list.csv", text)
    assert understood(name) == _AB
    assert understood(name, "validation") == {3: None}
    assert understood(name, "test") == {2: "a"}
    assert "validation has no labels, and" in caplog.text
    refused("no split 'holdout'", "test, train", name=name, split="holdout")
    refused("test_fraction", name=name, reading=Reading(test_fraction=0.2))


def test_absent_files_are_named_and_few_left_out(five, caplog):
    lines = [f"images/{i}.png,{i % 2}\n" for i in range(4)]
    text = "path,label\n" + "".join([*lines, "none.png,1\n"])
    name = csv(five / "list.csv", text)
    write(five / "images" / "3.png", b"no image")
    source = datasets.source(name)
    assert labels(source) == [0, 1, 0]
    assert {*source.info.bad_images} == {
        str(five / "none.png"),
        str(five / "images/3.png"),
    }
    assert "1 that do not exist" in caplog.text
    for limit, count in (0, 1), (10, 3):
        text += "other.png,1\nanother.png,0\n" * (count > 1)
        more = csv(five / "more.csv", text.replace("3.png", "30.png"))
        reading = Reading(max_bad_images=limit)
        refused("do not exist", str(five), name=more, reading=reading)


def test_a_path_of_another_kind_is_refused(five):
    refused("is a folder", name=f"csv:{five}")
    refused("does not exist", name=f"csv:{five}/none.csv")
    refused("only train", name=csv(five / "x.csv", _TRAIN), split="test")
