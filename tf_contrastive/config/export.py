"""The options of `export`."""

import dataclasses

from tf_contrastive.config.fields import list_of, option, validate_fields
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.errors import UserError

# What `export` writes: the SavedModel always, the others beside it.
EXPORT_FORMATS = ("savedmodel", "tflite", "onnx")
EXPORT_HEADS = ("none", "probe", "prototype", "knn")


@dataclasses.dataclass(frozen=True)
class Exporting:
    """What `export` writes."""

    workdir: str = option("", "folder of the run to export", required=True)
    output_dir: str = option(
        "", "folder to write <version>/ into; empty: <workdir>/export"
    )
    checkpoint: int = option(
        -1, "step of the checkpoint to export; -1: the newest", minimum=-1
    )
    format: str = option(
        "savedmodel",
        "comma-separated formats: savedmodel, which is written always, tflite"
        " (float32, and with 8 bits) and onnx (extra [onnx])",
        check=list_of(EXPORT_FORMATS),
    )
    head: str = option(
        "none",
        "classifier of the signature `classify`: the run's own linear probe,"
        " class prototypes or the nearest neighbours, the latter two of the"
        " run's training split",
        choices=EXPORT_HEADS,
    )
    head_knn_k: int = option(5, "neighbours that vote (--head=knn)", minimum=1)
    head_temperature: float = option(
        0.1,
        "what cosines are divided by to make probabilities (--head=prototype)",
        above=0.0,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets, if it is another one than the"
        " run's",
    )
    calibration_images: int = option(
        128,
        "images of the run's training split by which other formats are"
        " calibrated and checked",
        minimum=1,
    )
    max_image_pixels: int = option(
        2**27,
        "most pixels of an encoded image that is served; larger ones are"
        " refused by their header, so that none fills the memory",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class Export:
    """All options of `export`."""

    exporting: Exporting = dataclasses.field(default_factory=Exporting)
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.exporting
        for name, head in (
            ("head_knn_k", "knn"),
            ("head_temperature", "prototype"),
        ):
            value = getattr(e, name)
            if value != getattr(Exporting, name) and e.head != head:
                raise UserError(
                    f"{name}={value:g} is no option of head={e.head}: give"
                    f" head={head}"
                )
