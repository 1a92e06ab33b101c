"""Checkpoints of others, beside their programs, transcribed with TensorFlow.

A program here draws its variables where the authors' creates them, and names
them by the rules of its library: by counters, scopes, attributes and lists.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise

import tf_contrastive
from tf_contrastive import encoders, exporting, flags
from tf_contrastive.base import errors
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import fields
from tf_contrastive.encoders import published

_CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CIFAR100 = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PLAIN, _CENTRED = ((0,) * 3, (1,) * 3), ((0.5,) * 3, (0.5,) * 3)


class _Program:
    """A residual network that draws, names and uses its variables.

    Its 8 channels make it small.
    """

    parts = ("/kernel", "/gamma", "/beta", "/moving_mean", "/moving_variance")
    always_projects, pads_evenly = True, False

    def __init__(self):
        self.arrays, self._random = {}, np.random.default_rng(0)

    def conv(self, x, channels, side, stride=1):
        shape = side, side, x.shape[-1], channels
        kernel = self._random.normal(size=shape) / np.sqrt(np.prod(shape[:3]))
        self.arrays[self.name("conv") + self.parts[0]] = np.float32(kernel)
        padding = [[0, 0], [side // 2] * 2, [side // 2] * 2, [0, 0]]
        return tf.nn.conv2d(x, np.float32(kernel), stride, padding)

    def norm(self, x):
        drawn = self._random.uniform(0.5, 1.5, [4, x.shape[-1]])
        gamma, beta, mean, variance = np.float32(drawn - [[0], [1], [1], [0]])
        name = self.name("norm")
        names = [name + part for part in self.parts[1:]]
        self.arrays |= zip(names, (gamma, beta, mean, variance), strict=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def block(self, x, channels, stride, deep, first):
        out, shortcut = channels * (4 if deep else 1), x
        if first and (self.always_projects or out != x.shape[-1]):
            self.within("shortcut")
            shortcut = self.norm(self.conv(x, out, 1, stride))
        self.within("branch")
        sides = [(channels, 1, 1), (channels, 3, stride), (out, 1, 1)]
        sides = sides if deep else [(out, 3, stride), (out, 3, 1)]
        for i, convolution in enumerate(sides, 1):
            x = self.norm(self.conv(x, *convolution))
            x = tf.nn.relu(x) if i < len(sides) else x
        return tf.nn.relu(x + shortcut)

    def features(self, images, statistics, repeats, deep, small):
        x = np.float32((images - statistics[0]) / np.array(statistics[1]))
        self.stem()
        x = self.conv(x, 8, 3) if small else self.conv(x, 8, 7, 2)
        x = tf.nn.relu(self.norm(x))
        if not small:
            edges = [[0, 0], [1, 1], [1, 1], [0, 0]]
            x = tf.pad(x, edges) if self.pads_evenly else x
            padding = "VALID" if self.pads_evenly else "SAME"
            x = tf.nn.max_pool2d(x, 3, 2, padding)
        for stage, count in enumerate(repeats):
            for i in range(count):
                self.start(stage, i, deep)
                stride = 2 if stage and not i else 1
                x = self.block(x, 8 << stage, stride, deep, not i)
        return tf.reduce_mean(x, [1, 2]).numpy()

    def _nothing(self, *_):
        pass

    stem = start = within = _nothing


class _Simclr(_Program):
    """TensorFlow 1: one counter for each kind of layer."""

    def __init__(self):
        super().__init__()
        self._counts = collections.Counter()

    def unique(self, name):
        self._counts[name] += 1
        number = self._counts[name] - 1
        return f"{name}_{number}" if number else name

    def name(self, kind):
        kinds = {"conv": "conv2d", "norm": "batch_normalization"}
        return self.unique(f"base_model/{kinds[kind]}")

    def save(self, folder):
        """Writes a checkpoint of TensorFlow 1, with a slot of an optimizer."""
        others = {"global_step": 7, "base_model/conv2d/kernel/Momentum": 0.0}
        names, arrays = zip(*(self.arrays | others).items(), strict=True)
        prefix, slices = f"{folder}/model.ckpt-7", [""] * len(names)
        written = {"tensor_names": names, "tensors": arrays}
        tf.raw_ops.SaveV2(prefix=prefix, shape_and_slices=slices, **written)
        return prefix


class _Supcon(_Simclr):
    """TensorFlow 1: a name is unique in its scope."""

    _where = "ContrastiveModel/Encoder"

    def start(self, stage, block, deep):
        kind = "BottleneckBlock" if deep else "ResidualBlock"
        group = f"ContrastiveModel/Encoder/BlockGroup{stage}"
        self._where = self.unique(f"{group}/{kind}")

    def name(self, kind):
        if kind == "norm":
            return self.unique(f"{self._where}/batch_normalization")
        return self.unique(f"{self._where}/Conv2DFixedPadding") + "/conv2d"


class _SimclrTf2(_Program):
    """TensorFlow 2: attributes of objects, some of which are lists."""

    def __init__(self):
        super().__init__()
        self._lists = collections.defaultdict(list)

    def stem(self):
        self._at, self._fillers = "initial_conv_relu_max_pool", (1, 2)

    def start(self, stage, block, deep):
        self._block = f"block_groups/{stage}/layers/{block}", deep

    def within(self, part):
        block, deep = self._block
        place = {
            ("shortcut", True): "projection_layers",
            ("branch", True): "conv_relu_dropblock_layers",
            ("shortcut", False): "shortcut_layers",
            ("branch", False): "conv2d_bn_layers",
        }[part, deep]
        self._at = f"{block}/{place}"
        # A layer of DropBlock follows each normalization.
        self._fillers = (0, 1) if (part, deep) == ("branch", True) else (0, 0)

    def name(self, kind):
        entries, (after_conv, after_norm) = self._lists[self._at], self._fillers
        place = f"{self._at}/{len(entries)}"
        entries += [None] * (1 + (after_norm if kind == "norm" else after_conv))
        return f"{place}/{'bn' if kind == 'norm' else 'conv2d'}"

    def save(self, folder):
        """Writes a SavedModel, whose root also lists all variables.

        Its graph, which must not be loaded, is left out.
        """
        model, variables = tf.Module(), []
        for name, array in self.arrays.items():
            *path, last = ["resnet_model", *name.split("/")]
            node = model
            for part in path:
                if not hasattr(node, part):
                    setattr(node, part, tf.Module())
                node = getattr(node, part)
            variables.append(tf.Variable(array))
            setattr(node, last, variables[-1])
        named = {"model": model, "trainable_variables_list": variables}
        root = tf.train.Checkpoint(**named)
        root.write(f"{folder}/12/variables/variables")
        open(f"{folder}/12/saved_model.pb", "w").close()
        return folder


class _Torchvision(_Program):
    """PyTorch: attributes of modules."""

    parts = (".weight", ".weight", ".bias", ".running_mean", ".running_var")
    always_projects, pads_evenly = False, True
    prefix, _shortcut = "module.encoder_q.", "downsample"
    _other = "module.encoder_k."
    _stem, _stages, _first = ("conv1", "bn1"), "layer{}", 1

    def stem(self):
        self._names = iter(self.prefix + name for name in self._stem)

    def start(self, stage, block, deep):
        name = self.prefix + self._stages.format(stage + self._first)
        self._block = f"{name}.{block}"

    def within(self, part):
        names = [f"{kind}{i}" for i in (1, 2, 3) for kind in ("conv", "bn")]
        if part == "shortcut":
            names = [f"{self._shortcut}.0", f"{self._shortcut}.1"]
        self._names = iter(f"{self._block}.{name}" for name in names)

    def name(self, kind):
        return next(self._names)

    @property
    def tensors(self):
        """The arrays as PyTorch has them, and others that it saves."""
        theirs = {
            name: x.transpose(3, 2, 0, 1) if x.ndim == 4 else x
            for name, x in self.arrays.items()
        }
        stem = theirs[f"{self.prefix}{self._stem[0]}.weight"]
        return theirs | {
            f"{self.prefix}fc.weight": np.zeros([5, 64], np.float32),
            f"{self._other}conv1.weight": 2 * stem,
            f"{self._other}layer1.0.conv1.weight": stem,
        }

    def save(self, folder):
        return _write_safetensors(f"{folder}/x.safetensors", self.tensors)


class _Children(_Torchvision):
    """PyTorch: `Sequential(*list(resnet.children())[:-1])`, as in lightly."""

    prefix, _stem, _stages = "backbone.", ("0", "1"), "{}"
    _first = 4  # After conv1, bn1, relu and maxpool.


class _Generator(_Children):
    """PyTorch: the teacher of DINO, of lightly's ResNetGenerator."""

    prefix, _shortcut = "teacher_backbone.", "shortcut"
    _first, _other = 2, "student_backbone."


