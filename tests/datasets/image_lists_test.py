"""Lists of images in text files."""

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


def test_csv_of_names_with_header_and_both_kinds_of_path(five):
    name = csv(
        five / "list.csv",
        "path,label\nimages/3.png,pear\nimages/1.png,apple\n"
        f'"{five}/images/0.png", pear\n\n',
    )
    source = datasets.source(name)
    assert source.info.label_names == ("apple", "pear")
    assert labels(source) == [1, 0, 1]
    for example, i in zip(read(source), (3, 1, 0), strict=True):
        np.testing.assert_array_equal(example["image"], np.asarray(picture(i)))


def test_csv_of_numbers_and_of_paths_alone(five):
    lines = [f"images/{i}.png" for i in range(5)]
    numbered = csv(
        five / "n.csv", "".join(f"{p},{2 * i}\n" for i, p in enumerate(lines))
    )
    source = datasets.source(numbered, "train[1:3]")
    assert labels(source) == [2, 4]
    assert source.info.num_classes == 9
    bare = datasets.source(csv(five / "bare.csv", "\n".join(lines)))
    assert bare.info.num_examples == 5 and not bare.info.has_labels


def test_csv_per_split_shares_its_classes(five, monkeypatch):
    csv(five / "train.csv", "images/0.png,a\nimages/1.png,b\nimages/2.png,c\n")
    csv(five / "test.csv", "images/3.png,c\nimages/4.png,a\n")
    monkeypatch.chdir(five)
    for folder in (f"{five}/", "", "./"):
        source = datasets.source(f"csv:{folder}{{split}}.csv", "test")
        assert labels(source) == [2, 0] and source.info.num_classes == 3


def test_wrong_csv_files_are_refused(five):
    refused("no file", name=f"csv:{five}/none.csv")
    refused("empty", name=csv(five / "empty.csv", "path,label\n"))
    mixed = csv(five / "mixed.csv", "images/0.png,1\nimages/1.png\n")
    refused("1 of 2 lines have no label", "(images/1.png)", name=mixed)
    missing = csv(five / "missing.csv", "images/0.png\nimages/9.png\n")
    assert datasets.source(missing).info.bad_images == (
        str(five / "images/9.png"),
    )
    refused("{split}", name=missing, split="test")


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("path,label\nimages/0.png,a\nimages/1.png,b\n", {}),
        ("\ufeffimage_path,label\r\nimages/0.png,a\r\nimages/1.png,b\r\n", {}),
        ("id;class;image\n7;a;images/0.png\n8;b;images/1.png\n", {}),
        ("photograph\tkind\nimages/0.png\ta\nimages/1.png\tb\n", {}),
        ("a,images/0.png\nb,images/1.png\n", {}),
        (
            "x,y,z\n1,images/0.png,a\n2,images/1.png,b\n",
            {"csv_label_column": "Z"},
        ),
        (
            "images/0.png,images/1.png,a\nimages/1.png,images/0.png,b\n",
            {"csv_path_column": "1", "csv_label_column": "3"},
        ),
    ],
)
def test_columns_of_a_csv_file_are_found(text, reading, five):
    name = csv(five / "list.csv", text)
    source = datasets.source(name, reading=Reading(**reading))
    assert source.info.label_names == ("a", "b")
    for number, example in enumerate(read(source)):
        assert example["label"] == number
        np.testing.assert_array_equal(example["image"], picture(number))


def test_columns_that_cannot_be_found_are_told(five):
    name = csv(five / "list.csv", "sort,file,kind\n1,images/0.png,a\n")
    refused("sort, kind", "csv_label_column", name=name)
    reading = Reading(csv_label_column="none")
    refused("none", "sort, file, kind", name=name, reading=reading)
    name = csv(five / "minus.csv", "images/0.png,1\nimages/1.png,-1\n")
    refused("smallest label is -1", name=name)


@pytest.mark.parametrize(
    "label", ["100000", str(2**31), str(2**63), "9" * 5000]
)
def test_a_label_beyond_the_classes_is_refused(label, five):
    name = csv(five / "large.csv", f"images/0.png,0\nimages/1.png,{label}\n")
    assert len(refused("from 0", label[:5], name=name)) < 300
    if int(label[:20]) < 2**63:
        path = five / "large.tfrecord"
        image = encoded(picture(0))
        write_records(path, [{"image": image, "label": x} for x in (0, label)])
        refused("max_classes", label, name=f"tfrecord:{path}")


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


