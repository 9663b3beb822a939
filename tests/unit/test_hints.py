"""Hints: what a person said next, as an instruction that keeps what they meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.judge.hints import (
    FRAMES,
    MAX_SENTENCES,
    WordHinter,
    candidates,
    instruction,
    teacher_system,
    wish_words,
)
from instar.judge.next_state import Case
from instar.judge.orders import sentences, settle
from instar.judge.wishes import read, split


def hint(text: str) -> str | None:
    found = candidates(Case(request="q", response="a", next=text))
    return found[0] if found else None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Thanks, but please keep it to one sentence.", "Keep it to one sentence."),
        ("Hm. Too long. Have a nice day.", "Too long."),
        ("It's 1789, not 1798.", "It's 1789, not 1798."),
        ("太长了,一句话就够了。", "太长了,一句话就够了。"),
        ("That's wrong.", None),
        ("No.", None),
        ("That's not what I asked.", None),
        ("Vielen Dank, aber das war leider nicht meine Frage.", None),
        ("You didn't answer my question.", None),
        ("Try again.", None),
        ("ugh", None),
        ("No lists.", "No lists."),
        ("No, the Danube flows there.", "The Danube flows there."),
        ("Nee, het moet rijmen.", "Het moet rijmen."),
        ("Нет, нужно в рифму.", "Нужно в рифму."),
        ("No lists but keep it short.", "No lists but keep it short."),
        ("Good, but too long.", "Too long."),
        ("Start with the answer.", "Start with the answer."),
        ("Version 3.5 has no such option.", "Version 3.5 has no such option."),
        ("The capital is Canberra.", "The capital is Canberra."),
        ("Shorter please. Have a look at the map later.", "Shorter please."),
    ],
)
def test_hints_keep_what_should_be_different(text: str, words: str | None) -> None:
    assert wish_words(text) == words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # A question that finds something missing wants it.
        ("No emojis? Sad.", "Use emojis."),
        ("Only two lines? I need more.", "Answer in detail. I need more."),
        ("No emojis.", "Do not use emojis."),
        ("No greeting? Rude.", None),
        ("A summary at the end would be great.", "A summary at the end would be great."),
        ("Only two lines, please.", "Answer in two lines."),
        ("A list would be much easier to read.", "Answer with a list."),
        ("An example would help here.", "Give an example."),
        ("Make it easier to read.", "Use simple words."),
        ("Yawn. Throw in a joke.", "Throw in a joke."),
        ("So serious. Lighten up.", "Lighten up."),
        ("Don't say 'it depends'. Pick one.", "Don't say 'it depends'. Pick one."),
    ],
)
def test_what_is_missing_is_wished_for(text: str, told: str | None) -> None:
    assert hint(text) == told


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("Not enough emojis.", None),
        ("No fewer than five examples.", None),
        ("Don't drop the examples next time.", None),
        ("Please never leave out the examples.", None),
        ("Don't stop using lists.", "Answer with a list."),
        ("Not just a list, explain it.", None),
        ("Not only the code, explain it too.", None),
        ("An apology would be nice.", None),
        ("Two sentences is too few.", None),
        ("One word answers are useless.", None),
        ("Don't ask me anything back.", None),
        ("No question at the end, please.", "Stop after the answer."),
        ("Please don't end with a question.", None),
        ("The question at the end is silly.", None),
        ("You asked a question.", None),
        ("Don't say sorry.", "Do not apologise."),
        ("I'm sorry, I meant the other one.", None),
        ("No comparisons, please.", None),
        ("Your comparison is wrong.", None),
        ("Compare it to Python.", None),
        ("Don't start with a greeting.", None),
        ("Don't greet me.", None),
        ("No need to greet the customer.", None),
        ("No more emojis!", "Do not use emojis."),
        ("The example is wrong.", None),
        ("There's no question that this is wrong.", None),
        ("Where is the question that I asked?", None),
        ("Not just the answer, show how.", None),
        ("One sentence is enough.", "Answer in one sentence."),
        ("At least three sentences.", "Answer in at least three sentences."),
        ("Don't use lists.", "Do not use lists."),
        ("Stop using lists.", "Do not use lists."),
    ],
)
def test_an_order_is_never_the_contrary_of_what_is_wished(text: str, order: str | None) -> None:
    assert sentences(read(text).orders) == ([] if order is None else [order])


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("You didn't ask me anything. ", ["End with a question."]),
        ("Please finish with a question for me.", ["End with a question."]),
        ("Please finish with a question for the student.", ["End with a question."]),
        ("You forgot to ask the learner something at the end.", ["End with a question."]),
        ("And where is the question at the end?", ["End with a question."]),
        ("There is no question.", ["End with a question."]),
        ("You have to greet the customer first.", ["Begin with a friendly greeting."]),
        ("Begin by greeting them.", ["Begin with a friendly greeting."]),
        ("Where's the example?", ["Give an example."]),
        ("An example would have helped.", ["Give an example."]),
        ("More emojis!", ["Use emojis."]),
        ("I asked for metric, not miles.", ["Use metric units."]),
        ("Always start with the bottom line.", ["Begin with the answer itself."]),
        (
            "A couple of sentences, and then ask me something.",
            ["Answer in a couple of sentences.", "End with a question."],
        ),
        ("Too dry. Use a comparison.", ["Explain it with a comparison."]),
        ("Compare it to something I know.", ["Explain it with a comparison."]),
        ("An analogy would help.", ["Explain it with a comparison."]),
        ("You forgot to apologise.", ["Say that you are sorry."]),
        ("Always say sorry first.", ["Say that you are sorry."]),
        (
            "Start with a friendly greeting.",
            ["Be warm and friendly.", "Begin with a friendly greeting."],
        ),
        ("Please greet the customer first.", ["Begin with a friendly greeting."]),
        ("Just the answer, please.", ["Give only the answer."]),
        ("I don't need the steps, just the result.", ["Give only the answer."]),
        ("What a list. Only three bullets, please.", ["Answer with three bullets."]),
        ("Ask them something back.", ["End with a question."]),
        ("Could the last thing be a question to the student?", ["End with a question."]),
        ("Now finish by asking the learner something", ["End with a question."]),
        ("I need the answer and a question after it.", ["End with a question."]),
        ("You left out the question at the end...", ["End with a question."]),
        ("Where's the question for my student?", ["End with a question."]),
        ("No question at the end, please.", ["Stop after the answer."]),
        ("Not even a hello?", ["Begin with a friendly greeting."]),
        ("A little greeting would be nice.", ["Begin with a friendly greeting."]),
        ("You never even said hi.", ["Begin with a friendly greeting."]),
        ("How about a hi to begin with?", ["Begin with a friendly greeting."]),
        ("Don't say hello first.", []),
        ("No greeting please.", []),
        ("Swap the numbers for bullets.", ["Answer with bullet points."]),
        ("Bullets, not paragraphs please.", ["Answer with bullet points."]),
        ("One point per line.", ["Answer with bullet points."]),
        ("Paragraphs, not bullets.", ["Do not use lists."]),
        ("No dashes, use a table.", ["Answer with a table."]),
        # Against numbers and for bullets: its orders contradict, so the words are kept.
        ("Bullets rather than a numbered list.", []),
        ("Just a sentence or two.", ["Answer in one or two sentences."]),
        ("Just give me a line or two.", ["Answer in one or two lines."]),
        ("I only need the gist.", ["Keep the answer short."]),
        ("tldr?", ["Keep the answer short."]),
        ("Don't write so much.", ["Keep the answer short."]),
        ("Half that, please.", ["Keep the answer short."]),
        ("Half that amount of sugar, please.", []),
        ("Write it as prose.", ["Write in full sentences."]),
        ("Let the sentences flow.", ["Write in full sentences."]),
        ("Say it as a normal paragraph.", ["Answer in one normal paragraph."]),
        ("Nobody talks in bullet points.", ["Do not use lists."]),
        ("Can't you just put that in a table", ["Answer with a table."]),
        ("Tu pourrais pas faire une liste, plutôt ?", []),
        ("Who comments every single line?", []),
        ("Put a one line summary on top.", []),
        ("I worked there 3 years as a line cook.", []),
        ("Has a word ever been used twice?", []),
        ("You skipped the last question.", []),
        ("I was picturing a table.", ["Answer with a table."]),
        ("Explain it like I'm ten.", ["Use simple words."]),
        ("Too many big words.", ["Use simple words."]),
        ("Keep it professional please.", ["Write formally."]),
        ("A smiley here and there wouldn't hurt.", ["Use emojis."]),
        ("mucho texto", ["Keep the answer short."]),
    ],
)
def test_how_a_reply_begins_ends_and_explains(text: str, orders: list[str]) -> None:
    found = [order for sentence in split(text) for order in read(sentence).orders]
    assert sentences(settle(found)) == orders


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("Too long, no lists please.", "Keep the answer short. Do not use lists."),
        ("Zu lang, bitte keine Listen.", "Keep the answer short. Do not use lists."),
        ("Be kinder to the student.", "Be warm and friendly. Be kinder to the student."),
        ("It's 1789, not 1798.", "It's 1789, not 1798."),
    ],
)
def test_common_wishes_are_said_plainly(text: str, order: str) -> None:
    assert instruction(text) == order


@pytest.mark.parametrize(
    ("response", "text", "expected"),
    [
        ("It rains.", "That's running text. Bullets?", "Answer with bullet points."),
        ("It rains.", "Same info, but as bullet points? Thanks.", "Answer with bullet points."),
        ("It rains.", "And as a list?", "Answer with a list."),
        ("- It rains.", "Bullets?", "Do not use lists."),
        ("- It rains.", "Bullets again?", "Do not use lists."),
        ("It rains.", "Bullets again?", "Do not use lists."),
        ("It rains. " * 3, "One sentence?", "Answer in one sentence."),
        ("It rains.", "That's it? One sentence?", None),
        ("It rains.", "That's it? One sentence? Say why.", "Say why."),
        ("It rains.", "Hello first, and now answer.", "Begin with a friendly greeting."),
    ],
)
def test_a_question_wishes_for_what_the_reply_lacks(
    response: str, text: str, expected: str | None
) -> None:
    found = candidates(Case(request="Weather?", response=response, next=text))
    assert (found[0] if found else None) == expected


def test_a_hint_stands_behind_a_role() -> None:
    assert teacher_system("Be brief.") == "You are a helpful assistant. Be brief."
    assert teacher_system("Be brief.", "You are Ada.\n") == "You are Ada. Be brief."


def test_a_tool_error_is_no_wish() -> None:
    assert candidates(Case(request="", response="", next="Error: too long", role="tool")) == []


def test_hints_are_short() -> None:
    words = wish_words("Please keep it short and simple. " * 40)
    assert words is not None
    assert len(words) <= 400


SAME = "the person's own words, as they are"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # All that was said has a plain order.
        ("That's too long. Answer in one short sentence, please.", "Answer in one short sentence."),
        (
            "I don't have time to read all that, just a single short sentence.",
            "Answer in one short sentence.",
        ),
        ("No, shorter! One sentence is enough for me.", "Answer in one short sentence."),
        ("Too wordy. Tell me in one brief sentence.", "Answer in one short sentence."),
        ("Can you cut that down to one short sentence?", "Answer in one short sentence."),
        (
            "No lists please, just one short sentence.",
            "Answer in one short sentence. Do not use lists.",
        ),
        (
            "Stop making lists. One short sentence is all I need.",
            "Answer in one short sentence. Do not use lists.",
        ),
        (
            "Shorter please: one short and friendly sentence.",
            "Answer in one short friendly sentence. Be warm and friendly.",
        ),
        # Four orders are one too many: the tone is said with the length.
        (
            "That's too general. Use the pupil's name, in one friendly sentence.",
            "Answer in one friendly sentence. Be specific. Use the person's name.",
        ),
        (
            "It could be about anybody. Use the name, warmly and in one short sentence.",
            "Answer in one short friendly sentence. Be specific. Use the person's name.",
        ),
        ("No more than two sentences.", "Answer in at most two sentences."),
        ("Two or three sentences, please.", "Answer in two or three sentences."),
        ("I said 50 words or less!", "Use at most 50 words."),
        ("Give me three bullet points.", "Answer with three bullet points."),
        ("Keep it short but show the steps.", "Keep the answer short. Show the working."),
        ("No headings, no bold, no emojis.", "Do not use bold, headings or emojis."),
        ("Use plain text, not Markdown.", "Write plain text without Markdown."),
        (
            "You left out the working. Explain it in a plain paragraph.",
            "Answer in one plain paragraph. Show the working.",
        ),
        ("Start with the answer and skip the introduction.", "Begin with the answer itself."),
        ("Please stop apologising and stop using emojis.", "Do not use emojis. Do not apologise."),
        ("Not specific enough.", "Be specific."),
        (
            "Not friendly enough, and not short enough.",
            "Keep the answer short. Be warm and friendly.",
        ),
        ("Less formal please.", "Write informally."),
        ("More formal please.", "Write formally."),
        ("Reply in Spanish.", "Answer in Spanish."),
        ("Why did you reply in Spanish? English please.", "Answer in English."),
        ("Just answer yes or no.", "Answer only yes or no."),
        ("Auf Deutsch bitte!", "Answer in German."),
        ("Trop long, une phrase courte suffit.", "Answer in one short sentence."),
        ("Demasiado largo. Sin listas, por favor.", "Keep the answer short. Do not use lists."),
        ("Niente elenchi, una sola frase.", "Answer in one sentence. Do not use lists."),
        ("Geen lijstjes graag.", "Do not use lists."),
        ("Слишком длинно, короче пожалуйста.", "Keep the answer short."),
        # Orders for what they cover, own words for the rest.
        (
            "Please no bullet points or numbered steps, only plain sentences in one paragraph.",
            "Answer in one paragraph. Write in plain sentences. "
            "No bullet points or numbered steps, only plain sentences in one paragraph.",
        ),
        (
            "It could be about anybody. Say the name and what they wrote, warmly.",
            "Be warm and friendly. Be specific. Say the name and what they wrote, warmly.",
        ),
        (
            "Too long for a comment. Two friendly sentences with the name and topic are enough.",
            "Answer in two friendly short sentences. Be warm and friendly. "
            "Two friendly sentences with the name and topic are enough.",
        ),
        (
            "Make it warmer and mention the dog.",
            "Be warm and friendly. Make it warmer and mention the dog.",
        ),
        (
            "Give only the code, no explanation.",
            "Give only the code. Give only the code, no explanation.",
        ),
        ("Answer in German, not English.", "Answer in German. Answer in German, not English."),
        (
            "Bitte nicht kürzer, sondern ausführlicher.",
            "Answer in detail. Nicht kürzer, sondern ausführlicher.",
        ),
        # A "no" before or behind, a "too", or a description: no order, only the words.
        ("Don't make it shorter.", SAME),
        ("Not in one sentence, I need the whole story.", SAME),
        ("One sentence is not enough.", SAME),
        ("That's only one sentence, I wanted three.", SAME),
        ("You repeated one sentence twice.", SAME),
        ("Don't give me only the code, explain it too.", SAME),
        ("No step by step stuff please.", SAME),
        ("Don't skip the steps.", SAME),
        ("The steps are in the wrong order.", SAME),
        ("The working directory is wrong.", SAME),
        ("Don't list every country.", SAME),
        ("You forgot the list of ingredients.", SAME),
        ("Too many bullet points.", SAME),
        ("Plain text is not what I want, use Markdown.", SAME),
        ("Too friendly, this is a legal letter.", SAME),
        ("Stop being so friendly.", SAME),
        ("This is less friendly than I wanted.", SAME),
        ("It was friendly, but I need the price.", SAME),
        ("Too simple, I'm an expert.", SAME),
        ("Not so formal.", SAME),
        ("What kind of answer is that?", SAME),
        ("That's more detail than I need.", SAME),
        ("This is longer than I wanted.", SAME),
        ("Ein Satz reicht nicht.", SAME),
        ("I asked in French.", SAME),
        # Wishes that no table knows.
        ("Talk like a pirate.", SAME),
        ("End every answer with a question.", SAME),
        ("Use a haiku form.", SAME),
        ("Sign it with my name, Ben.", SAME),
    ],
)
def test_a_hint_says_what_was_said(text: str, expected: str) -> None:
    assert hint(text) == (text if expected is SAME else expected)


def test_orders_that_contradict_each_other_are_left_to_the_words() -> None:
    assert instruction("More formal. Less formal.") == "More formal. Less formal."


def test_the_same_wishes_give_the_same_hint_in_any_order() -> None:
    one = hint("No lists. One short sentence, please.")
    assert one == hint("One short sentence, please. No lists.")


def test_the_same_words_can_be_handed_over_in_several_ways() -> None:
    found = candidates(Case(request="q", response="a", next="Make it warmer and mention the dog."))
    assert found == [
        "Be warm and friendly. Make it warmer and mention the dog.",
        'The user wants: "Make it warmer and mention the dog." Follow this in every answer.',
        "Make it warmer and mention the dog.",
    ]
    assert len(found) == len(FRAMES)


async def test_the_hinter_gives_the_best_first() -> None:
    case = Case(request="q", response="a", next="Reply in Spanish.")
    assert (await WordHinter().hints(case, 3))[0] == "Answer in Spanish."


def test_a_wish_is_found_around_what_was_pasted() -> None:
    pasted = "INFO started worker without trouble " * 20_000
    assert hint(f"Shorter please.\n{pasted}\nReply in Spanish.") is not None
    words = wish_words(f"Shorter please.\n{pasted}\nReply in Spanish.") or ""
    assert words.startswith("Shorter please.")


PIECES = st.sampled_from(
    ["too long", "no lists", "please", "shorter", "friendlier", "two sentences", "not", "but",
     "mention the dog", "in German", ",", ".", "!", "and", "don't", "plain text", "only", "太长"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map(" ".join))
def test_a_hint_is_never_longer_than_three_sentences(text: str) -> None:
    found = hint(text)
    assert found is None or 1 <= len(split(found)) <= MAX_SENTENCES


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    words = wish_words(text)
    assert words is None or instruction(words)
