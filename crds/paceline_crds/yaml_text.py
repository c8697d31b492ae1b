"""YAML as it is written: keys in their order, no anchors; a repeated part is written out."""

from typing import Any

import yaml

WIDTH = 100


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def document(value: Any) -> str:
    """One document, without a mark before it."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=WIDTH)
    return text


def documents(values: list[dict[str, Any]]) -> str:
    """Several, with `---` before each."""
    text: str = yaml.dump_all(
        values, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=WIDTH
    )
    return text
