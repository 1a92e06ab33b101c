"""One absl flag per config field, and flagfiles to and from configs.

Layer 1. Each command has its own `FlagValues`, so that `--help` shows what the
command reads and the same name may have another default elsewhere.
"""

import dataclasses
import os
import re
import typing
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive import errors
from tf_contrastive.config import fields

Config = TypeVar("Config")

_DEFINE = {
    bool: absl_flags.DEFINE_boolean,
    int: absl_flags.DEFINE_integer,
    float: absl_flags.DEFINE_float,
    str: absl_flags.DEFINE_string,
}


_COMMENT = re.compile("#|//")


def define(config_class: type) -> absl_flags.FlagValues:
    """Returns a flag for every field of `config_class`, grouped by its group.

    Args:
      config_class: a command's dataclass of groups, such as `config.Pretrain`.
    """
    values = absl_flags.FlagValues()
    for group, field, default in fields.fields(config_class()):
        text = field.metadata["help"]
        module = f"{config_class.__name__.lower()}: {group}"
        if field.metadata["choices"]:
            absl_flags.DEFINE_enum(
                field.name,
                default,
                field.metadata["choices"],
                text,
                flag_values=values,
                module_name=module,
            )
        else:
            _DEFINE[_type(field)](
                field.name,
                default,
                text,
                flag_values=values,
                module_name=module,
            )
    return values


def _type(field: dataclasses.Field) -> type:
    """The type of a field's value when it is given."""
    return next(
        (t for t in typing.get_args(field.type) if t is not type(None)),
        field.type,
    )


def parse(config_class: type[Config], arguments: list[str]) -> Config:
    """Reads a command's arguments, `--flagfile` included, into its config.

    Args:
      config_class: the command's dataclass of groups.
      arguments: what follows the command's name.

    Returns:
      The config, each value checked by itself. Later flags win over earlier
      ones, a flagfile's standing where its flag stands. A flagfile may name
      others by their place beside it, or in the working directory.

    Raises:
      UserError: for an unknown flag, a value that is not allowed, a stray word
        or a flagfile that cannot be read.
    """
    values = define(config_class)
    try:
        rest = values(["", *_inlined(arguments)])[1:]
    # absl raises a plain ValueError for --noname=value.
    except (absl_flags.Error, ValueError) as error:
        raise errors.UserError(_explain(error, values)) from error
    if rest:
        raise errors.UserError(
            f"stray word {rest[0]!r}: flags are written --name=value"
        )
    return _to_config(config_class, values)


def _inlined(arguments: list[str], within: tuple[str, ...] = ()) -> list[str]:
    """Puts the lines of flagfiles where `--flagfile` stands.

    absl does that too, but knows files in a flagfile by the working directory
    alone, and passes over one that names itself.

    Args:
      arguments: those of a command, or the lines of a flagfile.
      within: paths of the flagfile that they are from, and of those that name
        it, the outermost first.

    Raises:
      UserError: for a file that cannot be read, or is part of itself.
    """
    lines: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, path = rest.pop(0).partition("=")
        if name not in ("--flagfile", "-flagfile") or not (equals or rest):
            lines.append(name + equals + path)
            continue
        path = _beside(path if equals else rest.pop(0), within)
        if path in within:
            chain = " in ".join((path, *reversed(within)))
            raise errors.UserError(
                f"--flagfile={path} is part of itself ({chain}): take it out"
            )
        lines += _inlined(_lines(path, within), (*within, path))
    return lines


def _beside(path: str, within: tuple[str, ...]) -> str:
    """Returns where a flagfile is: beside the one that names it, or here."""
    path = os.path.expanduser(path.strip())
    if within:
        place = os.path.join(os.path.dirname(within[-1]), path)
        path = place if os.path.exists(place) else path
    return os.path.normpath(path)


def _lines(path: str, within: tuple[str, ...]) -> list[str]:
    """Reads a flagfile, without its comments."""
    try:
        with open(path) as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        named = f", named in {within[-1]}" if within else ""
        raise errors.UserError(
            f"--flagfile: Unable to open flagfile {path}{named}"
            f" ({getattr(error, 'strerror', None) or error}): give the path of"
            " a file of flags, one a line"
        ) from error
    return [line for line in lines if line and not _COMMENT.match(line)]


def _to_config(
    config_class: type[Config], values: absl_flags.FlagValues
) -> Config:
    defaults = config_class()
    given = {
        field.name: values[field.name].value
        for _, field, _ in fields.fields(defaults)
    }
    if hasattr(config_class, "presets"):
        present = {k: v for k, v in given.items() if values[k].present}
        given |= config_class.presets(present) | present
    parsed = fields.replace(defaults, **given)
    fields.validate_fields(parsed)
    return parsed


