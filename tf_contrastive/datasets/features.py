"""Which features of records are the image and its label."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tf_contrastive.base import errors
from tf_contrastive.config.data import NO_FEATURE, Reading


class Kind(NamedTuple):
    """What a feature must be, and the names that it usually has."""

    type: str
    usual: Sequence[str]


def choose(
    name: str,
    types: Mapping[str, str],
    image: Kind,
    label: Kind,
    reading: Reading,
) -> tuple[str, str | None]:
    """Returns the names of the features of the image and of the label.

    Args:
      name: of the dataset.
      types: feature -> its type, in words.
      image, label: what they must be.
      reading: may name other features.

    Raises:
      UserError: if there is no image, or another feature may be the label.
    """
    listed = ", ".join(f"{n} ({kind})" for n, kind in types.items())
    present = f"features present: {listed or 'none'}"

    def find(option: str, kind: Kind) -> str | None:
        wanted = getattr(reading, option)
        names = [n for n in ((wanted,) if wanted else kind.usual) if n in types]
        if len(names) > 1 or (names and types[names[0]] != kind.type):
            raise errors.UserError(
                f"{name}: not one {kind.type}: {', '.join(names)}: set"
                f" {errors.arg(option, names[-1])}, another feature or"
                f" {errors.arg('label_feature', NO_FEATURE)}; {present}"
            )
        return names[0] if names else None

    found = find("image_feature", image)
    if found is None:
        raise errors.UserError(
            f"{name}: no encoded image ({image.type}) in feature"
            f" {reading.image_feature or ' or '.join(image.usual)}: set"
            f" {errors.arg('image_feature')}; {present}"
        )
    wanted = reading.label_feature
    if wanted == NO_FEATURE:
        return found, None
    of_class = find("label_feature", label)
    others = [n for n, kind in types.items() if kind == label.type]
    if of_class is None and (wanted or others):
        raise errors.UserError(
            f"{name}: no label ({label.type}) in feature"
            f" {wanted or ' or '.join(label.usual)}: set"
            f" {errors.arg('label_feature', (others or ['NAME'])[0])}, or"
            f" {errors.arg('label_feature', NO_FEATURE)} to read no labels;"
            f" {present}"
        )
    return found, of_class
