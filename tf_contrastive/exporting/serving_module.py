"""The module that a SavedModel is made of: an encoder and all around it."""

from collections.abc import Callable

import tensorflow as tf

from tf_contrastive.config.export import Exporting
from tf_contrastive.exporting import image_headers, portable
from tf_contrastive.views import crops

# How far beside [0, 1] the rounding of someone's own resize may lie.
_RANGE_TOLERANCE = 1e-3


class ServingModule(tf.Module):
    """An encoder with its preprocessing, as it is written to a SavedModel.

    Signatures, of any number of images, none included:

    - `serving_default`: images uint8 [N, H, W, 3] of any size -> `embedding`
      float32 [N, D].
    - `serving_float`: images float32 [N, H, W, 3] in [0, 1] of any size ->
      `embedding`. Any other value is an error of the request.
    - `serving_bytes`: bytes string [N], JPEG, PNG, GIF or BMP -> `embedding`
      and `ok` bool [N]. What cannot be decoded gets zeros and False, and leaves
      the others alone. Of an animation the first frame counts; EXIF rotation is
      not read, as in training.
    - `project`, with a projection head: images as for `serving_default` ->
      `projection` float32 [N, P].
    - `classify`, with a classifier: images as for `serving_default` -> `labels`
      int64 [N], class ids, and `probabilities` float32 [N, C]. The asset
      `label_names.txt` has the name of a class in each line.

    An encoder of more than three channels takes float32 [N, S, S, K] as it is
    in all of them, and has neither `serving_float` nor `serving_bytes`: no
    encoded image holds the other channels, and nothing says how to bring them
    to a size.

    Loaded again, the object is called as the encoder is, lists `variables` and
    `trainable_variables`, and passes gradients; `projection`, where there is a
    head, takes features [N, D] to [N, P].

    Args:
      encoder: plain float32 Keras model, [N, S, S, K] -> [N, D].
      projection: plain head, [N, D] -> [N, P]; None: no `project`.
      head: classifier, [N, D] -> probabilities [N, C]; None: no `classify`.
      label_names: path of a file with the names of the classes; needs `head`.
      max_pixels: of an encoded image; larger ones are not decoded.
    """

    # Plain attributes, so that they are saved (those of `tf.Module` are
    # properties, which are not).
    variables = None
    trainable_variables = None

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection: tf.keras.layers.Layer | None = None,
        head: Callable | None = None,
        label_names: str = "",
        max_pixels: int = Exporting.max_image_pixels,
    ) -> None:
        super().__init__()
        self._size, self._channels = portable.image_shape(encoder)[1:]
        self._max_pixels = max_pixels
        # Behind a function the Keras model is not saved itself, with all its
        # metadata and the classes it would need at loading; its variables are.
        self._apply = lambda *args, **kwargs: encoder(*args, **kwargs)
        self.variables = list(encoder.variables)
        self.trainable_variables = list(encoder.trainable_variables)
        spec = tf.TensorSpec([None, *encoder.input_shape[1:]], name="images")
        for training in (False, True):
            self.__call__.get_concrete_function(spec, training=training)
        self._projects = projection is not None
        if projection is not None:
            self.projection_variables = list(projection.variables)
            self.projection = tf.function(
                lambda features: projection(features),
                input_signature=[
                    tf.TensorSpec([None, encoder.output_shape[1]])
                ],
            )
        self._head = head
        if label_names:
            self.label_names = tf.saved_model.Asset(label_names)

    @property
    def encoder_takes(self) -> tf.TensorSpec:
        """What the encoder itself takes, of any number."""
        shape = [None, self._size, self._size, self._channels]
        return tf.TensorSpec(shape, tf.float32, "images")

    def encode(self, images: tf.Tensor) -> tf.Tensor:
        """Encodes images, at least one, as `encoder_takes`; nothing else."""
        return self._apply(images, training=False)

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures, by name."""
        if self._channels > 3:
            spec, prepare = self.encoder_takes, self._nonempty
        else:
            # Named, since requests name what they send.
            spec = tf.TensorSpec([None, None, None, 3], tf.uint8, "images")
            prepare = self._fit

        def of_images(outputs, spec=spec, prepare=prepare):
            def function(images):
                count = tf.shape(images)[0]
                with tf.device("CPU:0"):
                    pixels = prepare(images)
                return outputs(self.encode(pixels)[:count])

            return tf.function(function, input_signature=[spec])

        signatures = {"serving_default": of_images(self._embedding)}
        if self._channels == 3:
            floats = tf.TensorSpec(spec.shape, tf.float32, "images")
            encoded = tf.TensorSpec([None], tf.string, "bytes")
            signatures["serving_float"] = of_images(
                self._embedding, floats, lambda x: self._fit(_in_range(x))
            )
            signatures["serving_bytes"] = tf.function(
                self._embed_bytes, input_signature=[encoded]
            )
        if self._projects:
            signatures["project"] = of_images(
                lambda features: {"projection": self.projection(features)}
            )
        if self._head is not None:
            signatures["classify"] = of_images(self._classes)
        return signatures

    @tf.function
    def __call__(self, images, training=False):
        """Encodes float32 [N, S, S, K], colours in [0, 1], to [N, D]."""
        if training:
            return self._apply(images, training=True)
        return self.encode(self._nonempty(images))[: tf.shape(images)[0]]

    def _embedding(self, features):
        return {"embedding": features}

    def _classes(self, features):
        probabilities = self._head(features)
        labels = tf.argmax(probabilities, axis=1)
        return {"labels": labels, "probabilities": probabilities}

    def _nonempty(self, images):
        """Gives an empty batch an image.

        oneDNN's convolutions of none give a wrong shape, and say nothing.
        """
        return tf.cond(
            tf.shape(images)[0] > 0,
            lambda: images,
            lambda: tf.zeros([1, self._size, self._size, self._channels]),
        )

    # Nothing to convert, and AutoGraph takes its time to find that out.
    @tf.autograph.experimental.do_not_convert
    def _fit(self, images):
        """Brings images to [max(N, 1), S, S, 3], as `resize_and_crop` does.

        Args:
          images: uint8, or float32 in [0, 1], [N, H, W, 3].
        """
        size, is_float = self._size, images.dtype == tf.float32
        count, height, width = tf.unstack(tf.shape(images)[:3])

        def scaled():
            whole = tf.ensure_shape(images, [None, size, size, 3])
            if is_float:
                return whole
            return crops.resize_and_crop(whole, size)

        def resized():
            pixels = images * 255.0 if is_float else images
            return crops.resize_and_crop(pixels, size)

        return tf.case(
            [
                (count < 1, lambda: tf.zeros([1, size, size, 3])),
                ((height == size) & (width == size), scaled),
            ],
            default=resized,
        )

    def _embed_bytes(self, bytes):
        """Serves `serving_bytes`."""
        with tf.device("CPU:0"):
            pixels, ok = self._decode(bytes)
        embedding = self.encode(self._nonempty(pixels))[: tf.size(bytes)]
        return {
            "embedding": tf.where(ok[:, tf.newaxis], embedding, 0.0),
            "ok": ok,
        }

    @tf.autograph.experimental.do_not_convert
    def _decode(self, encoded):
        """Returns pixels [N, S, S, 3], zero where not `ok`, and ok [N]."""

        @tf.autograph.experimental.do_not_convert
        def read(row, data):
            image = tf.io.decode_image(
                image_headers.checked(data, self._max_pixels),
                channels=3,
                expand_animations=False,
            )
            image = tf.ensure_shape(image, [None, None, 3])
            pixels = crops.resize_and_crop(image[tf.newaxis], self._size)
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


def _in_range(images):
    """Passes on images in [0, 1]; any other value, NaN too, is an error."""
    low, high = -_RANGE_TOLERANCE, 1 + _RANGE_TOLERANCE
    right = tf.debugging.Assert(
        tf.reduce_all((images >= low) & (images <= high)),
        [
            "images must be float32 in [0, 1], and are in",
            tf.reduce_min(images),
            tf.reduce_max(images),
            "divide bytes by 255, or send uint8 to serving_default; mean and"
            " deviation are the model's own business",
        ],
    )
    with tf.control_dependencies([right]):
        return tf.clip_by_value(images, 0.0, 1.0)
