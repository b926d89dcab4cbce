"""What a game will need before it is played: memory, tokens and seconds, and which part is full first."""

from selfplay.plan.geometry import Geometry, geometry
from selfplay.plan.planning import GPUS, SIZES, Plan, plan, table

__all__ = ["GPUS", "SIZES", "Geometry", "Plan", "geometry", "plan", "table"]
