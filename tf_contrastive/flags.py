"""One absl flag per option of a command, and flagfiles.

Each command has its own `FlagValues`: `--help` shows only the command's flags,
and a name may have another default in another command.
"""

import dataclasses
import itertools
import operator
import os
import re
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive import errors
from tf_contrastive.config import fields
from tf_contrastive.config.fields import Command

# Of the options that a run was started with.
_FIRST_LINE = "# All options of a run, in as many lines as the last one says."
# Version 0.2.0 wrote no such lines.
_END_OF_0_2_0 = re.compile(r"\n# terminal\n--verbosity=\w+\n\Z")

Config = TypeVar("Config", bound=Command)

# Characters of a flagfile.
_MAX_FLAGFILE = 1 << 20
# Type -> what defines its flag, and what that takes.
_TYPES: dict[type, tuple[Callable[..., Any], str]] = {
    bool: (absl_flags.DEFINE_boolean, "true or false"),
    int: (absl_flags.DEFINE_integer, "an integer"),
    float: (absl_flags.DEFINE_float, "a number"),
    str: (absl_flags.DEFINE_string, "a text"),
}


def define(config_class: type[Command]) -> absl_flags.FlagValues:
    """Defines a flag for every option of a command."""
    values = absl_flags.FlagValues()
    for _, field, default in fields.fields(config_class()):
        text, choices = field.metadata["help"], field.metadata["choices"]
        if choices:
            absl_flags.DEFINE_enum(
                field.name, default, choices, text, flag_values=values
            )
        else:
            define_flag, _ = _TYPES[_type(field)]
            define_flag(field.name, default, text, flag_values=values)
    return values


def _type(field: dataclasses.Field) -> type:
    """Returns the type of a field's value other than None."""
    types = [t for t in typing.get_args(field.type) if t is not type(None)]
    return types[0] if types else typing.cast(type, field.type)


def parse(config_class: type[Config], arguments: list[str]) -> Config:
    """Parses a command's flags.

    Later flags override earlier ones. `--flagfile=PATH` is replaced by the
    flags in that file, which may name further flagfiles by paths relative to
    its own folder or to the working directory. Each value of the result is
    valid by itself; see the class's `validate`.

    Raises:
      UserError: for an unknown flag, a value that is not allowed, a word that
        is not a flag, or a flagfile that cannot be read.
    """
    values = define(config_class)
    defaults = config_class()
    known = {field.name: field for _, field, _ in fields.fields(defaults)}
    try:
        rest = values(["", *_inlined(arguments)])[1:]
    # absl raises a plain ValueError for --noNAME=VALUE.
    except (absl_flags.Error, ValueError) as error:
        raise errors.UserError(_explain(error, known)) from error
    except RecursionError as error:  # Of absl's search for a similar name.
        raise errors.UserError(
            "an unknown flag has a name of a hundred letters or more: remove it"
        ) from error
    if rest:
        raise errors.UserError(
            f"stray word {rest[0]!r}: flags are written --name=value"
        )
    given = {name: values[name].value for name in known}
    present = {k: v for k, v in given.items() if values[k].present}
    given |= config_class.presets(present) | present
    parsed = fields.replace(defaults, **given)
    fields.validate_fields(parsed)
    return parsed


def _inlined(arguments: list[str], files: tuple[str, ...] = ()) -> list[str]:
    """Replaces `--flagfile` by the lines of the file.

    absl's own flagfiles resolve relative paths only by the working directory.
    `files` are the flagfile of the arguments, after those that include it.
    """
    result: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, path = word.partition("=")
        if name not in ("--flagfile", "-flagfile") or not (equals or rest):
            result.append(word)
            continue
        path = os.path.expanduser((path if equals else rest.pop(0)).strip())
        if files:
            relative = os.path.join(os.path.dirname(files[-1]), path)
            path = relative if os.path.exists(relative) else path
        path = os.path.normpath(path)
        if not os.path.exists(path):
            path = packaged_flagfile(path) or path
        if path in files:
            raise errors.UserError(
                f"--flagfile={path} includes itself"
                f" ({' in '.join((path, *reversed(files)))}): remove it"
            )
        result += _inlined(_read_flagfile(path, files), (*files, path))
    return result


def packaged_flagfile(path: str) -> str | None:
    """Returns the file of a recipe, configs/NAME.flags, of this package."""
    folder, name = os.path.split(path)
    package = os.path.dirname(os.path.abspath(__file__))
    # In a wheel they are in the package, in a clone beside it.
    places = (os.path.join(top, folder) for top in (package, f"{package}/.."))
    files = (os.path.normpath(os.path.join(place, name)) for place in places)
    found = (file for file in files if os.path.exists(file))
    return next(found, None) if folder == "configs" else None


def _read_flagfile(path: str, files: tuple[str, ...]) -> list[str]:
    try:
        with open(path) as file:  # Also a FIFO, as of <(...) in a shell.
            text = file.read(_MAX_FLAGFILE + 1)
        if len(text) > _MAX_FLAGFILE:  # Devices never end.
            raise ValueError(f"more than {_MAX_FLAGFILE:,} characters")
        return _flags_in(text)
    except (OSError, ValueError) as error:
        included = f", included by {files[-1]}," if files else ""
        reason = getattr(error, "strerror", None) or error
        raise errors.UserError(
            f"--flagfile={path}{included} cannot be read ({reason}): use the"
            " path of a text file with one flag per line"
        ) from error


