"""One absl flag per option of a command, and the options of a run as text.

Each command has its own `FlagValues`, with the options of all members of a
family: `--temperature` is a flag, whatever the loss. Options without a flag of
their own share one: `--loss_options=positives_cap=1,normalize=false`.
"""

import itertools
import os
import re
import shlex
from collections.abc import Iterable
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive.base import errors, files, installation
from tf_contrastive.config import checks, fields, own
from tf_contrastive.config.command import Command
from tf_contrastive.config.fields import Option

_COMMON_HELP = """\
  --flagfile: read flags from a file, one per line, quoted as in a shell; lines
    that start with # are comments
  --own_modules: allow a run to import these modules (MODULE,MODULE), which its
    files name (module:name); those of this command line are allowed already"""

# How the text of a run's options starts. The format's number increases with a
# change by which older texts are misread.
_RECORD = "# All options of a run"
_FORMAT = f"{_RECORD}, format 4, tf_contrastive "
_MAX_FLAGFILE = 1 << 20

Config = TypeVar("Config", bound=Command)


def declared(config_class: type[Command]) -> dict[str, Option]:
    """Returns the options of a command by name, also of members not chosen."""
    options = fields.options(config_class(), every=True)
    return {option.name: option for option in options}


def names(config_class: type[Command]) -> list[str]:
    """Returns the names of a command's flags, as `--helpfull` lists them."""
    options = declared(config_class).values()
    found = dict.fromkeys(o.family or o.name for o in options)
    return [name for name in found if name != config_class.OTHERS]


def _defined(options: Iterable[Option]) -> absl_flags.FlagValues:
    """Returns the flags of options. Their values are texts."""
    values = absl_flags.FlagValues()
    parser: Any = absl_flags.ArgumentParser()
    shared: dict[str, list[str]] = {}
    for option in options:
        about, help = option.field.metadata, help_of(option)
        default = "" if option.component else fields.written(option.value)
        if option.family:
            help += f" (default: {default})" * bool(default)
            lines = shared.setdefault(option.family, [])
            lines.append(f"- {option.field.name}=VALUE: {help}")
            continue
        is_bool = fields.value_type(option.field) is bool
        flag = absl_flags.Flag(
            parser, None, option.name, None, help, boolean=is_bool
        )
        flag.default_as_str = "required" if about["required"] else default
        values[option.name] = flag
    for name, lines in shared.items():
        help = "\n".join(["NAME=VALUE,NAME=VALUE, of these:", *lines])
        values[name] = absl_flags.MultiFlag(parser, None, name, None, help)
    return values


def help_of(option: Option) -> str:
    """Returns an option's choices, its help, and its members' defaults."""
    about, help = option.field.metadata, option.field.metadata["help"]
    # With spaces, a long list can be wrapped.
    if about["choices"]:
        help = f"<{' | '.join(about['choices'])}>: {help}"
    takers: dict[str, list[str]] = {}
    if option.component and "auto:" not in help:
        for name, default in option.component.takers(option.field.name).items():
            takers.setdefault(fields.written(default), []).append(name)
    described = ", ".join(
        default if len(members) > 4 else f"{default} ({', '.join(members)})"
        for default, members in takers.items()
    )
    return f"{help}; auto: {described}" if described else help


# ---- From the command line ---------------------------------------------------


def parse(config_class: type[Config], arguments: list[str]) -> Config:
    """Parses a command's flags, of which later ones override earlier ones.

    Each value of the result is valid by itself; see the class's `validate`.
    """
    options = declared(config_class)
    keys = {
        (o.family, o.field.name): name
        for name, o in options.items()
        if o.family
    }
    given: dict[str, Any] = {}
    for name, flag in _parsed(options, arguments).items():
        if name in options:
            given[name] = str(flag.value)
            continue
        kind = name.removesuffix("_options")
        is_own = fields.module_of(given.get(kind, ""))
        # A value may have commas, too.
        lists = [re.split(r",(?=\w+=)", x) for x in flag.value or () if x]
        for pair in itertools.chain(*lists):
            key, _, text = pair.partition("=")
            option = keys.get((name, key))
            if is_own and not option:
                option = options[kind].component.name_of(key)
            if not option:
                known = [key for family, key in keys if family == name]
                raise errors.unknown(f"option in --{name}", key, known)
            given[option] = text
    return fields.replace(config_class(), **config_class.presets(given) | given)


