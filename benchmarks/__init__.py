"""Comparisons: throughput against peers, peers trained under the same protocol, curves of several runs."""
