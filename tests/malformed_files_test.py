"""Files of strangers: lengths that lie, files that never end, images that rot.

Whatever is read ends in an error of one line, or with what was written.
The option --drill_seed varies the random damage.
"""

import contextlib
import io
import os
import random
import struct
import threading
import time
import zipfile

import numpy as np
import pytest
import saved_run
import small
import tensorflow as tf
from image_helpers import write_prepared, write_records
from PIL import Image

from tf_contrastive import __main__, datasets, flags, train
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.data import Reading
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import comparison

_SEED = int(os.environ.get("DRILL_SEED", "0"))
_COUNT = 5


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """What is remembered of files, for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pixels(index, side=6):
    generator = np.random.default_rng(index)
    return generator.integers(0, 256, (side, side, 3), np.uint8)


def encoded(index, kind="PNG", side=6):
    stream = io.BytesIO()
    Image.fromarray(pixels(index, side)).save(stream, kind)
    return stream.getvalue()


# ---- Datasets: each function writes one, and returns how to open it ----------


def tfrecord(folder):
    path = folder / "a.tfrecord"
    rows = [{"image": encoded(i), "label": i} for i in range(_COUNT)]
    write_records(path, rows)
    return path, {"name": f"tfrecord:{path}"}


def packed(folder):
    images = np.stack([pixels(i) for i in range(_COUNT)])
    arrays = datasets.from_arrays(images, np.arange(_COUNT), split="train")
    datasets.pack(arrays, str(folder), 6)
    return folder / "train-00000.tfrecord", {"name": f"packed:{folder}"}


def prepared(folder):
    images = np.stack([pixels(i) for i in range(_COUNT)])
    write_prepared(
        folder,
        lambda f: {
            "image": f.Image(shape=(6, 6, 3)),
            "label": f.ClassLabel(num_classes=_COUNT),
        },
        {"train": {"image": images, "label": np.arange(_COUNT)}},
    )
    (path,) = folder.rglob("*.tfrecord*")
    return path, {"name": "mine", "data_dir": str(folder)}


_RECORDS = (tfrecord, packed, prepared)


def masked_crc(data):
    """The checksum of TFRecord files, one bit at a time."""
    crc = 2**32 - 1
    for bit in (byte >> i & 1 for byte in data for i in range(8)):
        crc = crc >> 1 ^ (0x82F63B78 if (crc ^ bit) & 1 else 0)
    crc ^= 2**32 - 1
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def header(length):
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked_crc(data))


def starts(content):
    """Bytes at which records start."""
    places = [0]
    while places[-1] < len(content):
        (length,) = struct.unpack_from("<Q", content, places[-1])
        places.append(places[-1] + 16 + length)
    return places[:-1]


def rewrite(path, change):
    """Changes a file, which keeps its time."""
    status = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def refused(call):
    """Returns the message of an error of one line."""
    with pytest.raises(errors.UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- Lengths -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", _RECORDS)
@pytest.mark.parametrize("claim", [2**31, 2**40, 2**63, None])
def test_lengths_are_compared_with_the_file_before_it_is_read(
    make, claim, tmp_path
):
    path, named = make(tmp_path)
    place = 0

    def change(content):
        nonlocal place
        place = starts(content)[2]
        left = len(content) - place - 16  # All that follow, as one record.
        length = left + 1 if claim is None else claim
        return content[:place] + header(length) + content[place + 12 :]

    rewrite(path, change)
    text = refused(lambda: datasets.source(**named))
    assert str(path) in text and f"{place:,}" in text


def test_a_length_of_a_tiny_file_of_a_stranger(tmp_path):
    # 2**40, whose checksum is right: TensorFlow's reader ends the process.
    content = bytes.fromhex("0000000000010000") + bytes.fromhex("aa3d6be4")
    assert content == header(2**40)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content + bytes(100))
    assert str(path) in refused(lambda: datasets.source(f"tfrecord:{path}"))


@pytest.mark.slow
@pytest.mark.parametrize("make", _RECORDS)
def test_files_that_were_not_copied_whole_are_refused(make, tmp_path):
    path, named = make(tmp_path)
    whole = path.read_bytes()
    assert datasets.source(**named).info.num_examples == _COUNT
    cuts = [
        lambda content: content[:-1],
        lambda content: content + b"abc",
        lambda content: content + bytes(64),
    ]
    if make in (packed, prepared):  # Their number of records is known.
        cuts.append(lambda content: content[: starts(content)[-1]])
    for cut in cuts:
        rewrite(path, cut)
        assert str(path) in refused(lambda: datasets.source(**named))
        rewrite(path, lambda _: whole)


def test_lengths_in_object_stores_and_of_many_records(tmp_path):
    path = tmp_path / "a.tfrecord"
    rows = [{"image": encoded(i % 3), "label": i % 3} for i in range(300)]
    write_records(path, rows)
    for scheme in ("", "file://"):  # As of a store, by large parts.
        source = datasets.source(f"tfrecord:{scheme}{path}")
        assert source.info.num_examples == 300
    place = starts(path.read_bytes())[200]
    rewrite(path, lambda x: x[:place] + header(2**40) + x[place + 12 :])
    for scheme in ("", "file://"):
        text = refused(lambda s=scheme: datasets.source(f"tfrecord:{s}{path}"))
        assert f"{place:,}" in text


def test_the_lengths_of_known_files_are_not_read_again(tmp_path, monkeypatch):
    from tf_contrastive.datasets import record_files

    _, named = packed(tmp_path)
    datasets.source(**named)
    monkeypatch.setattr(record_files, "count", None)
    assert datasets.source(**named).info.num_examples == _COUNT


@pytest.mark.parametrize("make", [tfrecord, packed, prepared])
def test_a_known_file_that_keeps_its_size_and_time_is_read_again(
    make, tmp_path
):
    path, named = make(tmp_path)
    datasets.source(**named)
    rewrite(path, lambda content: header(2**40) + content[12:])
    assert str(path) in refused(lambda: datasets.source(**named))


# ---- What is no regular file -------------------------------------------------


class _Fifo:
    """A FIFO whose reader, if there is one, gets some bytes each time."""

    def __init__(self, path):
        os.mkfifo(path)
        self._path, self.was_opened = path, False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self):
        while not self._ended:
            with (
                contextlib.suppress(BrokenPipeError),
                open(self._path, "wb") as file,
            ):
                self.was_opened |= not self._ended
                file.write(b"abc")

    _ended = False

    def end(self):
        self._ended = True
        while self._thread.is_alive():
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            self._thread.join(0.1)
            os.close(descriptor)


def images(folder, count=3):
    for i in range(count):
        (folder / f"{i}.png").write_bytes(encoded(i))


def in_folder(folder):
    images(folder)
    return folder / "x.png", lambda: datasets.source(f"folder:{folder}")


def in_csv(folder):
    images(folder)
    (folder / "a.csv").write_text("path\n0.png\n1.png\n2.png\nx.png\n")
    return folder / "x.png", lambda: datasets.source(f"csv:{folder}/a.csv")


def as_csv(folder):
    return folder / "a.csv", lambda: datasets.source(f"csv:{folder}/a.csv")


def as_records(folder):
    tfrecord(folder)
    name = f"tfrecord:{folder}/*.tfrecord"
    return folder / "b.tfrecord", lambda: datasets.source(name)


def as_shard(make):
    def place(folder):
        path, named = make(folder)
        path.unlink()
        return path, lambda: datasets.source(**named)

    return place


def as_manifest(folder):
    _, named = packed(folder)
    (folder / "train.json").unlink()
    return folder / "train.json", lambda: datasets.source(**named)


def as_features(folder):
    path, named = prepared(folder)
    (path.parent / "features.json").unlink()
    return path.parent / "features.json", lambda: datasets.source(**named)


def as_results(folder):
    path = folder / "a.npz"
    return path, lambda: comparison.read(str(path))


@pytest.mark.parametrize(
    "place",
    [
        in_folder,
        in_csv,
        as_csv,
        as_records,
        as_manifest,
        as_results,
        as_features,
        as_shard(packed),
        as_shard(prepared),
    ],
)
def test_fifos_are_not_opened(place, tmp_path):
    path, call = place(tmp_path)
    fifo = _Fifo(path)
    if place in (in_folder, in_csv):
        assert call().info.bad_images == (str(path),)
        limited = Reading(max_bad_images=0)
        name = call().info.name
        text = refused(lambda: datasets.source(name, reading=limited))
    else:
        text = refused(call)
    time.sleep(0.05)
    assert str(path) in text and not fifo.was_opened
    fifo.end()


@pytest.mark.parametrize("place", [in_folder, in_csv])
@pytest.mark.parametrize("kind", ["device", "loop", "nothing", "holes"])
def test_what_is_named_like_an_image_counts_as_one(place, kind, tmp_path):
    path, call = place(tmp_path)
    if kind == "holes":  # More than any memory.
        path.write_bytes(encoded(0))
        os.truncate(path, 1 << 42)
    else:
        target = {"device": "/dev/zero", "loop": path, "nothing": "/nothing"}
        path.symlink_to(target[kind])
    source = call()
    assert source.info.bad_images == (str(path),)
    assert len(list(source.examples())) == 3


def test_a_device_by_its_address_is_an_unreadable_image(tmp_path):
    images(tmp_path)
    (tmp_path / "a.csv").write_text("path\n0.png\nfile:///dev/zero\n")
    source = datasets.source(f"csv:{tmp_path}/a.csv")
    assert source.info.bad_images == ("file:///dev/zero",)


def test_a_flagfile_may_come_from_a_process_but_ends(tmp_path):
    path = tmp_path / "a.flags"
    os.mkfifo(path)
    text = b"--batch_size=16\n--workdir=run\n"
    thread = threading.Thread(target=path.write_bytes, args=[text])
    thread.start()
    run = flags.parse(Pretrain, [f"--flagfile={path}"])
    thread.join()
    assert run.schedule.batch_size == 16
    given = ["--flagfile=/dev/zero"]
    assert "/dev/zero" in refused(lambda: flags.parse(Pretrain, given))


def test_arrays_of_absurd_shapes_are_no_results(tmp_path):
    path = tmp_path / "a.npz"
    for shape in (2**33, 2**40, 2**60):
        text = (
            f"{{'descr': '|b1', 'fortran_order': False, 'shape': ({shape},)}}"
        )
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("about.npy", array + text.ljust(118).encode() + b"a")
        assert str(path) in refused(lambda: comparison.read(str(path)))


# ---- Random damage -----------------------------------------------------------


def damaged(content, generator):
    """Cuts bytes, flips bits, or inflates a length."""
    kind = generator.choice(["cut", "flip", "length", "header"])
    if kind == "cut":
        return content[: generator.randrange(len(content))]
    if kind == "header":
        place = generator.choice(starts(content))
        length = generator.choice([0, 1 << generator.randrange(64)])
        return content[:place] + header(length) + content[place + 12 :]
    places = range(len(content))
    if kind == "length":
        places = [p + i for p in starts(content) for i in range(8)]
    changed = bytearray(content)
    for _ in range(generator.choice([1, 1, 3])):
        changed[generator.choice(places)] ^= 1 << generator.randrange(8)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("make", _RECORDS)
def test_damaged_records_are_named_or_harmless(make, tmp_path):
    path, named = make(tmp_path)
    whole = path.read_bytes()
    known = {i: pixels(i) for i in range(_COUNT)}
    if make is packed:  # Of JPEGs.
        examples = datasets.source(**named).examples()
        known = {int(e["label"]): e["image"].numpy() for e in examples}
    generator = random.Random(f"{make.__name__} {_SEED}")
    seen = set()
    for _ in range(12):
        change = damaged(whole, generator)
        path.write_bytes(whole)
        rewrite(path, lambda _, change=change: change)
        try:
            for example in datasets.source(**named).examples():
                image = known[int(example["label"])]
                np.testing.assert_array_equal(example["image"], image)
            seen.add("harmless")
        except errors.UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            seen.add("refused")
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            assert str(path) in str(datasets.name_unreadable(error))
            seen.add("named")
    assert "refused" in seen


# ---- Rot ---------------------------------------------------------------------


def rot(path):
    """Damages a file, whose size and time stay the same."""
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(len(content) - 8))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def classes(folder, kind="PNG", side=6, count=6):
    for number, name in enumerate("ab"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            # Of two shapes, so that they are read in each epoch.
            content = encoded(i + number * count, kind, side + i % 2)
            (folder / name / f"{i}.{kind.lower()}").write_bytes(content)
    return f"folder:{folder}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_rotten_image_is_named_and_counted_at_the_next_start(kind, tmp_path):
    name = classes(tmp_path / "images", kind)
    path = tmp_path / "images" / "b" / f"3.{kind.lower()}"
    none = Reading(max_bad_images=0)
    for reading in (none, Reading()):
        source = datasets.source(name, reading=reading)
        assert source.info.num_examples == 12
    rot(path)
    assert datasets.source(name).info.num_examples == 12  # It is remembered.
    with pytest.raises(tf.errors.OpError) as caught:
        list(source.examples())
    text = refused_by(caught.value)
    assert str(path) in text and "max_bad_images=10" in text
    assert datasets.source(name).info.bad_images == (str(path),)
    assert str(path) in refused(lambda: datasets.source(name, reading=none))


def refused_by(error):
    named = datasets.name_unreadable(error)
    assert isinstance(named, errors.UserError) and "\n" not in str(named)
    return str(named)


def test_an_image_that_rots_into_another_size_is_named(tmp_path):
    name = classes(tmp_path / "images", "BMP")
    source = datasets.source(name, reading=Reading())
    path = tmp_path / "images" / "a" / "0.bmp"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[22] -= 1  # Its height.
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(tf.errors.OpError) as caught:
        list(source.select(np.arange(0, 12, 2)).examples().batch(6))
    assert str(path) in refused_by(caught.value)


def test_other_errors_are_not_explained(tmp_path):
    name = classes(tmp_path / "images")
    datasets.source(name)
    rot(tmp_path / "images" / "a" / "0.png")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.debugging.Assert(False, ["of a step"])
    assert datasets.name_unreadable(caught.value) is None
    assert datasets.name_unreadable(ValueError("IteratorGetNext")) is None


def command(capfd, *words):
    """Runs a command: (exit status, its lines of errors)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tf_contrastive", *words])
        status = __main__.main()
    lines = capfd.readouterr().err.splitlines()
    return status, [x for x in lines if x.startswith("tf_contrastive: ")]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["pack", "show"])
