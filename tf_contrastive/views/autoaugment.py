"""AutoAugment and RandAugment: operations of random kind and strength.

AutoAugment (Cubuk et al. 2019) with the ImageNet policy that SupCon and SimCLR
use, RandAugment (Cubuk et al. 2020) with the operations and ranges of the
authors' TensorFlow code. Lengths in pixels are those at 224 x 224, scaled with
the side of a view.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.config.views import Views
from tf_contrastive.views import geometry, pillow, prng, selection

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

# 25 pairs of (operation, probability, level), one of which a view goes through.
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

# Operations that are matrices, in the order of `geometry.TRANSFORMS`.
_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


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
      pixels; geometric ones without their sign.
    """
    share = level / 10
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return 0.1 + 1.8 * share
    if name in ("ShearX", "ShearY"):
        return 0.3 * share
    if name in ("TranslateX", "TranslateY"):
        return translation * share * size / 224
    return {
        "Rotate": 30 * share,
        # No bits would leave black: the authors' code shifts by 7 at most.
        "Posterize": max(int(4 * share), 1),
        "Solarize": int(256 * share),
        "SolarizeAdd": int(110 * share),
        "Cutout": int(cutout * share * size / 224),
    }.get(name, 0.0)


def _numbers(names: tuple[str, ...]) -> np.ndarray:
    """Where each of `OPERATIONS` stands in `names`, or -1: int32 [16]."""
    return np.array(
        [names.index(n) if n in names else -1 for n in OPERATIONS], np.int32
    )


def _distort(
    rows: tf.Tensor,
    which: tf.Tensor,
    strength: tf.Tensor,
    unit: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """One operation per view.

    Args:
      rows: float32 [m, S, 3 S] of levels.
      which: int32 [m], positions in `OPERATIONS`; -1 leaves a view as it is.
      strength: float32 [m], arguments.
      unit: float32 [m, 3], uniform: sign, and the centre of a cutout.
      static: see `choice.apply`.
    """
    size = rows.shape[1]
    # A position of -1 is read at 0, and not used.
    kind = tf.gather(_numbers(_GEOMETRIC), tf.maximum(which, 0))
    signed = tf.where(unit[:, 0] < 0.5, -strength, strength)
    matrix = geometry.matrices(kind, signed, size)
    centre = tf.floor(unit[:, 1:] * size)
    parameters = tf.concat(
        [
            tf.cast(strength, tf.float64)[:, tf.newaxis],
            tf.cast(centre, tf.float64),
            matrix,
        ],
        axis=1,
    )

    def first(operation):
        return lambda x, p: operation(x, tf.cast(p[:, 0], tf.float32))

    def cutout(x, p):
        half, row, column = tf.unstack(tf.cast(p[:, :3], tf.float32), axis=1)
        return pillow.cutout(x, half, row, column)

    operations = {
        "AutoContrast": lambda x, p: pillow.autocontrast(x),
        "Equalize": lambda x, p: pillow.equalize(x),
        "Invert": lambda x, p: pillow.invert(x),
        "Posterize": first(pillow.posterize),
        "Solarize": first(pillow.solarize),
        "Color": first(lambda x, f: pillow.color(x, f, static)),
        "Contrast": first(lambda x, f: pillow.contrast(x, f, static)),
        "Brightness": first(pillow.brightness),
        "Sharpness": first(pillow.sharpness),
        "Cutout": cutout,
        "SolarizeAdd": first(pillow.solarize_add),
        "Affine": lambda x, p: pillow.as_rows(
            geometry.affine(pillow.as_pixels(x), p[:, 3:], pillow.FILL)
        ),
    }
    family = _numbers(tuple(operations))
    family = np.where(family < 0, list(operations).index("Affine"), family) + 1
    chosen = tf.gather(family.astype(np.int32), tf.maximum(which, 0))
    chosen = tf.where(which < 0, 0, chosen)
    return selection.apply(
        rows, chosen, parameters, list(operations.values()), static
    )


def _in_turn(
    pixels: tf.Tensor,
    which: tf.Tensor,
    strength: tf.Tensor,
    unit: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """Some operations per view, one after the other.

    Args:
      pixels: float32 [m, S, S, 3] in [0, 1].
      which, strength: [m, L], see `_distort`.
      unit: float32 [m, 3 L], three numbers for each.
      static: see `choice.apply`.
    """

    def step(layer: tf.Tensor, rows: tf.Tensor):
        rows = _distort(
            rows,
            which[:, layer],
            strength[:, layer],
            numbers[:, layer],
            static,
        )
        return layer + 1, rows

    numbers = tf.reshape(unit, [-1, which.shape[1], 3])
    # A loop, so that the first batch does not wait for a graph of each layer.
    start = (0, pillow.from_unit(pixels))
    _, rows = tf.while_loop(lambda i, _: i < which.shape[1], step, start)
    return pillow.to_unit(rows)


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Some operations in a row, each drawn from all, at one magnitude.

    Attributes:
      layers: operations per view.
      magnitude: their level, on a scale of 10.
    """

    layers: int = Views.randaugment_layers
    magnitude: float = Views.randaugment_magnitude

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"randaugment": 4 * self.layers}

    def choices(self, unit: prng.Unit) -> tf.Tensor:
        """Positions in `OPERATIONS`, int32 [m, layers]."""
        first = unit["randaugment"][:, : self.layers]
        return tf.cast(first * len(OPERATIONS), tf.int32)

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = np.array(
            [argument(n, self.magnitude, size, 100, 40) for n in OPERATIONS],
            np.float32,
        )
        choices = self.choices(unit)
        strength = tf.gather(table, choices)
        rest = unit["randaugment"][:, self.layers :]
        return _in_turn(pixels, choices, strength, rest, static)


@dataclasses.dataclass(frozen=True)
class AutoAugment:
    """One of the pairs of `IMAGENET_POLICY` per view."""

    streams: ClassVar[dict[str, int]] = {"autoaugment": 9}

    def choices(self, unit: prng.Unit) -> tuple[tf.Tensor, tf.Tensor]:
        """Which pair each view goes through, and what of it takes place.

        Returns:
          int32 [m], positions in `IMAGENET_POLICY`; int32 [m, 2], positions in
          `OPERATIONS`, or -1 where the draw was against it.
        """
        unit = unit["autoaugment"]
        pair = tf.cast(unit[:, 0] * len(IMAGENET_POLICY), tf.int32)
        names = np.array(
            [
                [OPERATIONS.index(step[0]) for step in p]
                for p in IMAGENET_POLICY
            ],
            np.int32,
        )
        shares = np.array(
            [[step[1] for step in p] for p in IMAGENET_POLICY], np.float32
        )
        happens = unit[:, 1:3] < tf.gather(shares, pair)
        return pair, tf.where(happens, tf.gather(names, pair), -1)

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = np.array(
            [
                [argument(name, level, size, 250, 100) for name, _, level in p]
                for p in IMAGENET_POLICY
            ],
            np.float32,
        )
        pair, which = self.choices(unit)
        strength = tf.gather(table, pair)
        rest = unit["autoaugment"][:, 3:]
        return _in_turn(pixels, which, strength, rest, static)
