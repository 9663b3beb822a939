"""What a person keeps asking for, out of the hints of many corrections.

Who corrects an answer names what is wrong with that one. A teacher that is told only this
may do the rest badly: asked to be friendlier, it goes on at length. What was wished for again
and again holds for every answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from instar.judge.hints import MAX_SENTENCES
from instar.judge.lexicon import lowered
from instar.judge.orders import Order, sentences
from instar.judge.wishes import read, split

SHARE = 0.2
"""Of all hints, that must say something before it is taken for a standing wish."""


def standing_wishes(hints: Sequence[str]) -> str | None:
    """At most three sentences out of these hints, oldest first; None where there are none.

    Of wishes about the same thing the most frequent counts, and the newest of equals.
    """
    if not hints:
        return None
    said: dict[str, Counter[Order]] = {}
    for hint in reversed(hints):
        for about, order in _wishes(hint).items():
            said.setdefault(about, Counter())[order] += 1
    least = max(min(2, len(hints)), SHARE * len(hints))
    often = {about: orders for about, orders in said.items() if orders.total() >= least}
    if not often:
        return Counter(reversed(hints)).most_common(1)[0][0]
    # What is said most comes in first, and stays in its place in the hint.
    kept = sorted(often, key=lambda about: -often[about].total())
    orders = [often[about].most_common(1)[0][0] for about in kept]
    return " ".join(sentences(orders)[:MAX_SENTENCES])


def with_standing(hint: str, standing: str | None) -> str:
    """A hint, and after it what else the person keeps asking for."""
    if standing is None:
        return hint
    told = _wishes(hint)
    more = [order for about, order in _wishes(standing).items() if about not in told]
    return " ".join([hint, *sentences(more)]) if more else hint


def _wishes(hint: str) -> dict[str, Order]:
    """What a hint says by what it is about; words that are no common wish are about themselves."""
    found: dict[str, Order] = {}
    for sentence in split(hint):
        reading = read(sentence)
        orders = reading.orders or (Order(text=sentence, about=lowered(sentence)),)
        for order in orders:
            found.setdefault(order.about, order)
    return found
