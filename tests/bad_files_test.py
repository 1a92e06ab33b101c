"""Bad files: one line that names the file, or exactly what was written.

Damaged at random, with lengths that lie, without an end, or changed after they
were checked. --drill_seed varies the random damage. Invalid command lines are
in `mistakes_test`.
"""

import csv
import io
import json
import os
import random
import shutil
import struct
import threading
import zipfile
from functools import partial

import numpy as np
import pytest
import saved_run
import small
import tensorflow as tf
from dataset_helpers import encoded, picture, prepare
from image_helpers import write_records
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from tf_contrastive import checkpoints, datasets, flags, train
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import comparison
from tf_contrastive.evaluation import report as reports

_SEED = os.environ.get("DRILL_SEED", "0")
_COUNT = 5
# Cases of random damage of each kind.
_CASES = 20


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """What is remembered of files, for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _refused(call):
    """Returns the message of an error of one line."""
    with pytest.raises(errors.UserError) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000
    return str(caught.value)


def _rewrite(path, content):
    """Changes a file, which keeps its time."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# ---- Files: each function writes one, and returns it and how to read it ------
#
# Reading fails if the result is neither an error nor what was written.


def _encoded(index, kind="PNG", side=6):
    return encoded(picture(index, (side, side)), kind)


def _reader(**named):
    known = {}

    def read():
        for example in datasets.source(**named).examples():
            label, image = int(example["label"]), example["image"].numpy()
            np.testing.assert_array_equal(known.setdefault(label, image), image)

    return read


def _tfrecord(folder):
    path = folder / "a.tfrecord"
    rows = [{"image": _encoded(i), "label": i} for i in range(_COUNT)]
    write_records(path, rows)
    return path, _reader(name=f"tfrecord:{path}")


def _prepared(folder):
    images = np.stack([picture(i, (6, 6)) for i in range(_COUNT)])
    labels = {"train": np.arange(_COUNT)}
    prepare(folder, "mine", {"train": images}, labels, "abcde", (6, 6, 3))
    (path,) = folder.rglob("*.tfrecord*")
    return path, _reader(name="mine", data_dir=str(folder))


def _csv(folder):
    """Accepted rows are those that Python's own reader finds."""
    path = folder / "a.csv"
    for i in range(4):
        (folder / f"{i}.png").write_bytes(_encoded(i))
    path.write_bytes(b"path,label\n0.png,cat\n1.png,3\n2.png,\xc3\xa9\n")

    def read():
        source = datasets.source(f"csv:{path}")
        text = path.read_bytes().decode("utf-8-sig")
        rows = [r for r in csv.reader(io.StringIO(text, newline="")) if any(r)]
        assert source.info.num_examples <= len(rows)
        assert len(list(source.examples())) == source.info.num_examples

    return path, read


def _image(kind, folder):
    """An image that is accepted has the size that was found."""
    path = folder / f"a.{kind.lower()}"
    path.write_bytes(_encoded(0, kind))

    def read():
        source = datasets.source(f"folder:{folder}")
        (example,) = source.examples()
        assert example["image"].shape == source.info.image_shape

    return path, read


def _config(folder):
    """An accepted config is read back from what is written of it."""
    path = folder / "config.flags"
    path.write_text(flags.record(saved_run.make(folder / "run")))

    def read():
        run = checkpoints.check_run(str(folder))
        path.write_text(flags.record(run))
        assert flags.read_file(Pretrain, str(path)) == run

    return path, read


def _checkpoint(name, folder):
    """A file of a run; its weights are those of a checkpoint."""
    run = folder / "run"
    saved_run.make(run)
    known = [small.weights(run, step) for step in (0, 1)]

    def read():
        found = checkpoints.load_run(str(run))
        weights = small.weights(run, found.step)
        same = (all(np.array_equal(weights[n], x[n]) for n in x) for x in known)
        assert any(same)

    return run / "checkpoints" / name, read


def _report(folder):
    path = folder / "evaluation.json"
    more = {"scale": "cpu", "hyperparameters": {"k": [1]}}
    more |= {"metrics": {"ece": 0.25, "ece_interval": [0.2, 0.3]}}
    row = saved_run.score("trained", "knn", "k=1", 0.5, **more)
    about = {"dataset": "digits", "train_split": "train", "test_split": "test"}
    about |= {"scale": "cpu", "step": 1, "checksum": "a", "left_out": {}}
    text = {**about, "results": [row], "history": []}
    path.write_text(json.dumps(text, indent=1))

    def read():
        report = reports.read(str(folder))
        reports.table(report.get("results", []))

    return path, read


