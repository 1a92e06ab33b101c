"""The command line: `python -m tf_contrastive COMMAND [flags]`.

The flags are checked before the command's module imports TensorFlow, so that
`--help` and invalid flags answer at once.
"""

import importlib
import os
import sys
import types
import warnings
from collections.abc import Mapping
from logging import getLogger
from typing import Any

import wrapt
from absl import logging

from tf_contrastive import flags
from tf_contrastive.base import errors, installation, terminal
from tf_contrastive.commands.datasets import Datasets
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.commands.embed import Embed
from tf_contrastive.commands.encoders import Encoders
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.explore import Explore
from tf_contrastive.commands.export import Export
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.commands.quickstart import Quickstart
from tf_contrastive.commands.serve import Serve
from tf_contrastive.commands.sweep import Sweep
from tf_contrastive.config.command import Command

# Command -> options, whose docstring describes the command.
COMMANDS: dict[str, type[Command]] = {
    "quickstart": Quickstart,
    "pretrain": PretrainCommand,
    "doctor": Doctor,
    "evaluate": Evaluate,
    "sweep": Sweep,
    "explore": Explore,
    "export": Export,
    "serve": Serve,
    "embed": Embed,
    "datasets": Datasets,
    "encoders": Encoders,
}
_HELP, _HELP_FULL = ("--help", "-h"), "--helpfull"
Commands = Mapping[str, type[Command]]


def _usage(package: str, commands: Commands) -> str:
    lines = [f"usage: python -m {package} COMMAND [flags]", ""]
    lines += [f"  {name:10} {c.__doc__}" for name, c in commands.items()]
    lines += ["", "COMMAND --help shows common flags, COMMAND --helpfull all."]
    return "\n".join(lines)


def run_command_line(
    arguments: list[str],
    package: str,
    commands: Commands,
    only_check: bool = False,
) -> int:
    """Runs the command that comes first; returns its exit status."""
    if not arguments or arguments[0] in (*_HELP, "help", _HELP_FULL):
        print(_usage(package, commands))
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in commands:
        raise errors.unknown("command", command, commands)
    config_class = commands[command]
    if any(word in (*_HELP, _HELP_FULL) for word in rest):
        print(f"python -m {package} {command} [flags]\n")
        print(f"{config_class.__doc__}\n")
        print(flags.help_text(config_class, everything=_HELP_FULL in rest))
        return 0
    try:
        words = flags.from_command_line(config_class, rest)
        parsed = flags.parse(config_class, words)
        parsed.validate()
        if only_check:
            return 0
        _configure_logging(parsed.terminal.verbosity)
        with terminal.without_start_lines():
            module = importlib.import_module(f"{package}.commands.{command}")
            if config_class.IS_OF_ONE:
                from tf_contrastive import distribution

                distribution.cluster.check_first(command)
        return _run_command(module, parsed)
    except errors.UserError as error:
        terminal.error(flags.with_flags(config_class, error.marked))
        return error.leave()


def _reset_keras(backend: Any) -> None:
    """Resets what Keras has read from the account's keras.json.

    What a command computes depends on its flags alone.
    """
    backend.set_image_data_format("channels_last")
    backend.set_floatx("float32")
    backend.set_epsilon(1e-7)


def _run_command(module: types.ModuleType, parsed: Command) -> int:
    """Runs a command; an image that it could not read is named."""
    try:
        return module.run(parsed)
    except Exception as error:
        datasets = sys.modules.get("tf_contrastive.datasets")
        if datasets and (named := datasets.name_unreadable(error)):
            raise named from error
        raise


def _configure_logging(verbosity: str) -> None:
    """Sets the output of this package and of the libraries that it uses."""
    terminal.configure(verbosity)
    if verbosity == "debug":
        logging.set_verbosity(logging.DEBUG)
        return
    # TensorFlow's C++ code logs errors of CUDA at every start without a GPU.
    # Its real failures are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Libraries warn of their own deprecations, which users cannot fix, and
    # Keras of histograms that take longer than a step. TensorFlow logs errors
    # of saving that it also raises.
    logging.set_verbosity(logging.FATAL)
    getLogger("tensorflow").setLevel("ERROR")
    warnings.simplefilter("ignore")


def main(
    package: str = "tf_contrastive",
    commands: Commands = COMMANDS,
    only_check: bool = False,
) -> int:
    """Runs the command that the arguments name and returns its exit status.

    `commands` are those of `package`: name -> options. `only_check`: checks its
    flags, and runs nothing.
    """
    terminal.prepare_streams()
    for keras in ("keras", "tf_keras"):
        wrapt.register_post_import_hook(_reset_keras, f"{keras}.src.backend")
    try:
        status = run_command_line(sys.argv[1:], package, commands, only_check)
        sys.stdout.flush()
        return status
    except errors.UserError as error:
        terminal.error(str(error))
        return error.status
    except ImportError as error:
        if (error.name or "").startswith("tf_contrastive"):
            raise
        # A package that is not there, or was made for another NumPy.
        why = f"cannot import a package ({errors.first_line(error)})"
        terminal.error(installation.unusable(why))
        return 2
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of stdout has ended, such as `head`. Python flushes stdout
        # once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
