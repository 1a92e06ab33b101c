"""Measures a machine with one GPU that is lent for minutes, without network.

Use: python tools/gpu_session.py --out=FOLDER [--minutes=15] [--try]
         [--data_dir=FOLDER] [--peer_python=PYTHON]

It needs the packages of `pip install '.[gpu]'`, and does one after the other:

- decodes PNGs with an orientation in EXIF many times, beside the GPU;
- trains configs/supcon_cifar10.flags with ResNet-18 for as many epochs as take
  half of the minutes; kNN meanwhile, then kNN and a linear probe. --data_dir:
  where TensorFlow Datasets has CIFAR-10; else digits;
- measures training steps in bfloat16 and TF32, with command buffers and without
  (TensorFlow 2.21), beside lightly if --peer_python has it; profiles them.

FOLDER gets results.jsonl and results.txt, of each command as soon as it ends,
logs, the benchmarks' files and the runs. --try: tiny sizes.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = ("-m", "tf_contrastive")
_RECIPE = "--flagfile=configs/supcon_cifar10.flags"
# Network, side, images of two views, the most important first; tiny ones.
_STEPS = ("resnet18:32:512 resnet50:224:128 resnet18:32:64", "resnet18:8:4")
_DECODING = """
import os, sys, numpy as np
from PIL import Image, ImageOps
from tf_contrastive import datasets, distribution
distribution.strategy("default")
folder, rounds = sys.argv[1] + "/a", int(sys.argv[2])
os.makedirs(folder)
rng, upright = np.random.default_rng(0), set()
for i in range(256):
    exif = Image.Exif()
    exif[0x0112] = 1 + i % 8
    pixels = rng.integers(0, 256, [20 + i % 5, 30, 3], np.uint8)
    name = f"{folder}/{i}.png"
    Image.fromarray(pixels).save(name, exif=exif)
    image = np.asarray(ImageOps.exif_transpose(Image.open(name)))
    upright.add((image.shape, image.tobytes()))
data, _ = datasets.load("folder:" + sys.argv[1], split="train")
wrong = sum(
    (x["image"].shape, x["image"].tobytes()) not in upright
    for _ in range(rounds) for x in data.as_numpy_iterator()
)
print(f"{wrong} of {256 * rounds} images are wrong")
sys.exit(wrong > 0)
"""


class Session:
    def __init__(self, out: Path, minutes: float) -> None:
        self.out, self.seconds = out, 60 * minutes
        self.start = time.monotonic()
        out.mkdir(parents=True)

    def left(self, fraction: float) -> float:
        return self.start + fraction * self.seconds - time.monotonic()

    def run(self, name: str, words: Sequence[str], until: float) -> str:
        """Runs Python up to a fraction of the time; returns its output."""
        started, log = time.monotonic(), self.out / f"{name}.log"
        if self.left(until) < 5:
            return ""
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # A run saves itself at SIGTERM.
        for number, limit in (signal.SIGTERM, self.left(until)), (9, 20):
            try:
                process.wait(max(limit, 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, number)
        status, seconds = process.wait(), time.monotonic() - started
        row = {"command": name, "status": status, "seconds": round(seconds, 1)}
        text = log.read_text(errors="replace")
        with (self.out / "results.jsonl").open("a") as file:
            file.write(json.dumps({**row, "words": words}) + "\n")
        with (self.out / "results.txt").open("a") as file:
            lines = "\n".join(text.rstrip().splitlines()[-12:])
            file.write(f"{name}: status {status}, {seconds:.0f} s\n{lines}\n\n")
        print(json.dumps(row), flush=True)
        return text

    def recipe(self, until: float, data: str, tiny: bool) -> None:
        """Trains for the epochs that fit, and evaluates."""
        trial, work = (f"--workdir={self.out}/{x}" for x in ("trial", "run"))
        words = [*_PACKAGE, "pretrain", _RECIPE, data, "--encoder=resnet18"]
        words += ["--width=0.125", "--batch_size=64"] * tiny
        words += ["--online_knn_size=4096"]
        short = ["--epochs=3", "--warmup_epochs=1", trial]
        text = self.run("recipe_trial", [*words, *short], until)
        numbers = r"train: ([\d,]+) images|([\d,]+) images/s"
        found = [a or b for a, b in re.findall(numbers, text)]
        if len(found) > 1:
            # Of the seconds that are left, some are for the evaluation.
            images, rate = (int(found[i].replace(",", "")) for i in (0, -1))
            rate /= images
            epochs = 2 if tiny else max(2, int(0.75 * self.left(until) * rate))
            words += [f"--warmup_epochs={min(10, epochs // 10)}"]
            words += [f"--epochs={epochs}", work]
            self.run("recipe", words, until - 0.08)
            words = [*_PACKAGE, "evaluate", work, "--protocols=knn,linear"]
            self.run("recipe_evaluation", [*words, "--scale=cpu"], until)

    def steps(self, python: str, tiny: bool, mode: str) -> None:
        """Measures and profiles training steps, until the time is over."""
        for step in _STEPS[tiny].split():
            network, side, images = step.split(":")
            size = [f"--image_size={side}", f"--encoder={network}"]
            size += [f"--batch_size={images}", "--dataset=digits"]
            name = step.replace(":", "_") + mode
            words = ["-m", "lab", "benchmark", "step", "--replicas=1"]
            words += [f"--run_flags={' '.join(size)}"]
            if python:
                words = [*words[:3], "peer", f"--peer_python={python}"]
                words += [f"--peer_steps={step}"]
            words += ["--repeats=3", f"--output={self.out}/{name}.json"]
            self.run(name, words, 1.0)
            words = [*_PACKAGE, "pretrain", *size, "--profile_steps=8,11"]
            words += ["--epochs=6", f"--workdir={self.out}/profile_{name}"]
            self.run(f"profile_{name}", words, 1.0)


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--peer_python", default="")
    parser.add_argument("--data_dir", type=os.path.abspath)
    parser.add_argument("--try", action="store_true", dest="tiny")
    given = parser.parse_args()
    place = given.data_dir
    data = f"--data_dir={place}" if place else "--dataset=digits"
    session = Session(Path(given.out).resolve(), given.minutes)
    os.chdir(Path(__file__).resolve().parents[1])
    rounds = "1" if given.tiny else "40"
    words = ["-c", _DECODING, f"{session.out}/pngs", rounds]
    session.run("decoding", words, 0.1)
    session.recipe(0.6, data, given.tiny)
    session.steps(given.peer_python, given.tiny, "")
    os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer="
    session.steps(given.peer_python, given.tiny, "_no_buffers")


if __name__ == "__main__":
    main()