def _parsed(
    options: dict[str, Option], arguments: list[str]
) -> dict[str, absl_flags.Flag]:
    """Returns the flags that are given to a command, by name."""
    values = _defined(options.values())
    words = inlined(arguments)
    for word in words:
        name = word.lstrip("-")
        # absl would take the next word as the value, also a flag.
        if name in values and not values[name].boolean:
            raise errors.UserError(
                f"missing value of --{name}: use --{name}=VALUE"
            )
    try:
        rest = values(["", *words])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        name = error.flagname.partition("=")[0]
        hint = errors.did_you_mean(f"--{name}", [f"--{n}" for n in values])
        if name in options:
            hint = f": use --{options[name].word}=VALUE"
        elif name == own.ARGUMENT:
            hint = " in a flagfile: write it on the command line"
        raise errors.UserError(f"unknown flag --{name}{hint}") from error
    # absl raises a plain ValueError for --noNAME=VALUE, and compares unknown
    # names letter by letter.
    except (absl_flags.Error, ValueError, RecursionError) as error:
        raise errors.UserError(errors.first_line(error)) from error
    if rest:
        raise errors.UserError(
            f"stray word {rest[0]!r}: flags are written --name=value"
        )
    return {name: values[name] for name in values if values[name].present}


def from_command_line(
    config_class: type[Command], words: list[str]
) -> list[str]:
    """Returns the flags of a command line, each one word, `--name=value`.

    Those of other commands are the value of the option `OTHERS`. The parts of
    the user's own that a command line names are allowed: in values, or by
    `--own_modules`. Flagfiles, which may be somebody else's, allow none.
    """
    known = set(names(config_class))
    flags, others = [], []
    for word in joined(words):
        flag, _, value = word.partition("=")
        name = flag.lstrip("-")
        is_known = name in known or name.removeprefix("no") in known
        if config_class.OTHERS and not is_known:
            others.append(word)
        elif flag == f"--{own.ARGUMENT}":
            own.allow(*checks.split_list(value))
        else:
            # The value of a flag, or of an option in it: --dataset=a:of=m:f.
            if fields.module_of(part := word.rpartition("=")[2]):
                own.allow(part)
            flags.append(word)
    if config_class.OTHERS:
        flags.append(f"--{config_class.OTHERS}={shlex.join(others)}")
    return flags


def joined(words: list[str]) -> list[str]:
    """Writes `--name value` as one word, and `--compare A B`, too."""
    flags: list[str] = []
    for word in words:
        flag = flags[-1] if flags else ""
        if word[:1] != "-" and flag.startswith("--compare="):
            flags[-1] = f"{flag},{word}"
        elif word[:1] != "-" and flag[:1] == "-" and "=" not in flag:
            flags[-1] = f"{flag}={word}"
        else:
            flags.append(word)
    return flags


# ---- Flagfiles ---------------------------------------------------------------


def inlined(words: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """Replaces `--flagfile=PATH` by the lines of the file.

    absl would resolve paths by the working directory only, and take quotes as
    parts of a value. `within` are the flagfiles that the words are in.
    """
    result: list[str] = []
    for word in words:
        name, _, written = word.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            result.append(word)
            continue
        folder = os.path.dirname(within[-1]) if within else ""
        path = os.path.join(folder, os.path.expanduser(written))
        if not os.path.exists(path):
            path = files.packaged_flagfile(written) or path
        path = os.path.normpath(path)
        if path in within:
            raise errors.UserError(f"--flagfile={path} includes itself")
        try:
            # Editors may write a mark before the text: "utf-8-sig".
            with open(path, encoding="utf-8-sig") as file:
                if len(text := file.read(_MAX_FLAGFILE)) == _MAX_FLAGFILE:
                    raise ValueError(f"{_MAX_FLAGFILE} characters or more")
            lines = flags_in(text)
        except errors.UserError as error:
            raise errors.UserError(f"--flagfile={path}: {error}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise errors.UserError(
                f"--flagfile={path} cannot be read ({reason}): use a text file"
                " with one flag per line, --name=value"
            ) from error
        result += inlined(lines, (*within, path))
    return result


def flags_in(text: str) -> list[str]:
    """Returns the flags in a flagfile, each on a line, quoted as in a shell.

    Another line, or a damaged record of a run, is a `ValueError`.
    """
    if text.startswith(_RECORD):
        _check_record(text)
    flags: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("#", "//")):
            continue
        if checks.shell_words(line) or len(shlex.split(line)) > 1:
            raise ValueError(
                f"{line}: put quotes around a value with spaces, and a comment"
                " on a line of its own"
            )
        flags += shlex.split(line)
    return flags