_AB = {0: "a", 1: "b"}
_ONE_TWO = {0: 1, 1: 2}
# What it is about -> (text, options, images -> classes, words of the warning or
# error). {p} is "images/", and {} are refused.
_LISTS = {
    "a delimiter in quotes": (
        '"SEP=;"\r\npath;label\r\n{p}0.png;a\r\n{p}1.png;b\r\n',
        {},
        _AB,
        [],
    ),
    "facts, and no labels": (
        "path,width,md5\n{p}0.png,7,x\n{p}1.png,7,y\n",
        {},
        {0: None, 1: None},
        ["no labels are read: if they are in width, md5"],
    ),
    "facts that are labels": (
        "path,size\n{p}0.png,a\n{p}1.png,b\n",
        {"csv_label_column": "size"},
        _AB,
        [],
    ),
    "facts beside labels": (
        "path,width,kind\n{p}0.png,7,a\n{p}1.png,7,b\n",
        {},
        _AB,
        [],
    ),
    "several classes, spaces": (
        "path,tags\n{p}0.png,a b\n{p}1.png,b c\n{p}2.png,a\n{p}3.png,a c\n",
        {},
        {0: "a b", 1: "b c", 2: "a", 3: "a c"},
        ["'a b', 'a c', ... are read as one class each"],
    ),
    "several classes, bars": (
        "path,tags\n{p}0.png,a|b\n{p}1.png,a|c\n{p}2.png,d\n",
        {},
        {0: "a|b", 1: "a|c", 2: "d"},
        ["'a|b', 'a|c' are read as one class each"],
    ),
    "several numbers": (
        "path,tags\n{p}0.png,1 2\n{p}1.png,3\n",
        {},
        {},
        ["1 2 has several classes"],
    ),
    "names of two words": (
        "path,label\n{p}0.png,hot dog\n{p}1.png,big dog\n{p}2.png,dog\n",
        {},
        {0: "hot dog", 1: "big dog", 2: "dog"},
        [],
    ),
    "quotes after a space": ('{p}0.png, "a"\n{p}1.png, "b"\n', {}, _AB, []),
    "a comma in quotes": (
        'path,label\n{p}0.png,"a, b"\n{p}1.png,c\n',
        {},
        {0: "a, b", 1: "c"},
        [],
    ),
    "comments": (
        '# of 2020, "my\npath,label\n{p}0.png,a\n #{p}2.png,c\n{p}1.png,b\n',
        {},
        _AB,
        ["1 line(s) that start with # are comments, such as #images/2.png,c"],
    ),
    "a class that starts with #": (
        "#a,{p}0.png\nb,{p}1.png\n",
        {},
        {1: "b"},
        ["are comments, such as #a,images/0.png"],
    ),
    "blank lines": (
        "\n\npath,label\n\n{p}0.png,a\n , \n{p}1.png,b",
        {},
        _AB,
        [],
    ),
    "Mac line ends": ("path,label\r{p}0.png,a\r{p}1.png,b\r", {}, _AB, []),
    "bars": ("{p}0.png|a\n{p}1.png|b\n", {}, _AB, []),
    "semicolons with commas": (
        "{p}0.png;a,b\n{p}1.png;c\n",
        {},
        {0: "a,b", 1: "c"},
        [],
    ),
    "Excel's delimiter": (
        "sep=;\r\npath;label\r\n{p}0.png;a\r\n{p}1.png;b",
        {},
        _AB,
        [],
    ),
    "spaces": ("{p}0.png 1\n{p}1.png 2\n", {"first_label": 0}, _ONE_TWO, []),
    "a header and spaces": (
        "image label\n{p}0.png a\n{p}1.png  b\n",
        {},
        _AB,
        [],
    ),
    "spaces in names and labels": (
        "{p}0.png hot dog\n{p}1.png  b\n",
        {},
        {0: "hot dog", 1: "b"},
        [],
    ),
    "names without extension below a header": (
        "ID,breed\n{p}0,a\n{p}1,b\n",
        {},
        {},
        ["2 of 2 files lack their extension"],
    ),
    "names of rows": (
        "path,label\n1,{p}0.png,a\n2,{p}1.png,b\n",
        {},
        {},
        ["more than 2 columns", "name every column"],
    ),
    "splits in some lines": (
        "path,label,split\n{p}0.png,a,train\n{p}1.png,b,\n",
        {},
        {},
        ["1 of 2 lines have no name of a split in column split", "line 3"],
    ),
    "a column of splits without a header": (
        "{p}0.png,a,train\n{p}1.png,b,test\n",
        {},
        {0: "a"},
        ["column 3", "read as the names of splits"],
    ),
    "empty cells at the end": (
        "path,label,,\n{p}0.png,a,,\n{p}1.png,b,,",
        {},
        _AB,
        [],
    ),
    "joined lists": (
        "path,label\n{p}0.png,a\npath,label\n{p}1.png,b\n",
        {},
        _AB,
        [],
    ),
    "a class called image": (
        "{p}0.png,image\n{p}1.png,b\n",
        {},
        {0: "image", 1: "b"},
        [],
    ),
    "an index of data frames": (
        ",path,label\n0,{p}0.png,a\n1,{p}1.png,b\n",
        {},
        _AB,
        [],
    ),
    "an index without a header": (
        "0,{p}0.png\n1,{p}1.png\n",
        {},
        {0: None, 1: None},
        [],
    ),
    "identities are no labels": (
        "ID,file name\nx1,{p}0.png\nx2,{p}1.png\n",
        {},
        {0: None, 1: None},
        [],
    ),
    "names and numbers of one class": (
        "label,label_name,path\n1,a,{p}0.png\n2,b,{p}1.png\n",
        {"first_label": 1},
        {0: 0, 1: 1},
        [],
    ),
    "two columns of labels": (
        "path,class,category\n{p}0.png,a,x\n{p}1.png,a,y\n",
        {},
        {},
        ["class, category", "csv_label_column"],
    ),
    "two columns of images": (
        "image,path,label\n{p}0.png,{p}1.png,a\n",
        {},
        {},
        ["image, path", "csv_path_column"],
    ),
    "names of files beside paths": (
        "filename,path,label\n0.png,{p}0.png,a\n1.png,{p}1.png,b\n",
        {},
        _AB,
        [],
    ),
    "three columns without a header": (
        "{p}0.png,a,7\n{p}1.png,b,7\n",
        {},
        {},
        ["columns 2, 3", "csv_label_column=3"],
    ),
    "a column of each class": (
        "path,cat,dog\n{p}0.png,1,0\n{p}1.png,0,1\n",
        {},
        {},
        ["2 columns cat, dog are 0 or 1"],
    ),
    "a first line without a label": (
        "{p}0.png\n{p}1.png,a\n{p}2.png,b\n",
        {},
        {},
        ["1 of 3 lines have no label", "line 1 ({p}0.png)"],
    ),
    "a first line without an extension": (
        "{p}0,c\n{p}1.png,a\n{p}2.png,b\n{p}3.png,b\n",
        {},
        {1: "a", 2: "b", 3: "b"},
        ["1 of 4 files lack their extension", "{p}0 ({p}0.png exists)"],
    ),
    "a value of data frames": (
        "path,label\n{p}0.png,1.0\n{p}1.png,nan\n",
        {},
        {},
        ["1 of 2 lines have no label", "line 3"],
    ),
    "an empty column": (
        "path,label\n{p}0.png,\n{p}1.png,\n",
        {},
        {0: None, 1: None},
        ["no labels", "column label is empty"],
    ),
    "more cells than names": (
        "path,label\n{p}0.png,a\n{p}1,x.png,b\n",
        {},
        {},
        ["1 of 2 lines have more than 2 columns", "line 3"],
    ),
    "a quote that is not closed": (
        'path,label\n"{p}0.png,a\n{p}1.png,b\n',
        {},
        {},
        ["a quote in line 2 is not closed"],
    ),
    "a quote that closes too late": (
        '{p}0.png,"a\n{p}1.png,b"\n{p}2.png,c\n',
        {},
        {},
        ["line break"],
    ),
    "a line without a path": (
        "path,label\n,a\n{p}1.png,b\n",
        {},
        {},
        ["no path", "line 2"],
    ),
    "whole floats": (
        "{p}0.png,1.0\n{p}1.png,2\n",
        {"first_label": 0},
        _ONE_TWO,
        [],
    ),
    "floats": ("{p}0.png,0.5\n{p}1.png,2\n", {}, {}, ["label 0.5"]),
    "integers from 1": (
        "{p}0.png,1\n{p}1.png,2\n",
        {},
        {},
        ["start at 1", "first_label=1"],
    ),
    "integers from 1, as is": (
        "{p}0.png,1\n{p}1.png,2\n",
        {"first_label": 0},
        _ONE_TWO,
        [],
    ),
    "less first_label": (
        "{p}0.png,1\n{p}1.png,2\n",
        {"first_label": 1},
        {0: 0, 1: 1},
        [],
    ),
    "below first_label": (
        "{p}0.png,0\n{p}1.png,1\n",
        {"first_label": 1},
        {},
        ["smallest label is 0", "at least 1"],
    ),
    "gaps": (
        "{p}0.png,0\n{p}1.png,9\n",
        {},
        {0: 0, 1: 9},
        ["8 of 10 classes have no image"],
    ),
    "numbers and names": (
        "{p}0.png,1\n{p}1.png,b\n",
        {},
        {0: "1", 1: "b"},
        ["such as 1 are names", "such as b"],
    ),
    "letter case": (
        "{p}0.png,A\n{p}1.png,a\n",
        {},
        {0: "A", 1: "a"},
        ["'A' and 'a' are different classes"],
    ),
    "several classes of an image": (
        "{p}0.png,a\n{p}1.png,b\n{p}2.png,a|b\n",
        {},
        {},
        ["label a|b has several classes"],
    ),
    "lists of classes": (
        'path,label\n{p}0.png,"[0, 1]"\n{p}1.png,"[1]"\n',
        {},
        {},
        ["has several classes"],
    ),
    "two labels of a file": (
        "{p}0.png,a\n{p}1.png,b\n{p}../{p}0.png,b\n",
        {},
        {},
        ["a in line 1, b in line 3"],
    ),
    "a file twice": (
        "{p}0.png,a\n{p}1.png,b\n{p}0.png,a\n",
        {},
        _AB,
        ["1 of 3 lines repeat a file", "line 3"],
    ),
    "a label of each line": (
        "path,key\n" + "".join(f"{{p}}{i % 5}.png,{i}x\n" for i in range(11)),
        {},
        {},
        ["column key", "csv_label_column=key"],
    ),
    "a column that may be of splits": (
        "path,label,is_train\n{p}0.png,a,1\n{p}1.png,b,0\n",
        {},
        _AB,
        ["column is_train", "is not read"],
    ),
}


