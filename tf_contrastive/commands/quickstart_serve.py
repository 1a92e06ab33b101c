"""Classifies held-out digits with an export, without the package.

Use: python -I quickstart_serve.py EXPORT_FOLDER, from any folder.
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf
from sklearn import datasets

# 1-NN accuracy on held-out digits; chance level is 0.1.
MIN_ACCURACY = 0.9


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns images uint8 [N,8,8,3], labels [N] and which are held out."""
    data = datasets.load_digits()
    grey = np.round(data.images / 16 * 255).astype(np.uint8)
    held_out = np.zeros(len(grey), bool)
    held_out[np.argsort(data.target, kind="stable")[::5]] = True
    return np.repeat(grey[..., None], 3, axis=-1), data.target, held_out


def main(folder: str) -> None:
    """Checks the embeddings of the newest version in `folder`."""
    sys.modules["tf_contrastive"] = None  # type: ignore[assignment] # No import.
    versions = [p for p in pathlib.Path(folder).iterdir() if p.name.isdigit()]
    newest = max(versions, key=lambda path: int(path.name))
    serve = tf.saved_model.load(str(newest)).signatures["serving_default"]
    images, labels, held_out = digits()
    (argument,) = serve.structured_input_signature[1]
    embeddings = serve(**{argument: tf.constant(images)})["embedding"].numpy()
    if embeddings.ndim != 2 or len(embeddings) != len(images):
        sys.exit(f"{newest}: embeddings of shape {embeddings.shape}")
    if not np.isfinite(embeddings).all():
        sys.exit(f"{newest}: embeddings that are not finite")
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarities = embeddings[held_out] @ embeddings[~held_out].T
    predictions = labels[~held_out][similarities.argmax(axis=1)]
    accuracy = np.mean(predictions == labels[held_out])
    if accuracy < MIN_ACCURACY:
        sys.exit(f"{newest}: 1-NN of held-out digits is only {accuracy:.3f}")
    print(
        f"{newest} serves embeddings {embeddings.shape}; 1-NN of"
        f" {held_out.sum()} held-out digits: {accuracy:.4f}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
