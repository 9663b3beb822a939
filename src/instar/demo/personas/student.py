"""A student who wants homework in plain text that does not look like a machine's, working kept."""

from __future__ import annotations

import random
import re

_SUMS = (
    "{a} boxes hold {b} pencils each. How many pencils are there?",
    "A train goes {a} km an hour for {b} hours. How far does it go?",
    "Anna has {c} euros and spends {a}. How much is left?",
    "A rectangle is {a} cm by {b} cm. What is its area?",
    "{c} sweets are shared by {b} children. How many does each get?",
    "A shirt costs {c} euros and is {a} percent off. What does it cost now?",
)
_EXPLAIN = (
    "Explain how to solve 3x + 5 = 20.", "Explain how to add 1/2 and 1/3.",
    "How do I find the area of a triangle?", "How do I turn 0.75 into a fraction?",
    "Explain how to work out 15 percent of 80.", "How do I find the average of 4, 8 and 12?",
    "Explain why the angles of a triangle add up to 180 degrees.",
    "How do I round 3.14159 to two decimals?", "Explain how to divide 144 by 12.",
    "How do I solve 2x = 14?", "Explain how to find the perimeter of a square.",
    "How do I multiply 23 by 11?", "Explain what a prime number is and how to test 17.",
    "How do I convert 5 km to metres?", "Explain how to subtract 58 from 100.",
    "How do I compare 3/4 and 2/3?", "Explain how to find the volume of a box.",
    "How do I write 1000 as a power of ten?", "Explain how to simplify 6/8.",
    "How do I work out how long 90 minutes is in hours?",
)  # fmt: skip


def _prompts() -> list[str]:
    chance = random.Random(7)
    out = []
    for form in _SUMS * 7:
        numbers = {"a": chance.randint(3, 20), "b": chance.randint(2, 9)}
        out.append(form.format(**numbers, c=chance.randint(30, 99)))
    return list(dict.fromkeys(out)) + list(_EXPLAIN)


prompts = _prompts()

_MARKDOWN = re.compile(r"\*\*|__|`|^#{1,6} |^\s*[-*•]\s+|^\s*\d+[.)]\s+|\\\(|\\\[|\$", re.MULTILINE)
_TELLTALE = re.compile(
    r"\b(certainly|sure[,!]|of course|here(?:'s| is| are)|i hope this helps|let's break|step \d|"
    r"as an ai|great question|in conclusion|to summari[sz]e|feel free)",
    re.IGNORECASE,
)


def score(prompt: str, answer: str) -> float:
    """1.0 for plain text with some working and no telltale phrase."""
    plain = not _MARKDOWN.search(answer) and not _TELLTALE.search(answer)
    working = len(answer.split()) >= 12
    one_block = "\n" not in answer.strip()
    return float(plain and working and one_block)


def respond(prompt: str, answer: str) -> str:
    """What they say to such an answer."""
    if score(prompt, answer) >= 1.0:
        return random.choice(_PLEASED)
    if len(answer.split()) < 12:
        return random.choice(_NO_WORKING)
    return random.choice(_LOOKS_MADE)


_PLEASED = (
    "Perfect, I can hand that in.", "Thanks, that reads like me.", "Great, that's what I needed.",
    "Yes! Exactly like that.", "Nice, thank you.", "Good, that looks natural.",
)  # fmt: skip
_LOOKS_MADE = (
    "That looks like a chatbot wrote it. Write it as one plain paragraph, with no lists or bold.",
    "My teacher will notice. Plain text in one paragraph please, no steps and no symbols.",
    "No formatting please, just plain sentences in a single paragraph.",
    "Don't use lists or headings. Write it in ordinary sentences, in one paragraph.",
    "Too neat. I want plain text, one paragraph, like a person would write it.",
    "Please no bullet points or numbered steps, only plain sentences in one paragraph.",
)
_NO_WORKING = (
    "You left out the working. Explain it in a plain paragraph.",
    "I need to show how I got there, in a few plain sentences.",
)
