"""Tables of images: columns by their names, and what is refused."""

import codecs

import pytest
from dataset_helpers import (
    csv,
    encoded,
    labels,
    picture,
    refused,
    understood,
    write,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading


@pytest.fixture
def five(tmp_path):
    for i in range(5):
        write(tmp_path / "images" / f"{i}.png", encoded(picture(i)))
    return tmp_path


def test_classes_are_limited(five):
    for label in ("100000", str(2**63), "9" * 5000, "0.5", str(-(2**32))):
        rows = f"images/0.png,0\nimages/1.png,{label}"
        name = csv(five / "large.csv", f"path,label\n{rows}")
        assert len(refused("from 0", name=name)) < 300
    rows = [{"image": encoded(picture(0)), "label": x} for x in (0, 100_000)]
    write_records(five / "large.tfrecord", rows)
    refused("100000", name=f"tfrecord:{five}/large.tfrecord")


_AB = {0: "a", 1: "b"}
_LINES = "x\n" * 300_000
_OWN = {"image_feature": "Photo", "label_feature": "kind"}
# (Text of a table beside the images; images -> classes, {} of one that is
# refused; a word of the warning or error; options).
_TABLES = [
    ("path;label\n0.png;a\n1.png;b\n", _AB, ""),
    ("File_Name,Class\n\n0.png,a\n , \n 1.png, b\n", _AB, ""),
    ('path,label\n0.png,"a, b"\n1.png,c\n', {0: "a, b", 1: "c"}, ""),
    ("id,filename,width,target\n7,0.png,9,a\n8,1.png,9,b\n", _AB, ""),
    ("x,photo,kind\n1,0.png,a\n1,1.png,b\n", _AB, "", _OWN),
    (
        "photo,sort\n0.png,a\n",
        {},
        "did you mean sort",
        {**_OWN, "label_feature": "sor"},
    ),
    ("path,kind\n0.png,a\n", {}, "no column of paths (Photo)", _OWN),
    ("0.png,a\n1.png,b\n", {}, "header"),
    ("path,breed\n0.png,a\n1.png,b\n", {}, "label_feature=breed"),
    ('path,label\n"0.png,a\n1.png,b\n', {}, "not a table"),
    ("path,label\n,a\n1.png,b\n", {}, "line 1 below the header has no path"),
    (
        "path,label\n0.png,1.0\n1.png,NaN\n",
        {},
        "1 of 2 images of train have no",
    ),
    ("path,label\n0.png,\n1.png,\n", {0: None, 1: None}, ""),
    ("path,label\n0.png,\0\n", {}, "zero bytes"),
    ("path,label\n0.png,1.0\n1.png,2\n", {0: 1, 1: 2}, ""),
    ("path,label\n0.png,a\n1.png,a|b\n", {}, "label a|b has several classes"),
    ("path,label\n0.png,a x\n1.png,b x\n", {0: "a x", 1: "b x"}, ""),
    # A file with two labels, also by a link; and twice.
    ("path,label\n0.png,a\n../images/0.png,b\n", {}, "another label"),
    ("path,label\n0.png,a\nfile://{root}/link/0.png,b\n", {}, "another label"),
    (
        *("path,label\n0.png,a\n1.png,b\n0.png,a\n", _AB),
        "1 of 3 lines repeat a file",
    ),
    ("path,label,x\n0.png,a,train\n1.png,b,test\n", {}, "column x has splits"),
    ("path,label,split\n0.png,a,train\n1.png,b,\n", {}, "not a split"),
    ('path,label\n0.png, "a"\n1.png,b\n', {}, "column label has quotes"),
    ('label,path\na, "0.png"\nb,1.png\n', {}, "column path has quotes"),
    # Values of several lines, in more text than pyarrow reads at once.
    (
        f'path,label,x\n0.png,a,"{_LINES}"\n1.png,b,"{_LINES}"\n',
        *(_AB, ""),
    ),
]


@pytest.mark.parametrize("case", range(len(_TABLES)))
def test_tables_are_read_in_one_way_or_refused(case, five, caplog):
    text, expected, word, *options = _TABLES[case]
    reading = options[0] if options else {}
    (five / "link").symlink_to(five / "images")
    name = csv(five / "images/list.csv", text.replace("{root}", str(five)))
    if not expected:
        refused(word, name=name, reading=Reading(**reading))
        return
    assert understood(name, **reading) == expected
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert bool(warnings) == bool(word) and word in caplog.text


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


def test_a_test_table_without_labels_adds_no_classes(five):
    csv(five / "train.csv", _TRAIN)
    csv(five / "test.csv", "path,width\nimages/2.png,7\nimages/3.png,8\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == _AB
    assert understood(name, "test") == {2: None, 3: None}


def test_a_table_for_each_split(five, caplog):
    csv(five / "training.csv", _TRAIN)
    csv(five / "val.csv", "path,label\nimages/2.png,b\nimages/3.png,c\n")
    name = f"csv:{five}/{{split}}.csv"
    assert understood(name) == _AB
    assert datasets.source(name).info.label_names == ("a", "b", "c")
    assert understood(name, "validation") == {2: "b", 3: "c"}
    assert "1 of the 2 classes of validation are not in train" in caplog.text
    refused("only train, validation", name=name, split="test")
    refused("test_fraction", name=name, reading=Reading(test_fraction=0.2))
    csv(five / "valid.csv", "path,label\nimages/2.png,b\n")
    refused("both mean", name=name, split="validation")
    for split, label in ("train", "b"), ("test", "B"):
        (five / split).mkdir()
        text = f"path,label\n../images/3.png,{label}\n"
        csv(five / split / f"{split}.csv", text)
    name = f"csv:{five}/{{split}}/{{split}}.csv"
    assert understood(name) == {3: "b"}
    refused("'B'", "'b'", name=name, split="test")


def test_a_column_has_the_splits(five):
    text = (
        "path,label,Split\nimages/0.png,a,train\nimages/1.png,b,Train\n"
        "images/2.png,a,test\nimages/3.png,,val\n"
    )
    name = csv(five / "list.csv", text)
    assert understood(name) == _AB
    assert understood(name, "validation") == {3: None}
    assert understood(name, "test") == {2: "a"}
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
    more = csv(five / "more.csv", text + "other.png,1\n" * 10)
    refused("11 that do not exist", str(five), name=more)
