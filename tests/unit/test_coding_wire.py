"""The language between examiner and candidate: values there and back, and nothing but values."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.coding.channel import CandidateGone
from autotune.coding.harness import examine
from autotune.coding.wire import Peer, Proxy, WireError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)
Point = namedtuple("Point", "x y")


def _lone(*, examiner: bool) -> Peer:
    return Peer(-1, -1, examiner=examiner, deadline_s=0, message_bytes=0)


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_the_same_type(value: object) -> None:
    peer = _lone(examiner=True)
    back = peer.decode(peer.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_what_equality_does_not_show() -> None:
    peer = _lone(examiner=True)
    assert math.isnan(peer.decode(peer.encode(math.nan)))
    assert math.copysign(1, peer.decode(peer.encode(-0.0))) == -1
    assert peer.decode(peer.encode(True)) is True
    assert peer.decode(peer.encode("\udc80")) == "\udc80"
    assert peer.decode(peer.encode(1 << 100_000)) == 1 << 100_000
    assert peer.decode(peer.encode([int, dict])) == [int, dict]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (bytearray(b"x"), b"x"),
    ],
)
def test_common_containers_become_plain(value: object, plain: object) -> None:
    back = _lone(examiner=True).decode(_lone(examiner=False).encode(value))
    assert back == plain
    assert type(back) is type(plain)


def test_everything_else_becomes_a_proxy() -> None:
    class Sneaky(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    for value in (Sneaky(4), iter([]), object(), len, range(3)):
        back = _lone(examiner=True).decode(_lone(examiner=False).encode(value))
        assert type(back) is Proxy
        assert back != 4


@given(st.binary(max_size=60))
def test_no_message_does_more_than_be_refused(body: bytes) -> None:
    try:
        _lone(examiner=True).decode(body)
    except WireError:
        return


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"q",
        b"l9999999999:",
        b"s5:ab",
        b"s-1:",
        b"S1:l0:",
        b"N N",
        b"r7:",
        b"i",
        b"d1:N",
        b"B4:eval",
    ],
)
def test_malformed_messages_are_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        _lone(examiner=True).decode(body)


def test_checks_cannot_pass_what_cannot_travel() -> None:
    with pytest.raises(WireError, match="plain values"):
        _lone(examiner=True).encode(object())


@contextmanager
def _pair(code: str) -> Iterator[Peer]:
    """An examiner's end whose other end runs `code` in a thread."""

    def load(source: str) -> dict[str, object]:
        module: dict[str, object] = {}
        exec(source, module)
        return {key: value for key, value in module.items() if callable(value)}

    down, up = os.pipe(), os.pipe()
    far = Peer(
        down[0], up[1], examiner=False, deadline_s=math.inf, message_bytes=1 << 20, load=load
    )
    near = Peer(up[0], down[1], examiner=True, deadline_s=math.inf, message_bytes=1 << 20)

    def serve() -> None:
        while True:
            try:
                _, operation, payload = far.read()
            except CandidateGone:
                return
            far.serve(operation, payload)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield near
    finally:
        os.close(down[1])
        thread.join()
        for descriptor in (down[0], *up):
            os.close(descriptor)


def _examined(code: str, *checks: str) -> tuple[str, str]:
    with _pair(code) as near:
        return examine(near, code=code, entry_point="f", checks=list(checks))


