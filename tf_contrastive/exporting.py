"""SavedModels that serve embeddings, and can be trained on.

Layer 5. An export holds its preprocessing, needs nothing but TensorFlow to be
loaded, and stands in a folder `<output_dir>/<version>` as model servers poll
for it: the newest version is the highest number, and a version is there whole
or not at all.
"""

import json
import os
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, config
from tf_contrastive.views import preprocessing

# What makes a folder a SavedModel; TensorFlow writes it last.
_GRAPH_FILE = "saved_model.pb"
# Facts for people and tools; model servers pass over `assets.extra`.
DETAILS_FILE = os.path.join("assets.extra", "model.json")


# ---- The module that is saved -----------------------------------------------


class ServingModule(tf.Module):
    """An encoder with its preprocessing, as it is written to a SavedModel.

    Signatures: `serving_default`, images uint8 [N, H, W, 3] of any size ->
    `embedding` float32 [N, D]; `serving_bytes`, encoded images (JPEG, PNG, GIF,
    BMP) string [N] -> `embedding` [N, D] and `ok` bool [N], where what cannot
    be decoded gets zeros and False and leaves the others alone. Of an animation
    the first frame counts; EXIF rotation is not read, as in training.

    An encoder of more than three channels has `serving_default` alone, of
    images float32 [N, S, S, K] as the encoder takes them: no encoded image
    holds the other channels, and nothing says how to bring them to a size.

    Loaded again, the object is called as the encoder is, lists `variables` and
    `trainable_variables`, and passes gradients.

    Args:
      encoder: plain float32 Keras model, [N, S, S, K] -> [N, D].
    """

    # Plain attributes, so that they are saved (those of `tf.Module` are
    # properties, which are not).
    variables = None
    trainable_variables = None

    def __init__(self, encoder: tf.keras.Model) -> None:
        super().__init__()
        self._size, self._channels = _image_shape(encoder)[1:]
        # Behind a function the Keras model is not saved itself, with all its
        # metadata and the classes it would need at loading; its variables are.
        self._apply = lambda *args, **kwargs: encoder(*args, **kwargs)
        self.variables = list(encoder.variables)
        self.trainable_variables = list(encoder.trainable_variables)
        spec = tf.TensorSpec([None, *encoder.input_shape[1:]], name="images")
        for training in (False, True):
            self.__call__.get_concrete_function(spec, training=training)

    def serving(self) -> dict[str, Callable]:
        """Returns the signatures, by name."""
        size = self._size

        def served(function, name, shape, dtype):
            # Named, since requests name what they send.
            spec = tf.TensorSpec(shape, dtype, name)
            return tf.function(function, input_signature=[spec])

        if self._channels > 3:
            shape = [None, size, size, self._channels]
            return {
                "serving_default": served(
                    self._embed_channels, "images", shape, tf.float32
                )
            }
        shape = [None, None, None, 3]
        return {
            "serving_default": served(
                self._embed_images, "images", shape, tf.uint8
            ),
            "serving_bytes": served(
                self._embed_bytes, "bytes", [None], tf.string
            ),
        }

    @tf.function
    def __call__(self, images, training=False):
        """Encodes float32 [N, S, S, K], colours in [0, 1], to [N, D]."""
        if training:
            return self._apply(images, training=True)
        # Convolutions of oneDNN give a wrong shape for empty batches.
        n = tf.shape(images)[0]
        spare = tf.cast(tf.equal(n, 0), tf.int32)
        padded = tf.pad(images, [[0, spare], [0, 0], [0, 0], [0, 0]])
        return self._apply(padded, training=False)[:n]

    def _embed_images(self, images):
        """Serves `serving_default`."""
        n = tf.shape(images)[0]
        with tf.device("CPU:0"):
            pixels = tf.cond(
                n > 0,
                lambda: preprocessing.resize_and_crop(images, self._size),
                lambda: tf.zeros([n, self._size, self._size, 3]),
            )
        return {"embedding": self(pixels)}

    def _embed_channels(self, images):
        """Serves `serving_default` of more than three channels."""
        return {"embedding": self(images)}

    def _embed_bytes(self, bytes):
        """Serves `serving_bytes`."""
        with tf.device("CPU:0"):
            pixels, ok = self._decode(bytes)
        embedding = tf.where(ok[:, tf.newaxis], self(pixels), 0.0)
        return {"embedding": embedding, "ok": ok}

    def _decode(self, encoded):
        """Returns pixels [N, S, S, 3], zero where not `ok`, and ok [N]."""

        def read(row, data):
            image = tf.io.decode_image(
                data, channels=3, expand_animations=False
            )
            image = tf.ensure_shape(image, [None, None, 3])
            pixels = preprocessing.resize_and_crop(
                image[tf.newaxis], self._size
            )
            return row, pixels[0]

        # No operation catches the error of another; a dataset can drop the
        # elements that fail. The spare row keeps the batch from being empty.
        n = tf.size(encoded, tf.int64)
        spare = tf.zeros([1, self._size, self._size, 3])
        rows, pixels = (
            tf.data.Dataset.from_tensor_slices(encoded)
            .enumerate()
            .map(read, num_parallel_calls=tf.data.AUTOTUNE)
            .ignore_errors()
            .concatenate(tf.data.Dataset.from_tensor_slices(([n], spare)))
            .batch(n + 1)
            .get_single_element()
        )
        rows, pixels = rows[:-1, tf.newaxis], pixels[:-1]
        ok = tf.scatter_nd(rows, tf.ones([tf.shape(rows)[0]], tf.int32), [n])
        shape = tf.stack([n, self._size, self._size, 3])
        return tf.scatter_nd(rows, pixels, shape), ok > 0


