"""Labelled clusters of points."""

import numpy as np


def blobs(n, features=8, classes=4, spread=1.0, seed=0):
    """(embeddings, labels) of normal clusters around fixed centers."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, features))
    labels = generator.integers(0, classes, n)
    noise = generator.normal(size=(n, features))
    return (centers[labels] + spread * noise).astype(np.float32), labels
