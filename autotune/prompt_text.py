"""The text that prompts are made of: our own, written for this purpose.

Templates of code, requirements and review notes with slots.  `{noun}`, `{verb}`, ... are filled
from the lists below, `{n}` and `{m}` with numbers.  No template has blank lines, and each begins
with a letter: tokenizers that cut at line ends then count the whole as the sum of its pieces.
"""

from __future__ import annotations

__all__ = ["ASKS", "FILLERS", "FRAGMENTS", "SLOTS", "SYLLABLES", "TASKS"]

SYLLABLES = (
    *("ba", "bel", "cor", "dan", "dro", "el", "fal", "fen", "gar", "gil", "hav", "hol"),
    *("iv", "jan", "kel", "kor", "lam", "lin", "mar", "mel", "mor", "nas", "nel", "nim"),
    *("or", "pal", "pin", "quar", "ral", "ren", "rov", "sal", "sen", "tal", "tir", "tov"),
    *("ul", "val", "ven", "vos", "wel", "win", "yar", "zan", "zel", "zor"),
)

SLOTS = {
    "noun": (
        *("account", "alarm", "archive", "batch", "booking", "bridge", "cable", "carrier", "cart"),
        *("channel", "coupon", "device", "driver", "engine", "forecast", "freight", "gauge"),
        *("harbor", "invoice", "journal", "lease", "ledger", "lens", "locker", "meter", "order"),
        *("parcel", "patient", "permit", "pipeline", "pump", "quota", "recipe", "route", "sensor"),
        *("shift", "signal", "station", "stock", "survey", "ticket", "tower", "turbine", "voucher"),
    ),
    "verb": (
        *("apply", "balance", "cancel", "check", "close", "collect", "compare", "convert", "count"),
        *("drain", "export", "filter", "group", "import", "join", "load", "match", "merge", "move"),
        *("parse", "plan", "price", "rank", "release", "repair", "replay", "reserve", "resolve"),
        *("rotate", "schedule", "settle", "sort", "split", "store", "track", "trim", "validate"),
    ),
    "field": (
        *("amount", "azimuth", "capacity", "category", "checksum", "color", "created_at", "depth"),
        *("duration", "expires_at", "height", "interval", "label", "latitude", "level", "limit"),
        *("mass", "offset", "owner", "pressure", "priority", "quantity", "rate", "region", "score"),
        *("serial", "size", "speed", "state", "temperature", "threshold", "total", "weight"),
    ),
    "adjective": (
        *("active", "blocked", "cheap", "cold", "delayed", "distant", "dormant", "empty", "exact"),
        *("fragile", "hidden", "idle", "large", "late", "local", "nested", "open", "partial"),
        *("pending", "private", "recent", "remote", "shared", "stale", "urgent", "valid", "warm"),
    ),
    "error": ("KeyError", "ValueError", "LookupError", "TimeoutError", "RuntimeError", "OSError"),
    "store": (
        "a queue",
        "a heap",
        "a table",
        "a file",
        "a cache",
        "a ring buffer",
        "a log",
        "a set",
    ),
    "role": ("operator", "auditor", "planner", "technician", "clerk", "customer", "engineer"),
}

TASKS = (
    "Write a Python module that can {verb} every {adjective} {noun} by its {field}.",
    "Implement a class that will {verb} and {verb2} each {noun}, keyed by {field}.",
    "Design functions to {verb} a {noun} and {verb2} the {adjective} ones, with tests.",
    "Build a command line tool that will {verb} a {noun} file and report its {field}.",
)

ASKS = (
    "Give the complete code with type hints, then explain each function in order.",
    "Write out the whole program and its tests, without leaving anything out.",
    "Answer with the full source code first and a detailed walk through it after.",
)

FILLERS = (
    "Keep {field} exact.",
    "Log each {noun}.",
    "Name the {role} in every message.",
    "Never drop a {adjective} {noun}.",
    "The {noun} may be {adjective} at any time.",
    "Treat a missing {field} as {n} and say so in the log.",
    "When a {noun} is {adjective}, {verb} it again after {n} seconds.",
)

