"""Vision transformers of Dosovitskiy et al. 2021, as MoCo v3 trains them.

Chen, Xie and He 2021 (arXiv 2104.02057), sections 4 and 5: fixed positions, a
frozen patch projection, Xavier's initial weights. The layers are those of timm:
normalization before each branch, biases everywhere, exact GELU.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.config import encoder as declared

_serializable = tf.keras.utils.register_keras_serializable("tf_contrastive")
_layers = tf.keras.layers
_EPSILON = 1e-6
# Of a block's hidden layer, in features.
_MLP_RATIO = 4
_TEMPERATURE = 10_000.0
_TOKEN_STDDEV = 1e-6
# The same numbers on all devices, compiled by XLA or not.
_RNG = "philox"


def positions(rows: int, columns: int, features: int) -> np.ndarray:
    """Returns fixed positions of patches, float32 [rows * columns, features].

    Sine and cosine of the row, then of the column, at frequencies from 1 to
    nearly 1 / 10,000, as in MoCo v3's code.
    """
    count = features // 4
    frequencies = _TEMPERATURE ** -(np.arange(count) / count)
    places = np.indices([rows, columns]).reshape(2, -1, 1)
    row, column = places * frequencies
    waves = [np.sin(row), np.cos(row), np.sin(column), np.cos(column)]
    return np.concatenate(waves, axis=1).astype(np.float32)


@_serializable
class Tokens(tf.keras.layers.Layer):
    """Patches [N, h, w, D] to tokens [N, T, D], with positions.

    Args:
      class_token: whether a trained token, without a position, comes first.
    """

    def __init__(self, class_token: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.class_token = class_token

    def build(self, input_shape: tf.TensorShape) -> None:
        """Makes the class token, float32 [D]: of rank 1, it does not decay."""
        if self.class_token:
            normal = tf.keras.initializers.RandomNormal(stddev=_TOKEN_STDDEV)
            self.token = self.add_weight(
                "class_token", [input_shape[-1]], initializer=normal
            )
        super().build(input_shape)

    def call(self, patches: tf.Tensor) -> tf.Tensor:
        """Makes tokens of patches."""
        _, rows, columns, features = patches.shape
        x = tf.reshape(patches, [-1, rows * columns, features])
        x += tf.cast(positions(rows, columns, features), x.dtype)
        if not self.class_token:
            return x
        token = tf.cast(self.token, x.dtype)
        token = tf.broadcast_to(token, [tf.shape(x)[0], 1, features])
        return tf.concat([token, x], axis=1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "class_token": self.class_token}


@_serializable
class Attention(tf.keras.layers.Layer):
    """Attention of several heads: q, k and v [N, T, 3 D] to [N, T, D].

    The weights, softmax(q k^T / sqrt(d)) [N, H, T, T], are computed in float32
    under any precision policy.
    """

    def __init__(self, heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads

    def attend(self, qkv: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weights, and the values [N, H, T, D / H] they are for."""
        _, tokens, features = qkv.shape
        size = features // 3 // self.heads
        x = tf.reshape(qkv, [-1, tokens, 3, self.heads, size])
        q, k, v = tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))
        products = tf.matmul(q * size**-0.5, k, transpose_b=True)
        return tf.nn.softmax(tf.cast(products, tf.float32)), v

    def call(self, qkv: tf.Tensor) -> tf.Tensor:
        """Averages values by the weights with which a token attends to all."""
        _, tokens, features = qkv.shape
        weights, values = self.attend(qkv)
        x = tf.matmul(tf.cast(weights, qkv.dtype), values)
        x = tf.transpose(x, [0, 2, 1, 3])
        return tf.reshape(x, [-1, tokens, features // 3])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "heads": self.heads}


@_serializable
class StochasticDepth(tf.keras.layers.Layer):
    """Leaves out a branch [N, T, D] of random images while training.

    Others are scaled by 1 / (1 - rate). Huang et al. 2016 (arXiv 1603.09382).

    Attributes:
      step: -> the number of the step, int [], which determines what is left
        out, so that a resumed run equals the uninterrupted one, and so do both
        passes of the gradient cache. None: Keras draws; set it before an
        encoder alone is saved in the format SavedModel.
    """

    def __init__(self, rate: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.step: Callable[[], tf.Tensor] | None = None

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the branch, without what is left out."""
        if not training or not self.rate:
            return x
        images = [tf.shape(x)[0]]
        if self.step is None:
            drawn = tf.random.uniform(images)
        else:
            seed = self._seed(self.step())
            drawn = tf.random.stateless_uniform(images, seed, alg=_RNG)
        kept = tf.reshape(drawn >= self.rate, [-1, 1, 1])
        return tf.where(kept, x / (1 - self.rate), tf.zeros([], x.dtype))

    def _seed(self, step: tf.Tensor) -> tf.Tensor:
        """Returns a seed [2] of this layer, in this step and replica."""
        replica = tf.distribute.get_replica_context()
        number = replica.replica_id_in_sync_group if replica else 0
        layer = zlib.crc32(self.name.encode()) % 2**31
        seed = tf.stack([layer, tf.cast(step, tf.int32)])
        return tf.random.experimental.stateless_fold_in(seed, number, alg=_RNG)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "rate": self.rate}


def follow_steps(network: tf.Module, step: Callable[[], tf.Tensor]) -> None:
    """Lets the stochastic depth of a network depend on the step."""
    for layer in network.submodules:
        if isinstance(layer, StochasticDepth):
            layer.step = step


def set_drop_path(
    encoder: Any, rate: float, step: Callable[[], tf.Tensor]
) -> None:
    """Sets `drop_path` and `step` of an encoder, if it has stochastic depth."""
    every = getattr(encoder, "layers", ())
    layers = [layer for layer in every if isinstance(layer, StochasticDepth)]
    # Two branches of each block.
    for number, layer in enumerate(layers):
        layer.rate = rates(rate, len(layers) // 2)[number // 2]
        layer.step = step


def rates(drop_path: float, depth: int) -> list[float]:
    """Returns the rates of stochastic depth of the blocks: 0 to the last's."""
    return np.linspace(0, drop_path, depth).tolist()


class ViT(declared.ViT):
    """A patch projection, blocks of attention and an MLP, and a last norm.

    In the sizes of DeiT (Touvron et al. 2021, table 1).
    """

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] of a functional model to [N, D]."""
        del synchronized  # It does not look at the batch.
        for side in images.shape[1:3]:
            self.resolved(side)
        patch = self.transformer.patch
        inputs = patch * patch * images.shape[-1]
        x = _layers.Conv2D(
            self.features,
            patch,
            patch,
            kernel_initializer=_xavier(inputs, self.features),
            trainable=not self.frozen_patches,
            name="patches",
        )(images)
        has_token = self.pooling == "token"
        x = Tokens(has_token, name="tokens")(x)
        for number, rate in enumerate(rates(self.drop_path, self.depth), 1):
            x = self._block(x, rate, f"block{number}")
        if has_token:
            others = x.shape[1] - 1
            x = _layers.Cropping1D((0, others), name="class_token")(x)
        x = _norm(x, "norm", dtype="float32")
        return _layers.GlobalAveragePooling1D(dtype="float32", name="pool")(x)

    def _block(self, x: tf.Tensor, rate: float, name: str) -> tf.Tensor:
        """Adds attention to tokens [N, T, D], and a two-layer perceptron."""
        size, heads = self.features, self.heads or self.transformer.heads
        y = _norm(x, f"{name}_norm1")
        # Like three matrices, for q, k and v.
        xavier = _xavier(size, size)
        qkv = _layers.Dense(
            3 * size, kernel_initializer=xavier, name=f"{name}_qkv"
        )(y)
        y = Attention(heads, name=f"{name}_attention")(qkv)
        y = _layers.Dense(size, name=f"{name}_projection")(y)
        y = StochasticDepth(rate, name=f"{name}_drop1")(y)
        x = _layers.Add(name=f"{name}_add1")([x, y])
        y = _norm(x, f"{name}_norm2")
        y = _layers.Dense(_MLP_RATIO * size, name=f"{name}_mlp1")(y)
        y = _layers.Activation("gelu", name=f"{name}_gelu")(y)
        y = _layers.Dense(size, name=f"{name}_mlp2")(y)
        y = StochasticDepth(rate, name=f"{name}_drop2")(y)
        return _layers.Add(name=f"{name}_add2")([x, y])


def _norm(x: tf.Tensor, name: str, **options: Any) -> tf.Tensor:
    """Normalizes tokens; Keras computes in float32 under any policy."""
    return _layers.LayerNormalization(epsilon=_EPSILON, name=name, **options)(x)


def _xavier(inputs: int, outputs: int) -> tf.keras.initializers.Initializer:
    """Returns Xavier's uniform initializer of a matrix of this shape."""
    limit = (6 / (inputs + outputs)) ** 0.5
    return tf.keras.initializers.RandomUniform(-limit, limit)
