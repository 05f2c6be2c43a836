"""A tape: the answers to each question, in the order in which they came."""

from __future__ import annotations

import gzip
import importlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.recordings import typed_json


def name_of(call: str, arguments: tuple[Any, ...]) -> str:
    """`run sweep`: what is asked, whatever the details."""
    function = arguments[0] if arguments else ""
    return f"{call} {function.__name__}" if callable(function) else call


class Tape:
    """Writes one.  A question that is asked while another is answered is a part of that."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.GzipFile(path, "wb", mtime=0)  # the same tape is the same file
        self.file = io.TextIOWrapper(packed, encoding="utf-8")
        self.busy = False
        self.names: dict[str, str] = {}  # of nodes, by id

    def write(self, question: str, answer: Any, error: Exception | None = None) -> None:
        """Keep one answer, or the error that came instead."""
        kind = f"{type(error).__module__}:{type(error).__qualname__}" if error else ""
        told = [kind, str(error), vars(error)] if error else []
        line = f"{json.dumps(question)}\t{typed_json.dump(told)}\t{typed_json.dump(answer)}\n"
        self.file.write(line)

    def keep(self, question: str, ask: Callable[[], Any]) -> Any:
        """Ask, and keep what comes; GangError and the like are answers too."""
        if self.busy:
            return ask()
        self.busy = True
        try:
            answer = ask()
        except RuntimeError as error:
            self.write(question, None, error)
            raise
        finally:
            self.busy = False
        self.write(question, answer)
        return answer


class NoAnswer(Exception):
    """The tape has none: the probe asks other questions than it did, and must be recorded anew."""


class Answers:
    """Reads one."""

    def __init__(self, path: Path) -> None:
        self.kept: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.asked: Counter[str] = Counter()  # how often each question was asked so far
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                question, error, answer = line.rstrip("\n").split("\t")
                self.kept[json.loads(question)].append((error, answer))

    def change(self, question: str, change: Callable[[Any], Any], at: int | None = None) -> None:
        """Change what was answered: each time, or at one (0 is the first, -1 the last)."""
        kept = self.kept[question]
        if not kept:
            raise NoAnswer(question)
        for index in range(len(kept)) if at is None else [range(len(kept))[at]]:
            error, answer = kept[index]
            kept[index] = error, typed_json.dump(change(typed_json.load(answer)))

    def add(self, question: str, *answers: Any) -> None:
        """Have more answers to a question."""
        self.kept[question] += [(typed_json.dump([]), typed_json.dump(one)) for one in answers]

    def refuse(self, question: str, at: int, message: str) -> None:
        """Have a GangError come instead of an answer."""
        told = ["reference_trainer.launch.gang:GangError", message, {}]
        self.kept[question][at] = typed_json.dump(told), "null"

    def next(self, question: str) -> Any:
        """The next answer to this question.  Raises the error that came instead, or NoAnswer."""
        if not self.kept[question]:
            raise NoAnswer(question)
        error, answer = self.kept[question].pop(0)
        self.asked[question] += 1
        if told := typed_json.load(error):
            raise _error(*told)
        return typed_json.load(answer)


def _error(kind: str, message: str, state: dict[str, Any]) -> Exception:
    module, _, name = kind.partition(":")
    if module != "builtins" and not module.startswith(typed_json.OURS):
        raise ValueError(f"{kind} is no error of ours")
    made = getattr(importlib.import_module(module), name)
    error: Exception = made.__new__(made, message)
    error.__dict__.update(state)
    return error
