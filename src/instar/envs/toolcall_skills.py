"""The tools of our own tool-call tasks: what they take, and how people ask for them.

Nothing here calls anything. A skill has phrases to train with and phrases to test with, and every
pool of values is cut the same way, so that a test asks for things in words never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from instar.types import Tool

TEST_EVERY = 5
"""Every fifth value of a pool is kept for the test split."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument: its JSON type, what it is, and the values it may take."""

    type: str
    about: str
    pool: tuple[Any, ...]

    def values(self, split: str) -> tuple[Any, ...]:
        """The values of a split; no value is in both, but for pools too small to be cut."""
        if len(self.pool) < TEST_EVERY:
            return self.pool
        test = split == "test"
        return tuple(
            value
            for place, value in enumerate(self.pool)
            if (place % TEST_EVERY == TEST_EVERY - 1) == test
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One tool, with requests that only it can fulfil."""

    name: str
    about: str
    slots: dict[str, Slot]
    train: tuple[str, ...]
    test: tuple[str, ...]
    found: str = ""
    """The field of the tool's result that answers the request; empty where it only acts."""
    declared: Tool | None = None
    """The tool as a tools_config.json has it; by default it follows from the slots."""

    def phrases(self, split: str) -> tuple[str, ...]:
        return self.test if split == "test" else self.train

    @property
    def tool(self) -> Tool:
        if self.declared is not None:
            return self.declared
        properties = {
            name: {"type": slot.type, "description": slot.about}
            for name, slot in self.slots.items()
        }
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.about,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(self.slots),
                },
            },
        }


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


_CITIES = _words(
    "Oslo, Lima, Cairo, Tokyo, Madrid, Paris, Berlin, Vienna, Rome, Dublin, Athens, Lisbon, Prague,"
    "Warsaw, Helsinki, Stockholm, Budapest, Toronto, Chicago, Boston, Denver, Seattle, Havana,"
    "Nairobi, Lagos, Accra, Dakar, Mumbai, Delhi, Bangkok, Manila, Jakarta, Seoul, Sydney, Perth,"
    "Auckland, Santiago, Bogota, Quito, Montreal"
)
_WORDS = _words(
    "gentle, harvest, ancient, bridge, candle, desert, eager, forest, glacier, honest, island,"
    "jungle, kernel, lantern, meadow, noble, orchard, patient, quarry, ribbon, silver, temple,"
    "umbrella, valley, willow, yonder, zephyr, anchor, bronze, copper"
)
_ITEMS = _words(
    "milk, eggs, bread, rice, butter, apples, onions, coffee, soap, batteries, cheese, tomatoes,"
    "flour, sugar, salt, lemons, carrots, candles, pasta, honey, tea, garlic, pepper, olives"
)
_ARTISTS = _words(
    "Queen, Madonna, Adele, Coldplay, Abba, Prince, Radiohead, Beyonce, Nirvana, Sade, Bach,"
    "Mozart, Rihanna, Drake, Blur, Genesis, Elvis, Shakira, Vivaldi, Pink Floyd"
)
_SYMBOLS = _words(
    "AAPL, TSLA, MSFT, AMZN, NFLX, INTC, IBM, ORCL, NVDA, CSCO, ADBE, PFE, KO, PEP, DIS, NKE,"
    "GE, BA, CAT, MCD, WMT, T, V, MA, XOM"
)
_NAMES = _words(
    "anna, bob, carol, david, emma, frank, grace, henry, irene, jack, karen, leo, maria, nina,"
    "oscar, paul, rosa, sam, tina, victor"
)
_SUBJECTS = _words(
    "Lunch, Budget, Holiday, Meeting, Invoice, Thanks, Report, Birthday, Travel, Schedule, Rent,"
    "Party, Contract, Deadline, Garden"
)
_CUISINES = _words(
    "Italian, Thai, Mexican, Indian, Greek, Chinese, French, Korean, Turkish, Spanish, Lebanese,"
    "Japanese, Ethiopian, Cuban, Vietnamese"
)
_LANGUAGES = _words(
    "French, German, Spanish, Italian, Dutch, Polish, Swedish, Greek, Turkish, Finnish, Czech,"
    "Danish, Korean, Arabic, Hindi"
)
_TITLES = _words(
    "Dentist, Team lunch, Yoga, Piano lesson, Car repair, Book club, Doctor, Haircut,"
    "Job interview, Parent evening, Movie night, Budget review, Choir, Swimming, Chess club"
)
_CURRENCIES = _words("EUR, USD, GBP, JPY, CHF, SEK, NOK, CAD, AUD, INR, BRL, MXN, PLN, KRW, ZAR")
_ROOMS = _words(
    "kitchen, bedroom, bathroom, hallway, garage, office, attic, cellar, nursery, porch"
)
_EMAILS = tuple(f"{name}@{host}" for name in _NAMES for host in ("mail.com", "work.org"))
_TIMES = tuple(f"{hour:02}:{minute:02}" for hour in range(6, 22) for minute in (0, 15, 30, 45))
_DATES = tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in (3, 9, 14, 21, 27))
_SUMS = tuple(f"{a} {op} {b}" for a in range(3, 40, 3) for op in "+-*" for b in range(2, 20, 3))

