"""Makes and opens token shards: the part of a corpus that one node tokenises and keeps.

Document d is on node d mod N of N, so shards are disjoint and together complete. A shard is a
folder `shard-<i>-of-<N>`. It holds its documents' tokens as raw little-endian integers, ready to be
memory-mapped. Its manifest describes them, with the sha256 of each file.

The documents of a shard are divided into lanes: document d is in lane d mod L, and each lane is one
file. Node i has the lanes i, i + N, i + 2N, ... N divides L, so document d is on node d mod N, as
required. A lane's file does not depend on N, so the order of the samples need not either (see
shard_stream.py).
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reference_trainer import manifest
from reference_trainer.data.documents import Corpus, DataError, scan_corpus

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1  # version of a shard's manifest; add 1 with each change that an older trainer misreads
SHARD_PATTERN = re.compile(r"shard-\d+-of-\d+")
LANES = 48  # can be divided evenly among 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 nodes
TOKENISER = "bytes"
EOD = 256  # the token after each document: no byte has this value
VOCAB = EOD + 1
DTYPE = "<u2"  # two bytes hold every token
FOLDER = click.Path(file_okay=False, path_type=Path)
# Manifest entries that the shards of all nodes have in common.
COMMON_KEYS = ("tokeniser", "vocab", "dtype", "corpus", "lanes", "nodes")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard on this node: its folder, and the content of its manifest."""

    folder: Path
    content: dict[str, Any]

    @property
    def node(self) -> int:
        """Number of this shard, from 0."""
        return int(self.content["node"])

    @property
    def lanes(self) -> range:
        """Lanes that the shard holds."""
        return range(self.node, self.content["lanes"], self.content["nodes"])

    def tokens(self, lane: int) -> NDArray[np.uint16 | np.uint32]:
        """Return the tokens of a lane [tokens], memory-mapped."""
        import numpy as np

        path, dtype = self.folder / lane_name(lane), self.content["dtype"]
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # a plain view is faster to slice

    def check(self, whole: bool) -> None:
        """Check the sizes of all files, and if `whole` their sha256. Raises DataError."""
        for name, entry in self.content["files"].items():
            if problem := manifest.check_file(self.folder / name, entry, sha256=whole):
                raise DataError(f"{self.folder}: {problem}; remove the folder and make it again")


def lane_name(lane: int) -> str:
    """Return the name of a lane's file."""
    return f"lane-{lane:05}"


def tokenise(text: bytes) -> NDArray[np.uint16]:
    """Make the tokens of a document, uint16 [bytes + 1]: its bytes, then EOD."""
    import numpy as np

    tokens = np.full(len(text) + 1, EOD, dtype=DTYPE)
    tokens[:-1] = np.frombuffer(text, dtype=np.uint8)
    return tokens


def entries_text(content: dict[str, Any], names: Sequence[str]) -> str:
    """Format these entries of a manifest for a sentence."""
    return ", ".join(f"{name} {_format_entry(content[name])}" for name in names)


def make_shard(documents: Path, out: Path, *, node: int, nodes: int, lanes: int = LANES) -> Shard:
    """Write the tokenised documents of node `node` of `nodes` as a shard in the folder `out`.

    The shard is written to a fresh folder and renamed, so a folder with a shard's name is complete.
    An existing shard with the same content is checked, every byte, and kept. Raises DataError
    (also where another shard exists, or the existing one is damaged), OSError, and ValueError for
    invalid arguments.
    """
    _require_numbers(node, nodes, lanes)
    if out.resolve().is_relative_to(documents.resolve()):
        raise ValueError(f"out is {out}. Expected: a folder outside of the documents")
    corpus = scan_corpus(documents)
    if corpus.documents < lanes:
        raise DataError(
            f"{documents} has {corpus.documents} documents. Expected: at least one for each of"
            f" {lanes} lanes: split them, or choose fewer lanes"
        )
    content = _new_content(corpus, node, nodes, lanes)
    path = out / f"shard-{node}-of-{nodes}"
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(f"{path.name}.tmp-*"):
        shutil.rmtree(leftover)
    if _shard_names(out):
        existing = _require_same(open_shard(out), content)
        existing.check(whole=True)
        return existing
    return Shard(folder=path, content=_write_shard(path, corpus, content))


def open_shard(out: Path) -> Shard:
    """Open the shard in a folder; check its files' sizes, but not their sha256.

    Raises DataError for none, several, a damaged one, or another schema.
    """
    names = _shard_names(out)
    if not names:
        raise DataError(
            f"{out} has no shard (a folder shard-I-of-N): make it on this node with"
            " `python -m reference_trainer shards`"
        )
    if len(names) > 1:
        raise DataError(
            f"{out} has {', '.join(names)}. Expected: one shard. Remove the other shards;"
            " each node needs a separate folder for its shard"
        )
    shard = Shard(folder=out / names[0], content=_read_manifest(out / names[0]))
    shard.check(whole=False)
    return shard


def _shard_names(out: Path) -> list[str]:
    entries = out.iterdir() if out.is_dir() else ()
    return sorted(entry.name for entry in entries if SHARD_PATTERN.fullmatch(entry.name))