def _image_shape(encoder: Any) -> tuple[int, int, int]:
    """Returns (side, side, channels), as `image_size` says."""
    if isinstance(encoder, tf.keras.Model):
        shape = encoder.input_shape
    else:
        function = encoder.__call__.concrete_functions[0]
        shape = function.structured_input_signature[0][0].shape
    height, width, channels = shape[1:]
    if height is None or height != width or (channels or 0) < 3:
        raise config.UserError(
            f"the encoder takes images of {list(shape[1:])}: build it with"
            " image_shape=(S, S, 3), or more channels"
        )
    return height, width, channels


def image_size(encoder: Any) -> int:
    """Returns the side S of the images that an encoder takes.

    Args:
      encoder: a Keras model, or what `load` returns for an export.

    Raises:
      UserError: if the encoder takes no square images of a fixed size, of three
        colours or of those and other channels.
    """
    return _image_shape(encoder)[0]


def extra(encoder: Any) -> int:
    """Returns how many channels an encoder takes beside the three colours.

    Arguments and errors are those of `image_size`.
    """
    return _image_shape(encoder)[2] - 3


def plain_encoder(encoder: tf.keras.Model) -> tf.keras.Model:
    """Clones an encoder in float32, its batch normalization unsynchronized.

    Args:
      encoder: functional Keras model under any policy and strategy.

    Returns:
      a Keras model with the same weights and the same outputs at inference.
    """

    def clone(layer):
        if isinstance(layer, tf.keras.Model):
            return tf.keras.models.clone_model(layer, clone_function=clone)
        batch_norm = tf.keras.layers.BatchNormalization
        if isinstance(layer, batch_norm):
            # The base class's own options: those of subclasses synchronize.
            options, kind = batch_norm.get_config(layer), batch_norm
        else:
            options, kind = layer.get_config(), type(layer)
        return kind.from_config({**options, "dtype": "float32"})

    plain = clone(encoder)
    plain.set_weights(encoder.get_weights())
    return plain


# ---- Writing ----------------------------------------------------------------


