"""Declarations of components, and the options that hold the chosen ones.

A component, such as a loss or an optimizer, is declared once, without
TensorFlow: a dataclass whose fields are its options (see `fields.option`), with
its name and its traits as class variables. The class that computes inherits
from it. Other modules do not compare names: they ask for traits.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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

    def with_others(self: C, others: Mapping[str, Any]) -> C:
        """Returns a copy that ignores these options, too."""
        changed = self.with_options()
        vars(changed)["others"] = {**self.others, **others}
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
        value = values.get(name)
        if value is not None and (allowed := fields.problem(field, value)):
            raise errors.UserError(
                f"{errors.arg(name, value)}: must be {allowed}"
            )


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


@dataclasses.dataclass(frozen=True)
class Family:
    """How a component of a family is chosen among the options of a command.

    Attributes:
      kind: the option that names the member.
      members: the declarations, by name.
      named: the declaration of the option `kind`.
      flags: options with a flag of their own. The others are given by their
        names in one flag, KIND_options.
      prefixed: options that are named KIND_OPTION among those of a command,
        since OPTION alone says too little there.
      defaults: member -> defaults here that differ from its own.
      own: name of a part of the user's own, `module:name` -> its declaration;
        None: such parts are refused.
      declare: name -> component with its defaults, if names are more than a key
        of `members`.
      ignores_others: whether options that only other members have are ignored,
        and no error.
    """

    kind: str
    members: Mapping[str, type[Component]]
    named: dataclasses.Field
    flags: frozenset[str]
    prefixed: frozenset[str]
    defaults: Mapping[str, Mapping[str, Any]]
    own: Callable[[str], type[Component]] | None
    declare: Callable[[str], Component] | None
    ignores_others: bool

    @property
    def family(self) -> str:
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
        if allowed := fields.problem(self.named, name):
            raise errors.UserError(
                f"{errors.arg(self.kind, name)}: must be {allowed}"
            )
        if self.declare:
            return self.declare(name)
        if name in self.members:
            return self.members[name](**self.defaults.get(name, {}))
        assert self.own
        return self.own(name)()

    def options(
        self,
        chosen: Component,
        prefix: str,
        group: str,
        identity: bool,
        every: bool,
    ) -> Iterator[fields.Option]:
        """Yields the option `kind`, and the options of the chosen member.

        `every`: of all members instead, as None.
        """
        name, values = prefix + self.kind, chosen.arguments()
        yield fields.Option(
            name, group, chosen.label, self.named, identity, "", "", True
        )
        declared = chosen.declared()
        for key, value in chosen.others.items():
            declared[key], values[key] = self.declared[key], value
        if every:
            declared, values = self.declared, dict.fromkeys(self.declared)
        for key, field in declared.items():
            yield fields.Option(
                prefix + self.option_name(key),
                group,
                values[key],
                field,
                identity and field.metadata["identity"],
                "" if key in self.flags else prefix + self.family,
                key,
                True,
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
        if not isinstance(name, Component):
            before = {**chosen.others}
            before |= {key: vars(chosen)[key] for key in chosen.given}
            chosen = self.component(name)
            known = chosen.declared()
            kept = {k: value for k, value in before.items() if k in known}
            chosen = chosen.with_options(**kept)
            if self.ignores_others:
                left = before.keys() & self.declared.keys() - known.keys()
                chosen = chosen.with_others({key: before[key] for key in left})
        elif name is not chosen:
            chosen = name
        further = dict(unused.pop(prefix + self.family, {}))
        changed: dict[str, Any] = {}
        for option, field in chosen.declared().items():
            named = prefix + self.option_name(option)
            if option in further and named in unused:
                raise errors.UserError(
                    f"{errors.arg(named)} and"
                    f" {errors.arg(prefix + self.family, option)}: set one"
                )
            value = further.pop(option, unused.pop(named, fields.AUTO))
            if value is not None and value != fields.AUTO:
                changed[option] = fields.read_value(named, field, value)
        if others := self._others(chosen, unused, further, prefix):
            chosen = chosen.with_others(others)
        return chosen.with_options(**changed) if changed else chosen

    def _others(
        self,
        chosen: Component,
        unused: dict[str, Any],
        further: Mapping[str, Any],
        prefix: str,
    ) -> dict[str, Any]:
        """Removes and returns options that only other members have.

        Raises:
          UserError: if they are not ignored.
        """
        others: dict[str, Any] = {}
        for option in further:
            if option not in self.declared:
                kind = f"option of {self.kind} {chosen.label}"
                known = chosen.declared() | self.declared
                raise errors.unknown(kind, option, known)
        for option in self.declared.keys() - chosen.declared().keys():
            name = prefix + self.option_name(option)
            value = further.get(option, unused.pop(name, fields.AUTO))
            if value in (None, fields.AUTO):
                continue
            if self.ignores_others:
                field = self.declared[option]
                others[option] = fields.read_value(name, field, value)
                continue
            raise errors.UserError(
                f"{errors.arg(name)} is not an option of"
                f" {errors.arg(prefix + self.kind, chosen.label)}, only of"
                f" {', '.join(self.takers(option))}"
            )
        return others


def chosen(
    default: Component,
    members: Mapping[str, type[Component]],
    help: str,
    *,
    kind: str,
    check: checks.Check | None = None,
    flags: Iterable[str] = (),
    prefixed: Iterable[str] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    own: Callable[[str], Any] | None = None,
    declare: Callable[[str], Component] | None = None,
    ignores_others: bool = False,
) -> Any:
    """A field that holds the chosen member of a family; see `Family`.

    `check` checks the name, in place of the names of `members`.
    """
    named = fields.option(
        default.label,
        help,
        choices=() if check else members,
        check=check,
        own=own is not None,
    )
    named.name, named.type = kind, str
    family = Family(
        kind,
        members,
        named,
        frozenset(flags),
        frozenset(prefixed),
        defaults or {},
        own,
        declare,
        ignores_others,
    )
    about = {"component": family, "identity": True, "prefix": ""}
    return dataclasses.field(default=default, metadata=about)
