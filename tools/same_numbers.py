"""Shows whether a change leaves the numbers of small runs equal, bit by bit.

Use: python tools/same_numbers.py record FILE [--only JOB ...] [--keep FOLDER]
                                               [--checkout FOLDER]
     python tools/same_numbers.py compare A B [--only JOB ...]

`record` runs the jobs below with the package of this checkout, on the CPU, one
after another, in about 9 minutes on 2 idle cores. It writes the SHA-256 of each
tensor of the newest checkpoints, of each result in evaluation.json and
pretrain.json, of each array, and of each scalar and histogram of TensorBoard.
Times are left out. A run that was killed and resumed must have the weights of
one that was not.

`compare` lists the results that differ, and exits with 1 if there are any. A
result is renamed if it has the same values under other names: the numbers are
the same, but older checkpoints or readers may not fit.

Record before a change and after it, on one machine: numbers also depend on the
processor, the number of its cores, and the versions of libraries.

--keep: folder for what the jobs write, to examine differences.
--checkout: folder of another checkout whose package runs, such as one made by
`git worktree add`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tf_contrastive.base import terminal
from tf_contrastive.config.loss import LOSSES
from tf_contrastive.config.optimizer import OPTIMIZERS
from tf_contrastive.config.schedule import SCHEDULES

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A run of seconds on the digits, without what takes half of such a run.
_DIGITS = (
    "pretrain --dataset=digits --image_size=16 --min_crop_area=0.4"
    " --encoder=resnet10 --width=0.125 --projection_output=16"
    " --projector_examples=0 --log_every_steps=1"
)
_TINY = f"{_DIGITS} --split=train[:512] --batch_size=64 --epochs=2"
_RESUMED = f"{_TINY} --loss=supcon --epochs=6 --checkpoint_every_steps=4"
# All that run on the digits with a projection head that is not linear.
_PROTOCOLS = (
    "knn,prototype,linear,logistic,finetune,robustness,separation,kl_bound,"
    "contrastive,uniformity,transforms,tsne,kmeans"
)
# Job -> command lines, run in one empty folder. They are those of the package,
# and those of `_STEPS`.
JOBS: dict[str, list[str]] = {
    "quickstart": ["quickstart --workdir=."],
    # Of the quickstart's SupCon run.
    "protocols": [
        "pretrain --flagfile=configs/quickstart.flags --loss=supcon"
        " --workdir=run",
        "evaluate --workdir=run --scale=cpu --logistic_options=penalties=5"
        f" --protocols={_PROTOCOLS}",
        "embed --workdir=run --output=embeddings.npz",
        "embed --workdir=run --input=digits --split=train[:100]"
        " --shard_size=64 --output=shards/embeddings.npz",
        "export --workdir=run --head=probe",
        "serve run/export/1 served.npz",
        f"{_TINY} --projection=linear --workdir=linear",
        "evaluate --workdir=linear --protocols=spectrum",
    ],
    "moco": [
        f"{_DIGITS} --loss=moco --key_momentum=0.9 --queue_size=512 --epochs=2"
        " --workdir=run"
    ],
    "mixing": [
        f"{_DIGITS} --loss=cross_entropy --mixup_alpha=0.4 --cutmix_alpha=1"
        " --epochs=2 --workdir=run",
        "evaluate --workdir=run --scale=cpu --protocols=head,knn",
    ],
    "device_augmentation": [f"{_TINY} --augment_on=device --workdir=run"],
    "gradient_cache": [
        f"{_TINY} --loss=supcon --grad_cache_chunks=2 --workdir=run"
    ],
    "replicas": [
        f"{_TINY} --loss=supcon --virtual_devices=2 --workdir=run",
        "evaluate --workdir=run --virtual_devices=2 --protocols=knn",
    ],
    "linear_stage": [
        f"{_TINY} --loss=supcon --linear_epochs=2 --workdir=run",
    ],
    "options": [
        f"{_TINY} --loss=supcon --sampler=class_balanced --views=3"
        " --validation_fraction=0.1 --online_knn_size=256 --nan_policy=skip:2"
        " --precision=mixed_bfloat16 --xla=on --workdir=run",
    ],
    "resume": [
        f"{_RESUMED} --workdir=whole",
        f"kill resumed/checkpoints/ckpt-8.index {_RESUMED} --workdir=resumed",
        f"{_RESUMED} --workdir=resumed",
        "equal whole/checkpoints resumed/checkpoints",
    ],
    "losses": [
        f"pretrain --smoke --loss={loss} --workdir={loss}" for loss in LOSSES
    ],
    "optimizers": [
        f"{_TINY} --optimizer={optimizer} --workdir={optimizer}"
        for optimizer in OPTIMIZERS
    ],
    "schedules": [
        f"{_TINY} --schedule={schedule} --warmup_epochs=0.25"
        f"{' --schedule_options=decay_epochs=1' * (schedule == 'piecewise')}"
        f" --workdir={schedule}"
        for schedule in SCHEDULES
    ],
    "views": ["views views.npz"],
}
# Keys of JSON files and tags of TensorBoard that measure time or memory.
_TIMES, _TIME_TAGS = ("seconds",), ("input/", "system/")
# Result -> name -> SHA-256 of the value.
Results = dict[str, dict[str, str]]


# ---- Jobs --------------------------------------------------------------------


class Job:
    """Runs command lines in a folder, with the package of a checkout."""

    def __init__(self, folder: pathlib.Path, checkout: pathlib.Path) -> None:
        self.folder = folder
        self._log = folder / "log.txt"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "CUDA_VISIBLE_DEVICES": "-1",
        }

    def run(self, line: str) -> None:
        """Runs a command line of `JOBS`; exits if it fails."""
        name, *words = shlex.split(line)
        if name == "kill":
            self._kill(*words)
        elif name == "equal":
            a, b = (_checkpoint(self.folder / word) for word in words)
            if a != b:
                sys.exit(
                    f"{self.folder.name}: {words[0]} and {words[1]} differ"
                )
        elif status := self._start(name, *words).wait():
            self._fail(line, f"status {status}")

    def _start(self, name: str, *words: str) -> subprocess.Popen:
        program = ["-m", "tf_contrastive"]
        if name in ("views", "serve"):
            program = [str(pathlib.Path(__file__).resolve())]
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *program, name, *words],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _kill(self, path: str, *words: str) -> None:
        """Runs a command, and kills it when it has written a file."""
        process = self._start(*words)
        while not (self.folder / path).exists():
            if process.poll() is not None:
                self._fail(shlex.join(words), f"ended without {path}")
            time.sleep(0.01)
        process.kill()
        if process.wait() >= 0:
            self._fail(shlex.join(words), "ended before it was killed")

    def _fail(self, line: str, reason: str) -> None:
        lines = self._log.read_text(errors="replace").splitlines()
        sys.exit("\n".join([*lines[-10:], f"{line}: {reason}"]))


def _views(path: str) -> None:
    """Writes views of four images by each policy, as arrays."""
    from tf_contrastive import views
    from tf_contrastive.config.views import (
        LISTING,
        POLICIES,
        Ablation,
        SimCLRPlus,
        split_name,
    )

    images = _images(4, 40, 48)
    seeds = np.arange(8, dtype=np.int32).reshape(4, 2)
    policies: dict[str, dict[str, Any]] = {
        **{name: {} for name in POLICIES},
        **{f"ablation:{name}": {} for name in Ablation.listable},
        **{f"simclr+{name}": {} for name in SimCLRPlus.listable},
    }
    named = {name: (name, options) for name, options in policies.items()}
    for style in ("tensorflow_shuffled", "pytorch"):
        named[f"simclr, {style}"] = "simclr", {"color_jitter_style": style}
    arrays = {}
    for key, (name, options) in named.items():
        declaration = (POLICIES | LISTING)[split_name(name)[0]]
        if "rotate" in declaration.declared():
            options = {"rotate": True, **options}
        maker = views.Views(views.build(name, image_size=32, **options), 4)
        arrays[key] = maker(images, seeds).numpy()
        # As on a device.
        crops = maker.geometric(images, seeds)
        each = views.prng.fold(seeds, 4)
        changed = maker.photometric(crops, each, static=True)
        arrays[f"{key}, static"] = changed.numpy()
    np.savez(path, **arrays)


def _serve(export: str, path: str) -> None:
    """Writes the outputs of each signature of an export for eight images."""
    import tensorflow as tf

    images = tf.constant(_images(8, 24, 16))
    inputs = {
        tf.uint8: images,
        tf.float32: tf.cast(images, tf.float32) / 255.0,
        tf.string: tf.stack([tf.io.encode_png(image) for image in images]),
    }
    arrays = {}
    for name, call in tf.saved_model.load(export).signatures.items():
        ((argument, spec),) = call.structured_input_signature[1].items()
        for key, value in call(**{argument: inputs[spec.dtype]}).items():
            if value.dtype != tf.string:
                arrays[f"{name}.{key}"] = value.numpy()
    np.savez(path, **arrays)


def _images(count: int, height: int, width: int) -> np.ndarray:
    """Returns images of random squares of 8 x 8 pixels."""
    shape = [count, height // 8, width // 8, 3]
    colors = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return colors.repeat(8, axis=1).repeat(8, axis=2)


_STEPS: dict[str, Callable[..., None]] = {"views": _views, "serve": _serve}


# ---- Hashes ------------------------------------------------------------------


def read(folder: pathlib.Path) -> Results:
    """Hashes all numbers that a job has written into its folder."""
    results: Results = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in ("evaluation.json", "pretrain.json"):
            results[name] = _json(json.loads(path.read_text("utf-8")))
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                results[name] = {x: _array(arrays[x]) for x in arrays.files}
        elif path.suffix == ".tsv":
            results[name] = {"": _sha256(path.read_bytes())}
        elif path.name == "checkpoint":
            results[str(pathlib.Path(name).parent)] = _checkpoint(path.parent)
        elif path.name.startswith("events.out"):
            parent = str(pathlib.Path(name).parent)
            results.setdefault(parent, {}).update(_events(path))
    return results


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _array(value: np.ndarray) -> str:
    value = np.asarray(value)
    content = np.ascontiguousarray(value).tobytes()
    return _sha256(f"{value.dtype.str} {value.shape} ".encode() + content)


def _json(value: Any, name: str = "") -> dict[str, str]:
    """Hashes each value in a JSON file, by its place."""
    if not isinstance(value, dict | list):
        return {name: _sha256(json.dumps(value).encode())}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        place: sha256
        for key, item in items
        if key not in _TIMES
        for place, sha256 in _json(item, f"{name}/{key}").items()
    }


def _checkpoint(folder: pathlib.Path) -> dict[str, str]:
    """Hashes each tensor of the newest checkpoint in a folder."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder))
    return {
        name: _array(reader.get_tensor(name))
        for name, dtype in reader.get_variable_to_dtype_map().items()
        if dtype != tf.string and not name.startswith("save_counter/")
    }


