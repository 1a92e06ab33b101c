"""Installs a wheel without pins, with each of its extras, and uses each once.

Use: PYTHON tools/extras.py [--together] WHEEL FOLDER

FOLDER must be new; it gets an environment of that PYTHON. Each extra is
installed by the command that the package itself names where the extra is
missing. `gpu`, `dev` and `tpu-compile` are only resolved. `--together` instead
installs the others but `spark` and `torch` at once, in a third of the time.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time

_TFC = "python -m tf_contrastive "
_PRETRAIN = (
    _TFC + "pretrain --dataset=digits --encoder=resnet10 --width=0.0625"
    " --image_size=16 --batch_size=64 --epochs=1 --workdir=run"
    " --profile_steps=2,3"
)
_EMBED = _TFC + "embed --saved_model=run/export/1 --input=digits --output="
_SHARD = "import numpy; found = numpy.load('{}-00000-of-00001.npz')"
_SAME = """
import numpy
expected = numpy.load("plain.npz")
for name in ("embeddings", "labels"):
    assert numpy.array_equal(found[name], expected[name]), name
"""
_PARQUET = """
from pyarrow import parquet
table = parquet.read_table("plain.parquet")
found = {"embeddings": table["embedding"].to_pylist(),
         "labels": table["label"].to_pylist()}
"""
_ONNX = """
import json, numpy, onnxruntime
(file,) = [x["file"] for x in json.load(open(
    "onnx/1/assets.extra/model.json"))["formats"]]
session = onnxruntime.InferenceSession("onnx/1/" + file)
(source,) = session.get_inputs()
images = numpy.random.rand(3, 16, 16, 3).astype("float32")
(embeddings,) = session.run(None, {source.name: images})
assert embeddings.shape[0] == 3 and numpy.std(embeddings, axis=0).max() > 0
"""
_PHOTOGRAPHS = """
import os, numpy, PIL.Image
os.makedirs("photos/a"), os.makedirs("photos/b")
for name in "ab":
    for i in range(4):
        image = numpy.random.randint(0, 255, [8, 8, 3], "uint8").repeat(8, 0)
        PIL.Image.fromarray(image).save(f"photos/{name}/{i}.png")
open("photos/a/4.heic", "w").close()
"""
_HEIC = """
import PIL.Image, pillow_heif
pillow_heif.register_heif_opener()
PIL.Image.open("photos/a/0.png").save("photos/a/4.heic")
"""
_SEEN = """
import numpy
assert len(numpy.load("photos.npz")["embeddings"]) == 9
"""
_TENSORBOARD = """
import gzip, json, os, urllib.request
from tensorboard import program
board = program.TensorBoard()
board.configure(argv=["", "--logdir=run", "--port=0"])
url = board.launch()
def get(path):
    content = urllib.request.urlopen(url + "data/" + path).read()
    zipped = content[:2] == bytes([31, 139])
    return json.loads(gzip.decompress(content) if zipped else content)
