"""Datasets: arrays, folders, CSV, TFRecord and TFDS; splits and errors."""

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import write_records
from PIL import Image
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets, errors
from tf_contrastive.commands import datasets as command
from tf_contrastive.config import fields
from tf_contrastive.config.datasets import Datasets

PREPARED = Path(__file__).resolve().parents[1].parent / "shared" / "tfds"
needs_prepared = pytest.mark.skipif(
    not (PREPARED / "cifar10").is_dir(),
    reason=f"no prepared cifar10 and mnist under {PREPARED}",
)
DIGITS = sklearn_datasets.load_digits()


def picture(index, size=(12, 10), mode="RGB"):
    rng = np.random.default_rng(index)
    shape = (*size, 4 if mode == "RGBA" else 3)
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA" if mode == "RGBA" else "RGB").convert(
        mode
    )


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def truncated_jpeg():
    contents = encoded(picture(0, (200, 200)), "JPEG")
    return contents[: len(contents) // 2]


def write(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def class_folders(root, classes=("cat", "dog"), per_class=3, start=0):
    for c, name in enumerate(classes):
        for i in range(per_class):
            image = picture(start + 100 * c + i)
            write(root / name / f"{i}.png", encoded(image))
    return root


def read(source):
    return list(source.examples().as_numpy_iterator())


def labels(source):
    return [int(example["label"]) for example in read(source)]


def refused(*words, **kwargs):
    with pytest.raises(errors.UserError) as caught:
        datasets.source(**kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# ---- Arrays and digits ---


def test_digits_are_stratified_splits_of_scikit_learn_s():
    train, test = (datasets.source("digits", s) for s in ("train", "test"))
    assert (train.info.num_examples, test.info.num_examples) == (1437, 360)
    assert train.info.image_shape == (8, 8, 3)
    assert train.info.num_classes == 10
    assert train.info.label_names == tuple("0123456789")
    rows = [
        (e["image"][..., 0], e["label"]) for s in (train, test) for e in read(s)
    ]
    ours = sorted((image.tobytes(), int(label)) for image, label in rows)
    grey = np.rint(DIGITS.images * 255 / 16).astype(np.uint8)
    theirs = sorted(
        (g.tobytes(), int(t)) for g, t in zip(grey, DIGITS.target, strict=True)
    )
    assert ours == theirs
    shares = np.bincount(labels(test)) / np.bincount(DIGITS.target)
    assert np.all(np.abs(shares - 0.2) < 0.01)


def test_load_gives_examples_and_info():
    data, info = datasets.load("digits", "test")
    assert data.element_spec["image"].dtype == tf.uint8
    assert data.element_spec["label"] == tf.TensorSpec([], tf.int64)
    assert len(list(data)) == info.num_examples == 360


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 6, 5, 1), (4, 6, 5, 3)])
def test_arrays_of_any_layout_become_rgb(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = datasets.from_arrays(images, [0, 2, 1, 0])
    got = np.stack([e["image"] for e in read(source)])
    expected = images if len(shape) == 4 else images[..., None]
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))
    assert got.shape == (4, 6, 5, 3)
    assert source.info.num_classes == 3
    assert labels(source) == [0, 2, 1, 0]


def test_float_arrays_are_rounded_to_8_bits():
    source = datasets.from_arrays(np.array([[[0.0, 0.5, 1.0]]]))
    assert read(source)[0]["image"][0, :, 0].tolist() == [0, 128, 255]
    assert not source.info.has_labels and "label" not in read(source)[0]


@pytest.mark.parametrize(
    ("images", "given", "words"),
    [
        (np.full([2, 4, 4], 255.0), None, "float images between 255 and 255"),
        (np.zeros([2, 4, 4], np.int32), None, "int32"),
        (np.zeros([2, 4, 4, 2], np.uint8), None, "[2, 4, 4, 2]"),
        (np.zeros([0, 4, 4], np.uint8), None, "at least one pixel"),
        (np.zeros([2, 4, 4], np.uint8), [0, 1, 2], "integers [2]"),
        (np.zeros([2, 4, 4], np.uint8), [0, -1], "at least 0"),
    ],
)
def test_invalid_arrays_are_refused(images, given, words):
    with pytest.raises(errors.UserError) as caught:
        datasets.from_arrays(images, given)
    assert words in str(caught.value)