def _explain(error: Exception, values: absl_flags.FlagValues) -> str:
    """One line for what absl found wrong: given, allowed, what to do."""
    text = " ".join(str(error).split())
    if isinstance(error, absl_flags.UnrecognizedFlagError):
        match = errors.nearest(error.flagname, list(values))
        hint = f"did you mean --{match}? " if match else ""
        return f"unknown flag --{error.flagname}: {hint}see --help"
    if isinstance(error, absl_flags.IllegalFlagValueError):
        # absl's text is "flag --loss=supcn: value should be one of <a|b>".
        name, _, rest = text.removeprefix("flag --").partition("=")
        given = rest.split(": ")[0]
        if name in values:
            return f"--{name}={given}: must be {_allowed(values[name], given)}"
    name = text.removeprefix("Missing value for flag --")
    if name in values:
        return f"--{name}: must have a value, {_allowed(values[name])}"
    return text


def _allowed(flag: absl_flags.Flag, given: str = "") -> str:
    """Says what values a flag takes, with the one nearest to `given`."""
    if not isinstance(flag.parser, absl_flags.EnumParser):
        return {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "string": f"as in --{flag.name}=TEXT",
        }[flag.flag_type()]
    choices = flag.parser.enum_values
    hint = errors.did_you_mean(given, choices) if given else ""
    return f"one of {', '.join(choices)}{hint}"


def help_text(config_class: type, everything: bool = True) -> str:
    """The flags of a command, in the groups and order of its config.

    Args:
      config_class: a command's dataclass of groups.
      everything: all flags; else those alone that its `COMMON` names, where it
        has one, and how many more there are.
    """
    options = list(fields.fields(config_class()))
    common = getattr(config_class, "COMMON", None)
    if everything or common is None:
        common = [field.name for _, field, _ in options]
    lines: list[str] = []
    shown = None
    for group, field, default in options:
        if field.name not in common:
            continue
        if group != shown:
            shown = group
            lines += ["", f"{group}:"]
        lines += _paragraph(f"--{_usage(field, default)}", indent=2, hang=4)
        lines += _paragraph(field.metadata["help"], indent=6)
    lines += ["", "  --flagfile=PATH", "      read flags from a file, in place"]
    if rest := len(options) - len(common):
        groups = dict.fromkeys(
            group for group, field, _ in options if field.name not in common
        )
        told = f"{rest} more flags, of {', '.join(groups)}: see --helpfull"
        lines += ["", *_paragraph(told)]
    return "\n".join(lines).lstrip("\n")


def _paragraph(text: str, indent: int = 0, hang: int = 0) -> list[str]:
    """Lines of at most 80 columns; those after the first `hang` further in."""
    import textwrap  # Only help needs it.

    return textwrap.wrap(
        text,
        width=80,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
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
        # Spaces, so that a long list can go on in the next line.
        return f"{field.name}={' | '.join(field.metadata['choices'])}{shown}"
    return f"{field.name}={_type(field).__name__.upper()}{shown}"


def with_flags(config_class: type, message: str) -> str:
    """Writes the arguments that an error names as a command's flags.

    `name=value` becomes `--name=value`, and a name in backticks `--name`.

    Args:
      config_class: the command's dataclass of groups.
      message: of library code, which knows no flags.
    """
    names = "|".join(f.name for _, f, _ in fields.fields(config_class()))
    message = re.sub(rf"(?<![\w:,./'\"-])({names})=False\b", r"--no\1", message)
    message = re.sub(rf"(?<![\w:,./'\"-])({names})=(?!=)", r"--\1=", message)
    return re.sub(rf"`({names})`", r"--\1", message)


def write(parsed: Any) -> str:
    """A config as the text of a flagfile, without the workdir.

    `parse(type(parsed), ["--flagfile=FILE", "--workdir=W"])` gives it back.
    """
    lines = []
    shown = None
    for group, field, value in fields.fields(parsed):
        if field.name == "workdir" or value is None:
            continue
        if group != shown:
            shown = group
            lines.append(f"# {group}")
        if _type(field) is bool:
            lines.append(f"--{'' if value else 'no'}{field.name}")
        else:
            lines.append(f"--{field.name}={value}")
    return "\n".join(lines) + "\n"


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Reads what `write` wrote, for a run at `workdir`."""
    lines = [line.strip() for line in text.splitlines()]
    arguments = [line for line in lines if line and not line.startswith("#")]
    return parse(config_class, [*arguments, f"--workdir={workdir}"])
