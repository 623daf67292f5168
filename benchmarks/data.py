"""Records of feedback that could come from a shop's support desk: synthetic, seeded, distinct.

Only the standard library, since the peer's runs import this from another environment.
"""

import random
from typing import NamedTuple

NAME = "support_reply"
INSTRUCTIONS = "Is the reply one that our support desk would send to this customer?"

_GOODS = (
    "espresso machine", "rain jacket", "desk lamp", "bread knife", "tent pole", "bicycle pump",
    "wool blanket", "phone case", "garden hose", "chess set", "water kettle", "yoga mat",
)  # fmt: skip
_FAULTS = (
    "stopped working after two days", "arrived with a crack along the side",
    "was delivered to a neighbour who never handed it over", "came in the wrong colour",
    "has a part missing that the manual shows", "was charged twice to my card",
)  # fmt: skip
_WISHES = (
    "I would like my money back and not a voucher",
    "Please send a new one before the weekend, it is a present",
    "My receipt is gone but I have the card statement",
)
_MIDDLES = (
    "A new {goods} leaves our warehouse tomorrow and reaches you by Friday",
    "The amount goes back to the card you paid with within five working days",
    "Send the {goods} back in its first packing, with the form that you find on our pages",
    "We need a photo of the {goods} and of the label on the parcel before anything can be done",
)
_GROUNDS = (
    ("Says nothing on a {goods} that {fault}, so the customer has to write a second time."),
    ("Takes up that the {goods} {fault}, and names the day by which it is settled."),
)


class Record(NamedTuple):
    """One expert's word on one reply."""

    question: str  # about 185 characters
    answer: str  # about 300
    value: bool  # whether the expert would send it
    rationale: str  # about 100

    @property
    def case(self) -> dict[str, object]:
        """What is judged."""
        return {"inputs": {"question": self.question}, "outputs": self.answer}


def records(count: int, seed: int = 1) -> list[Record]:
    """Make distinct records; a longer list begins with the shorter one of the same seed."""
    chance = random.Random(seed)  # noqa: S311 - data, not secrets
    return [_record(chance, seed * 1_000_000 + number) for number in range(count)]


def _record(chance: random.Random, number: int) -> Record:
    goods, value = chance.choice(_GOODS), chance.random() < 0.5  # noqa: PLR2004 - a coin
    faults, middles = chance.sample(_FAULTS, 2), chance.sample(_MIDDLES, 2)
    answer = (
        f"Thank you for your message and for the order number you gave. {'. '.join(middles)}. If "
        "anything is unclear, just answer this message and ask for the file {number}."
    )
    return Record(
        question=f"Hello, my {goods} from order {number} {faults[0]}, and now it also {faults[1]}. "
        f"{chance.choice(_WISHES)}.",
        answer=answer.format(goods=goods, number=number),
        value=value,
        rationale=_GROUNDS[value].format(goods=goods, fault=chance.choice(faults)),
    )


_TOPICS = (
    "a refund for a damaged parcel", "a late delivery", "a cancelled subscription",
    "a double charge", "an expired voucher", "a broken zip", "a missing invoice",
    "a locked account", "a wrong size", "a lost password", "a recalled battery",
    "a change of address", "a noisy fan", "a failed card payment", "a warranty claim",
)  # fmt: skip
_DEMANDS = (
    "names the day by which it is settled", "says sorry before it asks for anything",
    "gives the amount in the customer's currency", "offers a person to call",
    "links the form instead of describing it", "does not blame the carrier",
    "repeats the order number", "keeps to five sentences", "says who pays the postage",
    "tells what happens if nobody answers", "states the legal period of return",
    "asks for at most one photo", "promises nothing without a date",
)  # fmt: skip


def guideline_text(number: int) -> str:
    """Write a guideline of 60 to 110 characters; hundreds of numbers in a row differ."""
    # The two lengths have no common divisor: each pair comes once before one comes again.
    topic, demand = _TOPICS[number % len(_TOPICS)], _DEMANDS[number % len(_DEMANDS)]
    role = ("", "first ", "written ", "final ")[number // 195 % 4]
    return f"A {role}reply about {topic} {demand}, else it is false."
