"""One absl flag per option of a command, and the options of a run as text.

Each command has its own `FlagValues`: `--help` shows only the command's flags,
and a name may have another default in another command. Only here are the
options of all members of a family known: `--temperature` is a flag, whatever
the loss. Options without a flag of their own share one, such as
`--loss_options=contrast=one_view,epsilon_in=cosine`.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive.base import errors
from tf_contrastive.config import fields, own
from tf_contrastive.config.fields import Command, Option
from tf_contrastive.flags import flagfiles

_OWN_MODULES = f"--{own.ARGUMENT}"
_COMMON_HELP = f"""
  --flagfile: read flags from a file, one per line; quotes around a value and a
    comment after it (# ...) are no part of it
  {_OWN_MODULES}: allow a run to import these modules (MODULE,MODULE), which its
    files name (module:name); those of this command line are allowed already"""

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
        kind = fields.value_type(option.field)
        default = fields.written(option.value)
        help = option.field.metadata["help"]
        if option.automatic and "auto:" not in help:
            help += f"; auto: {option.automatic}"
        # With spaces, a long list can be wrapped.
        if choices := option.field.metadata["choices"]:
            help = f"<{' | '.join(choices)}>: {help}"
        if option.family:
            if not option.automatic:
                help += f" (default: {default})"
            lines = shared.setdefault(option.family, [])
            lines.append(f"- {option.key}=VALUE: {help}")
            continue
        flag = absl_flags.Flag(
            parser, None, option.name, None, help, boolean=kind is bool
        )
        flag.default_as_str = default or None
        if option.field.metadata["required"]:
            flag.default_as_str = "none, required"
        values[option.name] = flag
    for name, lines in shared.items():
        help = "\n".join(["NAME=VALUE,NAME=VALUE, of these:", *lines])
        values[name] = absl_flags.MultiFlag(parser, None, name, None, help)
    return values


# ---- From the command line ---------------------------------------------------


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
    defaults = config_class()
    options = {option.name: option for option in fields.options(defaults)}
    # The values of components are read once it is known which are chosen.
    given: dict[str, Any] = texts(config_class, arguments)
    for name, option in options.items():
        if name in given and not option.of_component:
            given[name] = fields.read(name, option.field, given[name])
    given = config_class.presets(given) | given
    parsed = fields.replace(defaults, **given)
    fields.validate_fields(parsed)
    return parsed


def texts(config_class: type[Command], arguments: list[str]) -> dict[str, Any]:
    """Returns the texts that a command's flags give to options, by name.

    Those of a component that have no name among the command's options are a
    dict, by the name of their flag.

    Raises:
      UserError: for an unknown flag, or a word that is not a flag.
    """
    options = declared(config_class)
    keys = {(o.family, o.key): name for name, o in options.items() if o.family}
    of_components = {o.family for o in options.values() if o.of_component}
    values = _parsed(config_class, arguments)
    found: dict[str, Any] = {}
    for name in values:
        if name in options and values[name].present:
            found[name] = str(values[name].value)
        elif name not in options:
            for key, text in _pairs(name, values[name].value or []):
                if (name, key) in keys:
                    found[keys[name, key]] = text
                elif name in of_components:
                    found.setdefault(name, {})[key] = text
                else:
                    known = [key for family, key in keys if family == name]
                    raise errors.unknown(f"option in --{name}", key, known)
    return found


def _pairs(name: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the keys and values of texts KEY=VALUE,KEY=VALUE of a flag."""
    for pair in itertools.chain(*map(fields.split_pairs, texts)):
        key, equals, text = pair.partition("=")
        if not equals:
            raise errors.UserError(
                f"missing value in --{name}={key}: use"
                f" --{name}={key}={fields.AUTO}, or another value"
            )
        yield key, text


def _parsed(
    config_class: type[Command], arguments: list[str]
) -> absl_flags.FlagValues:
    """Returns the flags of a command, with the texts of those given."""
    values = _defined(declared(config_class).values())
    words = flagfiles.inlined(arguments)
    for word, following in itertools.pairwise(words):
        name = word.lstrip("-")
        takes_value = name in values and not values[name].boolean
        # absl takes the next flag as the value.
        if takes_value and word[:1] == "-" and following[:2] == "--":
            raise errors.UserError(
                f"missing value of --{name}: use --{name}=VALUE"
            )
    try:
        rest = values(["", *words], known_only=True)[1:]
    # absl raises a plain ValueError for --noNAME=VALUE.
    except (absl_flags.Error, ValueError) as error:
        raise errors.UserError(str(error)) from error
    if rest:
        raise _unexpected(rest[0], config_class)
    return values


def _unexpected(word: str, config_class: type[Command]) -> errors.UserError:
    if not word.startswith("-"):
        return errors.UserError(
            f"stray word {word!r}: flags are written --name=value"
        )
    name = word.lstrip("-").partition("=")[0]
    if name == own.ARGUMENT:
        return errors.UserError(
            f"{_OWN_MODULES} is in a flagfile, which may be somebody else's:"
            " write it on the command line"
        )
    option = declared(config_class).get(name)
    if option:
        use = f"--{option.family}={option.key}=VALUE"
        return errors.UserError(f"unknown flag --{name}: use {use}")
    match = errors.nearest(name, names(config_class))
    hint = f"did you mean --{match}? " if match else ""
    return errors.UserError(f"unknown flag --{name}: {hint}see --help")


def with_others(config_class: type[Command], words: list[str]) -> list[str]:
    """Returns words with those of other commands in the option `OTHERS`."""
    known = set(names(config_class))
    parts: dict[bool, list[str]] = {True: [], False: []}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word[:1] == "-" and "=" not in word and rest and rest[0][:1] != "-":
            word = f"{word}={rest.pop(0)}"
        is_own = not known.isdisjoint(named(word))
        parts[is_own].append(word)
    return [*parts[True], f"--{config_class.OTHERS}={shlex.join(parts[False])}"]


def named(word: str) -> tuple[str, str]:
    """Returns the flags that a word may give: --NAME, or --noNAME as NAME."""
    name = word.lstrip("-").partition("=")[0]
    return name, name.removeprefix("no")


def allow_own_modules(words: list[str]) -> list[str]:
    """Allows the parts that a command line names; returns the other words.

    They are the values of `--own_modules=MODULE,...`, or of flags that are
    `module:name`. Flagfiles, which may be somebody else's, allow none.

    Raises:
      UserError: for a value that is no list of modules.
    """
    rest, words = [], list(words)
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name == _OWN_MODULES:
            value = value or (words.pop(0) if words else "")
            if not re.fullmatch(r"[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*", value):
                raise errors.UserError(
                    f"{name}={value}: must be names of modules, such as"
                    " my_module,other"
                )
            own.allow(*value.split(","))
            continue
        # The value of a flag, or of an option in it: --dataset=pack:of=m:f.
        part = word.rpartition("=")[2]
        if fields.module_of(part):
            own.allow(part)
        rest.append(word)
    return rest


# ---- For people --------------------------------------------------------------


def help_text(config_class: type[Command], everything: bool = True) -> str:
    """Returns the flags of a command: all, or those in its `COMMON`."""
    options = [
        option
        for option in declared(config_class).values()
        if not option.field.metadata["rare"]
    ]
    others = [o for o in options if o.name == config_class.OTHERS]
    options = [o for o in options if o not in others]
    shown = options
    if not everything and config_class.COMMON:
        shown = [o for o in options if o.name in config_class.COMMON]
    lines = []
    for group, members in itertools.groupby(shown, lambda o: o.group):
        help = _defined(members).get_help("  ", include_special_flags=False)
        lines += [f"{group}:", help, ""]
    for option in others:
        text = f"other flags: {option.field.metadata['help']}"
        lines += [absl_flags.text_wrap(text, 80), ""]
    lines.append(_COMMON_HELP.strip("\n"))
    if rest := [o for o in options if o not in shown]:
        count = len(names(config_class)) - len(shown)
        groups = ", ".join(dict.fromkeys(o.group for o in rest))
        text = f"{count} more flags, of {groups}: see --helpfull"
        lines += ["", absl_flags.text_wrap(text, 80)]
    return "\n".join(lines)


def with_flags(config_class: type[Command], marked: str) -> str:
    """Shows a message with the arguments that it names as flags.

    They become `--name`, `--name=value` or `--noname`; those that the command
    does not have stay arguments.
    """
    known = declared(config_class)

    def flag(name: str, value: str | None) -> str:
        option = known.get(name)
        if name == own.ARGUMENT:
            return f"--{name}={value}"
        if option is None:
            return f"`{name}`" if value is None else f"{name}={value}"
        boolean = fields.value_type(option.field) is bool
        if boolean and value in ("True", "False"):
            value = value.lower()
        if boolean and value in ("true", "false") and not option.family:
            return f"--{name}" if value == "true" else f"--no{name}"
        if option.family:
            name = f"{option.family}={option.key}"
        return f"--{name}" if value is None else f"--{name}={value}"

    return errors.shown(marked, flag)


# ---- The options of a run as text --------------------------------------------


def write(config: Command) -> str:
    """Returns the text of a flagfile with all options but the workdir.

    Options that share a flag are left out where they are `auto`. `read` and
    `--flagfile=FILE --workdir=W` parse it.
    """
    options = [o for o in fields.options(config) if o.name != "workdir"]
    lines = []
    for group, members in itertools.groupby(options, lambda o: o.group):
        lines.append(f"# {group}")
        shared: dict[str, list[str]] = {}
        for option in members:
            text = fields.written(option.value)
            if not option.family:
                flag = f"--{option.name}={text}"
                if isinstance(option.value, bool):
                    flag = f"--{'' if option.value else 'no'}{option.name}"
                lines.append(flagfiles.line_of(flag))
            elif option.value is not None:
                pairs = shared.setdefault(option.family, [])
                pairs.append(f"{option.key}={text}")
        for name, pairs in shared.items():
            lines.append(flagfiles.line_of(f"--{name}={','.join(pairs)}"))
    return "\n".join(lines) + "\n"


def record(config: Command) -> str:
    """Returns the text of a run's `config.flags`, for `read`.

    It is a flagfile, too; see `write`. Its last line shows that it is whole.
    """
    return flagfiles.record_of(write(config))


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Parses what `record` returned, for a run at `workdir`.

    Raises:
      ValueError: if it is cut off, something else, of another format, or not
        valid.
    """
    flagfiles.check_record(text)
    words = [*flagfiles.flags_in(text), f"--workdir={workdir}"]
    return parse(config_class, words)
