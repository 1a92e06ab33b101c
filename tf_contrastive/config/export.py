"""What an export holds."""

from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import option

# The SavedModel is always written.
EXPORT_FORMATS = ("savedmodel", "keras", "tflite", "onnx", "pytorch")


class Exporting(Group):
    """What `export` writes."""

    workdir: str = option("", "folder of the run to export", required=True)
    output_dir: str = option(
        "", "folder to write <version>/ into; empty: <workdir>/export"
    )
    checkpoint: int | None = option(
        None, "step of the checkpoint to export; auto: the newest"
    )
    format: tuple[str, ...] = option(
        ("savedmodel",),
        "comma-separated formats: savedmodel (always written), keras (a file"
        " that loads as a Keras model), tflite (float32 and 8 bits), onnx"
        " (extra [onnx]) and pytorch (weights for torchvision or timm)",
        choices=EXPORT_FORMATS,
    )
    head: str = option(
        "none",
        "classifier of the signature `classify`: the run's linear probe",
        choices=("none", "probe"),
    )
    max_image_pixels: int = option(
        2**25,  # Decoded within 2 seconds and 512 MiB.
        "pixels of an encoded image that is served, at most; larger ones are"
        " rejected by their header, before they use memory",
        minimum=1,
    )
