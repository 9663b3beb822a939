"""Phone numbers in text: by a country code, a plausible area code, or a word before them.

Ten digits alone are any number. So a number without a country code must be written as phone
numbers are, and begin as they do; after a word such as `phone` or `call me at` it may be plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_COUNTRY = (
    r"(?:1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|2[1-6]\d|29\d|35\d|37\d|38\d"
    r"|42\d|50\d|59\d|67\d|68\d|69\d|8[05678]\d|96\d|97\d|99\d)"
)
_BEFORE = r"(?<![A-Za-z0-9_.,/+-])"
_AFTER = r"(?![A-Za-z0-9_]|[.,/:-]\d)"
_SHAPED = re.compile(
    rf"{_BEFORE}(?:"
    # +49 (0)30 123456, 0049 30 123456
    r"\+(?P<plus>\d{1,3}(?:[ ./-]?(?:\(0?\d{1,4}\)|\d{1,5})){2,6})"
    r"|00(?P<zeros>[1-9]\d{0,2}(?:[ ./-]?\d{2,5}){2,5})"
    # 555-123-4567, 1 (555) 123-4567; (495) 123-45-67; (11) 91234-5678
    r"|\(\d{3}\) ?\d{3}-\d\d-\d\d|\([1-9]\d\) ?(?:9\d{4}|[3-5]\d{3})-\d{4}"
    r"|(?:(?:1[ .-])?(?:\([2-9](?!11)\d\d\)[ .-]?|[2-9](?!11)\d\d[ .-])\d{3}[ .-]\d{4})"
    # 030 1234567, (030) 1234 5678, 01712345678; not the last part of 1 020 300 400
    r"|(?<!\d )(?P<home>(?:\(0[1-9]\d{0,3}\)[ ./-]?|0[1-9]\d{0,3}[ /-])"
    r"\d{2,8}(?:[ .-]\d{2,8}){0,4}|0[1-9]\d{8,9})"
    rf"){_AFTER}"
)
_ASKED = re.compile(
    # Chinese and Japanese have no blank after the word.
    r"(?:(?<![a-z])(?:(?:tele|cell)?phones?(?:number)?|tel|mobile|cell|fax|whatsapp|(?:re)?call"
    r"|called|dial|hotline|telefon(?:nummer|o)?|handy(?:nummer)?|mobil(?:nummer|telefon)?|rufnummer"
    r"|t[ée]l[ée]phone|portable|tel[ée]fono|m[óo]vil|celular|cellulare"
    r"|(?:my|your|her|his)[ \t]number"
    r"|(?:text|ring|reach|contact)[ \t]+(?:me|us|him|her|them))(?![a-z])"
    r"|電話|电话|手机|携帯)"
    r"(?:[ \t:=.\"'#(_-]{1,3}(?:(?:number|no|nr|nummer|me|us|him|her|them|back|now|is|was|ist|at"
    r"|on|under|unter|up)(?![a-z]))?){0,6}"
    rf"(?<![A-Za-z0-9_,/+-])(?P<number>\+?\(?\d[\d ()./-]{{5,18}}\d){_AFTER}"
    r"(?!%|[ \t]*(?:times|users|items|tokens|bytes|years|days|hours|minutes|seconds)\b)",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"(?:\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d\d|(?:19|20)\d\d[./-]\d{1,2}[./-]\d{1,2})(?!\d)"
)
_ROW = "01234567890123456789"


def find_phones(text: str) -> Iterator[tuple[int, int]]:
    """Where phone numbers stand."""
    at = 0
    while one := _SHAPED.search(text, at):
        how, at = one.lastgroup or 0, one.end()
        # Other numbers may follow, which the pattern cannot tell from the last groups.
        for end in reversed([group.end() for group in re.finditer(r"\d+", one[how])]):
            if _FITS[how](one[how][:end]):
                at = one.start(how) + end
                yield one.start(), at
                break
    for one in _ASKED.finditer(text):
        if _plain(one["number"]):
            yield one.span("number")


def _plain(number: str) -> bool:
    """Any number that is long enough, or a local one such as 555-2671."""
    long = 9 <= len(_digits(number)) <= 15 or re.fullmatch(r"\d{3}[ .-]\d{4}", number)
    return bool(long) and not _DATE.match(number) and number.count("(") == number.count(")")


def _international(number: str) -> bool:
    """A country code that there is, and behind it as many digits as its plan asks for."""
    found = re.match(_COUNTRY, digits := _digits(number))
    if not found or not 8 <= len(digits) <= 15:
        return False
    if found.group() == "1":
        return len(digits) == 11 and digits[1] in "23456789"
    return found.group() != "7" or len(digits) == 11


def _dialled(number: str) -> bool:
    """After 00, where lists of numbers such as 001 002 003 begin as well."""
    found = re.match(_COUNTRY, digits := _digits(number))
    national = digits[found.end() :] if found else ""
    # Italy's numbers keep their 0.
    return _international(number) and (national[:1] != "0" or digits.startswith("39"))


def _at_home(number: str) -> bool:
    """With the 0 before an area code. Not 0123456789, nor numbers that are filled with zeros."""
    digits, groups = _digits(number), re.findall(r"\d+", number)
    filled = len(groups) > 1 and all(one[0] == "0" and len(one) > 2 for one in groups)
    row = len(groups) == 1 and digits in _ROW
    return 9 <= len(digits) <= 15 and not (row or filled or _DATE.match(number))


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)


_FITS = {
    "plus": _international,
    "zeros": _dialled,
    0: lambda number: len(_digits(number)) >= 10,
    "home": _at_home,
}