def _require_numbers(node: int, nodes: int, lanes: int) -> None:
    if nodes < 1:
        raise ValueError(f"nodes is {nodes}, expected at least 1")
    if not 0 <= node < nodes:
        raise ValueError(f"node is {node} of {nodes}, expected 0 to {nodes - 1}")
    if lanes < 1 or lanes % nodes:
        raise ValueError(
            f"lanes is {lanes}. Expected: a multiple of nodes={nodes},"
            f" the same on every node, such as {math.lcm(max(lanes, 1), nodes)}"
        )


def _new_content(corpus: Corpus, node: int, nodes: int, lanes: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "tokeniser": TOKENISER,
        "vocab": VOCAB,
        "dtype": DTYPE,
        "corpus": {"sha256": corpus.sha256, "documents": corpus.documents},
        "lanes": lanes,
        "nodes": nodes,
        "node": node,
        "rule": f"documents {node} mod {nodes}; document d in lane d mod {lanes}",
    }


def _require_same(shard: Shard, content: dict[str, Any]) -> Shard:
    """Return the existing shard. Raises DataError if it is not what would be made."""
    keys = [n for n in (*COMMON_KEYS, "node") if shard.content[n] != content[n]]
    if keys:
        raise DataError(
            f"{shard.folder} exists with {entries_text(shard.content, keys)}. Expected:"
            f" {entries_text(content, keys)}. Remove it, or choose another folder"
        )
    return shard


def _write_shard(path: Path, corpus: Corpus, content: dict[str, Any]) -> dict[str, Any]:
    """Write a shard to a fresh folder, rename that, and return the manifest's content."""
    temp_folder = path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")
    temp_folder.mkdir()
    try:
        content = _fill_folder(temp_folder, corpus, content)
        temp_folder.rename(path)
    except BaseException:
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise
    manifest.sync_folder(path.parent)
    return content


def _fill_folder(folder: Path, corpus: Corpus, content: dict[str, Any]) -> dict[str, Any]:
    """Write and fsync lanes and manifest; return the manifest's content."""
    node, nodes, lanes = content["node"], content["nodes"], content["lanes"]
    names = [lane_name(lane) for lane in range(node, lanes, nodes)]
    counts = Counter[str]()
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("xb")) for name in names}
        for number, text in corpus.texts(node, nodes):
            name = lane_name(number % lanes)
            files[name].write(tokenise(text).tobytes())
            counts[name] += 1
        for file in files.values():
            manifest.sync_file(file)
    described = {name: manifest.describe_file(folder / name) for name in names}
    entries = {name: {**file, "documents": counts[name]} for name, file in described.items()}
    tokens = sum(file["size"] for file in entries.values()) // int(content["dtype"][-1])
    content = {**content, "documents": counts.total(), "tokens": tokens, "files": entries}
    manifest.write(folder, **content)
    return content


def _read_manifest(folder: Path) -> dict[str, Any]:
    remedy = "remove the folder and make it again"
    try:
        content = json.loads((folder / manifest.NAME).read_text(encoding="ascii"))
        stored_sha256 = content.pop("seal")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({error!r}); {remedy}"
        raise DataError(f"{folder}: {manifest.NAME} {problem}") from error
    if stored_sha256 != manifest.content_sha256(content):
        raise DataError(f"{folder}: {manifest.NAME} does not match its own sha256; {remedy}")
    if content["schema"] != SCHEMA:
        problem = f"schema {content['schema']}, but this trainer reads schema {SCHEMA}"
        raise DataError(f"{folder}: {manifest.NAME} has {problem}; {remedy}")
    if folder.name != f"shard-{content['node']}-of-{content['nodes']}":
        raise DataError(f"{folder} was renamed: it contains {content['rule']}; {remedy}")
    return content


def _format_entry(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['sha256'][:12]} of {value['documents']} documents"
    return str(value)


@click.command(short_help="Tokenise this node's share of a folder of documents.")
@click.option(
    "--documents",
    required=True,
    type=FOLDER,
    help="Folder with documents: text files, and *.jsonl.",
)
@click.option(
    "--out", required=True, type=FOLDER, help="Folder on this node into which its shard is written."
)
@click.option("--node", required=True, type=int, help="Number of this node, from 0.")
@click.option("--nodes", required=True, type=int, help="Number of nodes that train.")
@click.option(
    "--lanes",
    default=LANES,
    show_default=True,
    help="Number of parts of the data: a multiple of --nodes, and the same on every node.",
)
def shards(documents: Path, out: Path, node: int, nodes: int, lanes: int) -> None:
    """Tokenise this node's share of the documents, for `train --data`.

    Run it on every node.  For a folder that all nodes see, run it once, as node 0 of 1.
    """
    try:
        shard = make_shard(documents, out, node=node, nodes=nodes, lanes=lanes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (DataError, OSError) as error:
        raise click.ClickException(str(error)) from None
    content = shard.content
    click.echo(
        f"{shard.folder}: {content['documents']} of {content['corpus']['documents']} documents,"
        f" {content['tokens']} tokens in {len(shard.lanes)} lanes"
    )