assert get("plugins_listing")["profile"]["enabled"]
assert get("plugin/profile/runs"), "TensorBoard shows no profile of the run"
os._exit(0)  # Its threads go on.
"""
_SERVE = """
import json, re, subprocess, sys, urllib.request
command = [sys.executable, "-m", "tf_contrastive", "serve", "--port=0",
           "--saved_model=run/export"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
url = re.search(r"http://[\\w.:]+", server.stdout.readline())[0]
body = json.dumps({"instances": [[[[0] * 3] * 16] * 16] * 2}).encode()
answer = urllib.request.urlopen(url + "/v1/models/encoder:predict", body)
assert len(json.load(answer)["predictions"]) == 2
server.terminate()
assert server.wait(60) == 0
"""
_TORCH_ASKS = """
import sys
from tf_contrastive import __main__
open("x.pth", "wb").write(bytes([128, 2]))
sys.argv += ["embed", "--saved_model=x.pth", "--input=digits", "--output=x.npz"]
sys.exit(__main__.main())
"""
# Names and kernels of PyTorch, of random values: that tensors are read, and a
# file that would execute something is not.
_TORCH_FILES = """
import argparse, os, numpy, torch
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.encoders import build
from tf_contrastive.encoders.published.tables import tables
names = "encoder.conv1.weight", "encoder.layer1.0.conv1.weight"
(table,) = tables(names)
encoder = build("resnet10", width=0.125, stem="cifar", image_shape=(16, 16, 3))
state, theirs = {}, table.variables(ResNet.networks["resnet10"])
for variable in encoder.variables:
    value = torch.rand(*variable.shape) + 0.5
    variable.assign(value.numpy())
    if value.ndim == 4:
        value = value.permute(3, 2, 0, 1)
    state[theirs[variable.name]] = value
options = argparse.Namespace(dataset="imagenet", size=16)
torch.save({"opt": options, "model": state}, "theirs.pth")
class Harmful:
    def __reduce__(self):
        return os.mkdir, ("executed",)
torch.save({"model": Harmful()}, "harmful.pth")
images = numpy.random.random([2, 16, 16, 3]).astype("float32")
numpy.savez("torch.npz", images=images, h=encoder(images))
"""
_TORCH = """
import os, numpy, tf_contrastive
expected = numpy.load("torch.npz")
h = tf_contrastive.load("theirs.pth")(expected["images"])
assert numpy.allclose(h, expected["h"], rtol=1e-5)
try:
    tf_contrastive.load("harmful.pth")
except tf_contrastive.base.errors.UserError as error:
    assert "mkdir" in str(error) and not os.path.exists("executed"), error
else:
    raise AssertionError("it was loaded")
"""
_PHOTOS = (
    f"{_EMBED}photos.npz --format=npz --split=train --input=folder:photos"
).replace(" --input=digits", "")


def _code(text: str) -> str:
    return f"python -c {shlex.quote(text)}"


# Extra -> what uses it.
_USES = {
    "": [
        _PRETRAIN,
        _TFC + "export --workdir=run",
        f"{_EMBED}plain.npz",
        f"{_EMBED}plain.parquet",
        _code(_PARQUET + _SAME),
        _code(_PHOTOGRAPHS),
    ],
    "onnx": [
        _TFC + "export --workdir=run --format=savedmodel,onnx"
        " --output_dir=onnx",
        _code(_ONNX),
    ],
    "beam": [
        f"{_EMBED}beam.npz --runner=DirectRunner --shard_size=9999",
        _code(_SHARD.format("beam") + _SAME),
    ],
    "spark": [
        f"{_EMBED}spark.npz --runner=spark --shard_size=9999"
        " --runner_options=spark.master=local[1]",
        _code(_SHARD.format("spark") + _SAME),
    ],
    "heic": [_code(_HEIC), _PHOTOS, _code(_SEEN)],
    "profile": [_code(_TENSORBOARD)],
    "serve": [_code(_SERVE)],
    "torch": [_code(_TORCH_FILES), _code(_TORCH)],
}
# Extra -> a command that names what to install where the extra is missing.
_ASKS = {
    "onnx": _USES["onnx"][0],
    "beam": _USES["beam"][0],
    "spark": _USES["spark"][0],
    "heic": _PHOTOS,
    "serve": _TFC + "serve --saved_model=run/export --port=0",
    "torch": _code(_TORCH_ASKS),
}
_INSTALL = re.compile(r"\S+ -m pip install((?: '[^']+'| [\w-]+)+)")
# Half a gigabyte or more, and Java for Spark: left out of --together.
_LARGE = ("spark", "torch")
# Only resolved: a GPU, tools, and an environment of its own.
_RESOLVED = ("gpu", "dev", "tpu-compile")
_ALWAYS = ("tensorflow", "numpy", "protobuf", "ml-dtypes", "pyarrow", "pillow")


class Environment:
    """A new environment in a folder, and commands that run there."""

    def __init__(self, folder: str) -> None:
        os.mkdir(folder)
        self.folder = folder
        venv = os.path.join(folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        }
        self.variables["PATH"] = f"{venv}/bin:{os.environ['PATH']}"
        self.variables["TF_CPP_MIN_LOG_LEVEL"] = "3"

    def run(self, command: str, may_fail: bool = False) -> str:
        """Returns the output of a command; exits if it fails."""
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self.variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode and not may_fail:
            tail = "\n".join(done.stdout.splitlines()[-15:])
            sys.exit(f"{tail}\nextras: failed: {command}")
        return done.stdout

    def pip(self, words: str) -> None:
        self.run(
            f"python -m pip install --no-input --no-compile --quiet {words}"
        )

    def resolve(self, words: str) -> dict[str, str]:
        """Returns the versions that pip would install in an empty place."""
        self.pip(f"--dry-run --ignore-installed --report=report.json {words}")
        with open(os.path.join(self.folder, "report.json")) as file:
            found = [x["metadata"] for x in json.load(file)["install"]]
        return {_name(x["name"]): x["version"] for x in found}

    def versions(self) -> dict[str, str]:
        self.run("python -m pip check")
        listed = json.loads(self.run(_LIST).splitlines()[0])
        return {_name(x["name"]): x["version"] for x in listed}


_LIST = "python -m pip list --format=json --disable-pip-version-check"


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _show(extra: str, start: float, versions: dict[str, str], did: str) -> None:
    shown = ", ".join(f"{name} {v}" for name, v in sorted(versions.items()))
    print(
        f"{sys.version.split()[0]:7} {extra or 'none':11} {did:8}"
        f" {time.monotonic() - start:4.0f} s  {shown}",
        flush=True,
    )


def main(wheel: str, folder: str, together: bool) -> None:
    """Installs and uses; prints a line for each extra."""
    here = Environment(folder)
    start = time.monotonic()
    uses = dict(_USES)
    for extra in _LARGE if together else ():
        del uses[extra]
    extras = [extra for extra in uses if extra]
    source = shlex.quote(wheel)
    here.pip(f"{source}[{','.join(extras)}]" if together else source)
    installed = here.versions()
    before = {name: installed[name] for name in _ALWAYS if name in installed}
    for extra, commands in uses.items():
        if extra and not together:
            start = time.monotonic()
            words = f" {source}[{extra}]"
            fresh = here.resolve(words)
            if ask := _ASKS.get(extra):
                output = here.run(ask, may_fail=True)
                named = _INSTALL.search(output)
                if not named or "Traceback" in output:
                    sys.exit(f"{output}\nextras: {extra} was not asked for")
                words = named[1]
            here.pip(words)
            after = here.versions()
            before = {
                name: version
                for name, version in after.items()
                if installed.get(name) != version
                and (name in installed or name in words)
            }
            installed = after
            other = {
                n: fresh.get(n) for n in before if fresh.get(n) != after[n]
            }
            if other:
                sys.exit(f"extras: {extra} alone would be installed as {other}")
        for command in commands:
            here.run(command)
        _show(extra, start, before, "used")
        start = time.monotonic()
    for extra in () if together else _RESOLVED:
        if extra == "tpu-compile" and sys.version_info < (3, 12):
            continue
        start = time.monotonic()
        wanted = here.resolve(f"{source}[{extra}]")
        names = {"jax", "libtpu", "tensorflow", "pytest", "mypy", "numpy"}
        _show(
            extra,
            start,
            {name: wanted[name] for name in names if name in wanted},
            "resolved",
        )


if __name__ == "__main__":
    *flags, wheel, folder = sys.argv[1:]
    if flags not in ([], ["--together"]):
        sys.exit(__doc__)
    main(os.path.abspath(wheel), os.path.abspath(folder), bool(flags))
