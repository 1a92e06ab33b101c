"""`pretrain`: the main job, told on stdout and in `pretrain.json`."""

import json
import os
import sys

from tf_contrastive import checkpoints, config, training

RESULT_FILE = "pretrain.json"


def run(options: config.Pretrain) -> int:
    """Runs the command and returns its exit status."""
    result = training.pretrain(options)
    if not result.is_chief:
        return 0
    _name_bad_images(result.bad_images)
    workdir = options.runtime.workdir
    if result.start_step == result.step:
        print(
            f"{workdir} is finished: step {result.step:,} of {result.step:,},"
            " nothing left to train; give more --epochs in another --workdir"
        )
        return 0
    rows = {
        "loss": options.loss.loss,
        "steps": result.step,
        "seconds": round(result.seconds, 1),
        **{name: round(value, 4) for name, value in result.metrics.items()},
    }
    checkpoints.write_text(
        os.path.join(workdir, RESULT_FILE), json.dumps(rows, indent=2) + "\n"
    )
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")
    print(f"\nnext: python -m tf_contrastive evaluate --workdir={workdir}")
    return 0


def _name_bad_images(names: tuple[str, ...]) -> None:
    if names:
        print(
            f"skipped {len(names)} image(s) that could not be read:",
            *names,
            sep="\n  ",
            file=sys.stderr,
        )
