"""What a person keeps asking for."""

from __future__ import annotations

import pytest

from instar.judge.standing import standing_wishes, with_standing

SHORT = "Answer in one short sentence."
WARM = "Be warm and friendly."
NAME = "Use the person's name."


@pytest.mark.parametrize(
    ("hints", "wishes"),
    [
        ([], None),
        ([f"{SHORT} {WARM}"], f"{SHORT} {WARM}"),
        # Each correction names another thing; all three hold.
        ([SHORT, WARM, SHORT, WARM, NAME, NAME, SHORT], f"{SHORT} {NAME} {WARM}"),
        # Once in ten is what one answer lacked.
        ([SHORT] * 9 + ["Mention the price."], SHORT),
        # Words of their own, said again and again, are a wish as well.
        ([SHORT, "Mention the price.", SHORT, "Mention the price."], f"Mention the price. {SHORT}"),
        # About one thing the most frequent counts, and of equals the newest.
        (["Answer in two sentences.", SHORT, SHORT], SHORT),
        ([SHORT, "Answer in two sentences."] * 2, "Answer in two sentences."),
        # Nothing is said twice: the newest hint.
        (["Mention the price.", "Say who wrote it."], "Say who wrote it."),
    ],
)
def test_what_is_kept(hints: list[str], wishes: str | None) -> None:
    assert standing_wishes(hints) == wishes


def test_more_than_three_wishes_are_too_many_for_a_small_model() -> None:
    hints = [SHORT] * 5 + [WARM] * 4 + [NAME] * 4 + ["Use simple words."] * 3
    assert standing_wishes(hints) == f"{SHORT} {NAME} {WARM}"


def test_a_hint_is_completed_by_what_it_does_not_speak_of() -> None:
    assert with_standing(WARM, None) == WARM
    assert with_standing(WARM, f"{SHORT} {WARM} {NAME}") == f"{WARM} {SHORT} {NAME}"
    assert with_standing("Answer in two sentences.", SHORT) == "Answer in two sentences."
    assert with_standing("Say who wrote it.", SHORT) == f"Say who wrote it. {SHORT}"
