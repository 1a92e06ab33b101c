"""Heads: features h [N, D] to projections z [N, P], or to class logits.

The loss sees a projection; what is kept and used afterwards is h (SimCLR,
section 4.2).
"""

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.encoder import Projection
from tf_contrastive.distribution.autograph import as_written
from tf_contrastive.distribution.batch_normalization import BatchNormalization


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class MLP(tf.keras.Model):
    """Dense layers with ReLU between them: z = W2 relu(W1 h) for two layers.

    As SimCLR builds it, BatchNorm follows every dense layer: the hidden ones
    before their ReLU, and the last without beta, so that z keeps no offset
    that all images share. Without BatchNorm, hidden layers have biases.

    Args:
      layers: dense layers; 1 is the linear head.
      hidden: units of the hidden layers; None or 0: as many as features.
      output: size P of a projection.
      batch_norm: whether BatchNorm follows the dense layers.
      synchronized: whether it spans all replicas.
      **kwargs: `name` and others of a Keras model.

    The input is [..., D]; the output float32 [..., P] under any precision
    policy. Variables are made by the first call, or by `build([None, D])`.

    SimCLR, section 2.1 and its appendix B.
    """

    def __init__(
        self,
        layers=Projection.projection_layers,
        hidden=Projection.projection_hidden,
        output=Projection.projection_output,
        batch_norm=Projection.projection_batch_norm,
        synchronized=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._options = {
            "layers": layers,
            "hidden": hidden,
            "output": output,
            "batch_norm": batch_norm,
            "synchronized": synchronized,
        }
        self._stack = []

    def build(self, input_shape):
        """Makes the layers, for features [..., D]."""
        o = self._options
        shape = tf.TensorShape(input_shape)
        hidden = [o["hidden"] or shape[-1]] * (o["layers"] - 1)
        for i, units in enumerate([*hidden, o["output"]]):
            self._stack += self._block(i + 1, units, last=i == len(hidden))
        for layer in self._stack:
            # Absolute, so that a first call and `build` give the same names.
            with tf.name_scope(f"{self.name}/{layer.name}/"):
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        self.built = True

    def _block(self, number, units, last):
        o = self._options
        bias = not (last or o["batch_norm"])
        block = [
            tf.keras.layers.Dense(units, use_bias=bias, name=f"dense{number}")
        ]
        if o["batch_norm"]:
            block.append(
                BatchNormalization(
                    center=not last,
                    synchronized=o["synchronized"],
                    name=f"norm{number}",
                )
            )
        if not last:
            block.append(tf.keras.layers.ReLU(name=f"relu{number}"))
        return block

    @as_written
    def call(self, features, training=None):
        """Projects `features` [..., D] to float32 [..., P]."""
        x = features
        for layer in self._stack:
            if isinstance(layer, BatchNormalization):
                x = layer(x, training=training)
            else:
                x = layer(x)
        return tf.cast(x, tf.float32)

    def compute_output_shape(self, input_shape):
        """Returns [..., P]."""
        return tf.TensorShape(input_shape)[:-1].concatenate(
            self._options["output"]
        )

    def get_config(self):
        """Returns all constructor arguments."""
        return {"name": self.name, **self._options}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the head that `get_config` describes."""
        return cls(**config)


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LinearProbe(tf.keras.layers.Dense):
    """A linear classifier of features: [..., D] to logits float32 [..., C].

    Its weights start at zero: behind a fixed encoder the problem is convex, so
    that no symmetry is to be broken, and every run starts from the same loss,
    ln C. To train an encoder through it, let its kernel start elsewhere: one
    of zeros passes no gradient on.

    Args:
      num_classes: C.
      kernel_initializer: where its kernel starts.
      **kwargs: `name` and others of a Keras layer.
    """

    def __init__(self, num_classes, kernel_initializer="zeros", **kwargs):
        kwargs["dtype"] = "float32"
        super().__init__(
            num_classes, kernel_initializer=kernel_initializer, **kwargs
        )

    def get_config(self):
        """Returns all constructor arguments."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "num_classes": self.units,
            "kernel_initializer": tf.keras.initializers.serialize(
                self.kernel_initializer
            ),
        }


def _identity(**options):
    """z = h."""
    del options
    return tf.keras.Sequential(
        [tf.keras.layers.Activation("linear", dtype="float32")],
        name="projection",
    )


def _linear(layers, hidden, **options):
    """z = W h."""
    del layers, hidden
    return MLP(layers=1, name="projection", **options)


def _mlp(**options):
    return MLP(name="projection", **options)


HEADS = {"identity": _identity, "linear": _linear, "mlp": _mlp}


def build(
    name: str = Projection.projection,
    *,
    layers: int = Projection.projection_layers,
    hidden: int | None = Projection.projection_hidden,
    output: int = Projection.projection_output,
    batch_norm: bool = Projection.projection_batch_norm,
    synchronized: bool = True,
) -> tf.keras.Model:
    """Builds a projection head.

    Args:
      name: "identity" (z = h), "linear" or "mlp".
      layers: dense layers of an mlp, hidden ones and the last.
      hidden: units of its hidden layers; None or 0: as many as features.
      output: size P of a projection, of linear and mlp.
      batch_norm: whether BatchNorm follows their dense layers.
      synchronized: whether it spans all replicas.

    Returns:
      A model: features [N, D] to float32 [N, P], built by its first call.

    Raises:
      UserError: for an unknown name, or an mlp of less than two layers.

    SimCLR, section 4.2 and figure 8.
    """
    if name not in HEADS:
        raise errors.unknown("projection", name, HEADS)
    if name == "mlp" and layers < 2:
        raise errors.UserError(
            f"an mlp of {layers} layer(s): give at least 2, or the projection"
            " 'linear'"
        )
    return HEADS[name](
        layers=layers,
        hidden=hidden,
        output=output,
        batch_norm=batch_norm,
        synchronized=synchronized,
    )
