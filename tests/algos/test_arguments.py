"""Ranges, defaults by domain, and the hyperparameters that may vary."""

import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from algos.arguments import (
    Count,
    Fraction,
    FractionBelowOne,
    Incidental,
    Natural,
    Positive,
    PositiveFraction,
    Range,
    Tunable,
    Widths,
    by_domain,
    check,
    for_domain,
    incidental,
    tunable,
)
from algos.errors import UserError
from algos.per_run import PerRun


@dataclass
class Args:
    count: Count = 1
    natural: Natural = 0
    lr: Tunable[Positive] = 1e-3
    discount: Tunable[Fraction] = 0.99
    tau: Tunable[PositiveFraction] = 1.0
    dropout: FractionBelowOne = 0.0
    hidden: Widths = (256,)
    own_widths: Annotated[tuple[int, ...], Range(10)] = ()
    never: Annotated[int, Range(0, 0, why="it is never used")] = 0
    name: str = "x"


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("count", 0, "--count must be at least 1, got 0"),
        ("natural", -1, "--natural must be at least 0, got -1"),
        ("lr", 0.0, "--lr must be above 0, got 0.0"),
        ("lr", math.nan, "--lr must be above 0, got nan"),
        ("lr", math.inf, "--lr must be above 0, got inf"),
        ("discount", 1.5, r"--discount must lie in \[0, 1\], got 1.5"),
        ("tau", 0.0, r"--tau must lie in \(0, 1\], got 0.0"),
        ("dropout", 1.0, r"--dropout must lie in \[0, 1\), got 1.0"),
        ("hidden", (), "--hidden takes at least one number"),
        ("hidden", (8, 0), r"--hidden must lie in \[1, 100000\], got 0"),
        ("own_widths", (9,), "--own-widths must be at least 10, got 9"),
        ("never", 1, "--never must be 0, got 1: it is never used"),
    ],
)
def test_a_number_out_of_its_range_is_refused_in_a_sentence(name, bad, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        check(Args(**{name: bad}))


def test_numbers_in_their_ranges_pass():
    check(Args())
    check(Args(count=7, discount=0.0, dropout=0.99, own_widths=(10, 300)))
    check(Args(lr=PerRun([1e-3, 1e-4])))


def test_the_hyperparameters_that_may_vary_are_those_that_say_so():
    assert tunable(Args) == ["lr", "discount", "tau"]


@dataclass
class ByDomain:
    expectile: Tunable[Fraction] = by_domain(0.7, antmaze=0.9)
    size: Count = by_domain(256, hopper=1024, antmaze=512)
    reward: str = by_domain("none", antmaze="minus_one")


def test_a_default_by_domain_is_the_first_that_a_word_knows():
    for words, expected in (
        (["walker", "other"], (0.7, 256, "none")),
        (["antmaze-umaze-v0", "antmaze"], (0.9, 512, "minus_one")),
        (["hopper", "antmaze"], (0.9, 1024, "minus_one")),  # word by word, the first that is known
        ([], (0.7, 256, "none")),
    ):
        args = ByDomain()
        for_domain(args, words)
        assert (args.expectile, args.size, args.reward) == expected
        assert (type(args.expectile), type(args.size), type(args.reward)) == (float, int, str)
        for_domain(args, ["antmaze"])
        assert (args.expectile, args.size, args.reward) == expected  # they are no defaults any more


def test_a_value_that_is_given_is_not_replaced():
    args = ByDomain(expectile=0.7, size=3)
    for_domain(args, ["antmaze"])
    assert (args.expectile, args.size, args.reward) == (0.7, 3, "minus_one")


def test_a_default_by_domain_is_a_plain_value_that_shows_all_others():
    args = ByDomain()
    assert args.expectile == 0.7 and args.size + 1 == 257 and args.reward == "none"
    assert str(args.expectile) == "0.7, antmaze 0.9" and str(args.size) == "256, hopper 1024, antmaze 512"
    check(args)


@dataclass
class Base:
    out: Incidental[str] = "runs"
    rate: Tunable[Positive] = 1.0


@dataclass
class Derived(Base):
    out: str = "elsewhere"
    rate: Positive = 2.0


def test_a_class_that_extends_another_keeps_what_is_incidental_but_not_what_is_tunable():
    assert incidental(Base) == incidental(Derived) == {"out"}
    assert tunable(Base) == ["rate"] and tunable(Derived) == []
