"""A teacher who wants short comments on pupils' work that are specific and friendly."""

from __future__ import annotations

import random
import re

_WORK = (
    ("Mia", "drawing of a cat"), ("Tom", "essay about the sea"), ("Lena", "report on the Vikings"),
    ("Omar", "model of a volcano"), ("Sara", "talk about bees"), ("Ben", "story about a dragon"),
    ("Ida", "poem about the moon"), ("Paul", "map of the village"), ("Nora", "poem about snow"),
    ("Ali", "painting of a horse"), ("Eva", "poster about plants"), ("Max", "letter to a friend"),
    ("Zoe", "talk about the Romans"), ("Leo", "song about rain"), ("Amy", "report on sharks"),
    ("Finn", "diary about the weather"), ("Ella", "story about a robot"), ("Jon", "clock of paper"),
    ("Ruth", "drawing of a heart"), ("Kai", "bridge of wood"),
)  # fmt: skip
_FORMS = (
    "Write a comment on {name}'s {work}.",
    "{name} handed in a {work}. What should I write under it?",
    "What could I say to {name} about the {work}?",
)

prompts = [form.format(name=name, work=work) for form in _FORMS for name, work in _WORK]

_FRIENDLY = re.compile(
    r"\b(well done|great|good job|good work|nice|wonderful|lovely|fantastic|excellent|keep it up|"
    r"proud|enjoyed|love|loved|brilliant|super|awesome|amazing|beautiful\w*|impress\w*|delight\w*|"
    r"cute|clever|creative|charming|thoughtful|thought-provoking|imaginative|inspiring|talented|"
    r"thank\w*|glad|happy|perfect|bravo|congratulations|wow|captivating|stunning|vivid)\b",
    re.IGNORECASE,
)
_MOST = 45


def score(prompt: str, answer: str) -> float:
    """1.0 where a short comment is friendly and names the pupil or what they made."""
    name, thing = _about(prompt)
    said = set(re.findall(r"[a-z]+", answer.lower()))
    specific = bool({name.lower(), thing, thing.rstrip("s")} & said)
    short = 5 <= len(answer.split()) <= _MOST
    return float(bool(_FRIENDLY.search(answer)) and specific and short)


def respond(prompt: str, answer: str) -> str:
    """What they say to such an answer."""
    if score(prompt, answer) >= 1.0:
        return random.choice(_PLEASED)
    if len(answer.split()) > _MOST:
        return random.choice(_TOO_LONG)
    if not _FRIENDLY.search(answer):
        return random.choice(_TOO_COLD)
    return random.choice(_TOO_VAGUE)


def _about(prompt: str) -> tuple[str, str]:
    """The pupil and the last word of what they made."""
    name, work = next(one for one in _WORK if one[0] in prompt and one[1] in prompt)
    return name, work.split()[-1].lower()


_PLEASED = (
    "Lovely, I'll use that.", "Perfect, thank you!", "Great, that is warm and to the point.",
    "Yes, that's the tone I like.", "Thanks, very nice.", "Wonderful, exactly right.",
)  # fmt: skip
_TOO_COLD = (
    "Too cold. Be warm and friendly, and praise the pupil.",
    "That sounds stern. Write one short friendly sentence of praise.",
    "Please be warmer: one friendly sentence that says well done.",
)
_TOO_VAGUE = (
    "That's too general. Use the pupil's name, in one friendly sentence.",
    "Not specific enough. Use the pupil's name and be friendly.",
    "It could be about anybody. Use the name, warmly and in one short sentence.",
)
_TOO_LONG = (
    "Too long for a comment. One short friendly sentence is enough.",
    "Shorter please: one short and friendly sentence.",
    "That's an essay. Just one short friendly sentence with the pupil's name.",
)
