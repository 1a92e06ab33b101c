"""One absl flag per option of a command, and the options of a run as text.

Each command has its own `FlagValues`, with the options of all members of a
family: `--temperature` is a flag, whatever the loss. Options without a flag of
their own share one: `--loss_options=contrast=one_view,normalize=false`.
"""

import itertools
import os
import re
import shlex
from collections.abc import Iterable
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive.base import errors, installation
from tf_contrastive.config import fields, own
from tf_contrastive.config.fields import Command, Option

_OWN_MODULES = f"--{own.ARGUMENT}"
_COMMON_HELP = f"""\
  --flagfile: read flags from a file, one per line; quotes around a value and a
    comment after it (# ...) are no part of it
  {_OWN_MODULES}: allow a run to import these modules (MODULE,MODULE), which its
    files name (module:name); those of this command line are allowed already"""

# Of a run's options. Increases with a change by which older ones are misread.
_FORMAT = 4
_FIRST_LINE = re.compile(
    r"# All options of a run, format (\d+), tf_contrastive ([^,\s]+).*\n"
)
_MAX_FLAGFILE = 1 << 20
# Marks of comments.
_COMMENTS = ("#", "//")

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
            lines.append(f"- {option.key}=VALUE: {help}")
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
        for name, default in option.component.takers(option.key).items():
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
    keys = {(o.family, o.key): name for name, o in options.items() if o.family}
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
            key, equals, text = pair.partition("=")
            if not equals:
                raise errors.UserError(
                    f"--{name}={key}: must be NAME=VALUE,NAME=VALUE"
                )
            if (name, key) not in keys and not is_own:
                known = [key for family, key in keys if family == name]
                raise errors.unknown(f"option in --{name}", key, known)
            given[keys.get((name, key), f"{kind}_{key}")] = text
    given = config_class.presets(given) | given
    parsed = fields.replace(config_class(), **given)
    fields.validate_fields(parsed)  # Some are required.
    return parsed


def _parsed(
    options: dict[str, Option], arguments: list[str]
) -> dict[str, absl_flags.Flag]:
    """Returns the flags that are given to a command, by name."""
    values = _defined(options.values())
    words = inlined(arguments)
    for word, following in itertools.pairwise(words):
        name = word.lstrip("-")
        # absl takes the next flag as the value.
        is_next = word[:1] == "-" and following[:2] == "--"
        if is_next and name in values and not values[name].boolean:
            raise errors.UserError(
                f"missing value of --{name}: use --{name}=VALUE"
            )
    try:
        rest = values(["", *words])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        name = error.flagname.partition("=")[0]
        if name == own.ARGUMENT:
            raise errors.UserError(
                f"{_OWN_MODULES} is in a flagfile, which may be somebody"
                " else's: write it on the command line"
            ) from error
        hint = errors.did_you_mean(f"--{name}", [f"--{n}" for n in values])
        if name in options:
            hint = f": use --{options[name].word}=VALUE"
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


def with_others(config_class: type[Command], words: list[str]) -> list[str]:
    """Returns words with those of other commands in the option `OTHERS`."""
    known = set(names(config_class))
    parts: dict[bool, list[str]] = {True: [], False: []}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word[:1] == "-" and "=" not in word and rest and rest[0][:1] != "-":
            word = f"{word}={rest.pop(0)}"
        name = word.lstrip("-").partition("=")[0]
        parts[name in known or name.removeprefix("no") in known].append(word)
    return [*parts[True], f"--{config_class.OTHERS}={shlex.join(parts[False])}"]


def allow_own_modules(words: list[str]) -> list[str]:
    """Allows the parts that a command line names; returns the other words.

    They are in `--own_modules=MODULE,...`, or values `module:name`. Flagfiles,
    which may be somebody else's, allow none.
    """
    rest, words = [], list(words)
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name != _OWN_MODULES:
            # The value of a flag, or of an option in it: --dataset=pack:of=m:f.
            if fields.module_of(part := word.rpartition("=")[2]):
                own.allow(part)
            rest.append(word)
            continue
        value = value or (words.pop(0) if words else "")
        if not re.fullmatch(r"[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*", value):
            raise errors.UserError(
                f"{name}={value}: must be names of modules, such as"
                " my_module,other"
            )
        own.allow(*value.split(","))
    return rest


# ---- Flagfiles ---------------------------------------------------------------


