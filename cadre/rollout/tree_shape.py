"""The old name of `cadre.rollout.shapes`, kept for one release for users' own shapes."""

from cadre.rollout.shapes import Shape as Shape
from cadre.rollout.shapes import every_decision as every_decision
