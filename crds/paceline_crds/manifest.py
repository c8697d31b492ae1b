"""YAML as kubectl reads it: one document, no duplicate keys, no dates, no base-60 numbers."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from paceline_crds.errors import InvalidManifest

MAX_SIZE = 1_000_000
"""Values and characters, aliases written out: a few lines of them can stand for gigabytes."""
MAX_DEPTH = 64

_OURS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to configure a loader
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OURS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise InvalidManifest(
                    [f"line {key_node.start_mark.line + 1}: {key} is given twice; remove one"]
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def read(text: str) -> dict[str, Any]:
    """The one mapping in a YAML text.

    Raises:
        InvalidManifest: no YAML, no mapping, or more than one document.
    """
    try:
        documents = [item for item in yaml.load_all(text, Loader=_Loader) if item is not None]
    except yaml.YAMLError as error:
        raise InvalidManifest([_no_yaml(error)]) from error
    except (RecursionError, TypeError, ValueError) as error:
        # PyYAML's own limits: nested too deeply, a list as a key, an integer of 5000 digits.
        raise InvalidManifest([f"this is no manifest ({error}); correct it"]) from error
    if len(documents) != 1:
        raise InvalidManifest(
            [f"one LLMDeployment was expected, got {len(documents)} documents; keep one"]
        )
    if not isinstance(documents[0], dict):
        kind = type(documents[0]).__name__
        problem = f"an LLMDeployment (a map) was expected, got a {kind}; write apiVersion, kind..."
        raise InvalidManifest([problem])
    _check_size(documents[0])
    return documents[0]


_HINTS = {
    "'\\t'": "indent with spaces, YAML takes no tabs",
    "mapping values": "put a text that holds ': ' in quotes, or correct the indentation",
    "could not find expected ':'": "add the ':' behind this key, or correct the indentation",
    "expected ',' or": "put a comma between entries, and close the bracket",
    "expected <block end>": "give the entries of one level the same indentation",
    "found unexpected end of stream": "close the quote",
    "undefined alias": "define it with & before, or put a text that begins with * in quotes",
    "that cannot start any token": "put a text that begins with this character in quotes",
    "constructor for the tag": "remove the tag, or put a text that begins with ! in quotes",
}
"""What to do, by a part of PyYAML's own words."""


def _no_yaml(error: yaml.YAMLError) -> str:
    """Where it stands, what PyYAML expected and found, in what, and what to do."""
    problem = getattr(error, "problem", None) or str(error)
    advice = next((advice for words, advice in _HINTS.items() if words in problem), "correct it")
    begun = ""
    if isinstance(error, yaml.MarkedYAMLError) and error.context and error.context_mark:
        mark = error.context_mark
        begun = f" {error.context} that begins at line {mark.line + 1}, column {mark.column + 1}"
    return f"{_where(error)}this is no YAML: {problem}{begun}; {advice}"


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def _check_size(document: dict[str, Any]) -> None:
    left = MAX_SIZE
    stack: list[tuple[Any, int]] = [(document, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if isinstance(value, dict):
            stack += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            stack += [(part, depth + 1) for part in value]
        elif isinstance(value, str):
            left -= len(value)
            if not value.isascii() and not value.isprintable() and _has_half_characters(value):
                raise InvalidManifest([f"{value[:64]!r} is no Unicode text; correct it"])
        if depth > MAX_DEPTH:
            problem = f"values are nested more than {MAX_DEPTH} deep, or an alias holds itself"
            raise InvalidManifest([f"{problem}; remove it"])
        if left < 0:
            problem = f"with its aliases written out it is longer than {MAX_SIZE} characters"
            raise InvalidManifest([f"{problem}; shorten it"])


def _has_half_characters(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
