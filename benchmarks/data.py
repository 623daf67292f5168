"""Records of feedback that could come from a shop's support desk: synthetic, seeded, distinct.

Only the standard library, since the peer's runs import this from another environment.
"""

import random
from dataclasses import dataclass

NAME = "support_reply"
"""The criterion's name, on both sides."""

INSTRUCTIONS = "Is the reply one that our support desk would send to this customer?"
"""The criterion, on both sides."""

_GOODS = (
    "espresso machine", "rain jacket", "desk lamp", "bread knife", "tent pole", "bicycle pump",
    "wool blanket", "phone case", "garden hose", "chess set", "water kettle", "yoga mat",
    "office chair", "paper shredder", "travel pillow", "toolbox", "baby monitor", "wall clock",
    "hiking boot", "sewing kit", "radio alarm", "frying pan", "picture frame", "ski helmet",
    "fish tank filter", "laser printer", "backpack", "hand mixer", "door lock", "night light",
)  # fmt: skip

_FAULTS = (
    "stopped working after two days", "arrived with a crack along the side",
    "was delivered to a neighbour who never handed it over", "came in the wrong colour",
    "has a part missing that the manual shows", "was charged twice to my card",
    "smells of burnt plastic whenever it runs", "does not fit the size printed on the label",
    "was shipped to my old address", "lost its warranty card in the post",
    "makes a grinding noise from the first minute", "has a seam that opened by itself",
    "never came although the tracking page says delivered", "leaks from the bottom",
)  # fmt: skip

_WISHES = (
    "I would like my money back and not a voucher",
    "Please send a new one before the weekend, it is a present",
    "Could somebody tell me who pays for sending it back",
    "I have written twice already and nobody answered",
    "My receipt is gone but I have the card statement",
    "I only need the spare part and not a whole new one",
    "Can I bring it to the shop on Market Street instead",
    "I want to know how long the repair is going to take",
)  # fmt: skip

_OPENINGS = (
    "Thank you for your message and for the order number you gave.",
    "We are sorry that this went wrong with your purchase.",
    "Please check the tracking page, it shows where the parcel is.",
    "Your request has been passed on to the department in charge.",
    "We have looked at your order and found what happened.",
    "According to our terms such a case has to be reported within a day.",
)  # fmt: skip

_MIDDLES = (
    "A new {goods} leaves our warehouse tomorrow and reaches you by Friday",
    "The amount goes back to the card you paid with within five working days",
    "Send the {goods} back in its first packing, with the form that you find on our pages",
    "We need a photo of the {goods} and of the label on the parcel before anything can be done",
    "The carrier is responsible for that, so please turn to the carrier's own desk",
    "You receive a voucher of ten per cent for your next purchase as a sign of our goodwill",
    "A colleague is going to call you about the {goods} on one of the next days",
    "The repair takes about three weeks and we send you a message as soon as it begins",
)  # fmt: skip

_CLOSINGS = (
    "If anything is unclear, just answer this message and ask for the file {number}.",
    "Please understand that we can't answer further questions about the file {number}.",
    "You can follow every step under the file {number} in your account.",
    "We hope that the matter {number} is settled with that and wish you a good day.",
)  # fmt: skip

_VERDICTS = {
    True: (
        "Says what becomes of a {goods} that {fault}",
        "Answers the very question about the {goods}",
        "Admits in plain words that the {goods} {fault}",
        "Takes up that the {goods} {fault}",
    ),
    False: (
        "Says nothing on a {goods} that {fault}",
        "Sends away a customer whose {goods} {fault}",
        "Asks again for what we know of the {goods}",
        "Does not take up that the {goods} {fault}",
    ),
}

_GROUNDS = {
    True: (
        "and names the day by which it is settled.",
        "and the customer need not write a second time.",
        "and offers a remedy at our own cost.",
        "and says who pays for the way back.",
    ),
    False: (
        "and names no day by which it is settled.",
        "so the customer has to write a second time.",
        "and offers something nobody asked for.",
        "and leaves open who pays for the way back.",
    ),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One expert's word on one reply."""

    question: str
    """What the customer wrote: about 200 characters."""

    answer: str
    """What the application answered: about 300 characters."""

    value: bool
    """Whether the expert would send it."""

    rationale: str
    """Why: about 120 characters."""


def records(count: int, seed: int = 1) -> list[Record]:
    """Make distinct records; a longer list begins with the shorter one of the same seed.

    Args:
        count: How many.
        seed: Other seeds give other records.

    Returns:
        The records.
    """
    chance = random.Random(seed)  # noqa: S311 - data, not secrets
    return [_record(chance, seed * 1_000_000 + number) for number in range(count)]


def _record(chance: random.Random, number: int) -> Record:
    goods = chance.choice(_GOODS)
    value = chance.random() < 0.5  # noqa: PLR2004 - a coin
    faults = chance.sample(_FAULTS, 2)
    middles = chance.sample(_MIDDLES, 2)
    question = (
        f"Hello, my {goods} from order {number} {faults[0]}, and now it also {faults[1]}. "
        f"{chance.choice(_WISHES)}."
    )
    answer = " ".join(
        [
            chance.choice(_OPENINGS),
            f"{middles[0].format(goods=goods)}.",
            f"{middles[1].format(goods=goods)}.",
            chance.choice(_CLOSINGS).format(number=number),
        ]
    )
    return Record(
        question=question,
        answer=answer,
        value=value,
        rationale=(
            f"{chance.choice(_VERDICTS[value]).format(goods=goods, fault=chance.choice(faults))}, "
            f"{chance.choice(_GROUNDS[value])}"
        ),
    )
