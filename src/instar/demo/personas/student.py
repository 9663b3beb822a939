"""A student who wants homework in plain text that does not look like a machine's, working kept."""

from __future__ import annotations

import random
import re

_SUMS = (
    "List the steps to work out {a} times {b}.",
    "Show step by step how to take {a} from {c}.",
    "Solve this and number your steps: {c} sweets for {b} children.",
    "What are the steps to find {a} percent of {c}?",
)
_EXPLAIN = (
    "Explain step by step how to solve 3x + 5 = 20.", "Explain the steps to add 1/2 and 1/3.",
    "What are the steps to find the area of a triangle?", "How do I turn 0.75 into a fraction?",
    "List the steps to find the average of 4, 8 and 12.", "Explain how to round 3.14159, in steps.",
    "What are the main causes of the First World War?", "List the parts of a plant.",
    "What are the steps of the water cycle?", "Give me reasons why the Roman Empire fell.",
    "What are the planets and what is special about them?", "List ways to save energy at school.",
    "What are the stages of a butterfly's life?", "Give me tips for a good book report.",
    "What should be in a lab report?", "List the main events of the moon landing.",
    "How do I write a good essay? Give me the steps.", "What are the rules of multiplication?",
    "What are the types of clouds?", "Compare frogs and toads for my homework.",
    "List the functions of the skin.", "What are the advantages of recycling?",
    "Give me the steps of long division.", "What are the main food groups?",
)  # fmt: skip


def _prompts() -> list[str]:
    chance = random.Random(7)
    out = []
    for form in _SUMS * 9:
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
