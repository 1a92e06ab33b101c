"""Embeddings of images.

`embed` is for data that fit into memory; `job` embeds any split, on this
machine or (`beam`) on Apache Beam.
"""

from tf_contrastive.embedding.embedder import (
    Embedder,
    MakeBatches,
    checksum,
    embed,
)

__all__ = ["Embedder", "MakeBatches", "checksum", "embed"]