def inlined(arguments: list[str], within: tuple[str, ...] = ()) -> list[str]:
    """Replaces `--flagfile` by the lines of the file.

    absl would resolve paths by the working directory only, and take quotes and
    comments as parts of a value. `within` are the arguments' own flagfiles.
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
        if within:
            relative = os.path.join(os.path.dirname(within[-1]), path)
            path = relative if os.path.exists(relative) else path
        path = os.path.normpath(path)
        if not os.path.exists(path):
            path = packaged_flagfile(path) or path
        if path in within:
            raise errors.UserError(f"--flagfile={path} includes itself")
        try:
            # Editors may write a mark before the text: "utf-8-sig".
            with open(path, encoding="utf-8-sig") as file:
                given = flags_in(file.read(_MAX_FLAGFILE))
                if file.read(1):
                    raise ValueError(f"more than {_MAX_FLAGFILE} characters")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise errors.UserError(
                f"--flagfile={path} cannot be read ({reason}): use a text file"
                " with one flag per line, --name=value"
            ) from error
        result += inlined(given, (*within, path))
    return result


def packaged_flagfile(path: str) -> str | None:
    """Returns the file configs/[shared/]NAME.flags of this package."""
    folder, name = os.path.split(path)
    # In a wheel they are in the package, in a clone beside it.
    for top in ("tf_contrastive", ""):
        file = os.path.join(installation.ROOT, top, folder, name)
        if folder in ("configs", "configs/shared") and os.path.exists(file):
            return file
    return None


def flags_in(text: str) -> list[str]:
    """Returns the flags in a flagfile, without quotes and comments.

    Another line, or a damaged record of a run, is a `ValueError`.
    """
    if text.startswith("# All options of a run"):
        _check_record(text)
    flags = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith(_COMMENTS):
            continue
        lexer = shlex.shlex(line, posix=True)
        lexer.whitespace_split = True
        lexer.commenters = lexer.escape = ""  # A # may be in a value.
        try:
            words = [*itertools.takewhile(lambda w: w not in _COMMENTS, lexer)]
        except ValueError:  # A quote is not closed.
            words = []
        if len(words) != 1 or not re.match(r"--?\w", words[0]):
            raise ValueError(
                f"line {number}, {line}: it is not one flag, --name=value: put"
                " quotes around a value with spaces, and a space after the # of"
                " a comment"
            )
        flags += words
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
    known = declared(config_class)

    def flag(name: str, value: str | None) -> str:
        option = known.get(name)
        given = "" if value is None else f"={value}"
        if name == own.ARGUMENT:
            return f"--{name}{given}"
        if option is None:
            return f"{name}{given}" if given else f"`{name}`"
        if given in ("=True", "=False", "=true", "=false"):
            given = given.lower()
            if fields.value_type(option.field) is bool and not option.family:
                return f"--{name}" if given == "=true" else f"--no{name}"
        return f"--{option.word}{given}"

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
        shared: dict[str, list[str]] = {}
        for option in members:
            text = fields.written(option.value)
            if not option.family:
                lines.append(_line(option.name, text))
            elif option.value is not None:
                pairs = shared.setdefault(option.family, [])
                pairs.append(f"{option.key}={text}")
        lines += [_line(n, ",".join(p)) for n, p in shared.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, value: str) -> str:
    return f"--{name}={shlex.quote(value) if value else ''}"


def record(config: Command) -> str:
    """Returns a run's `config.flags`: two lines show that it is whole."""
    text = write(config)
    return (
        f"# All options of a run, format {_FORMAT}, tf_contrastive"
        f" {installation.VERSION}\n{text}{_last_line(text)}\n"
    )


def _last_line(text: str) -> str:
    count = sum(line.startswith("--") for line in text.splitlines())
    return f"# End: {count} options."


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Parses what `record` returned; anything else is a `ValueError`."""
    _check_record(text)
    return parse(config_class, [*flags_in(text), f"--workdir={workdir}"])


def _check_record(text: str) -> None:
    first = _FIRST_LINE.match(text)
    if not first:
        raise ValueError("it is not whole, or was not written by a run")
    if first[1] != str(_FORMAT):
        raise ValueError(
            f"version {first[2]} of tf_contrastive wrote it in format"
            f" {first[1]}, and this is version {installation.VERSION}, which"
            f" reads format {_FORMAT}: use that version"
        )
    if not text.endswith(f"\n{_last_line(text)}\n"):
        raise ValueError("it is cut off, or lacks options")
