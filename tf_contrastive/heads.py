"""Heads: features h [N, D] to projections z [N, P], or to class logits.

The loss is computed on projections; evaluation and exports use h (SimCLR,
section 4.2).
"""

from typing import Any

import tensorflow as tf

from tf_contrastive.base import callables, errors
from tf_contrastive.config import components, fields, own
from tf_contrastive.config import projection as declared
from tf_contrastive.distribution import do_not_convert_self, own_network
from tf_contrastive.distribution.batch_normalization import BatchNormalization


def unit(features: tf.Tensor) -> tf.Tensor:
    """L2-normalizes features [..., D], as float32; 0 stays 0."""
    return tf.math.l2_normalize(tf.cast(features, tf.float32), axis=-1)


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class MLP(tf.keras.Model):
    """Dense layers with ReLU between them: z = W2 relu(W1 h) for two layers.

    As in SimCLR, BatchNorm follows every dense layer: the hidden ones before
    their ReLU, and the last one without beta, so that z has no offset that all
    images share. Without BatchNorm, hidden layers have biases. With `bias` the
    last layer has an offset, too: its bias, or beta.

    Examples:
      >>> MLP(output=128)(tf.ones([4, 512])).shape
      TensorShape([4, 128])

    Args:
      layers: dense layers; 1 is the linear head.
      hidden: units of the hidden layers; None or 0: as many as features.
      output: size P of a projection.
      batch_norm: whether BatchNorm follows the dense layers.
      synchronized: whether BatchNorm spans all replicas.
      bias: whether the last layer has an offset.
      normalize_input: whether the features are l2-normalized first.

    It maps [..., D] to float32 [..., P] under any precision policy. SimCLR,
    section 2.1 and its appendix B.
    """

    def __init__(
        self,
        layers: int = declared.MLP.layers,
        hidden: int | None = declared.MLP.hidden,
        output: int = declared.MLP.output,
        batch_norm: bool = declared.MLP.batch_norm,
        synchronized: bool = True,
        bias: bool = declared.MLP.bias,
        normalize_input: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._options: dict[str, Any] = {
            "layers": layers,
            "hidden": hidden,
            "output": output,
            "batch_norm": batch_norm,
            "synchronized": synchronized,
            "bias": bias,
            "normalize_input": normalize_input,
        }
        self._stack: list[tf.keras.layers.Layer] = []

    def build(self, input_shape: Any) -> None:
        """Creates the layers for features [..., D]."""
        o = self._options
        shape = tf.TensorShape(input_shape)
        hidden = [o["hidden"] or shape[-1]] * (o["layers"] - 1)
        for i, units in enumerate([*hidden, o["output"]], start=1):
            last = i > len(hidden)
            offset = o["bias"] or not last
            bias = offset and not o["batch_norm"]
            self._stack.append(
                tf.keras.layers.Dense(units, use_bias=bias, name=f"dense{i}")
            )
            if o["batch_norm"]:
                self._stack.append(
                    BatchNormalization(
                        center=offset,
                        synchronized=o["synchronized"],
                        name=f"norm{i}",
                    )
                )
            if not last:
                self._stack.append(tf.keras.layers.ReLU(name=f"relu{i}"))
        for layer in self._stack:
            # An absolute name, the same in a first call and in `build`.
            with tf.name_scope(f"{self.name}/{layer.name}/"):
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        self.built = True

    @do_not_convert_self
    def call(
        self, features: tf.Tensor, training: bool | tf.Tensor | None = None
    ) -> tf.Tensor:
        """Projects `features` [..., D] to float32 [..., P]."""
        x = unit(features) if self._options["normalize_input"] else features
        for layer in self._stack:
            is_norm = isinstance(layer, BatchNormalization)
            x = layer(x, training=training) if is_norm else layer(x)
        return tf.cast(x, tf.float32)

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        """Returns [..., P]."""
        return tf.TensorShape(input_shape)[:-1].concatenate(
            self._options["output"]
        )

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments."""
        return {"name": self.name, **self._options}


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LinearProbe(tf.keras.layers.Dense):
    """A linear classifier of features: [..., D] to logits float32 [..., C].

    Its weights start at zero: on a frozen encoder the problem is convex, and
    every run starts from the loss ln C. To train an encoder through it, use
    another initializer: zeros pass no gradient to the features.
    `normalize_input`: whether the features are l2-normalized first.
    """

    def __init__(
        self,
        num_classes: int,
        kernel_initializer: Any = "zeros",
        normalize_input: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs["dtype"] = "float32"
        super().__init__(
            num_classes, kernel_initializer=kernel_initializer, **kwargs
        )
        self.normalize_input = normalize_input

    @do_not_convert_self
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps features [..., D] to logits float32 [..., C]."""
        return super().call(unit(inputs) if self.normalize_input else inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments."""
        config = super().get_config()
        config["num_classes"] = config.pop("units")
        return {**config, "normalize_input": self.normalize_input}


def build_identity(
    synchronized: bool, normalize_input: bool, name: str
) -> tf.keras.Model:
    """Builds the head that returns the features."""
    del synchronized
    layer = (
        tf.keras.layers.UnitNormalization(dtype="float32")
        if normalize_input
        else tf.keras.layers.Activation("linear", dtype="float32")
    )
    return tf.keras.Sequential([layer], name=name)


def build_linear(**options: Any) -> tf.keras.Model:
    """Builds the head of one dense layer."""
    return MLP(1, **options)


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class OwnHead(tf.keras.Model):
    """A head of your own: a Keras layer, or a function that returns one.

    Args:
      part: the layer, or the function.
      synchronized, normalize_input: as for `MLP`.
      **options: of the function.
    """

    def __init__(
        self,
        part: Any,
        synchronized: bool = True,
        normalize_input: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name="projection")
        callables.options_of(part, (), options, "projection")
        # Not an attribute, whose weights Keras would count as the head's.
        self._part, self._part_options = (lambda: part), options
        self._synchronized, self._normalizes = synchronized, normalize_input

    def build(self, input_shape: Any) -> None:
        """Creates the layer for features [N, D]."""
        features = tf.keras.Input(tf.TensorShape(input_shape)[1:])
        self._network, projections = own_network.apply(
            f"projection {callables.name_of(self._part())}",
            self._part(),
            self._part_options,
            features,
            self._synchronized,
        )
        if projections.shape.rank != 2:
            raise errors.UserError(
                f"projection {callables.name_of(self._part())} returns"
                f" projections of shape {projections.shape}: must be [N, P]"
            )
        self.built = True

    @do_not_convert_self
    def call(
        self, features: tf.Tensor, training: bool | tf.Tensor | None = None
    ) -> tf.Tensor:
        """Projects `features` [N, D] to float32 [N, P]."""
        del training  # Keras passes it on to layers that take it.
        x = unit(features) if self._normalizes else features
        return tf.cast(self._network(x), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; a function stays one."""
        part = self._part()
        if isinstance(part, tf.keras.layers.Layer):
            part = tf.keras.layers.serialize(part)
        return {
            "part": part,
            "synchronized": self._synchronized,
            "normalize_input": self._normalizes,
            **self._part_options,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], **kwargs: Any) -> "OwnHead":
        """Makes the head that `get_config` describes."""
        part = config["part"]
        if isinstance(part, dict):
            part = tf.keras.layers.deserialize(part)
        return cls(**{**config, "part": part})


def build(
    name: Any = declared.MLP.name,
    *,
    synchronized: bool = True,
    normalize_input: bool = False,
    **options: Any,
) -> tf.keras.Model:
    """Builds a projection head by its name: features [N, D] to z [N, P].

    Args:
      name: "identity" (z = h), "linear" or "mlp" (SimCLR, section 4.2, figure
        8); or a Keras layer of your own, a function that returns one, or its
        `module:name`.
      synchronized, normalize_input: as for `MLP`.
      **options: other arguments of `MLP`, if the head has them.

    Raises:
      UserError: for an unknown name, option or value.
    """
    if not isinstance(name, str):
        return OwnHead(name, synchronized, normalize_input, **options)
    if name not in declared.HEADS and fields.module_of(name):
        part = own.load("projection", name)
        return OwnHead(part, synchronized, normalize_input, **options)
    head = components.pick("projection", name, declared.HEADS, options)
    head(**options)  # Checks the values.
    return components.implementation(head)(
        synchronized=synchronized,
        normalize_input=normalize_input,
        name="projection",
        **options,
    )