def test_the_command_datasets_names_a_rotten_image(option, tmp_path, capfd):
    name = classes(tmp_path / "images")
    path = tmp_path / "images" / "a" / "4.png"
    words = ["datasets", f"--output={tmp_path}/a.png", f"--show={name}"]
    if option == "pack":
        words = ["datasets", f"--pack={tmp_path}/packed", f"--dataset={name}"]
    datasets.source(name)
    rot(path)
    for more in ((), ("--max_bad_images=0",)):
        status, lines = command(capfd, *words, *more)
        assert status == 2 and len(lines) == 1 and str(path) in lines[0]
    if option == "pack":
        assert command(capfd, *words) == (0, [])


_RUN = {
    "encoder": "resnet10",
    "width": 0.125,
    "image_size": 8,
    "batch_size": 4,
    "epochs": 2,
    "augmentation": "crop",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", [["evaluate", "--protocols=knn"], ["embed"]])
def test_a_saved_run_names_a_rotten_image(words, tmp_path, capfd):
    name = classes(tmp_path / "images")
    path = tmp_path / "images" / "b" / "0.png"
    saved_run.make(tmp_path / "run")
    words = [*words, f"--workdir={tmp_path}/run"]
    if words[0] == "evaluate":
        halves = ["--train_split=train[:50%]", "--test_split=train[50%:]"]
        words += [f"--dataset={name}", *halves, "--scale=cpu"]
    else:
        words += [f"--input={name}", f"--output={tmp_path}/a.npz"]
    datasets.source(name)
    rot(path)
    status, lines = command(capfd, *words, "--max_bad_images=0")
    assert status == 2 and len(lines) == 1 and str(path) in lines[0]
    assert command(capfd, *words) == (0, [])


@pytest.mark.slow
@pytest.mark.usefixtures("small_encoder")
@pytest.mark.parametrize(
    "options",
    [{"augment_on": "device"}, {"validation_fraction": 0.5}],
    ids=str,
)
def test_a_run_names_a_rotten_image_and_is_saved(
    options, tmp_path, monkeypatch
):
    name = classes(tmp_path / "images", count=8)
    workdir = tmp_path / "run"
    run = fields.replace(
        small.RUN, **_RUN, **options, dataset=name, workdir=str(workdir)
    )
    rotten = sorted((tmp_path / "images").rglob("*.png"))
    fit = train.fit

    def rotting_fit(*args, **kwargs):
        for path in rotten[:8]:  # All of class "a".
            rot(path)
        return fit(*args, **kwargs)

    monkeypatch.setattr(train, "fit", rotting_fit)
    text = refused(lambda: train.pretrain(run))
    assert str(rotten[0]) in text and "8 of 16" in text and "saved" in text
    monkeypatch.setattr(train, "fit", fit)
    assert list((workdir / "checkpoints").glob("ckpt-*.index"))
    # The order depends on the number of images.
    assert "allow_changed_data" in refused(lambda: train.pretrain(run))
    if not options.get("validation_fraction"):
        more = fields.replace(run, allow_changed_data=True)
        assert len(train.pretrain(more).run.source.info.bad_images) == 8
