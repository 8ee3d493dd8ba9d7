"""Notes on single tokens: of kept trees only, the first of each sample, without the prompt."""

from cadre.learn.token_notes import TokenNote, TokenNotes
from cadre.types import SamplePosition, TrainingSequence


def datum(position: SamplePosition | None) -> TrainingSequence:
    return TrainingSequence("p", "r", (1, 2, 3), (False, True, True), (0.0,) * 3, (0.0,) * 3, 0, position=position)


def test_the_first_note_of_a_sample_is_kept_without_its_prompt() -> None:
    notes, present = TokenNotes(1), (0, (2,), "r", 1)
    assert notes.wants(datum(present))
    notes.add(datum(present), [0.0, -1.0, -2.0], [0.0, 0.5, 0.25])
    assert not notes.wants(datum(present))
    assert notes.drain() == [TokenNote(present, (-1.0, -2.0), (0.5, 0.25))]
    assert notes.drain() == []


def test_other_trees_and_sequences_of_no_sample_are_not_noted() -> None:
    assert not TokenNotes(1).wants(datum((1, (), "r", 0)))
    assert not TokenNotes(1).wants(datum(None))
    assert not TokenNotes(0).wants(datum((0, (), "r", 0)))