class _Supcontrast(_Torchvision):
    """PyTorch: DataParallel of the encoder, in the file of a training."""

    prefix, _shortcut = "encoder.module.", "shortcut"
    options = argparse.Namespace(dataset="cifar100", size=16)

    def save(self, folder):
        path = f"{folder}/last.pth"
        with open(path, "wb") as file:
            pickle.dump(None, file)
        return path


def _write_safetensors(path, arrays):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "F32", "shape": array.shape}
        header[name]["data_offsets"] = offsets
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return path


class _Tensor:
    def __init__(self, array):
        self.shape, self.numpy = array.shape, lambda: array

    def float(self):
        return self


@pytest.fixture
def pytorch(monkeypatch):
    """Sets what the package torch, which is not installed, would read."""
    content = {}

    def load(file, map_location, weights_only):
        assert weights_only and map_location == "cpu"
        return content

    def safe_globals(classes):
        assert classes == [argparse.Namespace]
        return contextlib.nullcontext()

    torch = types.ModuleType("torch")
    torch.load = load
    torch.serialization = types.SimpleNamespace(safe_globals=safe_globals)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return content


_BASIC, _DEEP = (2, 2, 2, 2), (3, 4, 6, 3)
_slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("program", "statistics", "repeats", "small"),
    [
        (_Simclr, _PLAIN, _BASIC, True),
        (_Supcontrast, _CIFAR100, _BASIC, True),
        (_Generator, _CIFAR10, _BASIC, True),
        pytest.param(_Simclr, _PLAIN, _DEEP, False, marks=_slow),
        pytest.param(_SimclrTf2, _PLAIN, _BASIC, True, marks=_slow),
        pytest.param(_SimclrTf2, _PLAIN, _DEEP, False, marks=_slow),
        pytest.param(_Supcon, _CIFAR10, _BASIC, True, marks=_slow),
        pytest.param(_Supcon, _CENTRED, _DEEP, False, marks=_slow),
        pytest.param(_Torchvision, _IMAGENET, _DEEP, False, marks=_slow),
        pytest.param(_Children, _IMAGENET, _BASIC, False, marks=_slow),
    ],
)
def test_features_are_those_of_the_program(
    program, statistics, repeats, small, pytorch, tmp_path
):
    program, deep = program(), repeats == _DEEP
    # The pool has an even side, at which paddings differ.
    side = 16 if small else 36
    images = noise(2, side)
    expected = program.features(images, statistics, repeats, deep, small)
    path = program.save(str(tmp_path))
    if isinstance(program, _Supcontrast):
        tensors = {n: _Tensor(x) for n, x in program.tensors.items()}
        pytorch |= {"opt": program.options, "model": tensors, "epoch": 3}
    found = exporting.find_published(path)
    sides = [(16 if hasattr(program, "options") else 32) if small else 224] * 2
    assert found.image_shape == (*sides, 3)
    encoder = dataclasses.replace(found, image_shape=(side, side, 3)).load()
    assert np.abs(encoder(images) - expected).max() < 1e-5
    assert not exporting.find(path)


