"""Redaction: what is found, what is left alone, and which tokens it is made of."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from instar.record.redact import (
    KINDS,
    luhn,
    mod97,
    redact_text,
    redacted_spans,
    redacted_tokens,
    token_ranges,
)
from instar.text import byte_tokenizer

PRIVATE = [
    ("api_key", "sk-abcdefghijklmnop1234567890ABCDEF"),
    ("api_key", "sk-proj-Ab12_cd34-ef56gh78ij90kl12mn34"),
    ("api_key", "sk-ant-api03-aaaaBBBBccccDDDDeeeeFFFF"),
    ("api_key", "ghp_0123456789abcdefghijABCDEFGHIJ012345"),
    ("api_key", "github_pat_11ABCDEFG0aaaaaaaaaaaa_bbbbbbbb"),
    ("api_key", "AKIAIOSFODNN7EXAMPLE"),
    ("api_key", "xoxb-123456789012-abcdefABCDEF"),
    ("api_key", "AIzaSyA-1234567890abcdefghijklmnopqrstu"),
    ("api_key", "instar-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA"),
    ("api_key", "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"),
    ("api_key", "sk_live_51H8abcdefghijkl"),
    (
        "jwt",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    ),
    ("private_key", "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----"),
    ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz"),
    ("email", "ann.lee+news@mail.example.co.uk"),
    ("email", "x@example.org"),
    ("phone", "+49 30 901820"),
    ("phone", "+49 (0)30 1234567"),
    ("phone", "+1 (555) 123-4567"),
    ("phone", "+442079460958"),
    ("phone", "(555) 123-4567"),
    ("phone", "555-123-4567"),
    ("phone", "030 12345678"),
    ("phone", "0171 2345678"),
    ("phone", "06 12 34 56 78"),
    ("phone", "0049 30 901820"),
    ("card", "4111 1111 1111 1111"),
    ("card", "5500-0000-0000-0004"),
    ("card", "378282246310005"),
    ("card", "6011000990139424"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432"),
    ("iban", "fr1420041010050500013m02606"),
    ("iban", "NO93 8601 1117 947"),
]


@pytest.mark.parametrize(("kind", "secret"), PRIVATE)
@pytest.mark.parametrize(
    "frame", ["{}", "It is {}, keep it.", 'key="{}"', "Hi ({})\nBye", "{} and {}"]
)
def test_it_is_found_wherever_it_stands(kind: str, secret: str, frame: str) -> None:
    if kind == "private_key" and "END" not in secret and frame != "{}":
        frame = "Here: {}"
    text = frame.replace("{}", secret)
    found = redacted_spans(text)
    assert [(text[a:b], k) for a, b, k in found] == [(secret, kind)] * text.count(secret)


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",
        "1234567890123456",
        "0000 0000 0000 0000",
        "GB82WEST12345698765433",
        "It happened on 2024-05-17 at 12:30:45.",
        "On 17.05.2024 or 05/17/2024, 1 000 000 people came.",
        "Version 1.2.3.4 costs $1,234,567.89 in 192.168.100.200",
        "pi is 3.14159265358979323846",
        "UUID 123e4567-e89b-12d3-a456-426614174000",
        "the years 1990 to 2024, pages 100-200",
        "x = 12345678; y = 1700000000",
        "sk-learn and risk-taking and sk-1",
        "user@localhost, @ann, ann@, a@b",
        "The AKIA prefix, ghp_ and xoxb- are prefixes",
        "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----",
        "eyJ is how a token begins",
        "ISBN 978-3-16-148410-0",
        "0.123456789012",
        "#0123456789abcdef",
        "12 34 56 78",
    ],
)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert redacted_spans(text) == []


def with_check_digit(digits: str) -> str:
    return next(digits + last for last in "0123456789" if luhn(digits + last))


@runs(deadline=None)
@given(st.from_regex(r"\A[2-6][0-9]{12,17}\Z"))
def test_every_valid_card_and_no_other_is_found(digits: str) -> None:
    good = with_check_digit(digits)
    bad = good[:-1] + str((int(good[-1]) + 1) % 10)
    assert luhn(good) and not luhn(bad)
    if len(set(good)) > 1:
        assert redacted_spans(f"card {good}.", ["card"]) == [(5, 5 + len(good), "card")]
    assert redacted_spans(f"card {bad}.", ["card"]) == []


@runs(deadline=None)
@given(st.from_regex(r"\A[A-Z]{2}\Z"), st.from_regex(r"\A[A-Z0-9]{11,30}\Z"), st.booleans())
def test_every_valid_iban_and_no_other_is_found(country: str, rest: str, spaced: bool) -> None:
    digits = "".join(str(int(char, 36)) for char in f"{rest}{country}00")
    check = 98 - int(digits) % 97
    good = f"{country}{check:02d}{rest}"
    bad = f"{country}{check % 97 + 1:02d}{rest}"
    assert mod97(good)
    shown = re.sub(r"(.{4})(?=.)", r"\1 ", good) if spaced else good
    text = f"to: {shown}, thanks"
    assert redacted_spans(text, ["iban"]) == [(4, 4 + len(shown), "iban")]
    if not mod97(bad):
        assert redacted_spans(f"to: {bad}, thanks", ["iban"]) == []


def test_two_ibans_in_a_row_are_two() -> None:
    first, second = "NO93 8601 1117 947", "DE89 3704 0044 0532 0130 00"
    assert redact_text(f"{first} {second} ok") == ("[iban] [iban] ok", {"iban": 2})
    assert redacted_spans("DE88 3704 0044 0532 0130 00", ["iban"]) == []


def test_kinds_and_patterns_of_ones_own() -> None:
    text = "Ticket ACME-1234 of x@example.org"
    assert redacted_spans(text, []) == []
    own = {"ticket": r"ACME-\d+"}
    assert [one.kind for one in redacted_spans(text, patterns=own)] == ["ticket", "email"]
    assert redact_text(text, ["phone"], patterns=own) == (
        "Ticket [ticket] of x@example.org",
        {"ticket": 1},
    )
    assert redact_text("a@x.org, b@x.org, 555-123-4567") == (
        "[email], [email], [phone]",
        {"email": 2, "phone": 1},
    )


@runs(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_error_and_spans_are_in_order(text: str) -> None:
    spans = redacted_spans(text)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    assert all(0 <= one.start < one.end <= len(text) for one in spans)
    cleaned, counts = redact_text(text)
    assert sum(counts.values()) == len(spans)
    assert spans or cleaned == text


def test_long_hostile_text_is_read_quickly() -> None:
    for text in ("1 " * 30_000, "a@" * 30_000, "-----BEGIN PRIVATE KEY" * 3_000, "aa11" * 20_000):
        redacted_spans(text)


def merged_tokenizer() -> Tokenizer:
    """A byte-level BPE whose tokens span several characters and split others."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["write to ann@example.org or call me, über 日本"] * 5, trainer)
    return tokenizer


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), merged_tokenizer()], ids=["byte", "bpe"])
@pytest.mark.parametrize("before", ["", "über 日本 🎉 "])
def test_exactly_the_tokens_of_a_secret_are_masked(tokenizer: Tokenizer, before: str) -> None:
    secret = "ann@example.org"
    text = f"{before}write to {secret} now"
    ids = tokenizer.encode(text).ids
    found = redacted_tokens(ids, tokenizer)
    assert found.counts == {"email": 1}
    spelled = tokenizer.decode([ids[at] for at in found.tokens])
    assert secret in spelled and len(spelled) <= len(secret) + 1
    rest = tokenizer.decode([one for at, one in enumerate(ids) if at not in found.tokens])
    assert "@" not in rest and "now" in rest
    assert redacted_tokens(ids, tokenizer, ["phone"]).tokens == ()


@runs(deadline=None)
@given(st.text(max_size=60))
def test_ranges_cover_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text).ids
    decoded, ranges = token_ranges(ids, tokenizer)
    assert decoded == tokenizer.decode(ids, skip_special_tokens=False)
    assert len(ranges) == len(ids)
    covered = {at for start, end in ranges for at in range(start, end)}
    assert covered == set(range(len(decoded)))


def test_a_reply_cut_within_a_character_has_a_range_for_each_token() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("x@example.org 🎉").ids[:-2]
    decoded, ranges = token_ranges(ids, tokenizer)
    assert len(ranges) == len(ids) and ranges[-1][1] == len(decoded)
    assert len(redacted_tokens(ids, tokenizer).tokens) == len("x@example.org")
    assert set(KINDS) == {"api_key", "private_key", "jwt", "email", "phone", "card", "iban"}
