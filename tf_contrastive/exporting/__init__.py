"""SavedModels that serve embeddings, and can be trained on.

Layer 5. An export holds its preprocessing, needs nothing but TensorFlow to be
loaded, and stands in a folder `<output_dir>/<version>` as model servers poll
for it: the newest version is the highest number, and a version is there whole
or not at all.
"""

from tf_contrastive.exporting.classifying import (
    Neighbors,
    Probe,
    Prototype,
    probe_of,
)
from tf_contrastive.exporting.converting import check_installed, compare
from tf_contrastive.exporting.plain import (
    extra,
    image_size,
    plain_encoder,
    plain_head,
)
from tf_contrastive.exporting.reading import (
    DETAILS_FILE,
    details,
    find,
    load,
    versions,
)
from tf_contrastive.exporting.samples import as_bytes, as_jpeg, photographs
from tf_contrastive.exporting.serving import ServingModule
from tf_contrastive.exporting.writing import KERAS_FILE, Parts, export, parts

__all__ = [
    "DETAILS_FILE",
    "KERAS_FILE",
    "Neighbors",
    "Parts",
    "Probe",
    "Prototype",
    "ServingModule",
    "as_bytes",
    "as_jpeg",
    "check_installed",
    "compare",
    "details",
    "export",
    "extra",
    "find",
    "image_size",
    "load",
    "parts",
    "photographs",
    "plain_encoder",
    "plain_head",
    "probe_of",
    "versions",
]
