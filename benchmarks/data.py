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
    "was delivered to a neighbour", "came in the wrong colour", "was charged twice to my card",
    "has a part missing that the manual shows", "smells of burnt plastic", "leaks at the bottom",
)  # fmt: skip
_DEMANDS = (
    "names the day by which it is settled", "says sorry before it asks for anything",
    "gives the amount in the customer's currency", "offers a person to call",
    "links the form instead of describing it", "does not blame the carrier",
    "repeats the order number", "keeps to five sentences", "says who pays the postage",
    "tells what happens if nobody answers", "states the legal period of return",
)  # fmt: skip
_STEPS = (
    "A new {goods} leaves our warehouse tomorrow and reaches you by Friday.",
    "The amount goes back to the card you paid with within five working days.",
    "Send the {goods} back in its first packing, with the form that you find on our pages.",
    "We need a photo of the {goods} and of the label on the parcel before anything can be done.",
)


class Record(NamedTuple):
    """One expert's word on one reply."""

    question: str  # about 185 characters
    answer: str  # about 300
    value: bool  # whether the expert would send it
    rationale: str  # about 110

    @property
    def case(self) -> dict[str, object]:
        """What is judged."""
        return {"inputs": {"question": self.question}, "outputs": self.answer}


def records(count: int, seed: int = 1) -> list[Record]:
    """Make distinct records; a longer list begins with the shorter one of the same seed."""
    chance = random.Random(seed)  # noqa: S311 - data, not secrets
    return [_record(chance, seed * 1_000_000 + number) for number in range(count)]


def _record(chance: random.Random, number: int) -> Record:
    goods, demand, value = chance.choice(_GOODS), chance.choice(_DEMANDS), chance.random() < 1 / 2
    faults, steps = chance.sample(_FAULTS, 3), " ".join(chance.sample(_STEPS, 2))
    return Record(
        question=f"Hello, my {goods} from order {number} {faults[0]}, and now it also {faults[1]}. "
        f"I wonder what becomes of that now, since somebody else's {faults[2]}, too.",
        answer=f"Thank you for your message and for the number. {steps.format(goods=goods)} "
        f"If anything is unclear, just answer and ask for the file {number}.",
        value=value,
        rationale=f"It takes up that the {goods} {faults[0]}, and it "
        f"{'' if value else 'should be one that '}{demand}.",
    )


def guideline_text(number: int) -> str:
    """Write a guideline of 60 to 110 characters; a thousand numbers in a row differ."""
    # The lengths have no common divisor: each combination comes once before one comes again.
    goods, fault, demand = (some[number % len(some)] for some in (_GOODS, _FAULTS[:7], _DEMANDS))
    return f"A reply on a {goods} that {fault} {demand}, else it is false."
