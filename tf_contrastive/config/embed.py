"""What is embedded, and how it is written."""

from tf_contrastive.config.checks import matching, shell_words
from tf_contrastive.config.data import split_name
from tf_contrastive.config.dataset import dataset_name
from tf_contrastive.config.evaluate import EncoderOptions
from tf_contrastive.config.fields import option

# Format -> extension of its files.
EMBEDDING_FORMATS = {n: f".{n}" for n in ("npz", "tfrecord", "parquet")}


class Embedding(EncoderOptions):
    """What `embed` embeds."""

    input: str = option(
        "",
        "dataset to embed, as for --dataset of pretrain; empty: the run's",
        check=dataset_name,
    )
    split: str = option(
        "",
        "split to embed; empty: test, or train of data that have no test",
        check=split_name,
    )
    output: str = option("", "file to write", required=True)
    format: str = option(
        "auto",
        "output format; auto: by the extension of --output, else npz",
        choices=("auto", *EMBEDDING_FORMATS),
    )
    shard_size: int = option(
        0,
        "examples per file, NAME-00000-of-00009.npz; a job that was killed"
        " resumes with the next file; 0: a single file",
    )
    runner: str = option(
        "",
        "spark: Apache Spark (extra [spark]); or a runner of Apache Beam, such"
        " as DirectRunner or DataflowRunner (extra [beam]); empty: this"
        " process",
        check=matching(r"\w*", "spark, or the name of a runner of Beam"),
    )
    runner_options: str = option(
        "",
        "properties of Spark, such as 'spark.master=spark://HOST:7077"
        " spark.executor.cores=4', by default those of spark-submit, or"
        " local[*]; or flags of Beam, such as '--direct_num_workers=2"
        " --direct_running_mode=multi_processing'",
        check=shell_words,
    )

    @property
    def file_format(self) -> str:
        """The format, with `auto` resolved."""
        if self.format != "auto":
            return self.format
        formats = EMBEDDING_FORMATS.items()
        return next((n for n, x in formats if self.output.endswith(x)), "npz")
