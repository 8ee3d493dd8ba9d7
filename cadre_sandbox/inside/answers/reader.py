"""Parse tokens into a sympy expression by recursive descent. A sign without a meaning at its position is Unreadable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr, Function, Integer, Rational, Symbol

from .cursor import END, Cursor, value_of
from .functions import CONSTANTS, FUNCTIONS, INVERSE, OF_SEVERAL
from .tokens import Token, Unreadable, canonical
from .vocabulary import ACCENTS, FUNCTION_LETTERS, GREEK

OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}
MAX_EXPONENT = 20_000
MAX_DEPTH = 60


@dataclass(frozen=True)
class Custom:
    """The reading of ambiguous notation: `1/2x` as 1 / (2x) if `tight`; `\\log` to the base `log`, natural if None."""

    tight: bool = True
    log: int | None = None


class Reader(Cursor):
    """Reads one expression, from its first token to its last; used once."""

    def __init__(self, tokens: Sequence[Token], custom: Custom) -> None:
        super().__init__(tokens)
        self.custom, self.bars, self.depth = custom, 0, 0

    def whole(self) -> Expr:
        """Return the expression of all the tokens."""
        value = self.sum()
        if self.next is not END:
            raise Unreadable(f"{self.next.text!r} has no meaning here")
        return value

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        value = self.signed(self.product)
        while self.next.text in ("+", "-"):
            sign = -1 if self.take().text == "-" else 1
            value += sign * self.signed(self.product)
        self.depth -= 1
        return value

    def signed(self, read: Callable[[], Expr]) -> Expr:
        """Read with `read`, after an optional sign."""
        if self.accept("-"):
            return -read()
        self.accept("+")
        return read()

    def product(self) -> Expr:
        value = self.factor()
        while True:
            if self.accept("*", r"\cdot", r"\times"):
                value *= self.signed(self.factor)
            elif self.accept("/", r"\div"):
                value /= self.signed(self.divisor)
            elif self.starts_factor():
                value *= self.factor()
            else:
                return value

    def divisor(self) -> Expr:
        """Return the divisor after a slash: one factor, or in the tight reading all that follow without a space."""
        value = self.factor()
        while self.custom.tight and self.starts_factor() and not self.next.spaced and self.next.text != "(":
            value *= self.factor()
        return value

    def starts_factor(self) -> bool:
        """Return True if another factor follows without a sign; a number only after brackets: `27 28` is no product."""
        token = self.next
        if token.text == "|":
            return self.bars == 0
        if token.kind == "number":
            return self.previous.text in (")", "]", "!") or (self.follows("^") and self.previous.kind == "letter")
        commands = CONSTANTS.keys() | FUNCTIONS.keys() | OF_SEVERAL.keys() | GREEK | ACCENTS | READERS.keys()
        return token.kind == "letter" or token.text in commands or (token.text in OPENING and token.text != r"\{")

    def factor(self) -> Expr:
        """Return a base with its exponents, factorials and percent signs."""
        value = self.base()
        while True:
            if self.accept("^"):
                value = self.raised(value)
            elif self.accept("!"):
                value = sympy.factorial(value)
            elif self.accept("%"):
                value = value / 100
            else:
                return value

    def raised(self, value: Expr) -> Expr:
        """Return a power; `15^\\circ` in the middle of an expression is an angle."""
        start = self.place
        if self.accept(r"\circ") or (self.accept("{") and self.accept(r"\circ") and self.accept("}")):
            return value * sympy.pi / 180
        self.place = start
        exponent = self.exponent()
        if value.is_Integer and exponent.is_Integer and abs(exponent) > MAX_EXPONENT:
            raise Unreadable("a number too large")
        return value**exponent

    def exponent(self) -> Expr:
        if self.next.text in ("{", "("):
            return self.group()
        if self.accept("-"):
            return -self.base()
        return self.base()

    def base(self) -> Expr:
        token = self.next
        if token.kind == "number":
            return self.number()
        if token.text in OPENING:
            return self.group()
        if token.text == "|":
            return self.absolute()
        if token.text in FUNCTIONS:
            return self.function(self.take().text)
        if token.text in OF_SEVERAL:
            return OF_SEVERAL[self.take().text](*self.several())
        if token.text in READERS:
            self.take()
            return READERS[token.text](self)
        if token.text in CONSTANTS and not self.follows("_", "'"):
            return CONSTANTS[self.take().text]
        return self.symbol()

    def number(self) -> Expr:
        """Return a number, or a mixed one: `1\\frac{4}{5}`, `1 4/5`."""
        integer = self.take()
        value = value_of(integer.text)
        part = self.proper_fraction(integer)
        return value if part is None else value + part

    def proper_fraction(self, integer: Token) -> Expr | None:
        """Return the proper fraction that makes an integer a mixed number; None if none follows."""
        start = self.place
        if integer.text.isdigit() and self.accept(r"\frac"):
            above, below = self.digits(), self.digits()
        elif integer.text.isdigit() and self.next.kind == "number" and self.next.spaced and self.follows("/"):
            above, _, below = self.take().text, self.take(), self.next.text
            self.place += 1
        else:
            return None
        if above.isdigit() and below.isdigit() and int(above) < int(below):
            return Rational(int(above), int(below))
        self.place = start
        return None

    def digits(self) -> str:
        """Return the digits of an argument of a fraction; an empty text for any other argument."""
        if self.accept("{"):
            text = self.next.text
            self.place += 1
            return text if self.accept("}") else ""
        return self.single().text if self.next.kind == "number" else ""

    def argument(self) -> Expr:
        """Return an argument of a command: a group, or one token."""
        if self.next.text == "{":
            return self.group()
        if self.next.kind == "number":
            return value_of(self.single().text)
        return self.base()

    def group(self) -> Expr:
        closing = OPENING[self.take(*OPENING).text]
        bars, self.bars = self.bars, 0
        value = self.sum()
        self.take(closing)
        self.bars = bars
        return value

    def absolute(self) -> Expr:
        self.take("|")
        self.bars += 1
        value = self.sum()
        self.bars -= 1
        self.take("|")
        return sympy.Abs(value)

    def several(self) -> list[Expr]:
        """Return the arguments between brackets, separated by commas."""
        closing = OPENING[self.take("(", r"\{", "{").text]
        values = [self.sum()]
        while self.accept(","):
            values.append(self.sum())
        self.take(closing)
        return values

    def function(self, name: str) -> Expr:
        """Return a function with its argument: `\\sin x`, `\\sin^2 x`, `\\sin^{-1} x`, `\\log_2 x`."""
        power, base = Integer(1), None
        while self.next.text in ("^", "_"):
            if self.take().text == "^":
                power = self.exponent()
            else:
                base = self.argument()
        operation = FUNCTIONS[name]
        if power == -1 and name in INVERSE:
            power, operation = Integer(1), INVERSE[name]
        value = self.applied()
        if name == r"\log" and (base is not None or self.custom.log is not None):
            return sympy.log(value, base if base is not None else self.custom.log) ** power
        if base is not None:
            raise Unreadable(f"{name} has no base")
        return operation(value) ** power

    def applied(self) -> Expr:
        """Return the argument of a function: a group, or factors up to the next sign, group or function."""
        if self.next.text in OPENING:
            return self.group()
        value = self.signed(self.factor)
        while self.starts_factor() and self.next.text not in FUNCTIONS and self.next.text not in OPENING:
            value *= self.factor()
        return value

    def symbol(self) -> Expr:
        """Return a letter with its accent and subscripts; a function of its arguments if it is called like one."""
        token = self.take()
        if token.text in ACCENTS:
            start = self.place
            self.argument()
            inner = self.tokens[start : self.place]
            if any(part.kind == "number" for part in inner):
                raise Unreadable(f"{token.text} over a number")
            return Symbol(f"{token.text}({canonical(inner)}){self.suffix()}", real=True)
        if token.kind == "text" and len(token.text) == 1 and token.text.isalpha():
            token = Token("letter", token.text)
        if token.kind != "letter" and token.text not in GREEK:
            raise Unreadable(f"{token.text!r} has no meaning here")
        name = token.text + self.suffix()
        if token.text in FUNCTION_LETTERS and self.next.text == "(":
            return Function(name)(*self.several())
        return Symbol(name, real=True)


def fraction(reader: Reader) -> Expr:
    above = reader.argument()
    return above / reader.argument()


def root(reader: Reader) -> Expr:
    index: Expr = Integer(2)
    if reader.accept("["):
        index = reader.sum()
        reader.take("]")
    value = reader.group() if reader.next.text in ("{", "(") else reader.base()
    return sympy.root(value, index)


def binomial(reader: Reader) -> Expr:
    if reader.next.text == "(":
        return sympy.binomial(*reader.several())
    above = reader.argument()
    return sympy.binomial(above, reader.argument())


def between(closing: str, operation: Callable[..., Expr]) -> Callable[[Reader], Expr]:
    """Return a reader that reads up to a closing sign and applies an operation."""

    def read(reader: Reader) -> Expr:
        value = reader.sum()
        reader.take(closing)
        return operation(value)

    return read


READERS: dict[str, Callable[[Reader], Expr]] = {
    r"\frac": fraction,
    r"\sqrt": root,
    r"\binom": binomial,
    r"\lfloor": between(r"\rfloor", sympy.floor),
    r"\lceil": between(r"\rceil", sympy.ceiling),
}


USUAL = Custom()


def read(tokens: Sequence[Token], custom: Custom = USUAL) -> Expr:
    """Return the expression of the tokens. Raises Unreadable."""
    if not tokens:
        raise Unreadable("nothing")
    return Reader(tokens, custom).whole()