@pytest.mark.parametrize(
    ("code", "checks", "status"),
    [
        ("def f(x): return x * 2", ["f(2) == 4", "f('a') == 'aa'"], "passed"),
        ("def f(x): return x * 2", ["f(2) == 5"], "wrong"),
        ("def f(x): return x * 2", ["assert f(2) == 5"], "wrong"),
        ("def f(x): raise AssertionError", ["assert f(2) == 5"], "error"),
        ("def g(x): return x", ["f(2) == 2"], "error"),
        ("def f(x: return", ["f(2) == 2"], "error"),
        ("def f(x): return {}[x]", ["raises(KeyError, f, 1)"], "passed"),
        ("def f(x): return {}[x]", ["raises(ValueError, f, 1)"], "wrong"),
        ("class E(ValueError): pass\ndef f(): raise E('no')", ["raises(ValueError, f)"], "passed"),
        (
            "def f(): raise UnicodeDecodeError('a', b'', 0, 1, 'x')",
            ["raises(ValueError, f)"],
            "passed",
        ),
        ("def f(x): raise StopIteration", ["all(map(lambda v: f(v) == 1, [1, 2]))"], "error"),
        ("def f(x): raise SystemExit", ["f(1) == 1"], "error"),
        (
            "def f(g, x): return g(g(x))",
            ["f(lambda v: v + 1, 1) == 3", "f(str, 1) == '1'"],
            "passed",
        ),
        ("def f(x): x.append(1); x.sort()", ["y = [3]; f(y); assert y == [1, 3]"], "passed"),
        ("def f(x): x['a'] = 1", ["y = {}; f(y); assert y == {'a': 1}"], "passed"),
        ("def f(x): return (i * i for i in range(x))", ["list(f(3)) == [0, 1, 4]"], "passed"),
        ("class A:\n def __eq__(s, o): return True\ndef f(x): return A()", ["f(1) == 3"], "wrong"),
        ("class A:\n def __bool__(s): return True\ndef f(x): return A()", ["f(1)"], "wrong"),
        (
            "class A(list):\n def __eq__(s, o): return True\ndef f(x): return A()",
            ["f(1) == [1]"],
            "wrong",
        ),
        (
            "def f(x): return 1\ndef all(x): return True\nraises = approx = all",
            ["all([f(1) == 2])"],
            "wrong",
        ),
        ("f = int", ["f('7') == 7"], "passed"),
        ("def f(): return g\ndef g(): return 5", ["f()() == 5", "g() == 5"], "passed"),
        ("def f(): return 0.1 + 0.2", ["approx(f(), 0.3)"], "passed"),
        ("def f(): return '0.3'", ["approx(f(), 0.3)"], "wrong"),
        ("def f():\n x = []\n x.append(x)\n return x", ["f() == 1"], "error"),
    ],
)
def test_examination(code: str, checks: list[str], status: str) -> None:
    assert _examined(code, *checks)[0] == status


def test_objects_of_the_answer_behave_like_objects() -> None:
    code = (
        "class f:\n"
        "    def __init__(self, *items): self.items = list(items)\n"
        "    def __len__(self): return len(self.items)\n"
        "    def __iter__(self): return iter(self.items)\n"
        "    def __getitem__(self, i): return self.items[i]\n"
        "    def __contains__(self, x): return x in self.items\n"
        "    def __add__(self, o): return f(*self.items, *o.items)\n"
        "    def __eq__(self, o): return isinstance(o, f) and self.items == o.items\n"
        "    def __repr__(self): return 'f' + str(self.items)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *a): self.items.clear()\n"
    )
    checks = [
        "len(f(1, 2)) == 2",
        "list(f(1, 2)) == [1, 2] and f(5, 6)[-1] == 6",
        "3 in f(3) and 4 not in f(3)",
        "f(1) + f(2) == f(1, 2)",
        "repr(f(1)) == 'f[1]' and not f()",
        "raises(IndexError, f().__getitem__, 3)",
        "x = f(1)\nwith x as y:\n    assert y == f(1)\nassert len(x) == 0",
        "x = f(); x.items = [9]; assert x.items == [9]",
        "raises(AttributeError, lambda: f().absent)",
        "not f(1) == [1]",
    ]
    assert _examined(code, *checks) == ("passed", "")


class KeepingPeer(Peer):
    """Keeps its messages instead of sending them."""

    sent: list[list[object]]

    def write(self, message: list[object]) -> None:
        self.sent.append(message)


def test_the_answer_may_call_only_what_it_was_given() -> None:
    peer = KeepingPeer(-1, -1, examiner=True, deadline_s=0, message_bytes=0)
    peer.sent = []
    peer.objects[1] = len
    peer.serve("getattr", [1, "__self__"])
    peer.serve("special", [1, "__repr__", [], {}])
    peer.serve("special", [2, "__call__", [[]], {}])
    peer.serve("load", ["import os"])
    peer.serve("special", [1, "__call__", [[5]], {}])
    assert [message[0] for message in peer.sent] == ["e", "e", "e", "e", "v"]
