"""The options of `embed`."""

import dataclasses
from typing import ClassVar

from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset import dataset_name
from tf_contrastive.config.fields import (
    Command,
    Terminal,
    group,
    matching,
    option,
    shell_words,
)
from tf_contrastive.errors import UserError, arg

# Format -> extension of its files.
EMBEDDING_FORMATS = {n: f".{n}" for n in ("npz", "tfrecord", "parquet")}


@dataclasses.dataclass(frozen=True)
class Embedding:
    """What `embed` embeds."""

    workdir: str = option("", "folder of the run with the encoder")
    saved_model: str = option(
        "", "export, or pretrained:NAME, to use instead of a run"
    )
    input: str = option(
        "",
        "dataset to embed, as for --dataset of pretrain; empty: the run's",
        check=dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option(
        "",
        "split to embed; empty: test, or train of data that have no other",
        check=split_name,
    )
    output: str = option("", "file to write", required=True)
    format: str = option(
        "auto",
        "output format; auto: by the extension of --output, else npz; parquet"
        " needs pyarrow (extra [beam])",
        choices=("auto", *EMBEDDING_FORMATS),
    )
    shard_size: int = option(
        0,
        "examples per file, NAME-00000-of-00009.npz; a job that was killed"
        " resumes with the next file; 0: a single file",
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    runner: str = option(
        "",
        "Apache Beam runner, such as DirectRunner or DataflowRunner (extra"
        " [beam]); empty: this process",
        check=matching(
            r"\w*", "the name of an Apache Beam runner, such as DirectRunner"
        ),
    )
    beam_options: str = option(
        "",
        "further options for Beam, such as '--direct_num_workers=2"
        " --direct_running_mode=multi_processing'",
        check=shell_words,
    )

    @property
    def file_format(self) -> str:
        """The format, with `auto` resolved."""
        if self.format != "auto":
            return self.format
        for name, extension in EMBEDDING_FORMATS.items():
            if self.output.endswith(extension):
                return name
        return "npz"


@dataclasses.dataclass(frozen=True)
class Embed(Command):
    """Write the embeddings of a dataset: npz, TFRecord or Parquet."""

    COMMON: ClassVar = (
        "workdir",
        "saved_model",
        "input",
        "data_dir",
        "split",
        "output",
        "format",
        "shard_size",
        "embedding_batch_size",
        "exif",
        "csv_path_column",
        "csv_label_column",
        "max_bad_images",
        "runner",
    )

    embedding: Embedding = group(Embedding())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        e = self.embedding
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                f"set one of {arg('workdir', 'RUN')} and"
                f" {arg('saved_model', 'EXPORT/VERSION')}"
            )
        if e.saved_model and not e.input:
            raise UserError(
                f"{arg('saved_model', e.saved_model)} needs"
                f" {arg('input', 'DATASET')}: an export does not name its"
                " dataset"
            )
        if e.beam_options and not e.runner:
            raise UserError(
                f"{arg('beam_options', e.beam_options)} has no effect without"
                f" {arg('runner')}: set {arg('runner', 'DirectRunner')} or"
                " another runner of Apache Beam"
            )