CITY = Slot("string", "Name of the city", _CITIES)

SKILLS: tuple[Skill, ...] = (
    Skill(
        name="get_weather",
        about="Tell the current weather in a city.",
        slots={"city": CITY},
        train=(
            "What's the weather like in {city}?",
            "How is the weather in {city} today?",
            "Is it raining in {city}?",
            "Weather in {city}, please.",
            "How warm is it in {city} right now?",
        ),
        test=("Do I need a coat in {city} today?", "Tell me the weather in {city}."),
        found="temperature",
    ),
    Skill(
        name="get_time",
        about="Tell the local time in a city.",
        slots={"city": CITY},
        train=(
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "How late is it in {city} now?",
            "Local time in {city}, please.",
        ),
        test=("What does the clock say in {city}?", "Is it night in {city} already?"),
    ),
    Skill(
        name="set_timer",
        about="Start a timer.",
        slots={"minutes": Slot("integer", "How many minutes", tuple(range(2, 95)))},
        train=(
            "Set a timer for {minutes} minutes.",
            "Start a timer for {minutes} minutes, please.",
            "Time {minutes} minutes for me.",
            "Remind me in {minutes} minutes.",
        ),
        test=("I need a {minutes} minute timer.", "Count down {minutes} minutes."),
    ),
    Skill(
        name="set_alarm",
        about="Set an alarm for a time of day.",
        slots={"time": Slot("string", "Time as HH:MM", _TIMES)},
        train=(
            "Wake me up at {time}.",
            "Set an alarm for {time}.",
            "Alarm at {time}, please.",
            "I have to get up at {time}, set the alarm.",
        ),
        test=("Please ring at {time}.", "Make sure I am awake at {time}."),
    ),
    Skill(
        name="calculate",
        about="Work out an arithmetic expression.",
        slots={"expression": Slot("string", "The expression", _SUMS)},
        train=(
            "What is {expression}?",
            "Calculate {expression}.",
            "Work out {expression} for me.",
            "How much is {expression}?",
        ),
        test=("Give me the result of {expression}.", "Compute {expression}, please."),
        found="result",
    ),
    Skill(
        name="define_word",
        about="Look a word up in the dictionary.",
        slots={"word": Slot("string", "The word", _WORDS)},
        train=(
            "What does {word} mean?",
            "Define {word}.",
            "Look up the word {word}.",
            "Give me the meaning of {word}.",
        ),
        test=("Explain the word {word}.", "I do not know the word {word}, look it up."),
    ),
    Skill(
        name="get_stock_price",
        about="Tell the price of a share.",
        slots={"symbol": Slot("string", "Ticker symbol", _SYMBOLS)},
        train=(
            "What is the price of {symbol}?",
            "How is {symbol} trading?",
            "Check the stock {symbol}.",
            "Price of {symbol} shares, please.",
        ),
        test=("What does a share of {symbol} cost?", "Quote {symbol} for me."),
        found="price",
    ),
    Skill(
        name="add_to_list",
        about="Put something on the shopping list.",
        slots={"item": Slot("string", "What to buy", _ITEMS)},
        train=(
            "Add {item} to my shopping list.",
            "We need {item}.",
            "Put {item} on the list.",
            "Remember to buy {item}.",
        ),
        test=("I am out of {item}, note it down.", "Shopping list: {item}."),
    ),
    Skill(
        name="play_music",
        about="Play music by an artist.",
        slots={"artist": Slot("string", "Name of the artist", _ARTISTS)},
        train=(
            "Play some {artist}.",
            "I want to hear {artist}.",
            "Put on music by {artist}.",
            "Play songs by {artist}, please.",
        ),
        test=("Let me listen to {artist}.", "Some {artist} would be nice now."),
    ),
    Skill(
        name="send_email",
        about="Send an e-mail.",
        slots={
            "to": Slot("string", "Address", _EMAILS),
            "subject": Slot("string", "Subject line", _SUBJECTS),
        },
        train=(
            "Send an email to {to} with the subject {subject}.",
            "Write to {to}, subject {subject}.",
            "Email {to} about {subject}.",
        ),
        test=("Mail {to} under the subject {subject}, please.",),
    ),
    Skill(
        name="create_event",
        about="Put an event into the calendar.",
        slots={
            "title": Slot("string", "What it is", _TITLES),
            "date": Slot("string", "Date as YYYY-MM-DD", _DATES),
            "time": Slot("string", "Time as HH:MM", _TIMES),
        },
        train=(
            "Put {title} into my calendar on {date} at {time}.",
            "Schedule {title} for {date}, {time}.",
            "Add an event {title} on {date} at {time}.",
        ),
        test=("On {date} at {time} I have {title}, note it in the calendar.",),
    ),
    Skill(
        name="convert_currency",
        about="Convert an amount of money.",
        slots={
            "amount": Slot("number", "How much", tuple(range(5, 500, 5))),
            "source": Slot("string", "Currency code to convert from", _CURRENCIES),
            "target": Slot("string", "Currency code to convert to", _CURRENCIES),
        },
        train=(
            "Convert {amount} {source} to {target}.",
            "How much is {amount} {source} in {target}?",
            "Change {amount} {source} into {target}.",
        ),
        test=("What do I get in {target} for {amount} {source}?",),
        found="amount",
    ),
    Skill(
        name="find_restaurant",
        about="Find a restaurant.",
        slots={"cuisine": Slot("string", "Kind of food", _CUISINES), "city": CITY},
        train=(
            "Find a {cuisine} restaurant in {city}.",
            "Where can I eat {cuisine} food in {city}?",
            "I want {cuisine} food in {city}.",
        ),
        test=("Suggest a {cuisine} place in {city}.",),
    ),
    Skill(
        name="translate",
        about="Translate a word.",
        slots={
            "word": Slot("string", "The word", _WORDS),
            "language": Slot("string", "Language to translate to", _LANGUAGES),
        },
        train=(
            "Translate {word} to {language}.",
            "How do you say {word} in {language}?",
            "What is {word} in {language}?",
        ),
        test=("Give me the {language} for {word}.",),
    ),
    Skill(
        name="set_light",
        about="Switch the light of a room and set its brightness.",
        slots={
            "room": Slot("string", "Which room", _ROOMS),
            "percent": Slot("integer", "Brightness, 0 to 100", tuple(range(5, 101, 5))),
        },
        train=(
            "Set the {room} light to {percent} percent.",
            "Dim the light in the {room} to {percent} percent.",
            "Turn the {room} light to {percent} percent.",
        ),
        test=("Make the {room} light {percent} percent bright.",),
    ),
)

CHAT: tuple[str, ...] = (
    "Thank you, that was helpful.",
    "Tell me a joke.",
    "Who are you?",
    "Write a short poem about the sea.",
    "Good morning!",
    "What is your favourite colour?",
    "Why is the sky blue?",
    "How are you today?",
    "Give me a name for a cat.",
    "Say something nice.",
    "Do you like books?",
    "What makes people happy?",
    "I am bored.",
    "Tell me about elephants.",
    "Good night!",
)
"""Requests that no tool here is for."""
