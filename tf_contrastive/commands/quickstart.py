"""`quickstart`: from nothing to a SavedModel that serves embeddings.

On the 1,797 handwritten digits of scikit-learn: pretrains with SupCon and with
SimCLR, compares each with the untrained encoder, and exports it.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tf_contrastive.base import errors, files, processes, terminal
from tf_contrastive.config import checks
from tf_contrastive.config.command import Command, Group, Terminal
from tf_contrastive.config.fields import group, option

_FLAGFILE = "configs/quickstart.flags"
# Run -> (loss, title in the table).
_RUNS = {
    "supcon": ("supcon", "SupCon"),
    "simclr": ("ntxent", "SimCLR (NT-Xent)"),
}
_PROTOCOLS = ("knn", "prototype", "linear")
_FINISHED = "finished"


class Runs(Group):
    """Where the quickstart's runs are."""

    workdir: str = option(
        "runs/quickstart",
        "folder of the runs, which is local",
        check=checks.matching("(?!.*://).*", "a local folder, without ://"),
    )


class Quickstart(Command):
    """Train, evaluate and export on embedded digits, in two minutes."""

    runs: Runs = group(Runs())
    terminal: Terminal = group(Terminal())


def run(options: Quickstart) -> int:
    """Runs what is missing, and prints a table of accuracies; returns 0."""
    folder, start = Path(options.runs.workdir), time.monotonic()
    with errors.write_errors(f"workdir={folder}", "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, (loss, _) in _RUNS.items():
        if not (folder / name / _FINISHED).exists():
            _train(folder, name, loss, start)
    seconds = time.monotonic() - start
    print(f"\n{_table(folder)}\n\n{seconds:.0f} s in total.")
    activate = os.path.relpath(os.path.join(sys.prefix, "bin", "activate"))
    print(f"""
Next:
  environment        source {activate}
  curves and views   tensorboard --logdir={folder}
  CIFAR-10           python -m tf_contrastive pretrain \\
                       --flagfile=configs/supcon_cifar10_cpu.flags \\
                       --data_dir=DATA --workdir=runs/cifar10
  the SavedModel     {folder / "supcon" / "export"}""")
    return 0


def _train(folder: Path, name: str, loss: str, start: float) -> None:
    """Trains, evaluates and exports one of the runs."""
    workdir = folder / name
    log = folder / "log.txt"
    flagfile = files.packaged_flagfile(_FLAGFILE) or _FLAGFILE

    def step(title: str, *words: str) -> None:
        spent = time.monotonic() - start
        print(f"== {spent:3.0f} s  {title}", file=sys.stderr, flush=True)
        with open(log, "a") as file:
            done = subprocess.run(
                processes.command(*words, f"--workdir={workdir}"),
                stdout=file,
                check=False,
            )
        if done.returncode:
            raise errors.UserError(
                f"the quickstart failed while {title} (status"
                f" {done.returncode}; output: {log}): repeat it to go on"
            )

    flags = [f"--flagfile={flagfile}", f"--loss={loss}"]
    step(f"pretraining with --loss={loss}", "pretrain", *flags)
    protocols = f"--protocols={','.join(_PROTOCOLS)}"
    step(f"evaluating {workdir}", "evaluate", "--scale=cpu", protocols)
    shutil.rmtree(workdir / "export", ignore_errors=True)
    step(f"exporting {workdir}", "export")
    (workdir / _FINISHED).touch()


def _table(folder: Path) -> str:
    """Formats a line per method: top-1 on held-out digits, seconds."""
    headings = ["kNN", "prototype", "linear probe", "seconds"]
    rows = [["top-1 on held-out digits", *headings]]
    # Both runs start from the same weights.
    lines = [("untrained", "supcon", "untrained encoder")]
    lines += [("trained", name, _RUNS[name][1]) for name in reversed(_RUNS)]
    for encoder, name, title in lines:
        report = files.read_json(str(folder / name / "evaluation.json"))
        # kNN has a result for several k; the last, 5, is shown.
        top1 = {
            result["protocol"]: f"{result['top1']:.4f}"
            for result in report["results"]
            if result["encoder"] == encoder and result["top1"] is not None
        }
        spent = files.read_json(str(folder / name / "pretrain.json"))["seconds"]
        seconds = f"{spent or 0:.0f}" if encoder == "trained" else "-"
        # Another evaluation of the run replaces these results.
        scores = (top1.get(name, "-") for name in _PROTOCOLS)
        rows.append([title, *scores, seconds])
    return terminal.format_table(rows, texts={0})
