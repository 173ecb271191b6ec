"""The problems: legal geometries in which every pair of properties occurs, and their names.

A property is a factor with levels. The levels of the spatial factors hold together on one axis,
the `lead`; the other axes differ from it at random, so that a swap of axes is noticed. Every
problem runs in every dtype, which pairs dtypes with everything.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from math import prod

import numpy as np
import oracle

FACTORS: dict[str, tuple[str, ...]] = {
    "rank": ("1", "2", "3"),
    "family": ("convolution", "conv_transpose"),
    "batch": ("0", "1", "2", "5"),
    "groups": ("1", "2", "3", "depthwise"),
    "c": ("1", "3", "8", "17"),
    "q": ("1", "3", "8", "17"),
    "stride": ("1", "2", "3", "beyond_kernel"),
    "dilation": ("1", "2", "3"),
    "pads": ("none", "symmetric", "asymmetric", "beyond_kernel"),
    "auto_pad": ("none", "valid", "same_upper", "same_lower"),
    "output_padding": ("omitted", "zero", "max"),
    "kernel": ("1", "2", "3", "5", "stride", "whole_input", "mixed"),
    "extent": ("1", "odd", "even", "below_kernel"),
    "layout": ("contiguous", "channels_last", "sliced", "transposed", "expanded"),
    "data_format": oracle.DATA_FORMATS,
    "weights_format": oracle.WEIGHTS_FORMATS,
}
Level = tuple[str, str]  # (factor, level)
Levels = dict[str, str]

# Pairs that no geometry can have. Everything else must occur: test_problems.py checks it.
IMPOSSIBLE: frozenset[frozenset[Level]] = frozenset(
    frozenset(pair)
    for pair in (
        # depthwise means one channel a group on both sides
        *((("groups", "depthwise"), (f, v)) for f in ("c", "q") for v in ("3", "8", "17")),
        # only transposed convolutions have an output padding
        *((("family", "convolution"), ("output_padding", v)) for v in ("zero", "max")),
        # one axis cannot mix
        (("rank", "1"), ("kernel", "mixed")),
        # K == s contradicts s > K
        (("stride", "beyond_kernel"), ("kernel", "stride")),
        # a kernel longer than x needs more than one tap, and padding
        (("kernel", "1"), ("extent", "below_kernel")),
        (("auto_pad", "valid"), ("extent", "below_kernel")),
    )
)
MAX_MACS = 250_000
MAX_ELEMENTS = 60_000


@dataclass(frozen=True)
class Problem:
    family: str
    batch: int
    groups: int
    c: int  # channels per group of x, the big side
    q: int  # channels per group of y, the small side
    i: tuple[int, ...]  # extents of the forward operator's src: x of convolution, y of transposed
    k: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads_begin: tuple[int, ...]  # as passed; ignored unless auto_pad is "none"
    pads_end: tuple[int, ...]
    auto_pad: str = "none"
    output_padding: tuple[int, ...] | None = None
    data_format: str = "NCX"
    weights_format: str = "OIX"
    layout: str = "contiguous"
    lead: int = 0
    levels: tuple[Level, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        def by(extents: tuple[int, ...]) -> str:
            return "x".join(map(str, extents))

        pads = "x".join(f"{b}_{e}" for b, e in zip(self.pads_begin, self.pads_end, strict=True))
        op = "" if self.output_padding is None else f"op{by(self.output_padding)}"
        auto = "" if self.auto_pad == "none" else f"_{self.auto_pad}"
        return (
            f"{self.family}_n{self.batch}g{self.groups}c{self.c}q{self.q}"
            f"_i{by(self.i)}k{by(self.k)}s{by(self.stride)}d{by(self.dilation)}p{pads}{op}{auto}"
            f"_{self.data_format}_{self.weights_format}_{self.layout}"
        )

    @property
    def rank(self) -> int:
        return len(self.i)

    @property
    def transposed(self) -> bool:
        return self.family == "conv_transpose"

    @property
    def ek(self) -> tuple[int, ...]:
        return tuple(oracle.effective_kernel(self.k, self.dilation))

    @functools.cached_property
    def pads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The pads that hold: auto_pad resolved."""
        begin, end = oracle.resolve_pads(
            self.family,
            self.auto_pad,
            self.pads_begin,
            self.pads_end,
            self.i,
            self.k,
            self.stride,
            self.dilation,
        )
        return tuple(begin), tuple(end)

    @functools.cached_property
    def o(self) -> tuple[int, ...]:
        """Extents of the forward operator's dst."""
        begin, end = self.pads
        op = self.output_padding or (0,) * self.rank
        axes = list(zip(self.i, self.ek, self.stride, begin, end, strict=True))
        if self.transposed:
            rows = zip(axes, op, strict=True)
            return tuple(oracle.conv_transpose_extent(*a, p) for a, p in rows)
        return tuple(oracle.convolution_extent(*a) for a in axes)

    @property
    def x_extent(self) -> tuple[int, ...]:
        return self.o if self.transposed else self.i

    @property
    def y_extent(self) -> tuple[int, ...]:
        return self.i if self.transposed else self.o

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.groups * self.c, *self.x_extent)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.groups, self.q, self.c, *self.k)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.batch, self.groups * self.q, *self.y_extent)

    @property
    def macs(self) -> int:
        return prod(self.y_shape) * self.c * prod(self.k)

    @property
    def incidence(self) -> dict[str, tuple[int, ...]]:
        """The keyword arguments that the oracle's three partials share."""
        return {"stride": self.stride, "dilation": self.dilation, "pads_begin": self.pads[0]}


