"""Prints the results of launch/quickstart as a table, and the next commands.

Use: quickstart_report.py RUNS SECONDS
"""

import json
import pathlib
import sys

PROTOCOLS = ("knn", "prototype", "linear")
RUNS = {"SimCLR (NT-Xent)": "simclr", "SupCon": "supcon"}


def accuracies(runs: pathlib.Path, run: str, encoder: str) -> list[float]:
    """Reads top-1 by each of `PROTOCOLS` from a run's evaluation.json."""
    text = (runs / run / "evaluation.json").read_text("utf-8")
    # kNN has a result for several k; the last, 5, is shown.
    top1 = {
        result["protocol"]: result["top1"]
        for result in json.loads(text)["results"]
        if result["encoder"] == encoder
    }
    return [top1[protocol] for protocol in PROTOCOLS]


def table(runs: pathlib.Path) -> str:
    """Formats a line per method: top-1 on held-out digits, seconds."""
    lines = [
        f"{'top-1 on held-out digits':<26} {'kNN':>7} {'prototype':>10}"
        f" {'linear probe':>13} {'seconds':>8}"
    ]

    def add(name, values, seconds):
        knn, prototype, linear = values
        lines.append(
            f"{name:<26} {knn:>7.4f} {prototype:>10.4f} {linear:>13.4f}"
            f" {seconds:>8}"
        )

    # Both runs start from the same weights.
    add("untrained encoder", accuracies(runs, "supcon", "untrained"), "-")
    for name, run in RUNS.items():
        seconds = (runs / f"{run}.seconds").read_text("utf-8").strip()
        add(name, accuracies(runs, run, "trained"), seconds)
    return "\n".join(lines)


def main(runs: str, seconds: str) -> None:
    """Prints the table, the total of seconds, and the next commands."""
    folder = pathlib.Path(runs)
    exports = (folder / "supcon" / "export").iterdir()
    newest = max(
        (path for path in exports if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    print(f"\n{table(folder)}\n\n{seconds} s in total, after installation.")
    print(f"""
Next:
  environment        source .venv/bin/activate
  curves and views   launch/tensorboard {folder}
  CIFAR-10           python -m tf_contrastive pretrain \\
                       --flagfile=configs/supcon_cifar10_cpu.flags \\
                       --data_dir=DATA --workdir=runs/cifar10
  the SavedModel     {newest}""")


if __name__ == "__main__":
    main(*sys.argv[1:])
