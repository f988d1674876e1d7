"""A module that cannot be imported."""

model = 1 / 0
