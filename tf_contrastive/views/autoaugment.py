"""AutoAugment and RandAugment: operations of random kind and strength.

AutoAugment (Cubuk et al. 2019) with its ImageNet policy, RandAugment (Cubuk et
al. 2020) with the operations and ranges of the authors' TensorFlow code.
Lengths in pixels are for 224 x 224 and scale with the side of a view.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.config.views import Views
from tf_contrastive.views import affine, pillow, prng, selection

# The operations of RandAugment, each equally probable.
OPERATIONS = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Cutout",
    "SolarizeAdd",
)

# 25 pairs of (operation, probability, level); each view gets one pair.
IMAGENET_POLICY = (
    (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
    (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
    (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
    (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
    (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
    (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
    (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
    (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
    (("Color", 0.6, 1), ("Equalize", 1.0, 2)),
    (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
    (("Equalize", 1.0, 9), ("ShearY", 0.6, 3)),
    (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
    (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
    (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
    (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
    (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
    (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
    (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
    (("Color", 1.0, 0), ("Rotate", 0.6, 2)),
    (("Equalize", 0.8, 4), ("Equalize", 0.0, 8)),
    (("Equalize", 1.0, 4), ("AutoContrast", 0.6, 2)),
    (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
    (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
    (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
    (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
)

# Operations that are matrices, in the order of `affine.TRANSFORMS`.
_AFFINE = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def argument(
    name: str, level: float, size: int, translation: float, cutout: float
) -> float:
    """The argument of an operation at a level.

    Args:
      name: one of `OPERATIONS`.
      level: strength, on a scale of 10.
      size: side of a view in pixels.
      translation, cutout: pixels at level 10 and side 224: the length of a
        translation, half the side of a cutout.

    Returns:
      A factor, threshold, number of bits, slope, angle in degrees or length in
      pixels, without the sign of affine transforms.
    """
    fraction = level / 10
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return 0.1 + 1.8 * fraction
    if name in ("ShearX", "ShearY"):
        return 0.3 * fraction
    if name in ("TranslateX", "TranslateY"):
        return translation * fraction * size / 224
    return {
        "Rotate": 30 * fraction,
        # At least one bit: the authors' code shifts by at most 7.
        "Posterize": max(int(4 * fraction), 1),
        "Solarize": int(256 * fraction),
        "SolarizeAdd": int(110 * fraction),
        "Cutout": int(cutout * fraction * size / 224),
    }.get(name, 0.0)


def _positions(names: tuple[str, ...]) -> np.ndarray:
    """The position of each of `OPERATIONS` in `names`, or -1: int32 [16]."""
    return np.array(
        [names.index(n) if n in names else -1 for n in OPERATIONS], np.int32
    )


def _with_argument(
    operation: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> selection.Operation:
    return lambda x, p: operation(x, tf.cast(p[:, 0], tf.float32))


def _cutout(rows: tf.Tensor, parameters: tf.Tensor) -> tf.Tensor:
    columns = tf.cast(parameters[:, :3], tf.float32)
    return pillow.cutout(rows, *tf.unstack(columns, axis=1))


def _affine(rows: tf.Tensor, parameters: tf.Tensor) -> tf.Tensor:
    pixels = pillow.as_pixels(rows)
    return pillow.as_rows(
        affine.transform(pixels, parameters[:, 3:], pillow.FILL)
    )


def _distort(
    rows: tf.Tensor,
    choice: tf.Tensor,
    strength: tf.Tensor,
    uniforms: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """Applies one operation per view.

    Args:
      rows: float32 [m, S, 3 S] of levels.
      choice: int32 [m], positions in `OPERATIONS`; -1 leaves a view unchanged.
      strength: float32 [m], arguments.
      uniforms: float32 [m, 3]: sign, and the centre of a cutout.
      static: see `selection.apply_choice`.
    """
    size = rows.shape[1]
    # For -1 position 0 is read, and not used.
    kind = tf.gather(_positions(_AFFINE), tf.maximum(choice, 0))
    signed = tf.where(uniforms[:, 0] < 0.5, -strength, strength)
    matrix = affine.matrices(kind, signed, size)
    centre = tf.floor(uniforms[:, 1:] * size)
    parameters = tf.concat(
        [
            tf.cast(strength, tf.float64)[:, tf.newaxis],
            tf.cast(centre, tf.float64),
            matrix,
        ],
        axis=1,
    )
    operations: dict[str, selection.Operation] = {
        "AutoContrast": lambda x, p: pillow.autocontrast(x),
        "Equalize": lambda x, p: pillow.equalize(x),
        "Invert": lambda x, p: pillow.invert(x),
        "Posterize": _with_argument(pillow.posterize),
        "Solarize": _with_argument(pillow.solarize),
        "Color": _with_argument(lambda x, f: pillow.color(x, f, static)),
        "Contrast": _with_argument(lambda x, f: pillow.contrast(x, f, static)),
        "Brightness": _with_argument(pillow.brightness),
        "Sharpness": _with_argument(pillow.sharpness),
        "Cutout": _cutout,
        "SolarizeAdd": _with_argument(pillow.solarize_add),
        "Affine": _affine,
    }
    group = _positions(tuple(operations))
    group = np.where(group < 0, list(operations).index("Affine"), group) + 1
    groups = tf.gather(group.astype(np.int32), tf.maximum(choice, 0))
    groups = tf.where(choice < 0, 0, groups)
    return selection.apply_choice(
        groups, list(operations.values()), rows, parameters, static
    )


def _distort_in_turn(
    pixels: tf.Tensor,
    choices: tf.Tensor,
    strength: tf.Tensor,
    uniforms: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """Applies L operations per view, one after the other.

    Pixels are float32 [m, S, S, 3] in [0, 1]; choices and strengths [m, L], and
    `uniforms` [m, 3 L]: see `_distort`.
    """
    layers = choices.shape[1]
    numbers = tf.reshape(uniforms, [-1, layers, 3])

    def step(layer: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        choice, argument, sign = (
            x[:, layer] for x in (choices, strength, numbers)
        )
        return layer + 1, _distort(rows, choice, argument, sign, static)

    # A loop, so that the first batch does not wait for a graph of each layer.
    start = (0, pillow.from_unit(pixels))
    _, rows = tf.while_loop(lambda i, _: i < layers, step, start)
    return pillow.to_unit(rows)


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Operations in a row, each drawn from `OPERATIONS`, at one magnitude.

    Attributes:
      layers: operations per view.
      magnitude: their level, on a scale of 10.
    """

    layers: int = Views.randaugment_layers
    magnitude: float = Views.randaugment_magnitude

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return {"randaugment": 4 * self.layers}

    def choices(self, uniforms: prng.Uniforms) -> tf.Tensor:
        """Positions in `OPERATIONS`, int32 [m, layers]."""
        first = uniforms["randaugment"][:, : self.layers]
        return tf.cast(first * len(OPERATIONS), tf.int32)

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = np.array(
            [argument(n, self.magnitude, size, 100, 40) for n in OPERATIONS],
            np.float32,
        )
        choices = self.choices(uniforms)
        strength = tf.gather(table, choices)
        rest = uniforms["randaugment"][:, self.layers :]
        return _distort_in_turn(pixels, choices, strength, rest, static)