@pytest.fixture(scope="module")
def simclr(tmp_path_factory):
    """The path of a small SimCLR of TensorFlow 1, and its program."""
    program, folder = _Simclr(), tmp_path_factory.mktemp("simclr")
    program.features(noise(1, 16), _PLAIN, _BASIC, False, True)
    program.save(str(folder))
    return str(folder), program


@pytest.mark.parametrize("command", [PretrainCommand, Doctor])
@pytest.mark.parametrize("word", ["--width=0.125", "--standardize=dataset"])
def test_a_run_takes_the_network_and_its_standardization(command, word, simclr):
    words = [f"--init_from={simclr[0]}", "--workdir=w", word]
    values = fields.values(flags.parse(command, words))
    expected = {"encoder": "resnet18", "width": 0.125, "stem": "cifar"}
    expected |= {"pool_padding": "same", "project_first": True}
    own = "dataset" if "standardize" in word else "none"
    assert values.items() >= (expected | {"standardize": own}).items()
    with pytest.raises(errors.UserError, match=r"width=2.*width=0\.125|0\.125"):
        flags.parse(command, [*words[:2], "--width=2"])


def test_loaded_and_copied_weights_are_the_program_s(simclr, caplog):
    path, program = simclr
    options = {"width": 0.125, "project_first": True, "std": [0.5] * 3}
    options |= {"image_shape": [32, 32, 3], "mean": [0] * 3}
    encoder = encoders.build("resnet18", **options)
    exporting.copy_weights(path, encoder)
    assert "standardize=0,0,0/1,1,1" in caplog.text
    kernel = program.arrays["base_model/conv2d/kernel"]
    np.testing.assert_array_equal(encoder.variables[0], kernel)
    bytes = np.random.default_rng(0).integers(0, 256, [2, 32, 32, 3], np.uint8)
    h = tf_contrastive.load(path)(bytes)
    expected = encoder(tf.constant(bytes / 255 * 0.5, tf.float32))
    np.testing.assert_allclose(h, expected, atol=1e-5)