# ---- For people --------------------------------------------------------------


def help_text(config_class: type[Command], everything: bool = True) -> str:
    """Returns the flags of a command: all, or those in its `COMMON`."""
    options = declared(config_class)
    others = options.pop(config_class.OTHERS, None)
    shortened = config_class.COMMON and not everything
    if shortened:
        options = {n: o for n, o in options.items() if n in config_class.COMMON}
    lines = []
    for group, members in itertools.groupby(
        options.values(), lambda o: o.group
    ):
        help = _defined(members).get_help("  ", include_special_flags=False)
        lines += [f"{group}:", help, ""]
    if others:
        text = f"other flags: {others.field.metadata['help']}"
        lines += [absl_flags.text_wrap(text, 80), ""]
    lines.append(_COMMON_HELP)
    if shortened:
        rest = len(names(config_class)) - len(options)
        lines += ["", f"{rest} more flags: see --helpfull"]
    return "\n".join(lines)


def with_flags(config_class: type[Command], marked: str) -> str:
    """Shows a message with its arguments as flags, if the command has them."""
    words = {name: o.word for name, o in declared(config_class).items()}
    words[own.ARGUMENT] = own.ARGUMENT

    def flag(name: str, value: str | None) -> str:
        if name not in words:
            return errors.as_argument(name, value)
        if value in ("True", "False"):
            value = value.lower()
        return f"--{words[name]}" + ("" if value is None else f"={value}")

    return errors.shown(marked, flag)


# ---- The options of a run as text --------------------------------------------


def write(config: Command) -> str:
    """Returns the text of a flagfile with all options but the workdir.

    Options that share a flag are left out where they are `auto`.
    """
    options = [o for o in fields.options(config) if o.name != "workdir"]
    lines = []
    for group, members in itertools.groupby(options, lambda o: o.group):
        lines.append(f"# {group}")
        for option in members:
            if option.family and option.value is None:
                continue
            text = fields.written(option.value)
            quoted = shlex.quote(text) if text else ""
            lines.append(f"--{option.word}={quoted}")
    return "\n".join(lines) + "\n"


def record(config: Command) -> str:
    """Returns a run's `config.flags`: two lines show that it is whole."""
    text = write(config)
    return f"{_FORMAT}{installation.VERSION}\n{text}{_last_line(text)}\n"


def _last_line(text: str) -> str:
    count = sum(line.startswith("--") for line in text.splitlines())
    return f"# End: {count} options."


def read_file(config_class: type[Config], path: str) -> Config:
    """Reads the options of a run from its file, which `record` wrote."""
    content = files.read(path)
    try:
        text = content.decode()
        _check_record(text)
        workdir = os.path.dirname(path)
        return parse(config_class, [*flags_in(text), f"--workdir={workdir}"])
    except errors.UserError as error:  # Also of a part of the user's own.
        raise errors.UserError(f"{path}: {error.marked}") from error
    except ValueError as error:
        raise files.damaged(path, error) from error


def _check_record(text: str) -> None:
    first = text.partition("\n")[0]
    if not first.startswith(_RECORD):
        raise ValueError(f"its first line is {first[:80]!r}")
    if not first.startswith(_FORMAT):
        raise errors.UserError(
            f"its first line, {first[:80]!r}, does not start with {_FORMAT!r}:"
            " use the version of tf_contrastive that wrote it"
        )
    if not text.endswith(f"\n{_last_line(text)}\n"):
        raise ValueError("it is cut off, or lacks options")
