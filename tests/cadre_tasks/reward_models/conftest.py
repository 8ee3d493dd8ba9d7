"""The tiny models of the engines' tests."""

from tests.cadre.engines.conftest import folders

__all__ = ["folders"]