# ---- Splits ---


@pytest.mark.parametrize(
    "slice_",
    ["", "[:7]", "[10%:]", "[:33%]", "[5:20]", "[-12:]", "[:-5%]", "[20%:41%]"],
)
def test_slices_are_those_of_tfds(slice_):
    import tensorflow_datasets as tfds

    from tf_contrastive.datasets import split_spec

    infos = {
        "train": tfds.core.SplitInfo(
            name="train", shard_lengths=[1437], num_bytes=0
        )
    }
    instruction = tfds.core.ReadInstruction.from_spec("train" + slice_)
    (theirs,) = instruction.to_absolute(infos)
    expected = (theirs.from_ or 0, 1437 if theirs.to is None else theirs.to)
    assert split_spec.bounds("train" + slice_, 1437) == expected


def test_slices_cut_the_same_rows_as_python():
    whole = labels(datasets.source("digits", "train"))
    assert labels(datasets.source("digits", "train[5:20]")) == whole[5:20]
    assert labels(datasets.source("digits", "train[-12:]")) == whole[-12:]


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("trian", "did you mean 'train'?"),
        ("train[0]", "train[:1000]"),
        ("train[:2000]", "1437"),
        ("train[9:9]", "is empty"),
    ],
)
def test_wrong_splits_are_refused(split, words):
    refused(words, name="digits", split=split)


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_validation_splits_are_exact_and_disjoint(name, tmp_path):
    if name == "folder":
        class_folders(tmp_path, per_class=10)
        name = f"folder:{tmp_path}"
    source = datasets.source(name)
    n = source.info.num_examples
    train, validation = source.split_validation(0.1, seed=3)
    again = source.split_validation(0.1, seed=3)[1]
    other = source.split_validation(0.1, seed=4)[1]
    assert validation.info.num_examples == round(0.1 * n)
    whole, kept, cut, cut_again, cut_other = (
        sorted(e["image"].tobytes() for e in read(s))
        for s in (source, train, validation, again, other)
    )
    assert sorted(kept + cut) == whole
    assert cut == cut_again != cut_other
    assert len(kept) == train.info.num_examples


def test_an_empty_validation_split_is_refused():
    source = datasets.from_arrays(np.zeros([4, 2, 2], np.uint8))
    with pytest.raises(errors.UserError, match=r"cuts 0 of the 4 examples"):
        source.split_validation(0.01, seed=0)


# ---- Folders ---


def test_class_folders_are_labels_in_sorted_order(tmp_path):
    class_folders(tmp_path, ("dog", "ant", "cat"))
    write(tmp_path / "cat" / "deep" / "x.PNG", encoded(picture(7)))
    write(tmp_path / "cat" / "notes.txt", b"no image")
    write(tmp_path / ".cache" / "y.png", encoded(picture(8)))
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("ant", "cat", "dog")
    assert source.info.num_classes == 3
    assert source.info.image_shape == (12, 10, 3)
    assert labels(source) == [0] * 3 + [1] * 4 + [2] * 3
    np.testing.assert_array_equal(  # ant is the second of the call above.
        read(source)[0]["image"], np.asarray(picture(100))
    )


def test_a_class_name_has_no_line_break(tmp_path):
    class_folders(tmp_path, ("a\nb", "c"))
    refused("'a\\nb'", "rename", name=f"folder:{tmp_path}")


@pytest.mark.parametrize("where", ["direct", "single"])
def test_trees_without_classes_are_unlabelled(where, tmp_path):
    below = tmp_path if where == "direct" else tmp_path / "photos"
    write(below / "a.png", encoded(picture(1)))
    write(below / "2020" / "b.jpg", encoded(picture(2, (20, 20)), "JPEG"))
    write(below / "2021" / "c.gif", encoded(picture(3), "GIF"))
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.num_examples == 3
    assert source.info.image_shape is None
    assert not source.info.has_labels
    assert all("label" not in example for example in read(source))


