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
from tf_contrastive.encoders import checked_input, pretrained, published, vit
from tf_contrastive.exporting import versioning


def find(path: str) -> str | None:
    """Returns the export at `path` or its newest version, or None."""
    saved_model = None if checkpoints.is_run(path) else versioning.newest(path)
    return saved_model and (None if find_published(path) else saved_model)


def find_published(path: str) -> published.Found | None:
    """Returns the encoder of others at `path` or in its newest version."""
    return published.find(versioning.newest(path) or path)


class Export:
    """A loaded export, which names images that it does not take.

    Its other attributes are those of `loaded`, of `tf.saved_model.load`.
    """

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    @property
    def traced(self) -> tf.types.experimental.ConcreteFunction:
        """A traced function of its images."""
        return self.loaded.__call__.concrete_functions[0]

    def __call__(self, images: Any, training: bool = False) -> tf.Tensor:
        """Encodes images, as `checked_input.Encoder` does."""
        shape = self.traced.structured_input_signature[0][0].shape
        return self.loaded(checked_input.checked(images, shape), training)

    def __getattr__(self, name: str) -> Any:
        if name == "loaded":  # While it is copied.
            raise AttributeError(name)
        return getattr(self.loaded, name)


def load(path: str) -> tf.Module:
    """Loads an encoder: images [N, S, S, K] to float32 [N, D].

    It takes uint8, or float32 in [0, 1], and `training=`, and has `variables`
    and `trainable_variables`. That of an export is not a Keras model. An export
    is a program: load only those whose origin you trust. Nothing in a run, or
    in what others published, is executed.

    Args:
      path: folder of a run, or of one or several exports, of which the newest
        is loaded; `pretrained:NAME`, as `tf-contrastive encoders` lists; or a
        published checkpoint, see `published.reading.read`.

    Raises:
      UserError: if there is nothing of these.
    """
    path = os.fspath(path)
    if path.startswith(pretrained.SCHEME):
        return _checked(pretrained.load(path))
    if checkpoints.is_run(path):
        run = checkpoints.load_run(path)
        return _checked(checkpoints.load_encoder(run))
    if found := find_published(path):
        return _checked(found.load())
    saved_model = versioning.newest(path)
    if not saved_model:
        raise errors.UserError(
            f"{path} is neither a run (a folder with {checkpoints.CONFIG_FILE})"
            f" nor an export (one with {versioning.GRAPH_FILE}, or with"
            " versions) nor a checkpoint that others published: use the"
            f" {errors.arg('workdir')} of a pretrain command, or what `export`"
            " wrote"
        )
    encoder = tf.saved_model.load(saved_model)
    if not (callable(encoder) and hasattr(encoder, "trainable_variables")):
        raise errors.UserError(
            f"{saved_model} is a SavedModel, but not an export of"
            " tf_contrastive: write one by `python -m tf_contrastive export`"
        )
    return Export(encoder)


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
            f" {errors.arg('width')}, {errors.arg('stem')},"
            f" {errors.arg('image_size')} and {errors.arg('channels')}"
        )
    mine_unseen = unseen_options(encoder)
    for option, value in unseen_options(other).items():
        if value != mine_unseen[option]:
            raise errors.UserError(
                f"{errors.arg('init_from', path)} has another {option}: set"
                f" {errors.arg(option, value)}"
            )
    statistics = standardization(other)
    # A run may follow another one with other images.
    if statistics not in (None, standardization(encoder)) and not (
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


def standardization(encoder: Any) -> str | None:
    """Returns the option `standardize` of a Keras model, if it is known."""
    for layer in getattr(encoder, "layers", ()):
        if layer.name == "standardize":
            std = 1 / np.array(layer.scale)
            mean = 0 - np.array(layer.offset) * std
            return write_statistics(ChannelStatistics(tuple(mean), tuple(std)))
    return None


def unseen_options(encoder: Any) -> dict[str, Any]:
    """Returns the options of an encoder that its weights do not show."""
    if isinstance(encoder, Export):
        graph = encoder.traced.graph
        operations = {x.name: x for x in graph.get_operations()}
        names = [*operations]
        heads = [
            x.outputs[0].shape[1]
            for name, x in operations.items()
            if name.endswith("_attention/Softmax")
        ]
    else:
        names = [layer.name for layer in encoder.layers]
        kind = vit.Attention
        heads = [x.heads for x in encoder.layers if isinstance(x, kind)]
    pads_evenly = any("stem_pool_pad" in name for name in names)
    return {
        "pool_padding": "symmetric" if pads_evenly else "same",
        "heads": heads[0] if heads else None,
    }