@pytest.mark.parametrize("about", _LISTS)
def test_lists_are_read_in_one_way_or_refused(about, five, caplog):
    text, reading, expected, words = _LISTS[about]
    p = "images/"
    name = csv(five / "list.csv", text.replace("{p}", p))
    words = [word.replace("{p}", p) for word in words]
    if not expected:
        refused(*words, name=name, reading=Reading(**reading))
        return
    assert understood(name, **reading) == expected
    warnings = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING"
    ]
    for word in words:
        assert any(word in line for line in warnings), warnings
    assert words or not warnings, warnings


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (b"", "utf-16-le"),
        (b"", "cp1252"),
    ],
)
def test_lists_have_a_mark_of_their_encoding_or_are_utf_8(mark, encoding, five):
    text = "path,label\r\nimages/0.png,\u00e9\r\nimages/1.png,b\r\n"
    write(five / "list.csv", mark + text.encode(encoding))
    name = f"csv:{five}/list.csv"
    if mark:
        assert understood(name) == {0: "\u00e9", 1: "b"}
    else:
        refused("UTF-8", name=name)


def test_names_of_files_may_have_any_character(five):
    names = ("#0.png", "a b,c;d.png", 'a"b.png', "\u00e9|1.PNG")
    for i, name in enumerate(names):
        write(five / name, encoded(picture(i)))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    text = "".join(f"{name},{i % 2}\n" for i, name in enumerate(quoted))
    assert understood(csv(five / "list.csv", text)) == {0: 0, 1: 1, 2: 0, 3: 1}
    write(five / "bare", encoded(picture(2)))
    name = csv(five / "bare.csv", "photograph,kind\nbare,a\n")
    assert understood(name) == {2: "a"}
    unquoted = "#0.png,0\n#1.png,0\nimages/1.png,1\n"
    assert understood(csv(five / "hash.csv", unquoted)) == {0: 0, 1: 1}


