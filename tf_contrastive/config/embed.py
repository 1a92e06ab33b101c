"""The options of `embed`."""

import dataclasses
import re

from tf_contrastive.config.data import split_name
from tf_contrastive.config.dataset_names import optional_dataset_name
from tf_contrastive.config.fields import option, shell_words, validate_fields
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.errors import UserError

# Format -> the ending of its files.
EMBEDDING_FORMATS = {
    "npz": ".npz",
    "tfrecord": ".tfrecord",
    "parquet": ".parquet",
}


def _word(value: str) -> str | None:
    if re.fullmatch(r"\w*", value):
        return None
    return "the name of a runner of Apache Beam, such as DirectRunner"


@dataclasses.dataclass(frozen=True)
class Embedding:
    """What `embed` embeds."""

    workdir: str = option("", "folder of the run whose encoder embeds")
    saved_model: str = option("", "export that embeds instead of a run")
    input: str = option(
        "",
        "dataset to embed, named as for --dataset; empty: that of the run",
        check=optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("test", "split to embed", check=split_name)
    output: str = option("", "file to write", required=True)
    format: str = option(
        "auto",
        "what is written; auto: by the ending of --output, or else npz; parquet"
        " needs pyarrow (extra [beam])",
        choices=("auto", *EMBEDDING_FORMATS),
    )
    shard_size: int = option(
        0,
        "examples of a file, of several: NAME-00000-of-00009.npz; a job that"
        " was killed goes on at the next one; 0: one file",
        minimum=0,
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    max_bad_images: int = option(
        10,
        "images that cannot be read before it stops; they are listed in"
        " NAME.bad.txt",
        minimum=0,
    )
    runner: str = option(
        "",
        "runner of Apache Beam that does it, such as DirectRunner or"
        " DataflowRunner (extra [beam]); empty: this process",
        check=_word,
    )
    beam_options: str = option(
        "",
        "further options for Beam, such as '--direct_num_workers=2"
        " --direct_running_mode=multi_processing'",
        check=shell_words,
    )

    @property
    def file_format(self) -> str:
        """The format, in the place of `auto`."""
        if self.format != "auto":
            return self.format
        return next(
            (
                name
                for name, ending in EMBEDDING_FORMATS.items()
                if self.output.endswith(ending)
            ),
            "npz",
        )


@dataclasses.dataclass(frozen=True)
class Embed:
    """All options of `embed`."""

    embedding: Embedding = dataclasses.field(default_factory=Embedding)
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.embedding
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of workdir=RUN and saved_model=EXPORT/VERSION"
            )
        if e.saved_model and not e.input:
            raise UserError(
                f"saved_model={e.saved_model} needs input=DATASET: an"
                " export does not say what it is to embed"
            )
        if e.beam_options and not e.runner:
            raise UserError(
                f"beam_options={e.beam_options} is for Apache Beam: give its"
                " `runner`, such as runner=DirectRunner"
            )
