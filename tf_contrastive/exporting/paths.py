"""What a path is, and the encoder in it.

A run is data: it is read, never executed. An export is a program.
"""

import itertools
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import write_statistics
from tf_contrastive.config.dataset import ChannelStatistics
from tf_contrastive.config.encoder import names_weights
from tf_contrastive.encoders import checked_input, pretrained, published
from tf_contrastive.exporting import versioning


def _saved_model(path: str) -> str:
    """Returns the newest SavedModel of an export.

    Raises:
      UserError: if there is none.
    """
    if saved_model := versioning.newest(path):
        return saved_model
    if not tf.io.gfile.isdir(path):
        raise errors.UserError(
            f"{path} is not a folder: use the folder of a run or of an export,"
            " or a checkpoint that others published"
        )
    raise errors.UserError(
        f"{path} is neither a run (it has no {checkpoints.CONFIG_FILE}) nor an"
        f" export (it has no {versioning.GRAPH_FILE}, and no version with one):"
        f" use the {errors.arg('workdir')} of a pretrain command, or what"
        " `export` wrote"
    )


def find(path: str) -> str | None:
    """Returns the export at `path` or its newest version, or None."""
    saved_model = None if checkpoints.is_run(path) else versioning.newest(path)
    return saved_model and (None if find_published(path) else saved_model)


def find_published(path: str) -> published.Found | None:
    """Returns the encoder of others at `path` or in its newest version."""
    return published.find(versioning.newest(path) or path)


class Export:
    """A loaded export, which names images that it does not take.

    Its other attributes are those of `loaded`, the object of
    `tf.saved_model.load`.
    """

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def __call__(self, images: Any, training: bool = False) -> tf.Tensor:
        """Encodes images [N, S, S, K], uint8 or float in [0, 1].

        Raises:
          TypeError: for another type.
          ValueError: for another shape.
          InvalidArgumentError: for colours outside of [0, 1].
        """
        function = self.loaded.__call__.concrete_functions[0]
        shape = function.structured_input_signature[0][0].shape
        return self.loaded(checked_input.checked(images, shape), training)

    def __getattr__(self, name: str) -> Any:
        if name == "loaded":  # While it is copied.
            raise AttributeError(name)
        return getattr(self.loaded, name)


def load(path: str) -> tf.Module:
    """Loads the encoder of a run or of an export, one of the package or others.

    An export is a program: load only those whose origin you trust. A run is
    data, and so is what others published: nothing in it is executed.

    Args:
      path: folder of a run, of an export (`BASE/<version>`), or of several
        (`BASE`): the newest is loaded; `pretrained:NAME`, one of those that
        `tf-contrastive encoders` lists; or a published checkpoint: prefix or
        folder of a TensorFlow checkpoint, hub module or SavedModel of SimCLR
        or SupCon, PyTorch or safetensors file of a ResNet.

    Returns:
      images [N, S, S, K], uint8 or float32 in [0, 1] -> float32 [N, D]; it
      also takes `training=`, and has `variables` and `trainable_variables`.
      That of an export is no Keras model.

    Raises:
      UserError: if there is no run and no export of this package.
    """
    path = os.fspath(path)
    if path.startswith(pretrained.SCHEME):
        return _checked(pretrained.load(path))
    if checkpoints.is_run(path):
        return load_run(path)
    if found := find_published(path):
        return _checked(found.load())
    saved_model = _saved_model(path)
    encoder = tf.saved_model.load(saved_model)
    if not (callable(encoder) and hasattr(encoder, "trainable_variables")):
        raise errors.UserError(
            f"{saved_model} is a SavedModel, but not an export of"
            " tf_contrastive: write one by `python -m tf_contrastive export`"
        )
    return Export(encoder)


def load_run(workdir: str) -> tf.keras.Model:
    """Loads the encoder of a run; see `load`."""
    return _checked(checkpoints.load_encoder(checkpoints.load_run(workdir)))


