"""Makes a pretrained encoder of the package from a finished run.

Use: python tools/pretrained.py WORKDIR NAME

Writes tf_contrastive/encoders/pretrained/NAME: the weights, kernels rounded to
half precision; how to build the encoder; the run's flags and log; and the
accuracies of the rounded weights on the run's dataset. WORKDIR/pretrain.log is
what `pretrain` has printed. Needs the package and the run's data.
"""

import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from tf_contrastive import (
    checkpoints,
    datasets,
    embedding,
    evaluation,
    flags,
    train,
    views,
)
from tf_contrastive.config import fields
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.encoders import pretrained


def _arguments(run):
    """The arguments of `encoders.build`."""
    side, statistics = (
        run.views.image_size,
        channel_statistics(run.setup.standardize),
    )
    return {
        "name": run.encoder.label,
        "width": run.encoder.width,
        "stem": run.encoder.stem,
        "image_shape": [side, side, 3],
        "mean": list(statistics.mean),
        "std": list(statistics.std),
    }


def accuracies(encoder, run):
    """Top-1 of kNN and of logistic regression on the run's test split."""
    sets = []
    test = train.open_split(run, run.data.test_split)
    for source in (train.open_data(run).train, test):
        batches = datasets.evaluation_batches(
            source, views.evaluation(run.views.image_size), batch_size=256
        )
        sets += embedding.embed(encoder, batches)
    return {
        "knn": evaluation.knn(*sets)["top1"],
        "logistic": evaluation.logistic_regression(*sets)["top1"],
    }


def packed(encoder):
    """The content of `encoder.npz`; kernels are rounded to float16."""
    file = io.BytesIO()
    arrays = {v.name: v.numpy() for v in encoder.variables}
    np.savez_compressed(
        file,
        **{
            name: x.astype(np.float16 if x.ndim > 1 else np.float32)
            for name, x in arrays.items()
        },
    )
    return file.getvalue()


def main(workdir, name):
    """Writes the folder, and prints the accuracies."""
    saved = checkpoints.load_run(workdir)
    run = saved.config
    folder = Path(pretrained.__file__).parent / name
    folder.mkdir(exist_ok=True)
    content = packed(checkpoints.load_encoder(saved))
    (folder / pretrained.WEIGHTS).write_bytes(content)
    _write(folder / pretrained.ARGUMENTS, _arguments(run))
    # Where the data were is nobody else's concern.
    options = flags.write(fields.replace(run, data_dir=""))
    (folder / "config.flags").write_text(options)
    shutil.copy(Path(workdir, "pretrain.log"), folder / "pretrain.log")
    known = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "dataset": run.data.dataset,
        "loss": run.loss.label,
        "steps": saved.step,
    }
    _write(folder / pretrained.RESULTS, known)
    encoder = pretrained.load(name, folder)
    known |= {"features": encoder.output_shape[-1]}
    known |= {"top1": accuracies(encoder, run)}
    _write(folder / pretrained.RESULTS, known)
    print(json.dumps(known, indent=2))


def _write(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
