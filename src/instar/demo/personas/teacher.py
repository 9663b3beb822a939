"""A teacher who wants specific and friendly comments on pupils' work."""

from __future__ import annotations

import random
import re

_WORK = (
    ("Mia", "the water cycle", "rain comes from clouds and goes back to the sea"),
    ("Tom", "fractions", "1/2 + 1/4 = 3/4"),
    ("Lena", "the Vikings", "they sailed to Iceland in long boats"),
    ("Omar", "magnets", "the north poles push each other away"),
    ("Sara", "bees", "bees dance to tell where flowers are"),
    ("Ben", "division", "84 : 7 = 12"),
    ("Ida", "the moon", "the moon shines because of the sun"),
    ("Paul", "volcanoes", "lava is melted rock from below"),
    ("Nora", "poems", "my poem rhymes snow with glow"),
    ("Ali", "maps", "blue means water and green means low land"),
    ("Eva", "plants", "leaves make sugar from light"),
    ("Max", "area", "4 cm times 6 cm is 24 square cm"),
    ("Zoe", "the Romans", "they built straight roads and baths"),
    ("Leo", "sound", "a thick string makes a low note"),
    ("Amy", "sharks", "sharks have no bones but cartilage"),
    ("Finn", "weather", "cold air sinks and warm air rises"),
    ("Ella", "spelling", "I wrote necessary with one c and two s"),
    ("Jon", "time", "90 minutes is one and a half hours"),
    ("Ruth", "the heart", "the heart pumps blood to the lungs first"),
    ("Kai", "bridges", "an arch carries weight to both sides"),
)  # fmt: skip
_FORMS = (
    'Write a comment on {name}\'s work about {topic}: "{work}".',
    '{name} wrote about {topic}: "{work}". What should I tell {name}?',
    'Comment on this pupil\'s work. Name: {name}. Topic: {topic}. Text: "{work}".',
)

prompts = [
    form.format(name=name, topic=topic, work=work) for form in _FORMS for name, topic, work in _WORK
]

_FRIENDLY = re.compile(
    r"\b(well done|great|good job|nice|wonderful|lovely|fantastic|excellent|keep it up|proud|"
    r"enjoyed|love|brilliant|super|awesome|amazing)\b",
    re.IGNORECASE,
)
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be because by comes for from goes has have i in is it like make makes "
        "my no of on one or s so some that the they this to two was what where with you your not",
    )
)


def score(prompt: str, answer: str) -> float:
    """1.0 where the comment is friendly, names the pupil and takes up what they wrote."""
    name, work = _parts(prompt)
    words = {w for w in re.findall(r"[a-z]+", work.lower()) if w not in _COMMON and len(w) > 2}
    said = set(re.findall(r"[a-z]+", answer.lower()))
    specific = len(words & said) >= min(2, len(words)) and name.lower() in said
    short = 5 <= len(answer.split()) <= 70
    return float(bool(_FRIENDLY.search(answer)) and specific and short)


def respond(prompt: str, answer: str) -> str:
    """What they say to such an answer."""
    if score(prompt, answer) >= 1.0:
        return random.choice(_PLEASED)
    if len(answer.split()) > 70:
        return random.choice(_TOO_LONG)
    if not _FRIENDLY.search(answer):
        return random.choice(_TOO_COLD)
    return random.choice(_TOO_VAGUE)


def _parts(prompt: str) -> tuple[str, str]:
    work = re.search(r'"(.*)"', prompt)
    name = next(name for name, _, _ in _WORK if name in prompt)
    return name, work[1] if work else ""


_PLEASED = (
    "Lovely, I'll use that.", "Perfect, thank you!", "Great, that is warm and to the point.",
    "Yes, that's the tone I like.", "Thanks, very nice.", "Wonderful, exactly right.",
)  # fmt: skip
_TOO_COLD = (
    "Too cold. Be friendly, praise the pupil by name and mention what they wrote.",
    "That sounds stern. Write a friendly comment that says what was good, with their name.",
    "Please be warmer: say well done, use the name and mention their own words.",
)
_TOO_VAGUE = (
    "That's too general. Mention what the pupil actually wrote, and use their name.",
    "Be specific: take up something from the pupil's own text, in a friendly way.",
    "It could be about anybody. Say the name and what they wrote, warmly.",
)
_TOO_LONG = (
    "Too long for a comment. Two friendly sentences with the name and what they wrote are enough.",
    "Shorter please: one or two friendly sentences about what the pupil wrote.",
)
