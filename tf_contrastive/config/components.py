"""Declarations of components, and the options by which one is chosen.

A component, such as a loss or an optimizer, is declared once, without
TensorFlow: a dataclass whose fields are its options (see `fields.option`), with
its name and its traits as class variables. The class that computes inherits
from it. Other modules do not compare names: they ask for traits.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from tf_contrastive.base import errors
from tf_contrastive.config import fields, keywords


@dataclasses.dataclass(kw_only=True, eq=False)
class Component(keywords.Checked):
    """Base of declarations.

    Attributes:
      name: of the component.
      is_own: whether it is a part of the user's own, `module:name`.
    """

    name: ClassVar[str]
    is_own: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(type(self), vars(self))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns the options with their defaults."""
        return {
            field.name: field.default
            for field in dataclasses.fields(cls)
            if "help" in field.metadata
        }


def check(member: type[Component], values: Mapping[str, Any]) -> None:
    """Raises `UserError` for a value that an option does not allow.

    Values that are not options of the member are left out, as is None.
    """
    for name, field in _options(member).items():
        value = values.get(name)
        if value is not None and (allowed := fields.problem(field, value)):
            raise errors.UserError(
                f"{errors.arg(name, value)}: must be {allowed}"
            )


def by_name(members: Iterable[type[Component]]) -> dict[str, Any]:
    """Returns name -> member, for a family of declarations or classes."""
    return {member.name: member for member in members}


def pick(
    kind: str,
    name: str,
    members: Mapping[str, Any],
    options: Iterable[str],
    others: Iterable[str] = (),
) -> Any:
    """Returns a member of a family, which must have the options.

    `others` are arguments that could have been meant instead.

    Raises:
      UserError: for an unknown name or option.
    """
    if name not in members:
        raise errors.unknown(kind, name, members)
    known = members[name].defaults()
    for option in options:
        if option not in known:
            known = [*known, *others]
            raise errors.unknown(f"option of {name}", option, known)
    return members[name]


def list_members(
    function: Callable[..., Any], members: Mapping[str, Any]
) -> None:
    """Adds the names and options of a family to a docstring, for `help`."""
    lines = []
    for name, member in members.items():
        options = [f"{n}={x!r}" for n, x in member.defaults().items()]
        lines.append(f"{name}({', '.join(options)})")
    wrapped = [
        textwrap.fill(
            line,
            80,
            initial_indent="      ",
            subsequent_indent="          ",
            break_on_hyphens=False,
        )
        for line in lines
    ]
    text = "\n".join(["    Names and options:", "", *wrapped, ""])
    function.__doc__ = f"{function.__doc__}\n{text}    "


