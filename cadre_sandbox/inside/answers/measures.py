"""Units of answers. The rule:

A unit is text, a currency sign, a percent or a degree sign around a number. Where only one of two answers has one, it
is not looked at, as the question says in what is counted. Where both have one, they must be of one kind, and are
converted (2 m is 200 cm, 5 cents are 0.05 dollars). Words that name no measure ("12 ways", "9 values") are not
compared. A text with a word that changes a number ("27 thousand", "27 or 28", "not 27") is no unit, and the answer
means nothing. Percents and degrees are numbers too: 50% is 0.5, and 90 degrees are pi / 2.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from .tokens import Unreadable

# Names of a unit, its kind (with a power), and how much of the kind's first unit it is.
TABLE = """
mm millimeter millimetre|length|1/1000
cm centimeter centimetre|length|1/100
dm decimeter decimetre|length|1/10
m meter metre|length|1
km kilometer kilometre|length|1000
in inch|length|127/5000
ft foot|length|381/1250
yd yard|length|1143/1250
mi mile|length|201168/125
acre|length 2|316160658/78125
hectare ha|length 2|10000
ml mL milliliter millilitre cc|length 3|1/1000000
l L liter litre|length 3|1/1000
cup|cups|1
pint pt|cups|2
quart qt|cups|4
gal gallon|cups|16
mg milligram|mass|1/1000
g gm gram gramme|mass|1
kg kilogram kilo|mass|1000
tonne|mass|1000000
oz ounce|ounces|1
lb pound|ounces|16
ton|ounces|32000
ms millisecond|time|1/1000
s sec second|time|1
min minute|time|60
h hr hour|time|3600
day|time|86400
wk week|time|604800
mo month|months|1
yr year|months|12
decade|months|120
¢ cent|money|1/100
$ dollar usd USD buck|money|1
penny|money|1/100
euro|euros|1
sterling|sterling|1
rupee|rupees|1
yuan|yuan|1
yen|yen|1
% percent pct percentage|percent|1
° deg degree|angle|1
rad radian|radians|1
rev revolution|turns|1
celsius|celsius|1
fahrenheit|fahrenheit|1
K kelvin|kelvin|1
N newton|newton|1
J joule|joule|1
W watt|watt|1
V volt|volt|1
A amp ampere|ampere|1
ohm|ohm|1
Hz hz hertz|hertz|1
mol mole|mole|1
unit||1
"""
RATES = {"mph": "mile/hour", "kph": "km/hour", "kmph": "km/hour", "kmh": "km/hour", "fps": "foot/second"}
SINGULAR = {"feet": "foot", "inches": "inch", "pennies": "penny"}
BEFORE = {"sq": 2, "square": 2, "cu": 3, "cubic": 3}
# Beside a number these change it, or say that it is not the answer.
NO_UNIT = frozenset(
    "not no never nor neither or and either but except without wrong incorrect false maybe perhaps possibly probably "
    "guess think unknown cannot none hundred thousand million billion trillion dozen score gross half halves third "
    "thirds fourth fourths quarter quarters fifth fifths sixth sixths eighth eighths tenth tenths hundredth hundredths "
    "thousandth thousandths times plus minus over divided multiplied factorial mod modulo modulus base binary octal "
    "decimal hex hexadecimal more less fewer than least most about above below under approximately approx around "
    "almost nearly roughly negative positive zero one two three four five six seven eight nine ten if when where "
    "unless is are was equals equal to greater at between from pi root power double triple twice infinite infinity "
    "even odd undefined remainder choose squared cubed".split()
)
MAX_WORDS = 6
REWRITTEN = (
    (re.compile(r"\bper\s?cent\b"), "percent"),
    (re.compile(r"(\w+) squared\b"), r"square \1"),
    (re.compile(r"(\w+) cubed\b"), r"cubic \1"),
    (re.compile(r"(?:°|\bdegrees?)\s*(?:C|[Cc]elsius|[Cc]entigrade)\b"), "celsius"),
    (re.compile(r"(?:°|\bdegrees?)\s*(?:F|[Ff]ahrenheit)\b"), "fahrenheit"),
    *((re.compile(rf"\b{name}\b"), meaning) for name, meaning in RATES.items()),
)
PART = re.compile(
    r"(?P<divide>/|\bper\b)|(?P<word>[a-zA-Z]+|[¢$%°])\s*(?:\^?\s*\{?(?P<power>-?\d)\}?)?|[\s.,·*'-]+|(?P<mark>.)"
)


@dataclass(frozen=True)
class Measure:
    """A unit: its kinds with their powers and its size, or words that count things.

    For example `Measure((("length", 2),), Fraction(1, 10000))` for cm^2, `Measure(words=("ways",))`.
    """

    kinds: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    words: tuple[str, ...] = ()

    @property
    def bare(self) -> bool:
        """True if it is no unit at all."""
        return not self.kinds and not self.words


NONE = Measure()


def table() -> dict[str, tuple[str, int, Fraction]]:
    """Return for every name of a unit its kind, the power of the kind, and its size."""
    units: dict[str, tuple[str, int, Fraction]] = {}
    for line in TABLE.strip().split("\n"):
        names, kind, size = line.split("|")
        kind, _, power = kind.partition(" ")
        units |= {name: (kind, int(power or 1), Fraction(size)) for name in names.split()}
    return units


UNITS = table()
# Those that are taken for a unit where they stand as mathematics: `5cm`, not `5m`.
UNMISTAKABLE = {name for name in UNITS if len(name) > 2} | {"cm", "mm", "km", "kg", "ft", "lb", "oz", "hr", "ml", "mL"}


def measured(text: str) -> Measure:
    """Return the unit that a text names. Raises Unreadable if it names none."""
    text = text.strip()
    text = text[1:-1] if text[:1] == "(" and text[-1:] == ")" else text
    for pattern, meaning in REWRITTEN:
        text = pattern.sub(meaning, text)
    measure, sign, squared = NONE, 1, 1
    for part in PART.finditer(text):
        word = singular(part["word"] or "")
        if part["mark"] or word in NO_UNIT or (len(word) == 1 and word not in UNITS):
            raise Unreadable(f"{text!r} is no unit")
        if part["divide"]:
            sign = -1
        elif word in BEFORE:
            squared = BEFORE[word]
        elif word:
            measure, sign, squared = times(measure, word, sign * squared * int(part["power"] or 1)), 1, 1
    if len(measure.words) > MAX_WORDS:
        raise Unreadable(f"{text!r} is no unit")
    return measure


def times(measure: Measure, word: str, power: int) -> Measure:
    """Multiply a unit by a power of another. Words without a kind are only recorded."""
    if word not in UNITS:
        return Measure(measure.kinds, measure.size, (*measure.words, word))
    kind, own_power, size = UNITS[word]
    kinds = dict(measure.kinds)
    kinds[kind] = kinds.get(kind, 0) + own_power * power
    nonzero = tuple(sorted((name, count) for name, count in kinds.items() if name and count))
    return Measure(nonzero, measure.size * size**power, measure.words)


def singular(word: str) -> str:
    """Return a word as it is in the table, or in lower case if it is not there."""
    for form in (word, word.lower(), SINGULAR.get(word.lower(), "")):
        for ending in ("", "s", "es"):
            if form.endswith(ending) and form.removesuffix(ending) in UNITS | BEFORE:
                return form.removesuffix(ending)
    return word.lower()