def test_split_folders_share_their_classes(tmp_path):
    class_folders(tmp_path / "train", ("ant", "bee", "cat"))
    class_folders(tmp_path / "test", ("ant", "cat"), start=50)
    source = datasets.source(f"folder:{tmp_path}", "test")
    assert labels(source) == [0, 0, 0, 2, 2, 2]
    assert source.info.num_classes == 3
    assert datasets.source(f"folder:{tmp_path}").info.num_examples == 9
    refused("test, train", name=f"folder:{tmp_path}", split="val")


def test_every_image_format_becomes_rgb(tmp_path):
    big = (30, 20)
    rgba = picture(3, big, "RGBA")
    sixteen = Image.fromarray(
        np.arange(600, dtype=np.uint16).reshape(big) * 100
    )
    frames = [picture(i, big).convert("P") for i in (4, 5)]
    kinds = {
        "a_grey.jpg": encoded(picture(1, big, "L"), "JPEG"),
        "b_cmyk.JPEG": encoded(picture(2, big, "CMYK"), "JPEG"),
        "c_rgba.png": encoded(rgba),
        "d_16bit.png": encoded(sixteen),
        "e_moving.gif": encoded(
            frames[0], "GIF", save_all=True, append_images=frames[1:]
        ),
        "f_rgba.bmp": encoded(rgba, "BMP"),
        "g_palette.png": encoded(frames[0]),
    }
    for name, contents in kinds.items():
        write(tmp_path / name, contents)
    examples = read(datasets.source(f"folder:{tmp_path}"))
    assert [e["image"].shape for e in examples] == [(30, 20, 3)] * len(kinds)
    without_alpha = np.asarray(rgba)[..., :3]
    np.testing.assert_array_equal(examples[2]["image"], without_alpha)
    np.testing.assert_array_equal(examples[5]["image"], without_alpha)
    upper = np.asarray(sixteen) >> 8
    np.testing.assert_allclose(examples[3]["image"][..., 0], upper, atol=1)
    first_frame = np.asarray(frames[0].convert("RGB"))
    np.testing.assert_array_equal(examples[4]["image"], first_frame)
    np.testing.assert_array_equal(examples[6]["image"], first_frame)


def test_images_of_extreme_sizes_are_read(tmp_path):
    sizes = {
        "a.jpg": (4_000, 5_000),
        "b.png": (1, 1),
        "c.jpg": (1, 5_000),
        "d.png": (5_000, 1),
    }
    for name, (height, width) in sizes.items():
        Image.new("L", (width, height), 77).save(tmp_path / name)
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.num_examples == 4 and not source.info.bad_images
    for example, size in zip(
        source.examples().as_numpy_iterator(), sizes.values(), strict=True
    ):
        assert example["image"].shape == (*size, 3)
        assert np.all(example["image"][:, -1] == 77)