FRAGMENTS = (
    "def {verb}_{noun}({noun}s, {field}={n}):\n"
    "    chosen = [item for item in {noun}s if item.{field} > {field}]\n"
    "    chosen.sort(key=lambda item: (item.{field2}, item.{field}))\n"
    "    return chosen[:{m}]",
    "class {Noun}{Verb}:\n"
    '    """Keeps each {adjective} {noun} in {store} until the {role} asks for it."""\n'
    "    def __init__(self, {field}: int = {n}) -> None:\n"
    "        self.{field} = {field}\n"
    "        self.{noun}s: dict[str, float] = {{}}",
    "Requirement {n}: the {role} must be able to {verb} any {adjective} {noun} within {m} seconds."
    " If its {field} is above {n}, the system has to {verb2} it first and keep the old {field2}"
    " in {store} for later review.",
    "for index, {noun} in enumerate({adjective}_{noun}s):\n"
    "    if {noun}.{field} is None:\n"
    '        raise {error}(f"{noun} {{index}} has no {field}")\n'
    "    totals[{noun}.{field2}] += {noun}.{field} * {n} / {m}",
    "CREATE TABLE {noun}_{field} (\n"
    "    id INTEGER PRIMARY KEY,\n"
    "    {field} REAL NOT NULL CHECK ({field} <= {n}),\n"
    "    {field2} TEXT DEFAULT '{adjective}',\n"
    "    updated_at INTEGER\n"
    ");",
    "Review note: {verb}_{noun} reads {store} twice. The second read can see a {adjective} {noun}"
    " whose {field} was changed by another {role}, so the sum of {field2} is off by up to {n}."
    " Read once, then {verb2} the copy.",
    "func {Verb}{Noun}(ctx context.Context, {field} int) ({Noun}, error) {{\n"
    "\titem, ok := {noun}s[{field}%{m}]\n"
    "\tif !ok {{\n"
    '\t\treturn {Noun}{{}}, fmt.Errorf("no {adjective} {noun} at %d", {field})\n'
    "\t}}\n"
    "\treturn item.{Verb2}(ctx, {n})\n"
    "}}",
    "test('{verb} keeps the {field} of a {adjective} {noun}', () => {{\n"
    "  const before = make{Noun}({{ {field}: {n}, {field2}: {m} }});\n"
    "  const after = {verb}(before);\n"
    "  expect(after.{field}).toBe({n});\n"
    "}});",
    "A {noun} moves from {adjective} to {adjective2} when the {role} decides to {verb} it. From"
    " there it may only {verb2}, never go back. After {n} days without a change of {field} it is"
    " written to {store} and its {field2} is set to {m}.",
    "impl {Noun} {{\n"
    "    pub fn {verb}(&mut self, {field}: u64) -> Result<u64, {Noun}Error> {{\n"
    "        let next = self.{field2}.checked_add({field}).ok_or({Noun}Error::{Adjective})?;\n"
    "        self.{field2} = next.min({n});\n"
    "        Ok(self.{field2})\n"
    "    }}\n"
    "}}",
    "try:\n"
    "    {field} = {verb}({noun}, timeout={m})\n"
    "except {error} as error:\n"
    '    log.warning("cannot {verb} {noun} %s: %s", {noun}.id, error)\n'
    "    {field} = {noun}.{field2} or {n}",
    "Incident {n}: at minute {m} a {adjective} {noun} arrived with the {field} of another one. The"
    " job tried to {verb} it, met a {error}, and left {store} half written. What was missing is a"
    " check of {field2} before the first write.",
    "SELECT {noun}.{field}, COUNT(*) AS {adjective}_count\n"
    "FROM {noun}\n"
    "WHERE {noun}.{field2} BETWEEN {m} AND {n}\n"
    "GROUP BY {noun}.{field}\n"
    "HAVING COUNT(*) > {m};",
    "The interface is a single function, {verb}({noun}, {field}), which returns the {adjective}"
    " {noun} and its new {field2}. It must not block for more than {n} ms, must be safe to call"
    " from several threads, and must {verb2} everything it took when it fails.",
)
