"""Sampled ids to text piece by piece, and the search for stop strings in it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from instar.text import StopScanner, TextDecoder, byte_tokenizer

BYTES = byte_tokenizer()
letters = st.text(alphabet="abc", max_size=12)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What a person would do: read letter by letter until a stop string stands there."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(letters, max_size=6), st.lists(letters, max_size=3))
@example(["ab", "ca"], ["abca", "bc"])
@example(["abca"], ["abca", "bc"])
def test_a_scan_in_pieces_finds_what_a_reader_finds(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = [scanner.push(piece) for piece in pieces]
    if scanner.hit is None:
        shown.append(scanner.flush())
    assert ("".join(shown), scanner.hit) == naive("".join(pieces), stops)


@given(letters, st.lists(letters, min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanner, shown = StopScanner(stops), ""
    for end in range(1, len(text) + 1):
        shown += scanner.push(text[end - 1])
        if scanner.hit is not None:
            return
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        held = max((len(b) for b in beginnings if text[:end].endswith(b)), default=0)
        assert shown == text[: end - held]


def test_nothing_is_held_without_stop_strings() -> None:
    scanner = StopScanner(["", ""])
    assert scanner.push("abc") == "abc"
    assert scanner.flush() == ""


@given(st.text(max_size=12), st.data())
def test_split_characters_wait_for_their_last_byte(text: str, data: st.DataObject) -> None:
    ids = BYTES.encode(text, add_special_tokens=False).ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    decoder, shown = TextDecoder(BYTES), ""
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        shown += decoder.push(ids[begin:end])
        assert text.startswith(shown), "no half of a character is ever shown"
    assert shown + decoder.flush() == text


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=10), st.booleans())
def test_bytes_that_are_no_text_are_shown_as_such(ids: list[int], one_by_one: bool) -> None:
    decoder = TextDecoder(BYTES)
    parts = [[i] for i in ids] if one_by_one else [ids]
    shown = "".join(decoder.push(part) for part in parts) + decoder.flush()
    assert shown == BYTES.decode(ids, skip_special_tokens=False)


def test_an_incomplete_character_at_the_end_is_marked() -> None:
    ids = BYTES.encode("a☃", add_special_tokens=False).ids[:-1]
    decoder = TextDecoder(BYTES)
    assert (decoder.push(ids), decoder.flush(), decoder.flush()) == ("a", "\ufffd", "")
