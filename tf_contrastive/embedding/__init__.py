"""Embeddings of batches, of whole datasets, and the files they go into.

Layer 6. `embed` is for what fits into memory; a `Job` goes over any split, on
this machine (`run`) or on Apache Beam (`beam.run`, imported when it is asked
for).
"""

from tf_contrastive.embedding.arrays import (
    Batches,
    checksum,
    embed,
    embed_batches,
    embedder,
)
from tf_contrastive.embedding.files import check_format, check_writable, write
from tf_contrastive.embedding.job import Job, Shard, begin, finish, run

__all__ = [
    "Batches",
    "Job",
    "Shard",
    "begin",
    "check_format",
    "check_writable",
    "checksum",
    "embed",
    "embed_batches",
    "embedder",
    "finish",
    "run",
    "write",
]
