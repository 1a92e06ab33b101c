"""The command line: `python -m tf_contrastive COMMAND [flags]`.

Layer 9. Flags are parsed and checked before the command's module, and with it
TensorFlow, is imported: `--help` and a wrong flag answer at once.
"""

import importlib
import os
import sys
import warnings

from absl import logging

from tf_contrastive import errors, flags, terminal
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.datasets import Datasets
from tf_contrastive.config.embed import Embed
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.export import Export
from tf_contrastive.config.pretrain import Doctor, Pretrain
from tf_contrastive.config.reproduce import Reproduce

# Command -> (its options, what it does).
COMMANDS = {
    "pretrain": (
        Pretrain,
        "train an encoder; the same command resumes it",
    ),
    "doctor": (
        Doctor,
        "look a pretrain command over: memory, speed, what may go wrong",
    ),
    "evaluate": (
        Evaluate,
        "score a run or an export by the papers' protocols; --compare A B",
    ),
    "export": (Export, "write a SavedModel with serving signatures"),
    "embed": (
        Embed,
        "write the embeddings of a dataset: npz, TFRecord or Parquet",
    ),
    "reproduce": (
        Reproduce,
        "list, run and judge the papers' claims; --report writes them down",
    ),
    "datasets": (
        Datasets,
        "list the datasets; --show=NAME writes a contact sheet",
    ),
    "benchmark": (
        Benchmark,
        "measure speed and memory side by side with others: benchmark loss",
    ),
}
_HELP, _HELP_FULL = ("--help", "-h"), "--helpfull"
# Command -> the flag whose value may stand as the word after it.
_SUBJECTS = {"benchmark": "benchmark"}
# Flags that may also have their two values as words after them.
_PAIRS = ("--compare",)


def _usage() -> str:
    lines = ["usage: python -m tf_contrastive COMMAND [flags]", ""]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"  {name:10} {text}")
    lines += [
        "",
        "COMMAND --help shows the flags that most runs need, COMMAND --helpfull"
        " all.",
    ]
    return "\n".join(lines)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in (*_HELP, "help", _HELP_FULL):
        print(_usage())
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in COMMANDS:
        raise errors.unknown("command", command, COMMANDS)
    config_class, text = COMMANDS[command]
    if any(word in (*_HELP, _HELP_FULL) for word in rest):
        print(f"python -m tf_contrastive {command} [flags]\n\n{text}\n")
        print(flags.help_text(config_class, everything=_HELP_FULL in rest))
        return 0
    if command in _SUBJECTS and rest and not rest[0].startswith("-"):
        rest[0] = f"--{_SUBJECTS[command]}={rest[0]}"
    parsed = flags.parse(config_class, _paired(rest))
    parsed.validate()
    _quieten(parsed.terminal.verbosity)
    module = importlib.import_module(f"tf_contrastive.commands.{command}")
    return module.run(parsed)


def _quieten(verbosity: str) -> None:
    """Chooses what this package and the libraries below it tell."""
    terminal.configure(verbosity)
    if verbosity == "debug":
        logging.set_verbosity(logging.DEBUG)
        return
    # TensorFlow's C++ reports errors of CUDA at every start without a GPU; its
    # real failures come as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Libraries warn of their own deprecations, which users cannot mend.
    logging.set_verbosity(logging.ERROR)
    warnings.simplefilter("ignore")


def _paired(arguments: list[str]) -> list[str]:
    """Writes `--compare A B` as absl's flags are: with one value."""
    for place, word in enumerate(arguments):
        values = arguments[place + 1 : place + 3]
        if word in _PAIRS and not any(v.startswith("-") for v in values):
            given = [f"{word}={','.join(values)}"]
            return arguments[:place] + given + arguments[place + 3 :]
    return arguments


def _in_flags(message: str) -> str:
    """Writes the arguments that an error names as flags of the command."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command not in COMMANDS:
        return message
    return flags.with_flags(COMMANDS[command][0], message)


def main() -> int:
    """Runs the command that the arguments name and returns its exit status."""
    try:
        return _run(sys.argv[1:])
    except errors.UserError as error:
        terminal.error(_in_flags(str(error)))
        if error.threads_left:
            sys.stdout.flush()
            os._exit(error.status)
        return error.status
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