def test_exif_rotation_is_not_applied(tmp_path):
    image = picture(0, (30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # "Turn me by 90 degrees."
    contents = encoded(image, "JPEG", exif=exif, quality=95)
    write(tmp_path / "a.jpg", contents)
    (example,) = read(datasets.source(f"folder:{tmp_path}"))
    stored = np.asarray(Image.open(io.BytesIO(contents)))
    assert example["image"].shape == stored.shape == (30, 20, 3)
    assert np.abs(example["image"].astype(int) - stored).mean() < 2


def add_bad_images(root):
    return {
        str(write(root / "cat" / "bad1.jpg", truncated_jpeg())),
        str(write(root / "dog" / "bad2.png", encoded(picture(1))[:-40])),
        str(write(root / "dog" / "bad3.jpg", b"")),
        str(write(root / "dog" / "bad4.gif", b"<html>not found</html>")),
    }


def test_unreadable_images_are_left_out_and_named(tmp_path):
    class_folders(tmp_path)
    bad = add_bad_images(tmp_path)
    source = datasets.source(f"folder:{tmp_path}")
    assert set(source.info.bad_images) == bad
    assert source.info.num_examples == 6
    assert labels(source) == [0, 0, 0, 1, 1, 1]
    name = f"folder:{tmp_path}"
    refused(
        "4 of 10 images",
        "max_bad_images=3",
        "bad1.jpg",
        "max_bad_images=4",
        name=name,
        max_bad_images=3,
    )


# ---- CSV ---


def csv(path, text):
    path.write_text(text)
    return f"csv:{path}"


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


def test_csv_per_split_shares_its_classes(five):
    csv(five / "train.csv", "images/0.png,a\nimages/1.png,b\nimages/2.png,c\n")
    csv(five / "test.csv", "images/3.png,c\nimages/4.png,a\n")
    source = datasets.source(f"csv:{five}/{{split}}.csv", "test")
    assert labels(source) == [2, 0] and source.info.num_classes == 3


def test_wrong_csv_files_are_refused(five):
    refused("no file", name=f"csv:{five}/none.csv")
    refused("empty", name=csv(five / "empty.csv", "path,label\n"))
    mixed = csv(five / "mixed.csv", "images/0.png,1\nimages/1.png\n")
    refused("images/1.png has no label", name=mixed)
    missing = csv(five / "missing.csv", "images/0.png\nimages/9.png\n")
    assert datasets.source(missing).info.bad_images == (
        str(five / "images/9.png"),
    )
    refused("{split}", name=missing, split="test")


# ---- TFRecord ---


@pytest.mark.parametrize(
    ("image", "label", "ending"),
    [
        ("image", "label", ""),
        ("image/encoded", "image/class/label", ".gz"),
        ("image_raw", None, ""),
    ],
)
def test_tfrecords_of_several_files(image, label, ending, tmp_path):
    for shard in range(2):
        rows = [
            {image: encoded(picture(10 * shard + i)), "height": 12}
            | ({label: i} if label else {})
            for i in range(4)
        ]
        rows[2][image] = truncated_jpeg() if shard else rows[2][image]
        write_records(
            tmp_path / f"train-{shard}.tfrecord{ending}",
            rows,
            "GZIP" if ending else None,
        )
    name = f"tfrecord:{tmp_path}/{{split}}-*"
    source = datasets.source(name)
    assert source.info.num_examples == 7
    assert len(source.info.bad_images) == 1
    assert source.info.num_classes == (4 if label else None)
    got = sorted(e["image"].tobytes() for e in read(source))
    good = [*range(4), 10, 11, 13]
    assert got == sorted(np.asarray(picture(i)).tobytes() for i in good)
    if label:
        assert sorted(labels(source)) == [0, 0, 1, 1, 2, 3, 3]
    halves = [datasets.source(name, f"train[{s}]") for s in (":50%", "50%:")]
    both = [e["image"].tobytes() for half in halves for e in read(half)]
    assert sorted(both) == got
    train, validation = source.split_validation(0.3, seed=0)
    parts = [e["image"].tobytes() for s in (train, validation) for e in read(s)]
    assert sorted(parts) == got


# ---- TensorFlow Datasets ---


@needs_prepared
@pytest.mark.parametrize(
    ("name", "split", "shape", "count"),
    [
        ("cifar10", "train", (32, 32, 3), 50_000),
        ("cifar10:3.0.2", "test[10%:]", (32, 32, 3), 9_000),
        ("mnist", "train[:100]+test[:5]", (28, 28, 3), 105),
    ],
)
def test_prepared_datasets_are_read_as_tfds_reads_them(
    name, split, shape, count
):
    import tensorflow_datasets as tfds

    source = datasets.source(name, split, data_dir=str(PREPARED))
    assert source.info.num_examples == count
    assert source.info.image_shape == shape
    assert source.info.num_classes == len(source.info.label_names) == 10
    assert source.records.element_spec["image"].dtype == tf.string
    theirs = tfds.load(
        name,
        split=split,
        data_dir=str(PREPARED),
        download=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    pairs = zip(
        source.examples().take(100).as_numpy_iterator(),
        theirs.take(100).as_numpy_iterator(),
        strict=True,
    )
    for our, their in pairs:
        assert our["label"] == their["label"]
        np.testing.assert_array_equal(
            our["image"], np.broadcast_to(their["image"], shape)
        )


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_errors_of_unprepared_datasets_say_how_to_prepare_them(
    tmp_path, no_network
):
    message = refused(
        "not found in", name="cifar10", data_dir=str(tmp_path / "none")
    )
    assert "tfds.load('cifar10', data_dir=" in message
    assert not (tmp_path / "none").exists()
    refused("did you mean 'cifar10'?", name="cifra10", data_dir=str(tmp_path))
    refused("did you mean 'digits'?", name="digit", data_dir=str(tmp_path))
    refused("prepare it", name="imagenet2012", data_dir=str(tmp_path))


@needs_prepared
def test_wrong_parts_of_prepared_datasets_are_refused(no_network):
    here = str(PREPARED)
    refused("train, test", name="cifar10", split="validation", data_dir=here)
    refused("has no split", name="cifar10", split="train[:1x]", data_dir=here)
    refused("not found", name="cifar10:9.9.9", data_dir=here)


def prepare(root, features, rows):
    """Writes a dataset as `tfds` would, without any code of its own."""
    import tensorflow_datasets as tfds

    tfds.dataset_builders.store_as_tfds_dataset(
        name="mine",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features(tfds.features)),
        split_datasets={"train": rows},
        data_dir=str(root),
    )


def rows_of(count, **columns):
    columns["image"] = columns.get("image", np.zeros([count, 6, 5, 3], "uint8"))
    return tf.data.Dataset.from_tensor_slices(columns)


def test_datasets_of_other_layouts(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [4, 6, 5, 3], "uint8")
    prepare(
        tmp_path / "a",
        lambda f: {
            "photo": f.Image(shape=(None, None, 3)),
            "label": f.ClassLabel(num_classes=2),
        },
        tf.data.Dataset.from_tensor_slices(
            {"photo": pixels, "label": [0, 1, 1, 0]}
        ),
    )
    source = datasets.source("mine", data_dir=str(tmp_path / "a"))
    assert source.info.num_examples == 4 and source.info.num_classes == 2
    assert source.info.image_shape is None
    got = sorted(e["image"].tobytes() for e in read(source))
    assert got == sorted(p.tobytes() for p in pixels)
    prepare(
        tmp_path / "b",
        lambda f: {"image": f.Image(shape=(6, 5, 3)), "text": f.Text()},
        rows_of(2, text=[b"x", b"y"]),
    )
    source = datasets.source("mine", data_dir=str(tmp_path / "b"))
    assert not source.info.has_labels and "label" not in read(source)[0]
    prepare(
        tmp_path / "c",
        lambda f: {"text": f.Text()},
        tf.data.Dataset.from_tensor_slices({"text": [b"x"]}),
    )
    bits = np.array([[0, 1], [1, 1]])
    prepare(
        tmp_path / "d",
        lambda f: {
            "image": f.Image(shape=(6, 5, 3)),
            "extra": f.Tensor(shape=(2,), dtype=np.int64),
        },
        rows_of(2, extra=bits),
    )
    source = datasets.source("mine", data_dir=str(tmp_path / "d"))
    assert source.info.extra_channels == 2
    for kind in (source, source.cached(), source.select(np.arange(2))):
        got = sorted(tuple(e["extra"]) for e in read(kind))
        assert got == sorted(map(tuple, bits))
    message = refused(
        "no feature that is an image",
        name="mine",
        data_dir=str(tmp_path / "c"),
    )
    assert "features present: text" in message


def test_the_package_imports_tensorflow_datasets_only_when_needed():
    code = (
        "import sys; from tf_contrastive import datasets;"
        "datasets.source('digits'); assert 'tensorflow_datasets' not in"
        " sys.modules"
    )
    root = Path(__file__).resolve().parents[1]
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )


def test_the_command_lists_names_and_writes_a_contact_sheet(tmp_path, capsys):
    assert command.run(Datasets()) == 0
    listed = capsys.readouterr().out
    for name in ("digits", "folder:PATH", "TensorFlow Datasets"):
        assert name in listed
    path = tmp_path / "sheet.png"
    options = fields.replace(
        Datasets(), show="digits", split="train[:5]", output=str(path)
    )
    assert command.run(options) == 0
    assert "5 images, 10 classes" in capsys.readouterr().out
    sheet = np.asarray(Image.open(path))
    assert sheet.shape == (2 * 96, 3 * 96, 3)
    assert sheet[:, :96].std() > 30  # Digits are seen,
    assert sheet[96:, 192:].max() == 0  # and nothing where none is left.


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
