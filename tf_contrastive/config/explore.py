"""The options of `explore`: the images, the encoder, and what is shown."""

from tf_contrastive.config.checks import each
from tf_contrastive.config.data import split_name
from tf_contrastive.config.evaluate import EncoderSource
from tf_contrastive.config.fields import option


class Exploration(EncoderSource):
    """What `explore` shows."""

    split: tuple[str, ...] = option(
        (),
        "comma-separated splits; empty: the run's train and test split, or"
        " train and test",
        check=each(split_name),
    )
    query: str = option(
        "", "image, or folder of images, whose neighbours are shown"
    )
    output: str = option("explore", "folder for explore.html and explore.json")
    neighbors: int = option(
        10, "neighbours of an image, on the page and in explore.json", minimum=1
    )
    near_correlation: float = option(
        0.75,
        "least correlation of the details of near copies; up to 0.95 for images"
        " that resemble most of their neighbours, such as drawings",
        above=0.0,
        maximum=1.0,
    )
    listed: int = option(
        200, "entries of a list on the page; explore.json has all", minimum=1
    )
    map: str = option(
        "tsne",
        "places of the images on the map; tsne: neighbours stay neighbours;"
        " pca: the two directions of largest variance, in seconds",
        choices=("tsne", "pca"),
    )
    map_images: int = option(
        5_000, "images on the map, at random", minimum=1, maximum=50_000
    )
    seed: int = option(0, "seed of samples and maps", maximum=2**32 - 1)
