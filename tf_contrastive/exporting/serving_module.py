"""The module that is written as a SavedModel: encoder and preprocessing."""

from collections.abc import Callable

import tensorflow as tf

from tf_contrastive.config.data import Reading
from tf_contrastive.config.export import Exporting
from tf_contrastive.encoders.checked_input import check_range, pixels
from tf_contrastive.exporting import image_bytes
from tf_contrastive.exporting.exported_networks import image_shape
from tf_contrastive.views import preprocessing

_READING = Reading()


class ServingModule(tf.Module):
    """An encoder with its preprocessing, to be written as a SavedModel.

    Signatures, for any number of images including none:

    - `serving_default`: images uint8 [N, H, W, 3] of any size -> `embedding`
      float32 [N, D].
    - `serving_float`: the same of float32 in [0, 1]; other values fail.
    - `serving_bytes`: bytes string [N], JPEG or PNG -> `embedding` and `ok`
      bool [N]. A file that cannot be decoded, or not as Pillow does, gets
      zeros and False, and does not affect the others.
    - `project`: images -> `projection` float32 [N, P].
    - `classify`: images -> `labels` int64 [N], class ids, and `probabilities`
      float32 [N, C].

    The encoder of a run on images that are read whole takes float32 [N, H, W,
    C] in [0, 1] in the place of uint8, and has no `serving_float`; bytes are a
    .npy file of an array [H, W, C], or a PNG, see `image_bytes.decode_whole`.
    Another encoder that does not take three channels takes float32 [N, S, S, K]
    in all of them, and has neither `serving_float` nor `serving_bytes`. The
    loaded object is called as the encoder is, has `variables` and
    `trainable_variables`, and passes gradients; its `projection` maps features
    [N, D] to [N, P].

    Args:
      encoder: plain float32 Keras model, [N, S, S, K] -> [N, D].
      projection: plain head, [N, D] -> [N, P]; None: no `project`.
      head: classifier, [N, D] -> probabilities [N, C]; None: no `classify`.
      label_names: path of a file with the names of the classes.
      max_pixels: limit of an encoded image that is decoded.
      reading: how the encoder's images were read.
    """

    # `tf.Module` has properties of these names, which a SavedModel would lack.
    variables = None
    trainable_variables = None

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection: tf.keras.layers.Layer | None = None,
        head: Callable[[tf.Tensor], tf.Tensor] | None = None,
        label_names: str = "",
        max_pixels: int = Exporting.max_image_pixels,
        reading: Reading = _READING,
    ) -> None:
        super().__init__()
        _, self._size, self._channels = image_shape(encoder)
        self._reading = reading
        # Of images of any size; others follow a view.
        self._is_whole = reading.float_channels == self._channels
        self._max_pixels = max_pixels
        # A lambda hides the Keras model from `tf.saved_model.save`, which would
        # write its metadata and need its classes at loading.
        self._apply = lambda *args, **kwargs: encoder(*args, **kwargs)
        self.variables = list(encoder.variables)
        self.trainable_variables = list(encoder.trainable_variables)
        spec = self.encoder_spec
        bytes_spec = tf.TensorSpec(spec.shape, tf.uint8, "images")
        for images in (spec, bytes_spec):
            for training in (False, True):
                self.__call__.get_concrete_function(images, training=training)
        if projection is not None:
            self.projection_variables = list(projection.variables)
            features_spec = tf.TensorSpec([None, encoder.output_shape[1]])
            self.projection = tf.function(
                lambda features: projection(features),
                input_signature=[features_spec],
            )
        self._head = head
        if label_names:
            self.label_names = tf.saved_model.Asset(label_names)

    @property
    def encoder_spec(self) -> tf.TensorSpec:
        """The images that the encoder takes, of any number."""
        shape = [None, self._size, self._size, self._channels]
        return tf.TensorSpec(shape, tf.float32, "images")

    def encode(self, images: tf.Tensor) -> tf.Tensor:
        """Encodes at least one image of `encoder_spec`."""
        return self._apply(images, training=False)

    @tf.function
    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes [N, S, S, K], see `pixels`, to float32 [N, D]."""
        images = pixels(images)
        if training:
            return self._apply(images, training=True)
        return self.encode(self._nonempty(images))[: tf.shape(images)[0]]

    def signatures(self) -> dict[str, tf.types.experimental.GenericFunction]:
        """Returns the signatures, by name."""
        spec, prepare = self.encoder_spec, self._nonempty
        if self._is_whole or self._channels == 3:
            dtype = tf.float32 if self._is_whole else tf.uint8
            shape = [None, None, None, self._channels]
            # Named, since requests name their inputs.
            spec = tf.TensorSpec(shape, dtype, "images")
            prepare = self._resize

        def of_images(
            outputs: Callable[[tf.Tensor], dict[str, tf.Tensor]],
            spec: tf.TensorSpec = spec,
        ) -> tf.types.experimental.GenericFunction:
            def function(images: tf.Tensor) -> dict[str, tf.Tensor]:
                count = tf.shape(images)[0]
                with tf.device("CPU:0"):
                    prepared = prepare(_with_channels(images, spec.shape[-1]))
                return outputs(self.encode(prepared)[:count])

            return tf.function(function, input_signature=[spec])

        def embedding(features: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"embedding": features}

        signatures = {"serving_default": of_images(embedding)}
        if spec.dtype == tf.uint8:
            signatures["serving_float"] = of_images(
                embedding, tf.TensorSpec(spec.shape, tf.float32, "images")
            )
        if self._is_whole or self._channels == 3:
            signatures["serving_bytes"] = tf.function(
                self._embed_bytes,
                input_signature=[tf.TensorSpec([None], tf.string, "bytes")],
            )
        if hasattr(self, "projection"):
            signatures["project"] = of_images(
                lambda features: {"projection": self.projection(features)}
            )
        if (head := self._head) is not None:

            def classify(features: tf.Tensor) -> dict[str, tf.Tensor]:
                probabilities = head(features)
                labels = tf.argmax(probabilities, axis=1)
                return {"labels": labels, "probabilities": probabilities}

            signatures["classify"] = of_images(classify)
        return signatures

    def _nonempty(self, images: tf.Tensor) -> tf.Tensor:
        """Adds an image to an empty batch.

        oneDNN's convolutions silently give a wrong shape for an empty batch.
        """
        return tf.cond(
            tf.shape(images)[0] > 0,
            lambda: images,
            lambda: tf.zeros([1, self._size, self._size, self._channels]),
        )

    # AutoGraph would search for something to convert, slowly and in vain.
    @tf.autograph.experimental.do_not_convert
    def _resize(self, images: tf.Tensor) -> tf.Tensor:
        """Resizes and crops [N, H, W, C] to [max(N, 1), S, S, C] in [0, 1]."""
        size, unit = self._size, preprocessing.LEVEL
        if images.dtype == tf.float32:
            images, unit = check_range(images), 1.0
        shape = [size, size, self._channels]
        count, height, width = tf.unstack(tf.shape(images)[:3])
        is_ready = (height == size) & (width == size)

        def resized(shape: list[int | None]) -> tf.Tensor:
            checked = tf.ensure_shape(images, shape)
            return preprocessing.resize_and_crop(checked, size, unit=unit)

        return tf.case(
            [
                (count < 1, lambda: tf.zeros([1, *shape])),
                # A known size is left unchanged, at no cost.
                (is_ready, lambda: resized([None, *shape])),
            ],
            default=lambda: resized([None] * 4),
        )

    def _embed_bytes(self, bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes `serving_bytes`; the argument's name is the input's name."""
        with tf.device("CPU:0"):
            pixels, ok = self.decode_files(bytes)
        embedding = self.encode(self._nonempty(pixels))[: tf.size(bytes)]
        return {
            "embedding": tf.where(ok[:, tf.newaxis], embedding, 0.0),
            "ok": ok,
        }

    @tf.autograph.experimental.do_not_convert
    def decode_files(self, files: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns pixels [N, S, S, C], zero where not `ok`, and ok [N]."""

        @tf.autograph.experimental.do_not_convert
        def decode(row: tf.Tensor, data: tf.Tensor) -> tuple:
            most = self._max_pixels
            if self._is_whole:
                image = image_bytes.decode_whole(data, most, self._reading)
            else:
                image = image_bytes.decode(data, most)
            return row, self._resize(image[tf.newaxis])[0]

        # No operation catches another one's error, but a dataset can drop
        # elements that fail. The spare row keeps the batch from being empty.
        n = tf.size(files, tf.int64)
        spare = tf.zeros([1, self._size, self._size, self._channels])
        rows, pixels = (
            tf.data.Dataset.from_tensor_slices(files)
            .enumerate()
            .map(decode, num_parallel_calls=tf.data.AUTOTUNE)
            .ignore_errors()
            .concatenate(tf.data.Dataset.from_tensor_slices(([n], spare)))
            .batch(n + 1)
            .get_single_element()
        )
        rows, pixels = rows[:-1, tf.newaxis], pixels[:-1]
        ok = tf.scatter_nd(rows, tf.ones([tf.shape(rows)[0]], tf.int32), [n])
        shape = tf.stack([n, self._size, self._size, self._channels])
        return tf.scatter_nd(rows, pixels, shape), ok > 0


def _with_channels(images: tf.Tensor, channels: int) -> tf.Tensor:
    """Checks the channels of images, which a server does not."""
    # By the sizes: TensorFlow removes what it thinks to know of a shape.
    count = tf.reduce_prod(tf.shape(images, tf.int64)[:3])
    values = tf.size(images, tf.int64)
    found = values // tf.maximum(count, 1)
    check = tf.debugging.Assert(
        values == channels * count,
        [f"images must have {channels} channels, not", found],
    )
    with tf.control_dependencies([check]):
        return tf.identity(images)
