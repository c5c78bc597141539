"""Secrets are masked, everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.sglang.masking import is_secret_name, mask_text, masked


@pytest.mark.parametrize(
    "name",
    ["api_key", "admin_api_key", "--api-key", "HF_TOKEN", "ssl_keyfile_password", "client_secret",
     "accessToken", "Authorization", "AWS_SECRET_ACCESS_KEY"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["tokenizer_path", "max_total_tokens", "skip_tokenizer_init", "ssl_keyfile", "mask_token",
     "speculative_token_map", "key", "speculative_num_draft_tokens"],
)  # fmt: skip
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("api_key='sk-1', port=1", "api_key='***', port=1"),
        ("'api_key': 'sk-1', 'port': 1", "'api_key': '***', 'port': 1"),
        ('"admin_api_key": "a\\"b", "x": "y"', '"admin_api_key": "***", "x": "y"'),
        ("api_key='cut off", "api_key='***"),
        ("api_key=None, admin_api_key=''", "api_key=None, admin_api_key=''"),
        ("serve --api-key sk-1 --port 1", "serve --api-key *** --port 1"),
        ("serve --api-key=sk-1 --port 1", "serve --api-key=*** --port 1"),
        ("['--api-key', 'sk-1', '--port']", "['--api-key', '***', '--port']"),
        ('args=\'{"api_key": "sk-1"}\', port=1', 'args=\'{"api_key": "***"}\', port=1'),
        ("api_key='a\\\\' + x", "api_key='***' + x"),
        ("HF_TOKEN=hf_abc python", "HF_TOKEN=*** python"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("mask_token=<|MASK|>, mask_token_id=500", "mask_token=<|MASK|>, mask_token_id=500"),
        ("#token: 104, token usage: 0.00", "#token: 104, token usage: 0.00"),
        ("--api-key --port 1", "--api-key --port 1"),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert mask_text(text) == expected


@given(st.text(alphabet="abc'\"\\ =,-", max_size=30), st.text(alphabet="xyz'\"", min_size=4))
def test_a_known_secret_is_gone(around: str, secret: str) -> None:
    assert secret not in mask_text(f"{around}{secret}{around}", [secret])


def test_mappings_are_masked_at_any_depth() -> None:
    answer = masked(
        {
            "api_key": "k",
            "admin_api_key": None,
            "tokenizer_path": "/m",
            "launch_command": ["serve", "--api-key", "k1", "--port", "1"],
            "shell": "serve --api-key k2",
            "states": [{"api_key": "k3", "port": 1}],
            "secrets": {"a": "k4", "b": ["k5"]},
        }
    )
    assert answer == {
        "api_key": "***",
        "admin_api_key": None,
        "tokenizer_path": "/m",
        "launch_command": ["serve", "--api-key", "***", "--port", "1"],
        "shell": "serve --api-key ***",
        "states": [{"api_key": "***", "port": 1}],
        "secrets": {"a": "***", "b": ["***"]},
    }


def test_secrets_in_doubly_quoted_text_are_gone() -> None:
    assert "sk-1" not in mask_text(r"x='{\"api_key\": \"sk-1\", \"port\": 1}'")


def test_long_lines_of_quotes_and_backslashes_end() -> None:
    text = "token='" + "\\" * 50_001 + "\n"
    assert mask_text(text).startswith("token='***")
