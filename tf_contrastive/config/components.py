"""Declarations of components, and the options that hold the chosen ones.

A component, such as a loss or an optimizer, is declared once, without
TensorFlow: a dataclass whose fields are its options (see `fields.option`), with
its name and its traits as class variables. The class that computes inherits
from it. Other modules do not compare names: they ask for traits.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from tf_contrastive.base import errors
from tf_contrastive.config import checks, fields

C = TypeVar("C", bound="Component")


@dataclasses.dataclass(kw_only=True, eq=False)
class Component:
    """Base of declarations.

    Attributes:
      name: of the component.
      implementation: `module:name` of the class that computes.
      is_own: whether it is a part of the user's own, `module:name`.
      given: options of a run's component that were set, not left at defaults.
      others: options that were set for other members of its family, and that it
        ignores.
    """

    name: ClassVar[str]
    implementation: ClassVar[str]
    is_own: ClassVar[bool] = False
    given: ClassVar[frozenset[str]] = frozenset()
    others: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check(type(self), vars(self))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, field.name) == getattr(other, field.name)
            for field in dataclasses.fields(self)
        )

    def __hash__(self) -> int:
        return hash(type(self))

    @property
    def label(self) -> str:
        """The name by which it is chosen."""
        return self.name

    @classmethod
    def declared(cls) -> dict[str, dataclasses.Field]:
        """Returns the options' declarations."""
        return {
            field.name: field
            for field in dataclasses.fields(cls)
            if "help" in field.metadata
        }

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns the options with their defaults."""
        return {name: x.default for name, x in cls.declared().items()}

    def arguments(self) -> dict[str, Any]:
        """Returns the options with their values."""
        return {name: getattr(self, name) for name in self.declared()}

    def with_options(self: C, **options: Any) -> C:
        """Returns a copy with options set, which count as given."""
        changed = dataclasses.replace(self, **options)
        vars(changed)["given"] = self.given | options.keys()
        vars(changed)["others"] = self.others
        return changed

    def with_defaults(self: C, **defaults: Any) -> C:
        """Returns a copy in which all options are given, if need be `defaults`.

        Those of other components are left out.
        """
        return self.with_options(
            **self.arguments()
            | {
                name: value
                for name, value in defaults.items()
                if name in self.declared() and name not in self.given
            }
        )


def check(member: type[Component], values: Mapping[str, Any]) -> None:
    """Raises `UserError` for a value that an option does not allow.

    Values that are not options of the member are left out, as is None.
    """
    for name, field in member.declared().items():
        if values.get(name) is not None:
            fields.validate(name, field, values[name])


def by_name(members: Iterable[type[C]]) -> dict[str, type[C]]:
    """Returns name -> member, for a family of declarations or classes."""
    return {member.name: member for member in members}


def implementation(member: type[Component]) -> Any:
    """Returns what computes a declared component."""
    module, _, name = member.implementation.partition(":")
    return getattr(importlib.import_module(module), name)


def implementations(members: Mapping[str, type[Component]]) -> dict[str, Any]:
    """Returns name -> what computes, for a family of declarations."""
    return {name: implementation(member) for name, member in members.items()}


def pick(
    kind: str, name: str, members: Mapping[str, Any], options: Iterable[str]
) -> Any:
    """Returns a member of a family, which must have the options.

    Raises:
      UserError: for an unknown name or option.
    """
    if name not in members:
        raise errors.unknown(kind, name, members)
    known = members[name].defaults()
    for option in options:
        if option not in known:
            raise errors.unknown(f"option of {name}", option, known)
    return members[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How a component of a family is chosen among the options of a command.

    Attributes:
      kind: the option that names the member.
      members: the declarations, by name.
      help: one line for the option `kind`.
      check: of the name, if there are more than `members`; see `declare`.
      declare: name -> component with its defaults.
      flags: options with a flag of their own. The others are given by their
        names in one flag, KIND_options.
      prefixed: options that are named KIND_OPTION among those of a command,
        since OPTION alone says too little there.
      defaults: member -> defaults here that differ from its own.
      own: name of a part of the user's own, `module:name` -> its declaration;
        None: such parts are refused.
      ignores_others: whether options that only other members have are kept for
        them, and no error.
    """

    kind: str
    members: Mapping[str, type[Component]]
    help: str
    check: checks.Check | None = None
    declare: Callable[[str], Component] | None = None
    flags: Collection[str] = ()
    prefixed: Collection[str] = ()
    defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    own: Callable[[str], type[Component]] | None = None
    ignores_others: bool = False

    def option(self, default: Component) -> Any:
        """Returns a dataclass field that holds the chosen member."""
        about = {"components": self, "identity": True}
        return dataclasses.field(default=default, metadata=about)

    @functools.cached_property
    def named(self) -> dataclasses.Field:
        """The declaration of the option `kind`."""
        named = fields.option(
            dataclasses.MISSING,
            self.help,
            choices=() if self.check else self.members,
            check=self.check,
            own=self.own is not None,
        )
        named.name, named.type = self.kind, str
        return named

    @property
    def flag(self) -> str:
        """The flag of the options that have none of their own."""
        return f"{self.kind}_options"

    @functools.cached_property
    def declared(self) -> dict[str, dataclasses.Field]:
        """The options of all members; of the first one that has it."""
        declared: dict[str, dataclasses.Field] = {}
        for member in self.members.values():
            declared = declared | member.declared() | declared
        return declared

    def takers(self, option: str) -> dict[str, type[Component]]:
        """Returns the members that have an option, by name."""
        return {n: m for n, m in self.members.items() if option in m.declared()}

    def option_name(self, option: str) -> str:
        """Returns the name of an option among those of a command."""
        # Those of the user's own parts may have the name of any other option.
        alone = option in self.declared and option not in self.prefixed
        return option if alone else f"{self.kind}_{option}"

    def component(self, name: str) -> Component:
        """Returns the named member with its defaults here.

        Raises:
          UserError: for an unknown name, or a part of the user's own that is
            not allowed or cannot be used.
        """
        fields.validate(self.kind, self.named, name)
        if self.declare:
            return self.declare(name)
        if name in self.members:
            return self.members[name](**self.defaults.get(name, {}))
        assert self.own
        return self.own(name)()

    def options(
        self, chosen: Component, every: bool = False
    ) -> Iterator[fields.Option]:
        """Yields the option `kind`, and the options of the chosen member.

        `every`: of all members instead, as None.
        """
        yield fields.Option(
            self.kind, chosen.label, self.named, of_component=True
        )
        declared, values = self.declared, dict[str, Any]()
        if not every:
            values = {**chosen.others, **chosen.arguments()}
            declared = chosen.declared() | {
                k: declared[k] for k in chosen.others
            }
        for key, field in declared.items():
            yield fields.Option(
                self.option_name(key),
                values.get(key),
                field,
                family="" if key in self.flags else self.flag,
                key=key,
                of_component=True,
                automatic=self.described_default(key) if every else "",
            )

    def described_default(self, option: str) -> str:
        """Describes an option's defaults, and of which members they are."""
        takers: dict[str, list[str]] = {}
        for name, member in self.takers(option).items():
            here = {**member.defaults(), **self.defaults.get(name, {})}
            takers.setdefault(fields.written(here[option]), []).append(name)
        return ", ".join(
            default if len(names) > 4 else f"{default} ({', '.join(names)})"
            for default, names in takers.items()
        )

    def replaced(
        self, chosen: Component, unused: dict[str, Any], prefix: str
    ) -> Component:
        """Returns the member that `unused` options choose; they are removed.

        Raises:
          UserError: for a value that is not allowed, or an option that it does
            not have.
        """
        name = unused.pop(prefix + self.kind, chosen)
        before: dict[str, Any] = {}
        if isinstance(name, Component):
            chosen = name
        else:
            before = {key: getattr(chosen, key) for key in chosen.given}
            before |= chosen.others
            chosen = self.component(name)
        known = chosen.declared()
        flag = prefix + self.flag
        further = dict(unused.pop(flag, {}))
        changed: dict[str, Any] = {}
        others = dict(chosen.others)
        for option, field in (self.declared | known).items():
            named = prefix + self.option_name(option)
            if option in further and named in unused:
                raise errors.UserError(
                    f"{errors.arg(named)} and {errors.arg(flag, option)}: set"
                    " one"
                )
            value = further.pop(option, unused.pop(named, None))
            if is_given := value not in (None, fields.AUTO):
                value = fields.read_value(named, field, value)
            elif option in before:
                value = before[option]
            else:
                continue
            if option in known:
                changed[option] = value
            elif self.ignores_others:
                others[option] = value
            elif is_given:
                raise errors.UserError(
                    f"{errors.arg(named)} is not an option of"
                    f" {errors.arg(prefix + self.kind, chosen.label)}, only of"
                    f" {', '.join(self.takers(option))}: leave it out, or set"
                    f" {errors.arg(named, fields.AUTO)}"
                )
        for option in further:
            kind = f"option of {self.kind} {chosen.label}"
            raise errors.unknown(kind, option, self.declared | known)
        if changed or others != chosen.others:
            chosen = chosen.with_options(**changed)
            vars(chosen)["others"] = others
        return chosen
