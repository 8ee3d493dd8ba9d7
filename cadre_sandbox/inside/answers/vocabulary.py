"""Tables of the signs, commands and words that are understood. Anything else is Unreadable."""


def pairs(text: str) -> dict[str, str]:
    """Return `a=b c=d` as a dictionary."""
    return dict(pair.split("=", 1) for pair in text.split())


def spaced(meaning: str) -> str:
    """Append a space to a command, so that it does not merge with the letters that follow."""
    return f"{meaning} " if meaning[0] == "\\" and meaning[-1].isalpha() else meaning


SIGNS = {
    sign: spaced(meaning)
    for sign, meaning in pairs(
        r"−=- –=- —=- ‐=- ‑=- ‒=- ﹣=- ×=\times ✕=\times ⋅=\cdot ·=\cdot ∙=\cdot ∗=* ÷=\div ⁄=/ ∕=/ ±=\pm ∓=\mp ≠=\ne "
        r"≤=\le ≥=\ge ⩽=\le ⩾=\ge ≈=\approx ≡=\equiv ∞=\infty ∪=\cup ∩=\cap ∅=\emptyset Ø=\emptyset ∈=\in ∖=\setminus "
        r"√=\sqrt ∛=\sqrt[3] ∜=\sqrt[4] °=^{\circ} º=^{\circ} ′=' ’=' ‘=' ″='' “=" + '" ”=" '
        r"⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil ⟨=\langle ⟩=\rangle ∠=\angle △=\triangle ℝ=\mathbb{R} ℤ=\mathbb{Z} "
        r"ℕ=\mathbb{N} ℚ=\mathbb{Q} ℂ=\mathbb{C} π=\pi α=\alpha β=\beta γ=\gamma δ=\delta ε=\epsilon θ=\theta "
        r"λ=\lambda μ=\mu µ=\mu ν=\nu ρ=\rho σ=\sigma τ=\tau φ=\phi ϕ=\phi χ=\chi ψ=\psi ω=\omega Δ=\Delta Σ=\Sigma "
        r"Φ=\Phi Ω=\Omega ∑=\sum ∫=\int €=\euro £=\pounds ¢=\cent …=\ldots ¬=\neg"
    ).items()
}
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))

# Commands for the look alone; those whose argument goes with them, stays, or is text.
DROPPED = frozenset(
    r"\left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr \displaystyle "
    r"\textstyle \scriptstyle \limits \nolimits \! \, \; \: \> \quad \qquad \thinspace \strut \mathstrut \null "
    r"\large \Large \LARGE \huge \Huge \small \normalsize \bf \rm \it \sf \tt \cal \bfseries \rmfamily \mathop "
    r"\mathbin \mathrel \mathord \mathopen \mathclose \nonumber \notag \hfill \relax \/".split()
) | {"\\ "}
DROPPED_WITH_ARGUMENT = frozenset(r"\phantom \hphantom \vphantom \hspace \hspace* \vspace \color \label \tag".split())
TRANSPARENT = frozenset(
    r"\mathbf \boldsymbol \bm \bold \pmb \mathit \mathsf \mathtt \mathnormal \underline \boxed \fbox \framebox "
    r"\ensuremath \emph".split()
)
LETTERINGS = frozenset(r"\mathbb \mathcal \mathfrak \mathscr".split())
TEXTS = frozenset(
    r"\text \textrm \textbf \textit \textsf \texttt \textsc \textsl \textup \textmd \textnormal \mbox \hbox \mathrm "
    r"\operatorname \operatorname*".split()
)
SAME = pairs(
    r"\%=% \$=$ \_=_ \dfrac=\frac \tfrac=\frac \cfrac=\frac \dbinom=\binom \tbinom=\binom \leq=\le \leqslant=\le "
    r"\geq=\ge \geqslant=\ge \neq=\ne \lt=< \gt=> \varnothing=\emptyset \cdotp=\cdot \ast=* \colon=: \mid=| \vert=| "
    r"\lvert=| \rvert=| \lbrace=\{ \rbrace=\} \lbrack=[ \rbrack=] \lparen=( \rparen=) \smallsetminus=\setminus "
    r"\backslash=\setminus \varepsilon=\epsilon \varphi=\phi \vartheta=\theta \dots=\ldots \cdots=\ldots \imath=i "
    r"\simeq=\approx \Reals=\R \bigcup=\cup \prime=' \land=\wedge \lor=\vee"
)

FUNCTIONS = (
    "sin cos tan cot sec csc cis lg arcsin arccos arctan sinh cosh tanh ln log exp max min gcd lcm det deg".split()
)
# Words that stand for a command where they stand alone.
SPOKEN = {name: f"\\{name}" for name in FUNCTIONS} | pairs(
    r"sqrt=\sqrt pi=\pi infinity=\infty infty=\infty inf=\infty oo=\infty theta=\theta alpha=\alpha beta=\beta "
    r"gamma=\gamma lambda=\lambda phi=\phi omega=\omega asin=\arcsin acos=\arccos atan=\arctan binom=\binom "
    r"binomial=\binom abs=\abs floor=\floor ceil=\ceil ceiling=\ceil union=\cup emptyset=\emptyset"
)
ALSO_UNITS = frozenset(("min", "sec", "deg"))
ALONE = frozenset("eid")  # letters that are upright in good mathematics

GREEK = frozenset(
    r"\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu \xi \rho \sigma \tau \upsilon "
    r"\phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar \aleph "
    r"\mho".split()
)
ACCENTS = frozenset(r"\hat \bar \vec \tilde \dot \ddot \overline \widehat \widetilde \overrightarrow".split())
FUNCTION_LETTERS = frozenset(r"f g h F G H P \zeta \Gamma \Phi \phi \psi".split())  # called where brackets follow

CLOSERS = pairs(r"(=) [=] {=} \{=\} \langle=\rangle \lfloor=\rfloor \lceil=\rceil \begin=\end")
CLOSING = frozenset(CLOSERS.values())
RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx", r"\in")
FLIPPED = pairs(r"<=> >=< \le=\ge \ge=\le \ne=\ne")
# Relations and operations that are not looked into: with one of them an answer equals only itself.
FOREIGN = frozenset(
    r"\equiv \sim \cong \subset \subseteq \supset \supseteq \notin \to \rightarrow \Rightarrow \implies \iff \neg "
    r"\lnot \not \forall \exists \propto \perp \parallel \cap".split()
)
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMERALS = [*_UNITS, *(f"{ten}{unit}" for ten in _TENS for unit in ("", *_UNITS[1:10])), "onehundred"]
