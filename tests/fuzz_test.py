"""Damaged files: an error of one line or a right result, never a traceback.

The seed is fixed. `python tests/fuzz_test.py N` tries N times as many cases and
prints the table.
"""

import csv
import io
import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting, flags
from tf_contrastive.base.errors import UserError
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import comparison
from tf_contrastive.evaluation import report as reports
from tf_contrastive.exporting import model_card

pytestmark = pytest.mark.slow

# Pieces that parsers of numbers, texts, JSON, CSV and flags trip over.
_PIECES = (
    b"\n",
    b"\r",
    b"\0",
    b",",
    b'"',
    b"'",
    b"\\",
    b"=",
    b"#",
    b"--",
    b":",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9" * 30,
    b"9" * 5000,
    b"2147483648",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[" * 5000,
    b'{"a":' * 200,
    b"\xff",
    b"\xc3\x28",
    "\u2028".encode(),
    "\u202e".encode(),
    b"\x1b[31m",
)


def _mutated(content, generator):
    """Returns bytes with one to three random changes."""
    for _ in range(generator.randint(1, 3)):
        at = generator.randint(0, len(content))
        length = min(generator.choice([1, 1, 2, 8, 50]), len(content) - at)
        part, rest = content[at : at + length], content[at + length :]
        changed = generator.choice(
            [
                b"",
                part * 2,
                bytes(generator.randrange(256) for _ in part),
                generator.choice(_PIECES),
                part + generator.choice(_PIECES),
            ]
        )
        if generator.random() < 0.1:
            rest = b""
        content = content[:at] + changed + rest
    return content


def _outcome(call):
    """Returns how a call ended."""
    try:
        return call()
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return "one-line error"


def _png(index):
    image = np.random.default_rng(index).integers(0, 256, [4, 5, 3], np.uint8)
    return tf.io.encode_png(image).numpy()


class _Csv:
    """Accepted rows are those that Python's own reader finds."""

    def __init__(self, folder):
        self.path = folder / "a.csv"
        for i in range(4):
            (folder / f"{i}.png").write_bytes(_png(i))
        self.content = b"path,label\n0.png,cat\n1.png,3\n2.png,\xc3\xa9\n"

    def __call__(self):
        source = datasets.source(f"csv:{self.path}")
        text = self.path.read_bytes().decode("utf-8-sig")
        rows = [r for r in csv.reader(io.StringIO(text, newline="")) if any(r)]
        if source.info.has_labels and source.info.label_names:
            names = {row[1].strip() for row in rows if len(row) > 1}
            assert {*source.info.label_names} <= names
        assert source.info.num_examples <= len(rows)
        assert len(list(source.examples())) == source.info.num_examples
        return "accepted"


class _Images:
    """What is verified can be decoded, to the size that was found."""

    def __init__(self, folder, encode, ending):
        self.path = folder / f"a.{ending}"
        image = np.random.default_rng(0).integers(0, 256, [9, 7, 3], np.uint8)
        self.content = encode(image)

    def __call__(self):
        source = datasets.source(f"folder:{self.path.parent}")
        (example,) = source.examples()
        assert example["image"].shape == source.info.image_shape
        return "accepted"


class _Flags:
    """An accepted config is read back from what is written of it."""

    def __init__(self, folder):
        self.path = folder / "config.flags"
        run = saved_run.make(folder / "run")
        self.content = flags.record(run).encode()

    def __call__(self):
        run_config = checkpoints.check_run(str(self.path.parent))
        text = flags.record(run_config)
        assert flags.read(Pretrain, text, str(self.path.parent)) == run_config
        return "accepted"


class _RunFile:
    """A file of a run's folder; weights are those of a checkpoint, or none."""

    name: str

    def __init__(self, folder):
        saved_run.make(folder / "run")
        self.folder = folder / "run"
        (self.folder / "evaluation.json").write_text(
            json.dumps(_report(), indent=1)
        )
        self.known = {
            self._weights(path): checkpoints.step_of(path)
            for path in checkpoints.saved(str(self.folder))
        }
        shutil.copytree(self.folder, folder / "whole")
        self.path = self.folder / self.name
        self.content = self.path.read_bytes()

    @staticmethod
    def _weights(path):
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        return b"".join(
            reader.get_tensor(name).tobytes()
            for name in sorted(shapes)
            if name.startswith("encoder/")
        )

    def __call__(self):
        run = checkpoints.load_run(str(self.folder))
        assert self.known[self._weights(run.checkpoint)] == run.step
        report = reports.read(str(self.folder))
        reports.table(report.get("results", []))
        reports.write(str(self.folder), _report())
        exporting.ProbeHead.from_run(run, 64)
        details = {"channels": 3, "signatures": [], "head": None, "formats": []}
        details |= {"image_size": 8, "embedding_size": 64, "resized_side": 9}
        details |= {"package": "1", "tensorflow": "2", "exif": "apply"}
        model_card.text(details, run)
        return "accepted" if run.step == 1 else "older checkpoint"


class _Metadata(_RunFile):
    name = "checkpoints/metadata.json"


class _Evaluation(_RunFile):
    name = "evaluation.json"


class _Weights(_RunFile):
    name = "checkpoints/ckpt-1.data-00000-of-00001"


class _Index(_RunFile):
    name = "checkpoints/ckpt-1.index"


class _List(_RunFile):
    name = "checkpoints/checkpoint"


class _Hits:
    """Hits that are read are arrays of the length that was written."""

    def __init__(self, folder):
        self.path = folder / "trained-knn.npz"
        about = {"": {"protocol": "knn", "labels": "x"}}
        np.savez_compressed(
            self.path, about=json.dumps(about), correct=np.ones([50], bool)
        )
        self.content = self.path.read_bytes()
        assert comparison.read(str(self.path))

    def __call__(self):
        for hits in comparison.read(str(self.path)).values():
            assert len(hits.correct) == 50
        return "accepted"


def _report():
    row = {
        **{"encoder": "trained", "protocol": "knn", "variant": "k=1"},
        **{"version": "1", "scale": "cpu", "hyperparameters": {"k": [1]}},
        **{"top1": 0.5, "top1_interval": [0.4, 0.6], "top5": None},
        **{"top5_interval": None, "examples": 360, "seconds": 0.5},
        "metrics": {"ece": 0.25, "ece_interval": [0.2, 0.3]},
    }
    return {
        **{"dataset": "digits", "train_split": "train", "test_split": "test"},
        **{"scale": "cpu", "step": 1, "checksum": "a", "left_out": {}},
        "results": [row],
        "history": [
            {
                **{"step": 0, "dataset": "digits", "train_split": "train"},
                **{"test_split": "test", "checksum": "b"},
                **{"protocols": {"knn@1": {}}, "metrics": {"top1": 0.25}},
            }
        ],
    }


def _gif(image):
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "GIF")
    return stream.getvalue()


