"""Hints from complaints and scorn: the opposite of what they name, or none at all."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.judge.complaints import complaint
from instar.judge.hints import MAX_CHARS, candidates, told_outright
from instar.judge.lexicon import lowered
from instar.judge.next_state import Case
from instar.judge.scorn import marked, scornful
from instar.judge.wishes import split, unquoted

SHORT, NO_LISTS = "Keep the answer short.", "Do not use lists."
PLAIN = "Write plain text without Markdown."


def hint(text: str) -> str | None:
    found = candidates(Case(request="q", response="a", next=text))
    return found[0] if found else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Scorn that names what there was too much of.
        ("Yeah, sure, because I always talk in bullet points.", NO_LISTS),
        ("Wow, a numbered list. How original.", NO_LISTS),
        ("Lists. Again. Lovely.", NO_LISTS),
        ("Oh great, another wall of text.", SHORT),
        ("Great, more bullet points.", NO_LISTS),
        ("Just what I needed, another essay.", SHORT),
        ("Bold. Everywhere. Fantastic.", "Do not use bold."),
        ("Wonderful, another bullet list. Exactly what I said I didn't want.", NO_LISTS),
        ("Fantastic, three paragraphs and not one answer.", SHORT),
        ("Three paragraphs for a yes/no question, bravo.", SHORT),
        ("Oh how sweet, a bulleted list. My favourite. Not.", NO_LISTS),
        ("Thanks for the essay I didn't order.", SHORT),
        ("Thank you for yet another bulleted list.", NO_LISTS),
        ("Because nothing says love like bullet points.", NO_LISTS),
        ("If I wanted a list, I'd have asked for one.", NO_LISTS),
        ("Congratulations, you wrote a whole essay.", SHORT),
        ("You outdid yourself: 12 paragraphs.", SHORT),
        ("Wonderful, a seven-step plan for opening a window.", SHORT),
        ("Wow. Markdown. In a text message.", PLAIN),
        ("Oh joy, Markdown.", PLAIN),
        ("Really needed those emojis, didn't I?", "Do not use emojis."),
        ("Sehr schön, noch eine Aufzählung. Genau was ich nicht wollte.", NO_LISTS),
        ("Ganz toll, wieder eine Liste.", NO_LISTS),
        # Complaints without a verb, and questions that want no answer.
        ("Bullets again? Seriously?", NO_LISTS),
        ("Markdown, really?", PLAIN),
        ("Why the bullets?", NO_LISTS),
        ("What's with all the bold?", "Do not use bold."),
        ("Why is everything in bold?", "Do not use bold."),
        ("Why on earth would you use a table there?", "Do not use tables."),
        ("Five bullets for a phone number?", NO_LISTS),
        ("12 paragraphs. For a yes or no.", SHORT),
        ("Six steps to boil water?", SHORT),
        ("Did I ask for bullets? No.", NO_LISTS),
        ("Where did I say that I wanted a table?", "Do not use tables."),
        ("Do we really need six headings here?", "Do not use headings."),
        ("All those bold words!", "Do not use bold."),
        ("So many words.", SHORT),
        ("That is a list.", NO_LISTS),
        ("I still see bullet points.", NO_LISTS),
        ("The asterisks are annoying.", PLAIN),
        ("Why so complicated?", "Use simple words."),
        ("So formal!", "Write informally."),
        # What is named is what the reply is not.
        ("You call that short?", SHORT),
        ('What part of "short" did you not get?', SHORT),
        ("Since when is ten paragraphs short?", SHORT),
        ("Terrific, the opposite of short.", SHORT),
        ("That's so much shorter.", SHORT),
        ("Does this look like one sentence to you?", "Answer in one sentence."),
        ("So much for one sentence.", "Answer in one sentence."),
        ("One sentence, he says, and writes ten.", "Answer in one sentence."),
        ("Why no examples?", "Give an example."),
        ("Why not a table?", "Answer with a table."),
        ("Why didn't you use a list?", "Answer with a list."),
        # What is asked for beside the scorn stays.
        ("Oh great, another list, just give me one line.", f"Answer in one line. {NO_LISTS}"),
        ("Great, another essay. One line!", "Answer in one short line."),
        ("Thank you for the lecture, now please answer.", "Now please answer."),
        ("A list again? I'd like one sentence.", f"Answer in one sentence. {NO_LISTS}"),
        ("Why the essay? A number would have been fine.", SHORT),
        ("It's still a list. Plain sentences!", f"Write in plain sentences. {NO_LISTS}"),
    ],
)  # fmt: skip
def test_a_complaint_asks_for_the_opposite(text: str, expected: str) -> None:
    assert hint(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Why not delete all the tests, then we'd never have bugs again.",
        "Lol sure, and the capital of the US is New York",
        "Groundbreaking, never would have thought of that",
        "Gold star, you almost know the alphabet",
        "Sure, if I wanted it to accept garbage",
        "Yeah right, because that's totally what I asked for.",
        "Great, a gluten-free cake made of wheat.",
        "Excellent. A recipe for vegans with bacon in it.",
        "A recipe for vegans with bacon in it. Excellent.",
        "Perfect, if I were a robot.",
        "So kind of you to ignore my question.",
        "Truly a masterpiece of saying nothing.",
        "Impressive how you can be wrong twice in one sentence.",
        "Oh sure, I'll just buy a new house then.",
        "What a novel idea: answering the question.",
        "Thank you so much for deleting my photos.",
        "Next you'll tell me the earth is flat.",
        "Yes, more of that, said nobody ever.",
        "Right, because I love reading manuals.",
        "Slow clap.",
        "Who asked for a poem?",
        # Whether this is wished or complained of, nobody can tell.
        "A numbered list.",
        "Lists.",
        "Bullet points!",
        "Another one.",
        # My table is no table of the reply.
        "Oh great, you deleted my table.",
        "That's what I'm trying to find out.",
    ],
)
def test_no_hint_is_better_than_a_wrong_one(text: str) -> None:
    assert hint(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one short sentence, please", "Answer in one short sentence."),
        ("Two sentences.", "Answer in two sentences."),
        ("bullets please", "Answer with bullet points."),
        ("numbered list pls", "Answer with a list."),
        ("a table, please", "Answer with a table."),
        ("Just a list.", "Answer with a list."),
        ("Use bullets.", "Answer with bullet points."),
        ("As a table.", "Answer with a table."),
        ("in celsius", "In celsius"),
        ("as JSON", "As JSON"),
        ("without sugar", "Without sugar"),
        ("just the number", "Just the number"),
        ("dogs please", "Dogs please"),
        ("Nobody asked about cats, dogs please.", "Dogs please."),
        ("Good work, now shorter.", SHORT),
        ("Another list of films, without horror.", "Another list of films, without horror."),
        ("Do I need to convert the list first?", "Do I need to convert the list first?"),
        ("Why is this table so wide?", "Why is this table so wide?"),
        ("Why did you remove my table?", "Why did you remove my table?"),
        ("Thank you for the lecture notes, add page 4.", "Add page 4."),
        ("Shorter. Friendlier.", f"{SHORT} Be warm and friendly."),
        ("Great, but use a list next time.", "Answer with a list."),
        ("Nice, now in one sentence.", "Answer in one sentence."),
        ("Great, one sentence is enough.", "Answer in one sentence."),
        ("Great, only the date needs fixing.", "Only the date needs fixing."),
        ("Bravo! Now without the emojis, please.", "Do not use emojis."),
        ("Another example, please.", "Another example, please."),
        ("Too many bullet points.", "Too many bullet points."),
        ("The list is missing.", "The list is missing."),
        ("Where is the list?", "Where is the list?"),
        ("You forgot the bullets.", "You forgot the bullets."),
        ("Great, now my list is gone.", "Now my list is gone."),
        ("I need it short because everyone has to read it.", None),
        ("The recipe says 200 g, you say 500 g.", "The recipe says 200 g, you say 500 g."),
        ("Yes and no. The formula is right, the result is not.",
         "The formula is right, the result is not."),
        ("Nice try, but Lisbon isn't in Spain.", "Lisbon isn't in Spain."),
        ("lol no, it's 42", "It's 42"),
        # What is quoted is a word of the reply, and no wish.
        ("Almost! Just remove 'In conclusion'.", "Just remove 'In conclusion'."),
        ('Drop the "Certainly!" at the start.', 'Drop the "Certainly!" at the start.'),
        ('Remove the words "no lists".', 'Remove the words "no lists".'),
        # A word of one language is another in the next.
        ("C'est faux, ma mère s'appelle Anne.", "C'est faux, ma mère s'appelle Anne."),
        ("Ma femme s'appelle Anne, pas Marie.", "Ma femme s'appelle Anne, pas Marie."),
        ("Bello, ma è troppo lungo.", f"{SHORT} È troppo lungo."),
        ("Mais curto, por favor.", SHORT),
        ("C'est bien, mais trop long.", SHORT),
        ("Mas corto por favor.", SHORT),
        ("Good idea to use a table, yet I asked for running text.", "I asked for running text."),
        # Thanks are a greeting only before a pause.
        ("Thanks for that, the text reads well. But it needs a title.", "It needs a title."),
        ("Thanks, shorter next time.", SHORT),
        ("Danke für die Mühe, aber kürzer bitte.", SHORT),
        # A sentence that refers to the one before it keeps it.
        ("If it's 9 am in Denver, what time is it in Oslo? That's what I'm trying to find out.",
         "If it's 9 am in Denver, what time is it in Oslo? That's what I'm trying to find out."),
        ("How old is she? That's what I asked.", "How old is she? That's what I asked."),
        ("In one sentence? No, give me the long version.", "Give me the long version."),
        ("Two. Sentences. Not three.", "Answer in two sentences. Not three."),
    ],
)  # fmt: skip
def test_what_is_plainly_wished_or_true_keeps_its_hint(text: str, expected: str | None) -> None:
    found = hint(text)
    if expected is None:  # only that it is not taken for scorn
        assert found is not None
    else:
        assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        "Oh, I see.",
        "You deserve a medal!",
        "Great job, thank you.",
        "Nice, a table is what I wanted.",
        "I always wanted to know that.",
        "That's exactly what I needed.",
        "How kind of you!",
    ],
)
def test_sincere_praise_is_no_scorn_to_the_probe(text: str) -> None:
    assert not marked(lowered(text))


BEFORE = {
    # From src/instar/demo/personas: what the figures of the demo stand on.
    "brief": {
        "Ugh, an essay again. One short sentence, please!": "Answer in one short sentence.",
        "Not a list! Answer in a single short sentence.": 
            f"Answer in one short sentence. {NO_LISTS}",
    },
    "student": {
        "My teacher will notice. Plain text in one paragraph please, no steps and no symbols.":
            f"Answer in one paragraph. {PLAIN} "
            "Plain text in one paragraph please, no steps and no symbols.",
    },
    "teacher": {
        "That's an essay. Just one short friendly sentence with the pupil's name.":
            "Answer in one short friendly sentence. Be warm and friendly. Use the person's name.",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_what_the_demos_people_say_is_no_scorn(name: str) -> None:
    persona = importlib.import_module(f"instar.demo.personas.{name}")
    said = [
        text
        for table in (
            "_TOO_LONG",
            "_NO_LISTS",
            "_LOOKS_MADE",
            "_NO_WORKING",
            "_TOO_COLD",
            "_TOO_VAGUE",
        )
        for text in getattr(persona, table, ())
    ]
    assert said
    assert not any(scornful(lowered(one)) for text in said for one in split(text))
    assert all(hint(text) for text in said)
    for text, expected in BEFORE[name].items():
        assert text in said
        assert hint(text) == expected


SCORN = st.sampled_from(
    ["Oh great, another list.", "Sure, because I love lists.", "How original.", "Slow clap.",
     "Thanks for nothing.", "Lovely, a novel.", "Gold star!", "Hello, sure, if I were a robot.",
     "Why not write a book, then we'd never stop.", "Yeah right, and pigs can fly."]
)  # fmt: skip
PLAINLY = st.sampled_from(
    ["Shorter please.", "Mention the dog.", "It's 1789, not 1798.", "Reply in Spanish.", "No.",
     "but", "Thanks!", "And again?", "'How original.'", "Use a list, please."]
)  # fmt: skip


@given(st.lists(st.one_of(SCORN, PLAINLY), max_size=8).map(" ".join))
def test_a_hint_never_quotes_scorn(text: str) -> None:
    for found in (hint(text), told_outright(text)):
        for sentence in split(found or ""):
            assert not scornful(lowered(unquoted(sentence)))


@given(SCORN, st.sampled_from(["Mention the dog.", "Reply in Spanish.", "Say why it rains."]))
def test_scorn_takes_no_wish_with_it(scorn: str, wish: str) -> None:
    assert hint(wish) in (hint(f"{scorn} {wish}") or "")
    assert hint(wish) in (hint(f"{wish} {scorn}") or "")


@given(st.text(max_size=200))
def test_any_sentence_can_be_read(text: str) -> None:
    found = complaint(text)
    assert found is None or isinstance(found, tuple)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Too long!!", SHORT),
        ("Mention the dog.", "Mention the dog."),
        ("It was mediocre.", "It was mediocre."),
        ("That's wrong.", "That's wrong."),
        ("A. B. C. D.", "A. B. C."),
        ("Slow clap. It was mediocre.", "It was mediocre."),
        ("Slow clap.", None),
        ("", None),
    ],
)
def test_what_is_told_outright_is_kept_where_no_order_is_in_it(text: str, told: str | None) -> None:
    assert told_outright(text) == told


@given(st.text(max_size=3000))
def test_what_is_told_outright_is_short(text: str) -> None:
    found = told_outright(text)
    assert found is None or len(found) <= MAX_CHARS + 200  # plain orders stand before own words