_BLOCK = "layer1.0.conv1.weight"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layer1.0.se.fc1.weight": np.zeros([2, 8])}, "names of PyTorch"),
        ({"bn1.weight": None}, "names of PyTorch"),
        ({_BLOCK: np.zeros([8, 4, 3, 3])}, "has the shape"),
        ({"conv1.weight": np.zeros([8, 3, 5, 5])}, "5x5"),
        ({f"other.{_BLOCK}": np.zeros(1)}, "several encoders"),
        ({"bn1.running_mean": np.full(8, np.nan)}, "bn1.running_mean.*NaN"),
    ],
)
def test_other_networks_are_refused(changes, told, tmp_path):
    program = _Torchvision()
    program.prefix = ""
    program.features(noise(1, 16), _PLAIN, (1, 1, 1, 1), False, True)
    changed = (program.tensors | changes).items()
    arrays = {n: np.float32(x) for n, x in changed if x is not None}
    path = _write_safetensors(tmp_path / "x", arrays)
    with pytest.raises(errors.UserError, match=told) as caught:
        published.find(str(path)).load()
    assert str(path) in str(caught.value)


def test_other_checkpoints_are_refused_by_name(tmp_path):
    program = _Simclr()
    name = "encoder/layer_with_weights-0/kernel"
    program.arrays = {name: np.zeros([3, 3, 3, 8], np.float32)}
    with pytest.raises(errors.UserError, match=name):
        tf_contrastive.load(program.save(str(tmp_path)))


class _Harmful:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_pickle_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, folder = tmp_path / "model.pth", tmp_path / "executed"
    for protocol in (2, 4):
        path.write_bytes(pickle.dumps(_Harmful(), protocol))
        with pytest.raises(errors.UserError, match=r"torch|more than tensors"):
            tf_contrastive.load(path)
        assert not folder.exists()


def test_a_program_of_torchscript_is_named(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data", "constants"):
            archive.writestr(f"model/{name}.pkl", b"")
    with pytest.raises(errors.UserError, match=r"TorchScript.*state_dict"):
        tf_contrastive.load(path)


_HEADERS = [struct.pack("<Q", 9) + b'{"a": 1}', struct.pack("<Q", 99) + b"{"]


@pytest.mark.parametrize("content", [*_HEADERS, b"neither"])
def test_damaged_files_are_refused(content, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(errors.UserError, match=str(path)):
        tf_contrastive.load(path)


def test_one_of_several_checkpoints_is_asked_for(tmp_path):
    for number in (1, 2):
        (tmp_path / f"model.ckpt-{number}.index").write_bytes(b"")
    with pytest.raises(errors.UserError, match=r"2 checkpoints.*model.ckpt-2$"):
        tf_contrastive.load(tmp_path)