# ---- from levels to a geometry ----------------------------------------------------------------

Axis = dict[str, int]


def _axis(levels: Levels, rank: int, rng: np.random.Generator) -> Axis | None:
    """One axis on which the levels hold, or None when this draw of the numbers is illegal."""

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    extents = {"1": (1,), "odd": (3, 5, 7), "even": (2, 4, 6), "below_kernel": (1, 2, 3, 4)}
    more = {"odd": (9, 11, 13), "even": (8, 10, 12)} if rank == 1 else {}
    i = pick(*extents[levels["extent"]], *more.get(levels["extent"], ()))
    kernel, stride = levels["kernel"], levels["stride"]
    if kernel == "stride":
        k = int(stride)
    else:
        k = {"whole_input": i, "mixed": pick(1, 2, 3, 5)}.get(kernel) or int(kernel)
    s = k + pick(1, 2) if stride == "beyond_kernel" else int(stride)
    d = int(levels["dilation"])
    ek = (k - 1) * d + 1
    pads = levels["pads"]
    if pads == "none":
        pb = pe = 0
    elif pads == "symmetric":
        pb = pe = pick(1, 1, 2, 3)
    elif pads == "asymmetric":
        pb, pe = pick(0, 1, 2), pick(0, 1, 2, 3)
        if pb == pe:
            return None
    else:
        pb, pe = ek + pick(0, 0, 1), pick(0, 1, ek)
    op = max(s, d) - 1 if levels["output_padding"] == "max" else 0
    if levels["output_padding"] == "max" and op == 0:
        return None

    real_pb, real_pe = (
        p[0]
        for p in oracle.resolve_pads(
            levels["family"], levels["auto_pad"], [pb], [pe], [i], [k], [s], [d]
        )
    )
    if levels["family"] == "conv_transpose":
        o = x = oracle.conv_transpose_extent(i, ek, s, real_pb, real_pe, op)
    elif ek > i + real_pb + real_pe:
        return None
    else:
        o, x = oracle.convolution_extent(i, ek, s, real_pb, real_pe), i
    if o < 1 or (levels["extent"] == "below_kernel" and ek <= x):
        return None
    return {"i": i, "k": k, "s": s, "d": d, "pb": pb, "pe": pe, "op": op}


def _other_levels(levels: Levels, rng: np.random.Generator) -> Levels:
    """Levels for an axis that is not the lead."""
    changed = dict(levels)
    for factor in ("stride", "dilation", "pads", "kernel", "extent"):
        if levels[factor] != "mixed" and rng.random() < 0.5:
            changed[factor] = str(rng.choice([v for v in FACTORS[factor] if v != "mixed"]))
    if changed["kernel"] == "stride" and changed["stride"] == "beyond_kernel":
        changed["kernel"] = "2"
    if levels["output_padding"] == "max" and rng.random() < 0.5:
        changed["output_padding"] = "zero"
    return changed


def realise(levels: Levels, rng: np.random.Generator, attempts: int = 12) -> Problem | None:
    """A problem with these levels, small enough to be tested quickly; None if none was found."""
    rank = int(levels["rank"])
    for _ in range(attempts):
        lead = int(rng.integers(rank))
        axes = [
            _axis(levels if a == lead else _other_levels(levels, rng), rank, rng)
            for a in range(rank)
        ]
        if any(a is None for a in axes):
            continue
        if levels["kernel"] == "mixed" and len({a["k"] for a in axes}) == 1:
            continue
        columns = {name: tuple(a[name] for a in axes) for name in axes[0]}
        depthwise = levels["groups"] == "depthwise"
        # auto_pad ignores explicit pads: "none" passes empty lists there, the others nonsense
        empty = levels["auto_pad"] != "none" and levels["pads"] == "none"
        problem = Problem(
            family=levels["family"],
            batch=int(levels["batch"]),
            groups=int(rng.choice((4, 8, 19))) if depthwise else int(levels["groups"]),
            c=int(levels["c"]),
            q=int(levels["q"]),
            i=columns["i"],
            k=columns["k"],
            stride=columns["s"],
            dilation=columns["d"],
            pads_begin=() if empty else columns["pb"],
            pads_end=() if empty else columns["pe"],
            auto_pad=levels["auto_pad"],
            output_padding=None if levels["output_padding"] == "omitted" else columns["op"],
            data_format=levels["data_format"],
            weights_format=levels["weights_format"],
            layout=levels["layout"],
            lead=lead,
            levels=tuple(levels.items()),
        )
        big = max(prod(problem.x_shape), prod(problem.y_shape), prod(problem.w_shape))
        if problem.macs <= MAX_MACS and big <= MAX_ELEMENTS:
            return problem
    return None


