"""Bulk embedding on Apache Spark: a task embeds a shard."""

import os
import pickle
import re
import shlex
import shutil
import sys
from collections.abc import Sequence

import pyspark
from pyspark import cloudpickle

from tf_contrastive.base import errors
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import remote

# Threads of TensorFlow in a task's process.
_THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"


def configuration(options: str) -> pyspark.SparkConf:
    """Reads `runner_options`; those of `spark-submit` are added by Spark.

    Raises:
      UserError: for a word that is not a property, or without Java.
    """
    conf = pyspark.SparkConf(loadDefaults=False)
    for word in shlex.split(options):
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("spark."):
            raise errors.UserError(
                f"{errors.arg('runner_options', options)}: {word!r} is not of"
                " the form spark.NAME=VALUE"
            )
        conf.set(name, value)
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not (os.path.exists(java) or shutil.which("java")):
        raise errors.UserError(
            f"{errors.arg('runner', 'spark')} needs Java, which is not found:"
            " install Java 17, or set JAVA_HOME"
        )
    threads = conf.get("spark.task.cpus", "1") or "1"
    defaults = {f"spark.executorEnv.{name}": threads for name in _THREADS}
    defaults["spark.app.name"] = "tf_contrastive embed"
    if (conf.get("spark.master", "") or "").startswith("local"):
        defaults["spark.driver.bindAddress"] = "127.0.0.1"
        defaults["spark.driver.host"] = "localhost"
    for name, value in defaults.items():
        conf.setIfMissing(name, value)
    # Without it, workers take the first python3 of their PATH.
    python = conf.get("spark.pyspark.python", sys.executable) or sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    return conf


def run(
    conf: pyspark.SparkConf,
    job: jobs.Job,
    saved_model: str,
    shards: Sequence[jobs.Shard],
) -> None:
    """Embeds shards on a Spark cluster, and waits for them; see `beam.run`.

    Raises:
      UserError: if a worker lacks something, or cannot read or write a file,
        or Spark ends the job.
    """
    # Spark's plain pickle cannot handle the functions that read files.
    works = [*map(cloudpickle.dumps, remote.works(job, saved_model, shards))]
    try:
        with pyspark.SparkContext(conf=conf) as context:
            rows = context.parallelize(works, len(works))
            rows.foreach(lambda work: pickle.loads(work).embed())
    except Exception as error:  # Of several packages, also py4j's.
        text = str(getattr(error, "java_exception", error))
        if known := remote.user_error(text):
            raise known from error
        # The last line of a task's traceback in Python, or the first line.
        reasons = re.findall(r"^[\w.]*(?:Error|Exception): .+$", text, re.M)
        reason = [*text.splitlines()[:1], *reasons][-1]
        raise errors.UserError(
            f"{errors.arg('runner', 'spark')}: Spark ended the job ({reason}):"
            " correct this, and repeat the command; finished files are kept"
        ) from error