def _flags_in(text: str) -> list[str]:
    """Returns the lines of a flagfile without comments.

    Raises:
      ValueError: if a run wrote it, and it is not whole.
    """
    if text.startswith(_FIRST_LINE) and not text.endswith(
        f"\n{_last_line(text)}\n"
    ):
        raise ValueError("it is cut off, or lacks options")
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not re.match("#|//", line)]


def _explain(error: Exception, known: Mapping[str, dataclasses.Field]) -> str:
    """Returns one line for an error of absl: given, allowed, what to do."""
    text = " ".join(str(error).split())
    if isinstance(error, absl_flags.UnrecognizedFlagError):
        match = errors.nearest(error.flagname, known)
        hint = f"did you mean --{match}? " if match else ""
        return f"unknown flag --{error.flagname}: {hint}see --help"
    if isinstance(error, absl_flags.IllegalFlagValueError):
        # absl's text is "flag --loss=supcn: value should be one of <a|b>".
        name, _, rest = text.removeprefix("flag --").partition("=")
        given = rest.split(": ")[0]
        if name in known:
            allowed = _allowed(known[name])
            choices = known[name].metadata["choices"] or ()
            hint = errors.did_you_mean(given, choices)
            return f"--{name}={given}: must be {allowed}{hint}"
    name = text.removeprefix("Missing value for flag --")
    if name in known:
        return f"--{name}: must have a value, {_allowed(known[name])}"
    return text


def _allowed(field: dataclasses.Field) -> str:
    if choices := field.metadata["choices"]:
        return f"one of {', '.join(choices)}"
    return _TYPES[_type(field)][1]


def help_text(config_class: type[Command], everything: bool = True) -> str:
    """Returns the flags of a command: all, or those in its `COMMON`."""
    options = list(fields.fields(config_class()))
    names = {field.name for _, field, _ in options}
    shown = names if everything else set(config_class.COMMON) or names
    lines: list[str] = []
    rows = [row for row in options if row[1].name in shown]
    for group, members in itertools.groupby(rows, operator.itemgetter(0)):
        lines += ["", f"{group}:"]
        for _, field, default in members:
            lines += _wrap(f"--{_usage(field, default)}", 2, 6)
            lines += _wrap(field.metadata["help"], 6, 6)
    lines += ["", "  --flagfile=PATH", "      read flags from a file"]
    if rest := len(names - shown):
        groups = dict.fromkeys(g for g, f, _ in options if f.name not in shown)
        others = f"{rest} more flags, of {', '.join(groups)}: see --helpfull"
        lines += ["", *_wrap(others, 0, 0)]
    return "\n".join(lines).lstrip("\n")


def _wrap(text: str, first: int, others: int) -> list[str]:
    """Wraps a text at 80 columns, with these indents."""
    return textwrap.wrap(
        text,
        width=80,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _usage(field: dataclasses.Field, default: Any) -> str:
    if field.metadata["required"]:
        return f"{field.name}={field.name.upper()} (required)"
    shown = f" (default: {default})" if default not in ("", None) else ""
    if _type(field) is bool:
        return f"[no]{field.name}{shown.lower()}"
    if field.metadata["choices"]:
        # With spaces, a long list can be wrapped.
        return f"{field.name}={' | '.join(field.metadata['choices'])}{shown}"
    return f"{field.name}={_type(field).__name__.upper()}{shown}"


def with_flags(config_class: type[Command], marked: str) -> str:
    """Shows a message with the arguments that it names as flags.

    They become `--name`, `--name=value` or `--noname`; those that the command
    does not have stay arguments.
    """
    known = {field.name: field for _, field, _ in fields.fields(config_class())}

    def flag(name: str, value: str | None) -> str:
        if name not in known:
            return f"`{name}`" if value is None else f"{name}={value}"
        if value in ("True", "False") and _type(known[name]) is bool:
            return f"--{name}" if value == "True" else f"--no{name}"
        return f"--{name}" if value is None else f"--{name}={value}"

    return errors.shown(marked, flag)


def write(config: Command) -> str:
    """Returns the text of a flagfile with all options but the workdir.

    `read` and `--flagfile=FILE --workdir=W` parse it.
    """
    rows = [
        row
        for row in fields.fields(config)
        if row[1].name != "workdir" and row[2] is not None
    ]
    lines = []
    for group, members in itertools.groupby(rows, operator.itemgetter(0)):
        lines.append(f"# {group}")
        for _, field, value in members:
            if _type(field) is bool:
                lines.append(f"--{'' if value else 'no'}{field.name}")
            else:
                lines.append(f"--{field.name}={value}")
    return "\n".join(lines) + "\n"


def record(config: Command) -> str:
    """Returns the text of a run's `config.flags`, for `read`.

    It is a flagfile, too; see `write`. Its last line shows that it is whole.
    """
    text = write(config)
    return f"{_FIRST_LINE}\n{text}{_last_line(text)}\n"


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Parses what `record` returned, for a run at `workdir`.

    Raises:
      ValueError: if it is cut off, something else, or not valid.
    """
    if not text.startswith(_FIRST_LINE) and not _END_OF_0_2_0.search(text):
        raise ValueError("it is not whole, or was not written by a run")
    return parse(config_class, [*_flags_in(text), f"--workdir={workdir}"])


def _last_line(text: str) -> str:
    count = sum(line.startswith("--") for line in text.splitlines())
    return f"# End: {count} options."