_TRAIN = "path,label\nimages/0.png,a\nimages/1.png,b\n"


@pytest.mark.parametrize(
    "test",
    [
        "path\nimages/2.png\nimages/3.png\n",
        "images/2.png\nimages/3.png\n",
        "id,path\nx,images/2.png\ny,images/3.png\n",
        "path,width\nimages/2.png,7\nimages/3.png,8\n",
        "path,label\nimages/2.png,\nimages/3.png,\n",
    ],
)
def test_a_test_list_without_labels_adds_no_classes(test, five, caplog):
    csv(five / "train.csv", _TRAIN)
    csv(five / "test.csv", test)
    for name in ("train_backup", "classes", "sample_submission"):
        csv(five / f"{name}.csv", "images/0.png,x\nimages/1.png,y\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == {0: "a", 1: "b"}
    assert datasets.source(name).info.label_names == ("a", "b")
    assert understood(name, "test") == {2: None, 3: None}
    assert "test has no labels, and train has" in caplog.text


def test_a_test_list_of_one_class_may_have_no_labels(five, caplog):
    csv(five / "train.csv", _TRAIN)
    csv(five / "test.csv", "path,label\nimages/2.png,a\nimages/3.png,a\n")
    assert understood(f"csv:{five}/{{split}}.csv") == {0: "a", 1: "b"}
    assert not caplog.text
    understood(f"csv:{five}/{{split}}.csv", "test")
    assert "all images of test are of one class, a" in caplog.text


def test_lists_of_splits_have_many_spellings(five):
    csv(five / "Training.csv", _TRAIN)
    csv(five / "VAL.csv", "path,label\nimages/2.png,b\n")
    csv(five / "fold1.csv", "path,label\nimages/3.png,b\n")
    csv(five / "fold2.csv", "path,label\nimages/4.png,a\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == {0: "a", 1: "b"}
    assert understood(name, "validation") == understood(name, "val") == {2: "b"}
    assert understood(name, "fold1") == {3: "b"}
    refused("Training.csv", "VAL.csv", name=name, split="test")
    csv(five / "valid.csv", "path,label\nimages/2.png,b\n")
    refused("VAL and valid all mean", name=name, split="validation")
    (five / "test").mkdir()
    csv(five / "test" / "test.csv", "path,label\n../images/3.png,b\n")
    assert understood(f"csv:{five}/{{split}}/{{split}}.csv", "test") == {3: "b"}


def test_a_column_has_the_splits(five, caplog):
    text = (
        "path,label,Split\nimages/0.png,a,train\nimages/1.png,b,Train\n"
        "images/2.png,a,test\nimages/3.png,,val\n"
    )
    name = csv(five / "list.csv", text)
    assert understood(name) == {0: "a", 1: "b"}
    assert understood(name, "test") == {2: "a"}
    assert understood(name, "validation") == {3: None}
    refused("no split 'holdout'", "test, train", name=name, split="holdout")
    refused("test_fraction", name=name, reading=Reading(test_fraction=0.2))
    name = csv(five / "list.csv", text + "images/4.png,,dev\n")
    assert understood(name, "dev") == {3: None, 4: None}
    assert "dev, test, train, val" in caplog.text
    csv(five / "train.csv", text.replace(",,", ",b,"))
    together = {0: "a", 1: "b", 2: "a", 3: "b"}
    assert understood(f"csv:{five}/{{split}}.csv") == together
    assert "column Split of" in caplog.text and "is not read" in caplog.text


def test_classes_that_a_train_list_lacks_are_told(five, caplog):
    csv(five / "train.csv", _TRAIN)
    csv(five / "test.csv", "path,label\nimages/2.png,c\nimages/3.png,a\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name, "test") == {2: "c", 3: "a"}
    assert (
        "1 of the 2 classes of test are not in train, such as c" in caplog.text
    )
    csv(five / "test.csv", "path,label\nimages/2.png,A\n")
    refused("'A' and 'a' are in different splits", name=name, split="test")


# Paths in a list beside images/ -> words of the error.
_ABSENT = {
    ("none/1.png", "none/2.png", "images/0.png"): [
        "2 of 3 files do not exist, such as none/1.png",
        "start at the folder of the list, {root}",
    ],
    ("0.png", "1.png"): ["2 of 2", "{root}/images/0.png exists"],
    ("images/0", "images/1"): ["lack their extension", "images/0.png exists"],
    ("images/0.PNG",): ["another letter case", "images/0.png exists"],
    ("Images/0.png",): ["do not exist", "Images/0.png (images/0.png exists)"],
    ("images/0.jpg",): ["another extension", "images/0.png exists"],
    ("images/cafe\u0301.png",): ["another form of Unicode"],
    ("images\\0.png", "images\\1.png"): [
        "2 of 2 files have backslashes",
        "images\\0.png (images/0.png exists)",
    ],
    ("C:\\my\\images\\0.png",): ["a drive", "{root}/images/0.png exists"],
    ("D:/images/0.png",): ["a drive"],
    ("/home/ann/images/0.png",): [
        "absolute paths and do not exist",
        "{root}/images/0.png exists",
    ],
    ("~/of/ann/0.png",): ["absolute paths and do not exist"],
    ("http://a.com/0.png", "https://a.com/1.png"): [
        "2 of 2 files have addresses that cannot be read here",
        "copy them",
    ],
    ("s3://a/0.png",): ["addresses that cannot be read here"],
    ("file:///none/0.png",): ["do not exist, such as file:///none/0.png"],
    ("images", "images"): ["2 of 2 files are folders"],
}


@pytest.mark.parametrize("paths", _ABSENT)
def test_absent_files_have_their_number_a_name_and_a_reason(paths, five):
    write(five / "images" / "caf\u00e9.png", encoded(picture(4)))
    for head, label in (("path", ""), ("path,label", ",a")):
        lines = [head, *(f"{path}{label}" for path in paths)]
        name = csv(five / "list.csv", "\n".join(lines))
        refused(*(w.format(root=five) for w in _ABSENT[paths]), name=name)


def test_few_absent_files_are_left_out_with_a_warning(five, caplog):
    lines = [f"images/{i}.png,{i % 2}\n" for i in range(4)]
    name = csv(five / "list.csv", "".join([*lines, "none.png,1\n"]))
    write(five / "images" / "3.png", b"no image")
    source = datasets.source(name)
    assert labels(source) == [0, 1, 0]
    assert source.info.bad_images == (
        str(five / "none.png"),
        str(five / "images/3.png"),
    )
    assert "1 of 5 files do not exist, such as none.png" in caplog.text
    found = dict(source.info.found)
    assert found["absent_files"] == f"1: {five}/none.png"
    none = Reading(max_bad_images=0)
    refused("1 of 5 files do not exist", name=name, reading=none)


def test_a_folder_is_no_list(five):
    csv(five / "list.csv", _TRAIN)
    refused(f"use folder:{five}", f"csv:{five}/list.csv", name=f"csv:{five}")


def test_the_report_says_how_a_list_was_understood(five):
    csv(five / "Train.csv", "# of 2020\nid;path;kind\n7;images/0.png;a\n")
    csv(five / "test.csv", "path\nimages/1.png\n")
    name = f"csv:{five}/{{split}}.csv"
    found = dict(datasets.source(name).info.found)
    assert found == {
        "files": "1 PNG",
        "list": f"{five}/Train.csv: 1 lines, separated by semicolons, header"
        " id, path, kind, 1 comments",
        "paths": "column path",
        "labels": "column kind",
        "columns_not_read": "id",
        "splits": "Train (labelled), test (no labels)",
    }
    found = dict(datasets.source(name, "test").info.found)
    assert found["labels"] == "none: no column of labels"
