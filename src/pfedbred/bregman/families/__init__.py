"""Exponential families, one file each. The table of their names is :mod:`pfedbred.bregman.priors`."""