def export(model_or_workdir: Any, output_dir: str) -> str:
    """Writes the next version of a SavedModel that serves embeddings.

    Args:
      model_or_workdir: folder of a run (its newest checkpoint is exported), or
        a `ContrastiveModel`, or a Keras encoder.
      output_dir: folder of versions, made if missing; the first is 1.

    Returns:
      `<output_dir>/<version>`.

    Raises:
      UserError: if there is no checkpoint, or the folder cannot be written.
    """
    output_dir = os.fspath(output_dir)
    if isinstance(model_or_workdir, (str, os.PathLike)):
        run = checkpoints.load_run(os.fspath(model_or_workdir))
        encoder = checkpoints.load_encoder(run)
        names = run.metadata.get("label_names")
        facts = {"step": run.step, "label_names": list(names or ())}
    else:
        model = model_or_workdir
        encoder = plain_encoder(getattr(model, "encoder", model))
        facts = {}
    facts = {
        "image_size": image_size(encoder),
        "channels": 3 + extra(encoder),
        "embedding_size": encoder.output_shape[-1],
        **facts,
    }
    module = ServingModule(encoder)
    try:
        return _write(lambda path: _save(module, facts, path), output_dir)
    except (OSError, tf.errors.OpError) as error:
        raise config.cannot_write(
            f"to {output_dir}", error, "give a folder that can be written"
        ) from error


def _save(module: ServingModule, facts: dict[str, Any], path: str) -> None:
    """Writes all files of a version; the one that makes it valid comes last."""
    file = os.path.join(path, DETAILS_FILE)
    tf.io.gfile.makedirs(os.path.dirname(file))
    with tf.io.gfile.GFile(file, "w") as stream:
        stream.write(json.dumps(facts, indent=2) + "\n")
    tf.saved_model.save(module, path, signatures=module.serving())


def _write(save: Callable[[str], None], output_dir: str) -> str:
    """Saves to the next version's folder, so that it is whole or not there."""
    tf.io.gfile.makedirs(output_dir)
    final = os.path.join(
        output_dir, str(max(_versions(output_dir), default=0) + 1)
    )
    # Only filesystems of the machine rename folders: object stores would copy
    # file by file. There `saved_model.pb`, written last, makes the version.
    renames = "://" not in output_dir
    path = final
    if renames:
        path = os.path.join(output_dir, f"partial-{uuid.uuid4().hex}")
    try:
        save(path)
        if renames:
            tf.io.gfile.rename(path, final)
    except BaseException:
        if tf.io.gfile.exists(path):
            tf.io.gfile.rmtree(path)
        raise
    return final


def _versions(base: str) -> list[int]:
    """Returns the versions in a folder, those not yet complete included."""
    names = tf.io.gfile.listdir(base) if tf.io.gfile.isdir(base) else []
    # Object stores list folders with a slash at the end.
    names = [name.rstrip("/") for name in names]
    return [int(name) for name in names if name.isdecimal()]


# ---- Reading ----------------------------------------------------------------


def find(path: str) -> str | None:
    """Returns the SavedModel at `path` or its newest version, or None."""
    candidates = [path]
    candidates += [
        os.path.join(path, str(version))
        for version in sorted(_versions(path), reverse=True)
    ]
    for candidate in candidates:
        if tf.io.gfile.exists(os.path.join(candidate, _GRAPH_FILE)):
            return candidate
    return None


def details(path: str) -> dict[str, Any]:
    """Reads what an export says of itself.

    Args:
      path: `BASE/<version>`.

    Returns:
      {"image_size", "channels", "embedding_size", and of a run "step",
      "label_names"}.
    """
    with tf.io.gfile.GFile(os.path.join(path, DETAILS_FILE)) as file:
        return json.load(file)


def load(path: str) -> Callable:
    """Loads the encoder of a run or of an export.

    Args:
      path: folder of a run, of an export (`BASE/<version>`), or of exports
        (`BASE`, of which the newest is taken).

    Returns:
      images float32 [N, S, S, K] in [0, 1] -> float32 [N, D]; also called with
      `training=`, with `variables` and `trainable_variables`.

    Raises:
      UserError: if there is no run and no export of this package.
    """
    path = os.fspath(path)
    if not tf.io.gfile.isdir(path):
        raise config.UserError(
            f"{path} is no folder: give the folder of a run or of an export"
        )
    saved_model = find(path)
    if saved_model is None:
        return checkpoints.load_encoder(checkpoints.load_run(path))
    encoder = tf.saved_model.load(saved_model)
    if not (callable(encoder) and hasattr(encoder, "trainable_variables")):
        raise config.UserError(
            f"{saved_model} is a SavedModel, but no export of tf_contrastive:"
            " write one by `python -m tf_contrastive export`"
        )
    return encoder
