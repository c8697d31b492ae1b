"""Several replicas' `/metrics` as one page, each sample labelled with its replica."""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( .*)$")
_ENGINE = re.compile(r'(^|,)engine="(?:[^"\\]|\\.)*"')


def merge(pages: Mapping[int, str]) -> str:
    """One page of the Prometheus text format; families stay together, as the format asks.

    Args:
        pages: index of the replica -> its page. A label `engine` is set to the index, whatever it
            was, and added where there was none.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for index, page in sorted(pages.items()):
        family = ""
        own_comments: dict[str, list[str]] = {}
        for line in page.splitlines():
            if line.startswith("#"):
                words = line.split(maxsplit=3)
                if len(words) >= 3 and words[1] in {"HELP", "TYPE"}:
                    family = words[2]
                    own_comments.setdefault(family, []).append(line)
                    samples.setdefault(family, [])
                continue
            match = _SAMPLE.match(line)
            if match is None:
                continue
            if not match[1].startswith(family) or not family:
                family = match[1]
            samples.setdefault(family, []).append(_labelled(match, index))
        for name, lines in own_comments.items():
            comments.setdefault(name, lines)
    lines = []
    for family, family_samples in samples.items():
        lines += comments.get(family, []) + family_samples
    return "".join(line + "\n" for line in lines)


def _labelled(match: re.Match[str], index: int) -> str:
    name, labels, rest = match[1], match[2] or "", match[3]
    own = f'engine="{index}"'
    if _ENGINE.search(labels):
        labels = _ENGINE.sub(lambda found: found[1] + own, labels)
    else:
        labels = f"{own},{labels}" if labels else own
    return f"{name}{{{labels}}}{rest}"
