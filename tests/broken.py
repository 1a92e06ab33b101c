"""What is wrong about the inputs in `mistakes`: files, folders, runs.

Each function of `MAKERS` takes the path at which to make something, and a
function that gives, by name, the folder of a run or an export to make it of.
"""

import json
import shutil
from pathlib import Path

import numpy as np


def _text(content):
    return lambda path, _: path.write_text(content)


def _pictures(path, names):
    from PIL import Image

    generator = np.random.default_rng(0)
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 255, [8, 8, 3], np.uint8)
        Image.fromarray(pixels).save(path / name)


def _folder(*names):
    return lambda path, _: _pictures(path, names)


def _partly(path, _, good=1):
    _pictures(path, ["0.png"][:good])
    path.mkdir(exist_ok=True)
    for i in range(good, 3):
        (path / f"{i}.png").write_bytes(b"no picture")


def _listed(content):
    """A list of images, and a.png and b.png beside it."""

    def make(path, _):
        _pictures(path.parent, ["a.png", "b.png"])
        path.write_text(content)

    return make


def _records(*contents, cut=None):
    """A TFRecord file; each record bytes, or the features of an example."""

    def make(path, _):
        import tensorflow as tf

        with tf.io.TFRecordWriter(str(path)) as writer:
            for content in contents:
                writer.write(_example(content))
        path.write_bytes(path.read_bytes()[:cut])

    return make


def _example(content):
    import tensorflow as tf

    if isinstance(content, bytes):
        return content
    png = tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
    made = {}
    for name, value in content.items():
        value = png if value == "PNG" else value
        if isinstance(value, bytes):
            made[name] = tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[value])
            )
        else:
            made[name] = tf.train.Feature(
                int64_list=tf.train.Int64List(value=[value])
            )
    return tf.train.Example(
        features=tf.train.Features(feature=made)
    ).SerializeToString()


def _uneven(path, made):
    path.mkdir()
    for name, labels in (("train", (0, 1)), ("test", (0, 2))):
        rows = [{"image": "PNG", "label": label} for label in labels]
        _records(*rows)(path / name, made)


def _tfds(path, _):
    version = path / "mnist" / "3.0.1"
    version.mkdir(parents=True)
    for name in ("dataset_info.json", "features.json"):
        (version / name).write_text("{")


def _copied(name, change=lambda path: None):
    """A copy of what the test has made once, changed."""

    def make(path, made):
        shutil.copytree(made(name), path)
        change(path)

    return make


def _cut(path):
    for file in (path / "checkpoints").glob("ckpt-*.data-*"):
        file.write_bytes(file.read_bytes()[:100])


def _rewritten(file, content):
    def change(path):
        if isinstance(content, bytes):
            (path / file).write_bytes(content)
        else:
            (path / file).write_text(content)

    return change


