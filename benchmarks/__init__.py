"""Comparisons: throughput against peers, peers trained under the same protocol, curves of several runs."""

import algos.early  # a signal during the imports of a command ends it in one line
