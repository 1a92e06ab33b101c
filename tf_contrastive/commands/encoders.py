"""`encoders`: the trained encoders that come with the package."""

from tf_contrastive.base import terminal
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.fields import group

_HEADINGS = (
    *("name", "dataset", "loss", "encoder"),
    *("width", "side", "features", "logistic", "kNN"),
)


class Encoders(Command):
    """List the trained encoders that come with the package."""

    terminal: Terminal = group(Terminal())


def run(options: Encoders) -> int:
    """Prints a table of the encoders and of their accuracies; returns 0."""
    from tf_contrastive.encoders import pretrained

    del options
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for name in pretrained.names():
        known, arguments = pretrained.results(name), pretrained.arguments(name)
        row = (
            pretrained.SCHEME + name,
            *(known["dataset"], known["loss"], arguments["name"]),
            *(arguments["width"], arguments["image_shape"][0]),
            known["features"],
            *(f"{known['top1'][x]:.4f}" for x in ("logistic", "knn")),
        )
        rows.append(tuple(map(str, row)))
    print(terminal.format_table(rows, texts=range(4)))
    print(
        "\nTop-1 on the dataset's test images; kNN: 5 neighbours, weighted by"
        " cosine.\n`tf_contrastive.load(name)` loads one, --init_from=name"
        " (with its --encoder, --width\nand --image_size) starts with it,"
        " --saved_model=name evaluates it."
    )
    return 0