def _results(folder):
    path = folder / "trained-knn.npz"
    about = {"": {"protocol": "knn", "labels": "x"}}
    correct = np.ones([50], bool)
    np.savez_compressed(path, about=json.dumps(about), correct=correct)

    def read():
        for hits in comparison.read(str(path)).values():
            assert len(hits.correct) == 50

    return path, read


_RECORDS = {"tfrecord": _tfrecord, "prepared": _prepared}
_FILES = {
    **_RECORDS,
    **{kind: partial(_image, kind) for kind in ("PNG", "JPEG", "GIF")},
    **{"csv": _csv, "config.flags": _config, "npz": _results},
    "evaluation.json": _report,
    "metadata.json": partial(_checkpoint, "metadata.json"),
    "checkpoint data": partial(_checkpoint, "ckpt-1.data-00000-of-00001"),
    "checkpoint index": partial(_checkpoint, "ckpt-1.index"),
    "list of checkpoints": partial(_checkpoint, "checkpoint"),
}


# ---- Random damage -----------------------------------------------------------

# Pieces that parsers of numbers, texts, JSON, CSV and flags trip over.
_PIECES = (
    *(b"\n", b"\r", b"\0", b",", b'"', b"'", b"\\", b"=", b"#", b"--", b":"),
    *(b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b"9" * 5000, b"2147483648"),
    *(b"null", b"true", b"[]", b"{}", b"[" * 5000, b'{"a":' * 200),
    *(b"\xff", b"\xc3\x28", b"\xe2\x80\xae", b"\x1b[31m"),
)


def _damaged(content, generator):
    """Returns bytes with one to three random changes."""
    for _ in range(generator.randint(1, 3)):
        at = generator.randint(0, len(content))
        length = min(generator.choice([1, 1, 2, 8, 50]), len(content) - at)
        part, rest = content[at : at + length], content[at + length :]
        other = bytes(generator.randrange(256) for _ in part)
        piece = generator.choice(_PIECES)
        changed = generator.choice([b"", part * 2, other, piece, part + piece])
        if generator.random() < 0.1:
            rest = b""
        content = content[:at] + changed + rest
    return content


@pytest.mark.slow
@pytest.mark.parametrize("kind", _FILES)
def test_random_damage_is_one_line_or_harmless(kind, tmp_path):
    (tmp_path / "files").mkdir()
    path, read = _FILES[kind](tmp_path / "files")
    read()
    shutil.copytree(tmp_path / "files", tmp_path / "whole")
    generator = random.Random(f"{kind} {_SEED}")
    content, noticed = path.read_bytes(), 0
    for _ in range(_CASES):
        change = _damaged(content, generator)
        _rewrite(path, change)
        try:
            read()
        except errors.UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            noticed += 1
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # In the input of a training step, which names it.
            assert str(path) in str(datasets.name_unreadable(error))
            noticed += 1
        except Exception:
            (tmp_path / "failing").write_bytes(change)
            raise
        # What reading itself has written.
        shutil.rmtree(tmp_path / "files")
        shutil.copytree(tmp_path / "whole", tmp_path / "files")
    # Instead of a damaged checkpoint, the older one is read.
    assert "checkpoint" in kind or noticed > 0


# ---- Lengths -----------------------------------------------------------------


def _header(length):
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked_crc32c(data))


def _longer(content, claim=None):
    """The third record claims to be as long, or a byte longer than the file."""
    place = 0
    for _ in range(2):
        (length,) = struct.unpack_from("<Q", content, place)
        place += 16 + length
    claim = claim or len(content) - place - 15
    return content[:place] + _header(claim) + content[place + 12 :]


_LIES = {
    "2**31": lambda content: _longer(content, 2**31),
    # TensorFlow's reader ends the process.
    "2**40": lambda content: _longer(content, 2**40),
    "2**63": lambda content: _longer(content, 2**63),
    "a byte": _longer,
    "cut off": lambda content: content[:-1],
    "more": lambda content: content + bytes(64),
}


@pytest.mark.parametrize("lie", _LIES)
@pytest.mark.parametrize("kind", _RECORDS)
def test_lengths_are_compared_with_the_file_before_it_is_read(
    kind, lie, tmp_path
):
    path, read = _RECORDS[kind](tmp_path)
    read()  # A known file is read again though it keeps its time.
    _rewrite(path, _LIES[lie](path.read_bytes()))
    assert str(path) in _refused(read)


def test_arrays_of_absurd_shapes_are_not_results(tmp_path):
    path = tmp_path / "a.npz"
    for shape in (2**33, 2**60):
        about = {"descr": "|b1", "fortran_order": False, "shape": (shape,)}
        text = str(about)
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("about.npy", array + text.ljust(118).encode() + b"a")
        assert str(path) in _refused(lambda: comparison.read(str(path)))