def _events(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Hashes the numbers in a file of TensorBoard, by tag and step."""
    import tensorflow as tf

    for encoded in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(encoded.numpy())
        for value in event.summary.value:
            if value.tensor.dtype == tf.string or value.tag.startswith(
                _TIME_TAGS
            ):
                continue
            array = tf.make_ndarray(value.tensor)
            yield f"{value.tag} at step {event.step}", _array(array)


# ---- Commands ----------------------------------------------------------------


def record(
    file: pathlib.Path,
    names: list[str],
    keep: pathlib.Path | None,
    checkout: pathlib.Path,
) -> None:
    """Runs jobs and writes their hashes, after each job."""
    with terminal.without_start_lines():
        import tensorflow  # noqa: F401
    with tempfile.TemporaryDirectory() as temporary:
        jobs: dict[str, Results] = {}
        for name in names:
            start = time.monotonic()
            job = Job((keep or pathlib.Path(temporary)) / name, checkout)
            job.folder.mkdir(parents=True)
            for line in JOBS[name]:
                job.run(line)
            jobs[name] = read(job.folder)
            if name == "resume":
                # What else it has written depends on when it was killed.
                jobs[name] = {
                    key: value
                    for key, value in jobs[name].items()
                    if "/events" not in key
                }
            seconds = time.monotonic() - start
            print(
                f"{name}: {len(jobs[name])} results, {seconds:.0f} s",
                flush=True,
            )
            content = {"machine": _machine(), "jobs": jobs}
            file.write_text(json.dumps(content, indent=1) + "\n")


def _machine() -> dict[str, Any]:
    """Returns facts on which numbers depend."""
    import tensorflow as tf

    cpus = pathlib.Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = (line for line in lines if line.startswith("model name"))
    return {
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "processor": next(models, "").partition(": ")[2],
    }


def compare(
    a: dict[str, Any], b: dict[str, Any], names: list[str]
) -> Iterator[tuple[str, str, str]]:
    """Yields job, result and how the result compares, for each result.

    That is "equal", "renamed", or what differs.
    """
    for job in names or sorted({*a["jobs"], *b["jobs"]}):
        old, new = a["jobs"].get(job, {}), b["jobs"].get(job, {})
        for result in sorted({*old, *new}) or [""]:
            if result in old and result in new:
                yield job, result, _difference(old[result], new[result])
            else:
                missing = [
                    x for x, y in (("A", old), ("B", new)) if result not in y
                ]
                yield job, result, f"missing in {' and '.join(missing)}"


def _difference(old: dict[str, str], new: dict[str, str]) -> str:
    names = sorted(
        name for name in {*old, *new} if old.get(name) != new.get(name)
    )
    if not names:
        return "equal"
    kind = "different"
    if sorted(old.values()) == sorted(new.values()):
        kind = "renamed"
    more = ", ..." * (len(names) > 3)
    total = len({*old, *new})
    return f"{kind}: {len(names)} of {total}: {', '.join(names[:3])}{more}"


def _print(rows: list[tuple[str, str, str]]) -> int:
    """Prints results that differ and counts by job; returns the status."""
    kinds = ("equal", "renamed", "different", "missing")
    counts: dict[str, dict[str, int]] = {}
    for job, result, difference in rows:
        (kind,) = (kind for kind in kinds if difference.startswith(kind))
        counts.setdefault(job, dict.fromkeys(kinds, 0))[kind] += 1
        if kind != "equal":
            print(f"{job}: {result}: {difference}")
    print(f"{'job':20}", *(f"{kind:>10}" for kind in kinds))
    for job, numbers in counts.items():
        print(f"{job:20}", *(f"{number:>10}" for number in numbers.values()))
    total = sum(numbers["equal"] for numbers in counts.values())
    return int(total < len(rows) or not rows)


def _load(file: str) -> dict[str, Any]:
    try:
        content = json.loads(pathlib.Path(file).read_text("utf-8"))
        return {"machine": dict(content["machine"]), "jobs": content["jobs"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"{file}: {error!r}: give a file that `record` has written")


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in _STEPS:
        _STEPS[sys.argv[1]](*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=pathlib.Path)
    recording.add_argument("--keep", metavar="FOLDER", type=pathlib.Path)
    recording.add_argument(
        "--checkout", metavar="FOLDER", type=pathlib.Path, default=ROOT
    )
    comparing = commands.add_parser("compare")
    comparing.add_argument("a")
    comparing.add_argument("b")
    for command in (recording, comparing):
        command.add_argument(
            "--only", nargs="+", choices=JOBS, default=[], metavar="JOB"
        )
    options = parser.parse_args()
    if options.command == "record":
        for path in (options.file, options.keep):
            if path and path.exists():
                parser.error(f"{path} exists: choose another name")
        if not options.file.absolute().parent.is_dir():
            parser.error(f"{options.file} is in a folder that does not exist")
        if not (options.checkout / "tf_contrastive").is_dir():
            parser.error(f"{options.checkout} has no folder tf_contrastive")
        keep = options.keep and options.keep.resolve()
        names = options.only or list(JOBS)
        record(options.file, names, keep, options.checkout.resolve())
        return 0
    a, b = _load(options.a), _load(options.b)
    for fact, value in a["machine"].items():
        other = b["machine"].get(fact)
        if value != other:
            print(f"A has {fact} {value}, B {other}: numbers may differ by it")
    return _print(list(compare(a, b, options.only)))


if __name__ == "__main__":
    sys.exit(main())