@dataclasses.dataclass(frozen=True)
class AutoAugment:
    """One of the pairs of `IMAGENET_POLICY` per view."""

    streams: ClassVar[dict[str, int]] = {"autoaugment": 9}

    def choices(self, uniforms: prng.Uniforms) -> tuple[tf.Tensor, tf.Tensor]:
        """The pair of each view, and the operations that take place.

        Returns:
          int32 [m], positions in `IMAGENET_POLICY`; int32 [m, 2], positions in
          `OPERATIONS`, or -1 for an operation that is not applied.
        """
        numbers = uniforms["autoaugment"]
        pair = tf.cast(numbers[:, 0] * len(IMAGENET_POLICY), tf.int32)
        names = np.array(
            [[OPERATIONS.index(n) for n, _, _ in p] for p in IMAGENET_POLICY],
            np.int32,
        )
        probabilities = np.array(
            [[step[1] for step in p] for p in IMAGENET_POLICY], np.float32
        )
        applied = numbers[:, 1:3] < tf.gather(probabilities, pair)
        return pair, tf.where(applied, tf.gather(names, pair), -1)

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = np.array(
            [
                [argument(name, level, size, 250, 100) for name, _, level in p]
                for p in IMAGENET_POLICY
            ],
            np.float32,
        )
        pair, choices = self.choices(uniforms)
        strength = tf.gather(table, pair)
        rest = uniforms["autoaugment"][:, 3:]
        return _distort_in_turn(pixels, choices, strength, rest, static)
