"""How values and calls travel between the examiner and the candidate of one answer.

The two are processes that share nothing but two pipes (`harness`). Imports next to nothing: it runs
inside the sandbox, where every import is paid for with each answer.

What a value becomes on its way: plain built-in values (also nested) arrive as copies; arguments
that the answer changed in place are changed on the examiner's side as well; everything else
arrives as a `Proxy` whose operations are requests. A proxy equals only another proxy, by the
candidate's ``__eq__``, and never a plain value: an object that claims to be equal to everything
gains nothing. What the candidate sends has a format of our own, because `pickle` and `marshal`
must not be fed by strangers; the other way `marshal` serves for plain values, being fast.
"""

from __future__ import annotations

import builtins
import marshal
import sys
from array import array

from autotune.coding.channel import CandidateGone, Channel

TYPE_CHECKING = False  # the constant of `typing`, without the cost of its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["RECURSION_LIMIT", "Peer", "Proxy", "WireError"]

# Frames; comparing lists nested as deep takes less than 4 MB of the C stack's usual 8.
RECURSION_LIMIT = 6000

_TYPES = (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, object)
_PLAIN_SUBCLASSES = ("Counter", "OrderedDict", "defaultdict")  # of `collections`
_SPECIAL = (  # noqa: SIM905 - forty names read better as words
    "call len getitem setitem delitem contains iter next enter exit add radd sub rsub mul rmul "
    "truediv rtruediv floordiv mod divmod pow neg pos abs and or xor invert lt le gt ge repr str "
    "bool hash int float index reversed round"
).split()
_DETAIL_CHARACTERS = 300


class WireError(ValueError):
    """A message that the other side should not have sent."""


class _Deep:
    """Lets values be nested as deep as the examiner allows, not only as deep as answers recurse.

    Only on the candidate's end, which is a process of its own: the limit belongs to the process.
    """

    __slots__ = ("_active", "_before")

    def __init__(self, active: bool) -> None:
        self._active = active
        self._before = sys.getrecursionlimit()

    def __enter__(self) -> None:
        if self._active:
            sys.setrecursionlimit(max(self._before, RECURSION_LIMIT))

    def __exit__(self, *_: object) -> None:
        if self._active:
            sys.setrecursionlimit(self._before)


class Proxy:
    """An object that lives on the other side; every operation is a request."""

    __slots__ = ("_autotune_id", "_autotune_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_autotune_peer", peer)
        object.__setattr__(self, "_autotune_id", number)

    def __getattr__(self, name: str) -> Any:
        return self._autotune_peer.request("getattr", self._autotune_id, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._autotune_peer.request("setattr", self._autotune_id, name, value)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Proxy):
            return NotImplemented
        return self._autotune_peer.request("special", self._autotune_id, "__eq__", [other], {})


def _operation(name: str) -> Callable[..., Any]:
    def operation(self: Proxy, *args: object, **kwargs: object) -> Any:
        peer = self._autotune_peer
        return peer.request("special", self._autotune_id, name, list(args), kwargs)

    return operation


for _name in _SPECIAL:
    setattr(Proxy, f"__{_name}__", _operation(f"__{_name}__"))