def axis_has(problem: Problem, factor: str, level: str) -> bool:
    """Whether the geometry, on its lead axis, has what the level says. Independent of `_axis`."""
    a = problem.lead
    i, k, s, d = problem.i[a], problem.k[a], problem.stride[a], problem.dilation[a]
    ek = (k - 1) * d + 1
    if factor == "stride":
        return s > k if level == "beyond_kernel" else s == int(level)
    if factor == "dilation":
        return d == int(level)
    if factor == "kernel":
        named = {"stride": k == s, "whole_input": k == i, "mixed": len(set(problem.k)) > 1}
        return named[level] if level in named else k == int(level)
    if factor == "extent":
        short = ek > problem.x_extent[a]
        return {"1": i == 1, "odd": i % 2 == 1, "even": i % 2 == 0, "below_kernel": short}[level]
    if factor == "pads":
        pb, pe = (problem.pads_begin[a], problem.pads_end[a]) if problem.pads_begin else (0, 0)
        return {
            "none": pb == pe == 0,
            "symmetric": pb == pe > 0,
            "asymmetric": pb != pe,
            "beyond_kernel": pb >= ek,
        }[level]
    if factor == "output_padding":
        op = problem.output_padding
        return {
            "omitted": op is None,
            "zero": op is not None and op[a] == 0,
            "max": op is not None and op[a] == max(s, d) - 1 > 0,
        }[level]
    if factor == "groups" and level == "depthwise":
        return problem.groups >= 4 and problem.c == problem.q == 1
    return str(getattr(problem, factor)) == level


# ---- all pairs --------------------------------------------------------------------------------

Pair = frozenset[Level]


def pairs_of(levels: tuple[Level, ...]) -> set[Pair]:
    return {frozenset(two) for two in itertools.combinations(levels, 2)}


def possible_pairs() -> set[Pair]:
    every = set()
    for (f, f_levels), (g, g_levels) in itertools.combinations(FACTORS.items(), 2):
        every |= {frozenset(((f, a), (g, b))) for a in f_levels for b in g_levels}
    return every - IMPOSSIBLE


def _complete(seed: Levels, wanted: set[Pair], greed: float, rng: np.random.Generator) -> Levels:
    """Fill in the other factors; with probability `greed` by what covers most wanted pairs."""
    levels = dict(seed)
    for factor in rng.permutation([f for f in FACTORS if f not in seed]):
        scored = []
        for level in rng.permutation(FACTORS[factor]):
            new = [frozenset(((factor, str(level)), old)) for old in levels.items()]
            if not IMPOSSIBLE.isdisjoint(new):
                continue
            scored.append((sum(p in wanted for p in new), str(level)))
        if not scored:
            return {}
        best = max(scored, key=lambda row: row[0]) if rng.random() < greed else scored[0]
        levels[str(factor)] = best[1]
    return {f: levels[f] for f in FACTORS}


def _cover(rng: np.random.Generator) -> list[Problem]:
    """Problems in which every possible pair occurs at least once."""
    wanted = possible_pairs()
    found = []
    while wanted:
        seed = dict(sorted(min(wanted, key=sorted)))
        candidates = []
        for attempt in range(400):
            # Full greed often asks for the impossible or the huge; chance then finds a way.
            levels = _complete(seed, wanted, 0.9 if attempt < 20 else 0.3, rng)
            problem = realise(levels, rng) if levels else None
            if problem is not None:
                candidates.append((len(pairs_of(problem.levels) & wanted), attempt, problem))
            if len(candidates) == 4:
                break
        if not candidates:
            raise AssertionError(f"no legal problem has {seed}; does it belong in IMPOSSIBLE?")
        problem = max(candidates)[2]
        found.append(problem)
        wanted -= pairs_of(problem.levels)
    return found


def _wide() -> list[Problem]:
    """More channels than any register block holds, with and without a remainder."""
    found = []
    for family, (c, q) in itertools.product(
        ("convolution", "conv_transpose"), ((64, 33), (33, 64), (16, 32), (130, 5), (5, 130))
    ):
        for groups, data_format in ((1, "NXC"), (2, "NCX")):
            found.append(
                Problem(
                    family, 2, groups, c, q, (3, 4), (2, 3), (2, 1), (1, 1), (1, 1), (0, 1),
                    data_format=data_format,
                )
            )  # fmt: skip
    return found


@functools.cache
def problems(at_least: int = 520, seed: int = 20) -> tuple[Problem, ...]:
    """Whole covers, each with other numbers, until there are enough. Deterministic."""
    rng = np.random.default_rng(seed)
    found = {str(p): p for p in _wide()}
    while len(found) < at_least:
        found.update({str(p): p for p in _cover(rng)})
    return tuple(found.values())
