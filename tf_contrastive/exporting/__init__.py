"""SavedModels that serve embeddings, and can be trained on.

Layer 5. An export holds its preprocessing, needs nothing but TensorFlow to be
loaded, and stands in a folder `<output_dir>/<version>` as model servers poll
for it: the newest version is the highest number, and a version is there whole
or not at all.
"""

from tf_contrastive.exporting.classifier_heads import (
    NeighborsHead,
    ProbeHead,
    PrototypeHead,
    probe_of,
)
from tf_contrastive.exporting.portable import (
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
from tf_contrastive.exporting.saved_model import (
    KERAS_FILE,
    Parts,
    export,
    parts,
)
from tf_contrastive.exporting.serving_module import ServingModule
from tf_contrastive.exporting.tflite_onnx import check_installed, compare

__all__ = [
    "DETAILS_FILE",
    "KERAS_FILE",
    "NeighborsHead",
    "Parts",
    "ProbeHead",
    "PrototypeHead",
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
