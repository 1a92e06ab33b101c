"""SavedModels that serve embeddings, and can be fine-tuned.

An export includes its preprocessing and needs only TensorFlow to be loaded. It
is in a folder `<output_dir>/<version>` as model servers expect: the newest
version is the highest number, and each is complete or not there.
"""

from tf_contrastive.exporting.classifier_heads import ProbeHead, PrototypeHead
from tf_contrastive.exporting.exported_networks import (
    Parts,
    image_shape,
    num_features,
)
from tf_contrastive.exporting.model_card import format_rows
from tf_contrastive.exporting.paths import (
    copy_weights,
    find,
    find_published,
    load,
)
from tf_contrastive.exporting.saved_model import DETAILS_FILE, details, export
from tf_contrastive.exporting.tflite_onnx import check_installed
from tf_contrastive.exporting.versioning import (
    GRAPH_FILE,
    folders,
    is_complete,
)

__all__ = [
    "DETAILS_FILE",
    "GRAPH_FILE",
    "Parts",
    "ProbeHead",
    "PrototypeHead",
    "check_installed",
    "copy_weights",
    "details",
    "export",
    "find",
    "find_published",
    "folders",
    "format_rows",
    "image_shape",
    "is_complete",
    "load",
    "num_features",
]