def _with_flag(*lines):
    """Flags of the run, of which the last ones win, are others."""

    def change(path):
        with open(path / "config.flags", "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    return change


def _run_of_photos(path, made):
    _copied("run")(path, made)
    _pictures(path / "photos", ["a.png", "b.png"])
    _with_flag(f"--dataset=folder:{path}/photos")(path)


def _scored(labels="of one kind", **hidden):
    """What `evaluate` leaves of a run: hits of kNN."""

    def make(path, _):
        about = {
            "encoder": "trained",
            "protocol": "knn",
            "version": "1",
            "hyperparameters": {},
            "dataset": "digits",
            "split": "test",
            "labels": labels,
        }
        if hidden:
            del about["labels"]
        (path / "evaluation").mkdir(parents=True)
        np.savez(
            path / "evaluation" / "trained-knn.npz",
            about=json.dumps({"": about}),
            correct=np.array([True, False]),
        )

    return make


_RECIPE = {
    "shared": {"pretrain": ["--dataset=digits", "--loss=supcon"]},
    "arms": {"a": {}},
    "values": {"loss": ["training", "loss/contrastive/last_epoch"]},
}


def _claim(items=("SI-T4",), **recipe):
    claim = {"claim": "A", "items": items, "cpu": {**_RECIPE, **recipe}}
    return _text(json.dumps({"A": claim}))


def _result(content):
    def make(path, _):
        (path / "A").mkdir(parents=True)
        (path / "A" / "result.json").write_text(content)

    return make


def _shards(content):
    def make(path, _):
        path.mkdir()
        (path / "d.json").write_text(content)

    return make


MAKERS = {
    "file": _text("A text, and nothing but a text.\n"),
    "empty": lambda path, _: path.mkdir(),
    "binary": lambda path, _: path.write_bytes(bytes(range(256))),
    "json_broken": _text("{"),
    "json_list": _text("[]"),
    "circular": lambda path, _: path.write_text(f"--flagfile={path}\n"),
    "of_nowhere": lambda path, _: path.write_text(
        f"--flagfile={path.parent}/nowhere"
    ),
    "damaged_tfds": _tfds,
    # Images.
    "photos": _folder("a.png", "b.png"),
    "one_class": _folder("cat/a.png", "cat/b.png"),
    "splits": _folder("train/a/0.png", "train/b/0.png", "test/a/0.png"),
    "no_images": lambda path, _: _partly(path, _, good=0),
    "bad_images": _partly,
    "csv_empty": _text("path,label\n"),
    "csv_mixed": _listed("a.png,1\nb.png\n"),
    "csv_columns": _listed("1,a.png\n2,b.png\n"),
    "csv_missing": _listed("a.png,1\nc.png,2\n"),
    "records_empty": _records(),
    "records_cut": _records({"image": "PNG"}, cut=-9),
    "records_raw": _records({"image_raw": bytes(99)}),
    "records_other": _records(b"\xff\xff\xff"),
    "records_of_text": _records({"text": b"a", "label": 1}),
    "records_named": _records({"image": "PNG", "label": b"cat"}),
    "records_negative": _records({"image": "PNG", "label": -1}),
    "uneven": _uneven,
    # Runs and exports.
    "run": _copied("run"),
    "run_unsaved": _copied("run", lambda p: shutil.rmtree(p / "checkpoints")),
    "run_damaged": _copied("run", _cut),
    "run_of_flags": _copied("run", _with_flag("--loses=supcon")),
    "run_of_bytes": _copied(
        "run", _rewritten("config.flags", bytes(range(256)))
    ),
    "run_of_no_results": _copied("run", _rewritten("evaluation.json", "{")),
    "run_of_photos": _run_of_photos,
    "run_of_mnist": _copied("run", _with_flag("--dataset=mnist")),
    "run_of_metadata": _copied(
        "run", _rewritten("checkpoints/metadata.json", "{")
    ),
    "run_without_probe": _copied("run", _with_flag("--noprobe")),
    "export": _copied("export"),
    "five_channels": _copied("five_channels"),
    "foreign": _copied("foreign"),
    "scored": _scored(),
    "scored_on_others": _scored("of another"),
    "scored_without_hits": _scored(hidden=True),
    "shards": _shards('{"input": "mnist"}'),
    "damaged_shards": _shards("{"),
    # Claims.
    "claim": _claim(),
    "claim_of_flagfile": _claim(
        shared={"pretrain": ["--flagfile={configs}/a.flags"]}
    ),
    "claim_of_no_words": _text('{"A": {"items": []}}'),
    "claim_of_no_item": _claim(items=["XX-T1"]),
    "claim_of_no_field": _claim(colour="red"),
    "claim_of_no_arm": _claim(
        relations=[{"left": "loss of x", "at_least": 0.1}]
    ),
    "claim_of_no_value": _claim(
        relations=[{"left": "lots of a", "at_least": 0.1}]
    ),
    "claim_of_no_relation": _claim(
        relations=[{"left": "loss of a", "above": 0.1}]
    ),
    "other_results": _result('{"recipe": "another"}'),
    "no_results": _result("{"),
}


def make(name: str, folder: Path, made) -> str:
    """Makes something in a folder, once; returns its path.

    Args:
      name: of `MAKERS`, or of what is not to be there.
      folder: where.
      made: name -> folder of a run or an export that is whole.
    """
    path = folder / name
    if name in MAKERS and not path.exists():
        MAKERS[name](path, made)
    return str(path)
