"""The mathematics: exponential families, Bregman divergences, proximal maps, mean strategies."""
