"""A strict reader of Prometheus's text format and of OpenMetrics: what either forbids is an error here.

Stricter than Prometheus itself, which passes over much: families are whole, each has help and type before its samples, samples
have the name that their type demands, nothing is there twice.
"""

import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
ENDINGS = ("_bucket", "_sum", "_count")
VALUE = r"[+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|Inf)|NaN"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.+)\}})? (?P<value>{VALUE})")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Malformed(ValueError):
    pass


def labels_of(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match or match[1] in labels:
            raise Malformed(f"labels {text!r} at {at}")
        labels[match[1]] = re.sub(r"\\.", lambda found: ESCAPES[found[0]], match[2])
        at = match.end()
    return labels


class Metrics(dict):
    """The values by name and labels; every family in `kinds`, with samples or without."""

    def __init__(self):
        super().__init__()
        self.kinds = {}

    def of(self, name, /, **labels):
        """The values of a metric whose labels are at least these, by all of its labels."""
        wanted = labels.items()
        return [value for (found, has), value in self.items() if found == name and wanted <= dict(has).items()]

    def one(self, name, /, **labels):
        (value,) = self.of(name, **labels)
        return value


def read(text, openmetrics=False):
    metrics = Metrics()
    lines = text.split("\n")
    if lines.pop() != "":
        raise Malformed("the last line is not ended")
    if openmetrics and (not lines or lines.pop() != "# EOF"):
        raise Malformed("no # EOF")
    family = kind = unit = None
    helped = set()
    for line in lines:
        if line.startswith("# "):
            word, name, rest = (line[2:].split(" ", 2) + ["", ""])[:3]
            if word == "HELP":
                if name in helped or not rest or not re.fullmatch(NAME, name):
                    raise Malformed(line)
                helped.add(name)
                family, kind, unit = name, None, None
            elif word == "TYPE":
                if name != family or kind or rest not in ("gauge", "counter", "histogram"):
                    raise Malformed(line)
                kind = metrics.kinds[name] = rest
            elif word == "UNIT" and openmetrics:
                if name != family or unit or not name.endswith(f"_{rest}"):
                    raise Malformed(line)
                unit = rest
            else:
                raise Malformed(line)
            continue
        match = SAMPLE.fullmatch(line)
        if not match or kind is None:
            raise Malformed(line)
        endings = ENDINGS if kind == "histogram" else ("_total" if openmetrics and kind == "counter" else "",)
        if match["name"] not in [family + ending for ending in endings] or (kind == "counter" and not match["name"].endswith("_total")):
            raise Malformed(f"{line!r} in {kind} {family}")
        key = (match["name"], tuple(labels_of(match["labels"] or "").items()))
        if key in metrics:
            raise Malformed(f"twice: {line}")
        metrics[key] = float(match["value"])
    for name in (name for name, kind in metrics.kinds.items() if kind == "histogram"):
        check_histogram(metrics, name)
    return metrics


def check_histogram(metrics, family):
    """Buckets rise with their ends, the last has none and holds all."""
    buckets = {}
    for (name, labels), value in metrics.items():
        if name == f"{family}_bucket":
            ends = [label for label in labels if label[0] == "le"]
            rest = tuple(sorted(label for label in labels if label[0] != "le"))
            if len(ends) != 1:
                raise Malformed(f"{name} {labels}")
            buckets.setdefault(rest, []).append((float(ends[0][1]), value))
    whole = {tuple(sorted(labels)): value for (name, labels), value in metrics.items() if name == f"{family}_count"}
    sums = {tuple(sorted(labels)) for name, labels in metrics if name == f"{family}_sum"}
    if not buckets.keys() == whole.keys() == sums:
        raise Malformed(f"{family} has no sum, no count or no buckets")
    for rest, found in buckets.items():
        if found != sorted(found) or found[-1] != (math.inf, whole[rest]) or [count for _, count in found] != sorted(count for _, count in found):
            raise Malformed(f"{family}{dict(rest)}: {found}")
