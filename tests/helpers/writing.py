"""Texts of tasks of writing."""

from __future__ import annotations

from cadre.types import Task

SOURCE = (
    "We measure how fast rivers carry sand to the sea. Two years of samples from forty rivers show that dams hold most "
    "of the sand back, and that beaches near the mouths of dammed rivers shrink."
)


HONEST = "Samples of forty rivers show that dams hold back the sand, and the beaches near their mouths shrink."


OTHER = "A transformer is trained on images with a contrastive loss, and the accuracy of the classifier is higher."


LONG = (
    "First, the authors took samples of forty rivers for two years. However, most of the sand that these rivers could "
    "carry to the sea is held back by dams; therefore the beaches near the mouths of dammed rivers shrink, although "
    "nobody had measured how fast."
)


RIVERS = Task("t", {"id": "t", "title": "Rivers", "text": SOURCE, "references": (HONEST,)})
