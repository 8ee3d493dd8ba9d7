"""A position in a sequence of tokens, with the reading of names and digits."""

from collections.abc import Sequence

from sympy import Expr, Integer, Rational

from .tokens import Token, Unreadable, canonical

END = Token("mark", "")
MAX_EXPONENT = 20_000


class Cursor:
    """Moves along the tokens of one expression, whose words are split into letters."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = [part for token in tokens for part in letters_of(token)]
        self.place = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else END

    def take(self, *expected: str) -> Token:
        """Take and return the next token. Raises Unreadable if it is not one of those expected, if any are given."""
        token = self.next
        if token is END or (expected and token.text not in expected):
            raise Unreadable(f"got {token.text!r}; expected {' or '.join(expected) or 'more'}")
        self.place += 1
        return token

    def accept(self, *signs: str) -> bool:
        """Take the next token if it is one of the signs, and return True if so."""
        is_accepted = self.next.text in signs and self.next is not END
        self.place += is_accepted
        return is_accepted

    @property
    def previous(self) -> Token:
        return self.tokens[self.place - 1]

    def follows(self, *signs: str) -> bool:
        """Return True if one of the signs comes after the next token."""
        return self.place + 1 < len(self.tokens) and self.tokens[self.place + 1].text in signs

    def single(self) -> Token:
        """Take the next token; of a number only its first digit, as LaTeX does: `\\frac12`."""
        token = self.take()
        if token.kind == "number" and len(token.text) > 1:
            self.place -= 1
            self.tokens[self.place] = token._replace(text=token.text[1:], spaced=False)
            return token._replace(text=token.text[0])
        return token

    def suffix(self) -> str:
        """Take the subscripts, primes and stars of a letter, and return them as part of its name."""
        parts: list[str] = []
        while True:
            start = self.place
            if self.next.text == "_":
                self.take()
                self.skip_argument()
            elif not (self.accept("'") or self.accept_star()):
                return "".join(parts)
            parts.append("".join(canonical(self.tokens[start : self.place]).split()))

    def accept_star(self) -> bool:
        start = self.place
        if self.accept("^"):
            wrapped = self.accept("{")
            if self.accept("*", r"\top", r"\dagger", "'") and (not wrapped or self.accept("}")):
                return True
        self.place = start
        return False

    def skip_argument(self) -> None:
        """Skip a token or a group of any content."""
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(self.take().text, 0)
            if depth == 0:
                return


def letters_of(token: Token) -> list[Token]:
    """Return a word as the product of its letters, any other token unchanged."""
    if token.kind != "word":
        return [token]
    return [Token("letter", letter, token.spaced and index == 0) for index, letter in enumerate(token.text)]


def value_of(number: str) -> Expr:
    """Return an exact number: decimals become fractions. Raises Unreadable for an exponent above MAX_EXPONENT."""
    mantissa, _, exponent = number.lower().partition("e")
    if exponent and abs(int(exponent[:12])) > MAX_EXPONENT:
        raise Unreadable("a number too large")
    return Rational(mantissa.removesuffix(".") or "0") * Integer(10) ** int(exponent or 0)
