"""`encoders`: the trained encoders that come with the package."""

import dataclasses

from tf_contrastive.config.fields import Command, Terminal, group

_COLUMNS = "{:34} {:9} {:7} {:9} {:>5} {:>4} {:>8} {:>8} {:>6}"


@dataclasses.dataclass(frozen=True)
class Encoders(Command):
    """List the trained encoders that come with the package."""

    terminal: Terminal = group(Terminal())


def run(options: Encoders) -> int:
    """Prints a table of the encoders and of their accuracies; returns 0."""
    from tf_contrastive.encoders import pretrained

    del options
    print(
        _COLUMNS.format(
            "name",
            "dataset",
            "loss",
            "encoder",
            "width",
            "side",
            "features",
            "logistic",
            "kNN",
        )
    )
    for name in pretrained.names():
        known, arguments = pretrained.results(name), pretrained.arguments(name)
        print(
            _COLUMNS.format(
                pretrained.SCHEME + name,
                known["dataset"],
                known["loss"],
                arguments["name"],
                arguments["width"],
                arguments["image_shape"][0],
                known["features"],
                f"{known['top1']['logistic']:.4f}",
                f"{known['top1']['knn']:.4f}",
            )
        )
    print(
        "\nTop-1 on the dataset's test images; kNN: 5 neighbours, weighted by"
        " cosine.\n`tf_contrastive.load(name)` loads one, --init_from=name"
        " (with its --encoder, --width\nand --image_size) starts with it,"
        " --saved_model=name evaluates it."
    )
    return 0
