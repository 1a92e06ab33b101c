"""Datasets that probe what an encoder learns (Chen, Luo and Li 2021).

They are made from MNIST's digits or from other datasets (sections 3.1, 4.1 and
C), with the options in their names (`config.dataset_names`). Random choices
depend on the seed in the name and on the index or the contents of an image,
never on the epoch: they are equal in every view, slice and process.
"""

from collections.abc import Callable

from tf_contrastive.datasets.source import Source
from tf_contrastive.papers.datasets.bits import kbits, randbit
from tf_contrastive.papers.datasets.digits import digit_on_image, multidigits

# Additions to `datasets.DERIVED`.
DATASETS: dict[str, Callable[..., Source]] = {
    "multidigits": multidigits,
    "digit_on_image": digit_on_image,
    "randbit": randbit,
    "kbits": kbits,
}