def _checked(encoder: tf.keras.Model) -> tf.keras.Model:
    return checked_input.Encoder(
        encoder.inputs, encoder.outputs, name=encoder.name
    )


def copy_weights(path: str, encoder: tf.keras.Model) -> None:
    """Copies weights and moving statistics of an encoder: all, or none.

    Args:
      path: see `load`.
      encoder: what they are copied to, of the same network.

    Raises:
      UserError: if it is another network.
    """
    if names_weights(path) and not tf.io.gfile.isdir(path):
        raise errors.UserError(
            f"{errors.arg('init_from', path)} is for networks of Keras and"
            f" KerasCV: set {errors.arg('encoder', 'keras:NAME')}, such as"
            " keras:ResNet50, or keras_cv:NAME"
        )
    other = load(path)
    theirs, mine = other.variables, encoder.variables
    pairs = itertools.zip_longest(map(_form, theirs), map(_form, mine))
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    if differing:
        one, another = (
            "none" if form is None else f"{form[0]} {[*form[1]]}"
            for form in differing[0]
        )
        raise errors.UserError(
            f"{errors.arg('init_from', path)} holds another encoder:"
            f" {len(differing)} variables differ, such as {one} from"
            f" {another}: set its {errors.arg('encoder')},"
            f" {errors.arg('width')}, {errors.arg('stem')} and"
            f" {errors.arg('image_size')}"
        )
    if _pads_evenly(other) != _pads_evenly(encoder):
        padding = "symmetric" if _pads_evenly(other) else "same"
        raise errors.UserError(
            f"{errors.arg('init_from', path)} pools otherwise: set"
            f" {errors.arg('pool_padding', padding)}"
        )
    if (heads := _heads(other)) != _heads(encoder):
        raise errors.UserError(
            f"{errors.arg('init_from', path)} has other attention heads: set"
            f" {errors.arg('heads', heads)}"
        )
    statistics = _statistics(other)
    # A run may follow another one with other images.
    if statistics not in (None, _statistics(encoder)) and not (
        checkpoints.is_run(path)
    ):
        terminal.warning(
            f"{errors.arg('init_from', path)}: its weights are of images that"
            " were standardized otherwise: set"
            f" {errors.arg('standardize', statistics)}"
        )
    for variable, values in zip(mine, theirs, strict=True):
        variable.assign(values)


def _form(variable: tf.Variable) -> tuple[str, tuple[int, ...]]:
    """Returns a variable's name without numbers, and its shape.

    Keras numbers layers without a name in the whole process ("conv2d_37"); the
    order of variables is that of the layers.
    """
    name = variable.name.rpartition(":")[0] or variable.name
    return re.sub(r"_?\d+", "", name), tuple(variable.shape)


def _statistics(encoder: Any) -> str | None:
    """Returns the option `standardize` of a Keras model, if it is known."""
    for layer in getattr(encoder, "layers", ()):
        if layer.name == "standardize":
            std = 1 / np.array(layer.scale[:3])
            mean = 0 - np.array(layer.offset[:3]) * std
            return write_statistics(ChannelStatistics(tuple(mean), tuple(std)))
    return None


def _pads_evenly(encoder: Any) -> bool:
    """Whether an encoder has the layer of a symmetric pool."""
    return any("stem_pool_pad" in name for name in _outputs(encoder))


def _heads(encoder: Any) -> int | None:
    """Returns the heads of a vision transformer, which no weight shows."""
    for name, output in _outputs(encoder).items():
        if re.search(r"attention_weights(/Softmax)?$", name):
            return output.shape[1]
    return None


def _outputs(encoder: Any) -> dict[str, tf.Tensor]:
    """Returns name -> first output of layers, or of an export's operations."""
    if not isinstance(encoder, Export):
        return {layer.name: layer.output for layer in encoder.layers}
    graph = encoder.loaded.__call__.concrete_functions[0].graph
    operations = [x for x in graph.get_operations() if x.outputs]
    return {x.name: x.outputs[0] for x in operations}