class Peer(Channel):
    """One end of the conversation; see `Channel`.

    Args:
        examiner: True for the end that trusts nothing it receives.
        load: What runs an answer's text and names the callables it defines; the candidate's end.
    """

    def __init__(
        self,
        receive: int,
        send: int,
        *,
        examiner: bool,
        deadline_s: float,
        message_bytes: int,
        load: Callable[[str], dict[str, object]] | None = None,
    ) -> None:
        super().__init__(receive, send, deadline_s=deadline_s, message_bytes=message_bytes)
        self.examiner = examiner
        self.load = load
        self.objects: dict[int, object] = {}
        self.raised: BaseException | None = None

    # ---- values to bytes ----

    def encode(self, value: object) -> bytes:
        """Raises: WireError for what cannot travel; RecursionError for cyclic values."""
        with _Deep(self.load is not None):
            return self._encode(value)

    def _encode(self, value: object) -> bytes:
        kind = type(value)
        if value is None:
            return b"N"
        if value is NotImplemented:
            return b"X"
        if kind is bool:
            return b"T" if value else b"F"
        if isinstance(value, int) and kind is int:
            return b"i%x;" % value
        if isinstance(value, float) and kind is float:
            return b"f%s;" % value.hex().encode()
        if isinstance(value, complex) and kind is complex:
            return b"c" + self._encode(value.real) + self._encode(value.imag)
        if isinstance(value, str) and kind is str:
            return _sized(b"s", value.encode("utf-8", "surrogatepass"))
        if isinstance(value, bytes | bytearray) and kind in (bytes, bytearray):
            return _sized(b"b", bytes(value))
        if kind in (list, tuple) and (numbers := _numbers(value)):
            return _sized(b"I" if kind is list else b"J", numbers)
        for tag, sequence in ((b"l", list), (b"t", tuple), (b"S", set), (b"Z", frozenset)):
            named = sequence is tuple and isinstance(value, tuple) and hasattr(kind, "_fields")
            if kind is sequence or named:
                items = [self._encode(item) for item in value]  # type: ignore[attr-defined]
                return tag + b"%d:" % len(items) + b"".join(items)
        plain = kind.__module__ == "collections" and kind.__name__ in _PLAIN_SUBCLASSES
        if isinstance(value, dict) and (kind is dict or plain):
            pairs = [self._encode(key) + self._encode(item) for key, item in value.items()]
            return b"d%d:" % len(pairs) + b"".join(pairs)
        if kind is type and value in _TYPES:
            return _sized(b"B", value.__name__.encode())
        if kind is Proxy:
            return b"r%d:" % value._autotune_id  # type: ignore[attr-defined]
        if self.examiner and not callable(value):
            raise WireError(f"a check passes a {kind.__name__}; only plain values travel")
        self.objects[id(value)] = value
        return b"o%d:" % id(value)

    def decode(self, body: bytes) -> Any:
        """Raises: WireError for anything malformed."""
        try:
            with _Deep(self.load is not None):
                value, end = self._decode(body, 0)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise WireError(f"malformed message: {error}") from error
        if end != len(body):
            raise WireError("a message with something behind its end")
        return value

    def _decode(self, body: bytes, at: int) -> tuple[Any, int]:
        tag = body[at : at + 1]
        at += 1
        if tag in b"NTFX" and tag:
            return {b"N": None, b"T": True, b"F": False, b"X": NotImplemented}[tag], at
        if tag == b"c":
            real, at = self._decode(body, at)
            imaginary, at = self._decode(body, at)
            return complex(real, imaginary), at
        end = body.index(b";" if tag in b"if" else b":", at)
        text = body[at:end]
        at = end + 1
        if tag == b"i":
            return int(text, 16), at
        if tag == b"f":
            return float.fromhex(text.decode()), at
        count = int(text)
        if tag in b"sbBIJ":
            if count < 0 or at + count > len(body):
                raise WireError("a length that points outside its message")
            raw = body[at : at + count]
            if tag == b"s":
                return raw.decode("utf-8", "surrogatepass"), at + count
            if tag in b"IJ":
                numbers = array("q", raw)
                return numbers.tolist() if tag == b"I" else tuple(numbers), at + count
            if tag == b"B":
                return {kind.__name__: kind for kind in _TYPES}[raw.decode()], at + count
            return raw, at + count
        if tag == b"o":
            return Proxy(self, count), at
        if tag == b"r":
            return self.objects[count], at
        values = []
        for _ in range(2 * count if tag == b"d" else count):
            value, at = self._decode(body, at)
            values.append(value)
        if tag == b"d":
            return dict(zip(values[::2], values[1::2], strict=True)), at
        return {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset}[tag](values), at

    # ---- messages ----

    def write(self, message: list[object]) -> None:
        fast = _marshalled(message) if self.examiner else b""
        self.put(b"M" + fast if fast else self.encode(message))

    def read(self) -> list[Any]:
        body = self.get()
        if body[:1] == b"M" and not self.examiner:
            trusted: list[Any] = marshal.loads(body[1:])
            return trusted
        message = self.decode(body)
        if not isinstance(message, list) or len(message) < 3 or message[0] not in ("q", "v", "e"):
            raise WireError("not a message")
        return message

    def request(self, operation: str, *payload: object) -> Any:
        """The other side's answer to one request; its requests meanwhile are served.

        Raises: the nearest built-in class of what was raised there; CandidateGone.
        """
        self.write(["q", operation, list(payload)])
        while True:
            kind, first, second = self.read()[:3]
            if kind == "q":
                self.serve(first, second)
            elif kind == "v":
                _change_in_place(payload, second)
                return first
            else:
                raise self._exception(first, str(second), operation, payload)

    def _exception(
        self, names: Any, message: str, operation: str, payload: tuple[object, ...]
    ) -> Exception:
        is_next = operation == "special" and payload[1] == "__next__"
        chosen: Exception = RuntimeError(f"{names[0] if names else 'exception'}: {message}")
        for name in names:
            kind = getattr(builtins, name, None)
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                continue
            # A StopIteration out of an ordinary call would end `all(map(f, ...))` early.
            if issubclass(kind, StopIteration | StopAsyncIteration) and not is_next:
                break
            try:
                chosen = kind(message)
            except TypeError:  # UnicodeError and its like want more arguments
                continue
            break
        self.raised = chosen
        return chosen

    def serve(self, operation: str, payload: list[Any]) -> None:
        """Does what the other side asks and sends the answer."""
        try:
            reply = self._perform(operation, payload)
            self.encode(reply)
        except CandidateGone:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other side is told
            names = [kind.__name__ for kind in type(error).__mro__]
            text = f"{error}"[:_DETAIL_CHARACTERS]
            reply = ["e", names, text]
        self.write(reply)

    def _perform(self, operation: str, payload: list[Any]) -> list[object]:
        if operation == "load" and self.load is not None:
            return ["v", self.load(payload[0]), None]
        number, name, *rest = payload
        target: Any = self.objects[number]
        if self.examiner and (operation, name) != ("special", "__call__"):
            raise WireError("an answer may only call what it was given")
        if operation == "getattr":
            return ["v", getattr(target, name), None]
        if operation == "setattr":
            setattr(target, name, rest[0])
            return ["v", None, None]
        args, kwargs = rest
        before = {
            index: _marshalled(argument) or self.encode(argument)
            for index, argument in enumerate(args)
            if isinstance(argument, list | dict | set | bytearray)
        }
        if name == "__call__":
            value = target(*args, **kwargs)
        elif name in ("__repr__", "__str__", "__bool__", "__iter__"):
            functions: dict[str, Callable[[Any], Any]] = {
                "__repr__": repr,
                "__str__": str,
                "__bool__": bool,
                "__iter__": iter,
            }
            value = functions[name](target)
        else:
            method = getattr(type(target), name, None)
            if method is not None:
                value = method(target, *args, **kwargs)
            else:
                value = args[0] in iter(target) if name == "__contains__" else NotImplemented
        changed = {
            index: args[index]
            for index, encoded in before.items()
            if (_marshalled(args[index]) or self.encode(args[index])) != encoded
        }
        return ["v", value, changed]


def _marshalled(value: Any) -> bytes:
    """Plain built-in values in the format of `marshal`, each object for itself; empty for others.

    Version 2 knows no references, so equal values give equal bytes.
    """
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return b""


def _numbers(value: Any) -> bytes:
    """A list or tuple of whole numbers below 2**63 as 8 bytes each; empty for any other.

    Long ones are common in checks of speed: this way there is no step for each number.
    """
    if {*map(type, value)} != {int}:
        return b""
    try:
        return array("q", value).tobytes()
    except OverflowError:
        return b""


def _sized(tag: bytes, raw: bytes) -> bytes:
    return tag + b"%d:" % len(raw) + raw


def _change_in_place(payload: tuple[object, ...], changed: Any) -> None:
    """Lays the other side's changes of mutable arguments over our own objects."""
    if not isinstance(changed, dict) or len(payload) < 3 or not isinstance(payload[2], list):
        return
    for index, new in changed.items():
        old = payload[2][index] if isinstance(index, int) and index < len(payload[2]) else None
        if isinstance(old, list) and isinstance(new, list):
            old[:] = new
        elif isinstance(old, dict | set) and type(new) is type(old):
            old.clear()
            old.update(new)
