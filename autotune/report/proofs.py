"""The proof of the shown trial, link by link.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.measurement import BucketMeasurement
from autotune.report.words import clock, count, listed, plain
from autotune.repository import Role, StoredTrial

__all__ = ["LinkShown", "ProofShown", "shown_proof"]

SHORT = 160
"""Characters of a text that a table shows; longer ones open on request."""

_WITNESSES = {
    "invocation": "supervisor: a start id that was never used before",
    "process": "kernel: the process began after the start was asked for",
    "argv": "kernel: the command line of the process",
    "environ": "kernel: the environment of the process",
    "listener": "kernel: who holds the port",
    "bound": "log of this start: it bound its port and was ready",
    "nonce": "log and answer carry the same mark",
    "generation": "a real answer of the server",
}
_PLACES = {
    "log": "log of this start",
    "server_args": "log of this start: its arguments",
    "server_info": "the server's own answer",
    "engine": "the engine's own words",
}


@dataclass(frozen=True, slots=True)
class LinkShown:
    """One link as it is printed; `wanted` and `seen` in full, their short forms beside them."""

    link: str
    witness: str
    wanted: str
    wanted_short: str
    seen: str
    seen_short: str
    ok: bool
    at: str
    raw: str


@dataclass(frozen=True, slots=True)
class ProofShown:
    """The proof of one start as the report shows it."""

    title: str
    words: str
    links: tuple[LinkShown, ...]


def shown_proof(trial: StoredTrial | None, proof: pd.DataFrame) -> ProofShown | None:
    """Links of the trial's last final start, or of its first start without any."""
    if trial is None:
        return None
    own = proof[proof["trial"] == trial.number]
    if not len(own):
        return None
    final = own[own["role"] == Role.FINAL]
    chosen = int(final["start"].max()) if len(final) else int(own["start"].min())
    links = own[own["start"] == chosen]
    starts = own["start"].nunique()
    broken = own[~own["ok"].astype(bool)]
    whole = (
        f"all {count(len(own), 'link')} of its {count(starts, 'start')} hold"
        if not len(broken)
        else f"{count(len(broken), 'link')} of {len(own)} did not hold: "
        + listed(dict.fromkeys(plain(link) for link in broken["link"]))
    )
    role = "last final start" if len(final) else "first start"
    return ProofShown(
        title=f"Trial {trial.number}, {'reference, ' if trial.reference else ''}{role}",
        words=f"Every start must prove that the running process is the one that was asked for, "
        f"before anything is measured. Of trial {trial.number}, {whole}. Below is its {role}.",
        links=tuple(
            LinkShown(
                link=plain(label),
                witness=_witness(str(one["link"])),
                wanted=plain(str(one["wanted"])),
                wanted_short=plain(str(one["wanted"]), most=SHORT),
                seen=plain(str(one["seen"])),
                seen_short=plain(str(one["seen"]), most=SHORT),
                ok=bool(one["ok"]),
                at=clock(one["at_s"]),
                raw=plain(str(one["raw"])),
            )
            for label, one in _labelled(links.to_dict("records"), trial.starts[chosen].buckets)
        ),
    )


def _labelled(
    links: Sequence[Mapping[Hashable, Any]], buckets: Sequence[BucketMeasurement]
) -> Iterator[tuple[str, Mapping[Hashable, Any]]]:
    """Each link with its name; a server is asked for one answer when it is ready and another after
    each bucket, and these say after which."""
    after = iter(buckets)
    asked = 0
    for link in links:
        name = str(link["link"])
        if name == "generation":
            bucket = next(after, None) if asked else None
            asked += 1
            name = f"{name} after bucket {bucket.key}" if bucket else name
        yield name, link


def _witness(link: str) -> str:
    return _WITNESSES.get(link) or _PLACES.get(link.rpartition(": ")[2], "")
