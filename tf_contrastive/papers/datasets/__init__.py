"""Datasets that probe what an encoder learns (Chen, Luo and Li 2021).

Random choices depend on the seed in the name (`config.dataset_names`) and on
the index or the contents of an image: they are equal in every view and slice.
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