# ---- What is not a regular file ----------------------------------------------


@pytest.mark.parametrize("kind", [*_RECORDS, "csv", "PNG", "npz"])
def test_fifos_are_not_opened(kind, tmp_path):
    """To open one would wait for a writer."""
    path, read = _FILES[kind](tmp_path)
    path.unlink()
    os.mkfifo(path)
    refused = []
    thread = threading.Thread(
        target=lambda: refused.append(_refused(read)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert refused


@pytest.mark.parametrize("listed", [False, True], ids=["folder", "csv"])
@pytest.mark.parametrize("kind", ["device", "loop", "nothing", "holes"])
def test_what_is_named_like_an_image_counts_as_one(kind, listed, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(_encoded(i))
    path, name = tmp_path / "x.png", f"folder:{tmp_path}"
    if listed:
        rows = "path\n0.png\n1.png\n2.png\nx.png\n"
        (tmp_path / "a.csv").write_text(rows)
        name = f"csv:{tmp_path}/a.csv"
    if kind == "holes":  # More than any memory.
        path.write_bytes(_encoded(0))
        os.truncate(path, 1 << 42)
    else:
        target = {"device": "/dev/zero", "loop": path, "nothing": "/nothing"}
        path.symlink_to(target[kind])
    source = datasets.source(name)
    assert source.info.bad_images == (str(path),)
    assert len(list(source.examples())) == 3


def test_a_flagfile_may_come_from_a_process_but_ends(tmp_path):
    path = tmp_path / "a.flags"
    os.mkfifo(path)
    text = b"--batch_size=16\n--workdir=run\n"
    thread = threading.Thread(target=path.write_bytes, args=[text])
    thread.start()
    run = flags.parse(Pretrain, [f"--flagfile={path}"])
    thread.join()
    assert run.schedule.batch_size == 16
    endless = ["--flagfile=/dev/zero"]
    assert "/dev/zero" in _refused(lambda: flags.parse(Pretrain, endless))


# ---- Rot: a file changes after it was checked --------------------------------


def _rot(path):
    """Damages a file, whose size and time stay the same."""
    content = path.read_bytes()
    _rewrite(path, content[:8] + bytes(len(content) - 8))


def _classes(folder, kind="PNG", count=6):
    for number, name in enumerate("ab"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            # Of two shapes, so that they are read in each epoch.
            content = _encoded(i + number * count, kind, 6 + i % 2)
            (folder / name / f"{i}.{kind.lower()}").write_bytes(content)
    return f"folder:{folder}"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_rotten_image_is_named_and_counted_at_the_next_start(kind, tmp_path):
    name = _classes(tmp_path / "images", kind)
    path = tmp_path / "images" / "b" / f"3.{kind.lower()}"
    none = Reading(max_bad_images=0)
    for reading in (none, Reading()):
        source = datasets.source(name, reading=reading)
        assert source.info.num_examples == 12
    _rot(path)
    with pytest.raises(tf.errors.OpError) as caught:
        list(source.examples())
    assert str(path) in str(datasets.name_unreadable(caught.value))
    assert datasets.source(name).info.bad_images == (str(path),)
    assert str(path) in _refused(lambda: datasets.source(name, reading=none))


def test_other_errors_are_not_explained(tmp_path):
    name = _classes(tmp_path / "images")
    datasets.source(name)
    _rot(tmp_path / "images" / "a" / "0.png")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.debugging.Assert(False, ["of a step"])
    assert datasets.name_unreadable(caught.value) is None
    assert datasets.name_unreadable(ValueError("IteratorGetNext")) is None


_OPTIONS = {"augment_on": "device"}, {"validation_fraction": 0.5}


@pytest.mark.slow
@pytest.mark.usefixtures("small_encoder")
@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_a_run_names_a_rotten_image_and_is_saved(
    options, tmp_path, monkeypatch
):
    name = _classes(tmp_path / "images", count=8)
    workdir = tmp_path / "run"
    options = options | {"dataset": name, "split": "train", "image_size": 8}
    options |= {"batch_size": 4, "min_crop_area": 0.08}
    run = small.run(workdir=str(workdir), **options)
    rotten = sorted((tmp_path / "images").rglob("*.png"))[:8]  # Of class "a".

    def rotting_fit(*args, fit=train.fit, **kwargs):
        for path in rotten:
            _rot(path)
        return fit(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(train, "fit", rotting_fit)
        text = _refused(lambda: train.pretrain(run))
    assert str(rotten[0]) in text and "8 of 16" in text and "saved" in text
    assert list((workdir / "checkpoints").glob("ckpt-*.index"))
    # The order depends on the number of images.
    assert "allow_changed_data" in _refused(lambda: train.pretrain(run))
