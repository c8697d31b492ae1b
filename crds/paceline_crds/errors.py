"""Errors of the contract: one subclass per reaction."""

from collections.abc import Sequence


class ContractError(ValueError):
    """Something outside does not hold to the contract."""


class InvalidManifest(ContractError):
    """A manifest is wrong; a person has to edit it.

    Attributes:
        problems: one sentence each: what, expected, got, what to do.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class InvalidSettings(ContractError):
    """Settings that exclude each other, or a value outside its bounds."""