# Kind -> (class or function of the folder, cases).
_KINDS = {
    "CSV": (_Csv, 200),
    "JPEG": (
        lambda f: _Images(f, lambda x: tf.io.encode_jpeg(x).numpy(), "jpg"),
        150,
    ),
    "PNG": (
        lambda f: _Images(f, lambda x: tf.io.encode_png(x).numpy(), "png"),
        150,
    ),
    "GIF": (lambda f: _Images(f, _gif, "gif"), 150),
    "config.flags": (_Flags, 250),
    "metadata.json": (_Metadata, 100),
    "evaluation.json": (_Evaluation, 100),
    "checkpoint data": (_Weights, 50),
    "checkpoint index": (_Index, 50),
    "list of checkpoints": (_List, 50),
    "results (npz)": (_Hits, 250),
}


def _fuzz(kind, folder, times=1):
    """Returns how often each outcome was seen."""
    make, cases = _KINDS[kind]
    target = make(folder)
    generator = random.Random(kind)
    seen = Counter()
    for _ in range(cases * times):
        damaged = _mutated(target.content, generator)
        target.path.write_bytes(damaged)
        try:
            seen[_outcome(target)] += 1
        except Exception:
            (folder / "failing").write_bytes(damaged)
            raise
        if hasattr(target, "folder"):  # What the call itself has written.
            shutil.rmtree(target.folder)
            shutil.copytree(folder / "whole", target.folder)
    return seen


@pytest.mark.parametrize("kind", _KINDS)
def test_damaged_files_are_one_line_or_harmless(kind, tmp_path):
    seen = _fuzz(kind, tmp_path)
    if kind != "list of checkpoints":  # TensorFlow's own, which is rewritten.
        assert seen["one-line error"] + seen["older checkpoint"] > 0
    assert sum(seen.values()) == _KINDS[kind][1]


if __name__ == "__main__":
    import tempfile

    for _kind in _KINDS:
        with tempfile.TemporaryDirectory() as _folder:
            _seen = _fuzz(_kind, Path(_folder), int(sys.argv[1]))
        print(f"{_kind:20} {dict(_seen)}", flush=True)
