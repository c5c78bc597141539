"""Answers as models write them, and the code that they mean."""

from __future__ import annotations

import pytest

from autotune.coding.extract import ExtractionRule, extract, without_thinking

GOOD = "def foo():\n    return 1\n"
RULE = ExtractionRule


@pytest.mark.parametrize(
    ("answer", "code", "rule"),
    [
        (f"Sure:\n```python\n{GOOD}```\nDone.", GOOD, RULE.NAMED_BLOCK),
        (f"```py\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        (f"```Python3\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        (f'```python title="a.py"\n{GOOD}```', GOOD, RULE.NAMED_BLOCK),
        (f"```python {{.numberLines}}\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        (f"```\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        (f"~~~python\n{GOOD}~~~", GOOD, RULE.NAMED_BLOCK),
        (f"````python\n{GOOD}````", GOOD, RULE.NAMED_BLOCK),
        (f"```python\r\n{GOOD}```".replace("\n", "\r\n"), GOOD, RULE.NAMED_BLOCK),
        ("```def foo(): return 1\n```", "def foo(): return 1\n", RULE.NAMED_BLOCK),
        ("```def foo(): return 1```", "def foo(): return 1\n", RULE.NAMED_BLOCK),
        ("```python def foo(): return 1```", "def foo(): return 1\n", RULE.NAMED_BLOCK),
        (f"```python\n{GOOD}", GOOD + "\n", RULE.UNCLOSED_BLOCK),
        (f"```python\n{GOOD}    x = (", f"{GOOD}    x = (\n", RULE.UNCLOSED_BLOCK),
        (
            "1. Like this:\n   ```python\n   def foo():\n       return 1\n   ```\n",
            GOOD,
            RULE.NAMED_BLOCK,
        ),
        (f"```python\nfoo = 0\n```\n```python\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        (f"```python\n{GOOD}```\nUse it:\n```python\nprint(foo())\n```", GOOD, RULE.NAMED_BLOCK),
        (f"```python\n{GOOD}```\nRun:\n```bash\npython a.py\n```", GOOD, RULE.NAMED_BLOCK),
        (f"```python\n{GOOD}```\nor change\n```\ndef foo():\n  ...(\n```", GOOD, RULE.NAMED_BLOCK),
        (f"```markdown\nText\n```python\n{GOOD}```\nEnd\n```\n", GOOD, RULE.NAMED_BLOCK),
        (f"````md\n```python\n{GOOD}```\n````", GOOD, RULE.NAMED_BLOCK),
        ("```python\nfoo = lambda: 1\n```", "foo = lambda: 1\n", RULE.NAMED_BLOCK),
        ("```python\nclass foo:\n    pass\n```", "class foo:\n    pass\n", RULE.NAMED_BLOCK),
        ("```python\ndef bar(): pass\n```", "def bar(): pass\n", RULE.LAST_BLOCK),
        (GOOD, GOOD, RULE.WHOLE_TEXT),
        (f"Here it is.\n\n{GOOD}\nThis returns one.", GOOD, RULE.PART_OF_TEXT),
        (f"import math\n\n{GOOD}", f"import math\n\n{GOOD}", RULE.WHOLE_TEXT),
        ("I cannot do that.", None, RULE.NO_CODE),
        ("", None, RULE.NO_CODE),
        ("```bash\nls\n```", None, RULE.NO_CODE),
        ("```python\n```", None, RULE.NO_CODE),
        (
            f"<think>\n```python\ndef foo(): return 2\n```\n</think>\n```python\n{GOOD}```",
            GOOD,
            RULE.NAMED_BLOCK,
        ),
        (f"so foo returns 2\n</think>\n```python\n{GOOD}```", GOOD, RULE.NAMED_BLOCK),
        ("<think>\n```python\ndef foo(): return 2\n```\nhmm", None, RULE.NO_CODE),
        (f"\u25c1think\u25b7 hm \u25c1/think\u25b7{GOOD}", GOOD, RULE.WHOLE_TEXT),
    ],
)
def test_answer(answer: str, code: str | None, rule: ExtractionRule) -> None:
    found = extract(answer, entry_point="foo")
    assert (found.code, found.rule) == (code, rule)


def test_fences_in_a_doc_string_do_not_end_the_block() -> None:
    code = 'def foo():\n    """Like this:\n\n```\nfoo()\n```\n    """\n    return 1\n'
    found = extract(f"```python\n{code}```\nbye\n", entry_point="foo")
    assert (found.code, found.rule) == (code, RULE.NAMED_BLOCK)


def test_thinking_inside_a_line_of_code_stays() -> None:
    code = 'def foo():\n    return "<think>"\n'
    assert without_thinking(code) == code


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "(" * 5000 + "\n```",
        "```python\ndef foo(): return " + "-" * 50000 + "1\n```",
        "```python\ndef foo(): return " + "+".join("1" * 30000) + "\n```",
        "```python\ndef foo(): return '\x00'\n```",
        "```\n" * 300,
        "def foo(:\n" * 500,
        "x" * 1_000_000,
    ],
)
def test_hostile_text_is_survived(text: str) -> None:
    assert extract(text, entry_point="foo").rule in RULE
