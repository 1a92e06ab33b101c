"""`export`: writes a run's encoder as a SavedModel."""

import os

from tf_contrastive import config, exporting

_IMAGES = """\
  serving_default  images: uint8 [N, H, W, 3], any size
                   -> embedding: float32 [N, {embedding_size}]
  serving_bytes    bytes: string [N], JPEG, PNG, GIF or BMP
                   -> embedding: float32 [N, {embedding_size}], ok: bool [N]"""
_CHANNELS = """\
  serving_default  images: float32 [N, {image_size}, {image_size}, {channels}],\
 colours in [0, 1]
                   -> embedding: float32 [N, {embedding_size}]
  (no serving_bytes: encoded images have no more channels than three)"""
_TEXT = """\
exported: {path}

{signatures}

In Python:
  model = tf.saved_model.load("{path}")
  model.signatures["serving_default"](images=images)["embedding"]
Serve every version:
  tensorflow_model_server --rest_api_port=8501 --model_name=encoder \\
      --model_base_path={base}"""


def run(options: config.Export) -> int:
    """Exports the newest checkpoint and prints where, and how to call it.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run, no checkpoint yet, or a folder that cannot be
        written.
    """
    chosen = options.exporting
    output_dir = chosen.output_dir or os.path.join(chosen.workdir, "export")
    path = exporting.export(chosen.workdir, output_dir)
    base = output_dir if "://" in output_dir else os.path.abspath(output_dir)
    details = exporting.details(path)
    signatures = _IMAGES if details["channels"] == 3 else _CHANNELS
    signatures = signatures.format(**details)
    print(_TEXT.format(path=path, signatures=signatures, base=base))
    return 0
