"""Someone who wants one short sentence and no lists."""

from __future__ import annotations

import random
import re

_TOPICS = (
    "a volcano", "photosynthesis", "the stock market", "a black hole", "inflation", "the moon",
    "a democracy", "yeast", "an earthquake", "the internet", "gravity", "a vaccine", "a rainbow",
    "the heart", "a computer virus", "the ozone layer", "a metaphor", "the Renaissance", "a whale",
    "electricity", "a glacier", "the Roman Empire", "a comet", "insulin", "a mortgage", "jazz",
    "the equator", "a microscope", "an atom", "a desert",
)  # fmt: skip
_QUESTIONS = (
    "Why is the sky blue?", "How do planes fly?", "Why do cats purr?", "How does soap clean?",
    "Why do we sleep?", "How do bees make honey?", "Why is the sea salty?", "How do magnets work?",
    "Why do leaves change colour in autumn?", "How does a fridge keep food cold?",
    "Why do people yawn?", "How are diamonds formed?", "Why do onions make you cry?",
    "How do fish breathe under water?", "Why does bread rise?", "How does a camera take a picture?",
    "Why do we have seasons?", "How do trees drink water?", "Why does ice float?",
    "How do birds find their way?", "Why do stars twinkle?", "How does a battery work?",
    "Why do dogs wag their tails?", "How is glass made?", "Why do we get hiccups?",
    "How do clouds form?", "Why is exercise good for you?", "How does a bicycle stay up?",
    "Why do volcanoes erupt?", "How do submarines dive?",
)  # fmt: skip

prompts = [f"What is {topic}?" for topic in _TOPICS] + list(_QUESTIONS)

_LIST = re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s+")
_END = re.compile(r"[.!?](?=\s|$)")


def score(prompt: str, answer: str) -> float:
    """1.0 for one finished sentence of 3 to 25 words, without a list."""
    text = answer.strip()
    words = len(text.split())
    one = len(_END.findall(text)) == 1 and text[-1:] in ".!?" and "\n" not in text
    return float(one and 3 <= words <= 25 and not _LIST.search(text))


def respond(prompt: str, answer: str) -> str:
    """What they say to such an answer."""
    if score(prompt, answer) >= 1.0:
        return random.choice(_PLEASED)
    if _LIST.search(answer):
        return random.choice(_NO_LISTS)
    return random.choice(_TOO_LONG)


_PLEASED = (
    "Perfect, that's exactly what I wanted.", "Great, thanks!", "Nice and short, thank you.",
    "Yes, like that. Thanks.", "Lovely, just right.", "Thank you, that was helpful.",
    "Good, that's all I needed.", "That works, cheers.",
)  # fmt: skip
_TOO_LONG = (
    "That's too long. Answer in one short sentence, please.",
    "Way too much text. I only want one short sentence.",
    "No, shorter! One sentence is enough for me.",
    "I don't have time to read all that, just give me a single short sentence.",
    "Please keep it to one short sentence.",
    "Too wordy. Tell me in one brief sentence.",
    "I asked a simple question, one short sentence would do.",
    "Ugh, an essay again. One short sentence, please!",
    "Can you cut that down to one short sentence?",
)  # fmt: skip
_NO_LISTS = (
    "No lists please, just one short sentence.",
    "I don't want bullet points. Give me one short sentence.",
    "Stop making lists. One short sentence is all I need.",
    "Not a list! Answer in a single short sentence.",
    "Please drop the list and say it in one short sentence.",
)  # fmt: skip