class Choice:
    """Base of the options by which a member of a family is chosen.

    An option of a member is None unless it was set: the member's default holds.
    """

    _kind: ClassVar[str]
    _members: ClassVar[Mapping[str, type[Component]]]
    # Member -> defaults here that differ from its own.
    _defaults: ClassVar[Mapping[str, Mapping[str, Any]]]
    # Field -> name of the members' option.
    _names: ClassVar[Mapping[str, str]]
    # Name of a part of the user's own -> its declaration; None: refused.
    _own: ClassVar[Any] = None

    def member(self) -> type[Component]:
        """Returns the declaration of the chosen member."""
        chosen = getattr(self, self._kind)
        if self._own and chosen not in self._members:
            return self._own(chosen)
        return self._members[chosen]

    def options(self, prefix: str = "") -> dict[str, Any]:
        """Returns what was set, as options of the chosen member.

        What differs here from the member's defaults is set, too.

        Raises:
          UserError: for an option that it does not have, if it refuses it.
            `prefix` is that of this group's options on the command line.
        """
        chosen = getattr(self, self._kind)
        member = self.member()
        own = _options(member)
        given = dict(self._defaults.get(chosen, {}))
        for field, name in self._names.items():
            value = getattr(self, field)
            if value is None:
                continue
            if name not in own:
                if not self._refuses(field, value):
                    continue
                takers = [
                    member
                    for member, declared in self._members.items()
                    if name in _options(declared)
                ]
                raise errors.UserError(
                    f"{errors.arg(prefix + field)} is not an option of"
                    f" {errors.arg(prefix + self._kind, chosen)}, only of"
                    f" {', '.join(takers)}"
                )
            read = own[name].metadata["read"]
            given[name] = read(value) if read else value
            if member.is_own:  # Of the type of its own default.
                text = f"{value:.12g}" if isinstance(value, float) else value
                default = own[name].default
                given[name] = fields.read_like(field, default, str(text))
        return given | self._further()

    def _further(self) -> dict[str, Any]:
        """Returns the options of a part of the user's own that no member has.

        Raises:
          UserError: for an option that it does not have.
        """
        known, values = self.member().defaults(), {}
        further = getattr(self, f"{self._kind}_own", None) or ""
        for pair in fields.split_pairs(further):
            name, _, text = pair.partition("=")
            if name not in known:
                chosen = getattr(self, self._kind)
                raise errors.unknown(f"option of {chosen}", name, known)
            values[name] = fields.read_like(name, known[name], text)
        return values

    def _refuses(self, field: str, value: Any) -> bool:
        """Whether a value of an option of other members is an error."""
        return True

    def chosen(self, prefix: str = "") -> Any:
        """Returns the declaration of the chosen member, with its options."""
        return self.member()(**self.options(prefix))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns field -> default, of the first member that has the option."""
        found: dict[str, Any] = {}
        for member in cls._members.values():
            found = member.defaults() | found
        return {field: found[name] for field, name in cls._names.items()}

    def filled(self, **defaults: Any) -> Any:
        """Returns a copy with all options set: to `defaults`, or their own.

        Those that stay `auto` are left out.
        """
        values = self.defaults() | defaults
        if (member := self.member()).is_own:
            own = {**member.defaults(), **defaults}
            for name in self._further():  # Set already.
                del own[name]
            values = {f: own[n] for f, n in self._names.items() if n in own}
        missing = {
            name: value
            for name, value in values.items()
            if getattr(self, name) is None and value != fields.AUTO
        }
        options: Any = self
        return dataclasses.replace(options, **missing)


def choice(
    kind: str,
    members: Mapping[str, type[Component]],
    default: str,
    help: str,
    *,
    flags: Iterable[str] = (),
    prefixed: Iterable[str] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    own: Callable[[str], Any] | None = None,
) -> Any:
    """Makes a frozen dataclass, a `Choice`, of a family's options.

    Args:
      kind: name of the field that names the member.
      members: the declarations.
      default, help: of that field.
      flags: options with a flag of their own. The others are given by their
        names in one flag, KIND_options.
      prefixed: options whose field is KIND_OPTION, since OPTION alone says too
        little among the options of a command.
      defaults: member -> defaults that differ from its own.
      own: name of a part of the user's own, `module:name` -> its declaration;
        None: such parts are refused.
    """
    defaults = defaults or {}
    named = fields.option(default, help, choices=members, own=own is not None)
    rows: list[Any] = [(kind, str, named)]
    names = {}
    for member in members.values():
        for name, field in _options(member).items():
            flag = f"{kind}_{name}" if name in prefixed else name
            if flag in names:
                continue
            names[flag] = name
            about = dict(field.metadata)
            if "auto:" not in about["help"]:
                chosen = _defaults(name, members, defaults)
                about["help"] += f"; auto: {chosen}"
            if name not in flags:
                about |= {"family": f"{kind}_options", "key": name}
            value_type: Any = str if about["read"] else field.type
            optional = dataclasses.field(default=None, metadata=about)
            rows.append((flag, value_type | None, optional))
    if own:
        further = fields.option(
            None,
            f"an option of {kind}=module:name",
            check=fields.matching(r"\w+=.*", "NAME=VALUE,NAME=VALUE"),
        )
        about = {**further.metadata, "family": f"{kind}_options", "key": ""}
        further = dataclasses.field(default=None, metadata=about)
        rows.append((f"{kind}_own", str | None, further))
    return dataclasses.make_dataclass(
        f"{kind.title()}Choice",
        rows,
        bases=(Choice,),
        namespace={
            "_kind": kind,
            "_members": members,
            "_defaults": defaults,
            "_names": names,
            "_own": own and staticmethod(own),
        },
        frozen=True,
    )


def _options(member: type[Component]) -> dict[str, dataclasses.Field]:
    return {
        field.name: field
        for field in dataclasses.fields(member)
        if "help" in field.metadata
    }


def _defaults(
    name: str,
    members: Mapping[str, type[Component]],
    here: Mapping[str, Mapping[str, Any]],
) -> str:
    """Describes an option's defaults, and whose they are."""
    takers: dict[str, list[str]] = {}
    for member, declared in members.items():
        defaults = {**declared.defaults(), **here.get(member, {})}
        if name in defaults:
            takers.setdefault(_text(defaults[name]), []).append(member)
    return ", ".join(
        default if len(names) > 4 else f"{default} ({', '.join(names)})"
        for default, names in takers.items()
    )


def _text(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(_text, default))
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else str(default).lower()
