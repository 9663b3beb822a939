"""Which generators of reasoning-gym the `interpreter` plays, and how their answers are scored.

All were audited with reasoning-gym 0.1.25: the right answer scores 1; an empty one, a few words,
the question itself, a right answer with another beside it and another task's answer score 0; the
scorer runs no part of the answer as code. `make test-toolcall` audits them again. An answer is
right or wrong: what a scorer gives for trying, or for holding the right one somewhere, is nothing.
"""

from __future__ import annotations

from typing import Any

OWN: tuple[str, ...] = (
    "ab",
    "advanced_geometry",
    "bitwise_arithmetic",
    "calendar_arithmetic",
    "chain_sum",
    "circuit_logic",
    "color_cube_rotation",
    "complex_arithmetic",
    "cryptarithm",
    "decimal_arithmetic",
    "decimal_chain_sum",
    "dice",
    "emoji_mystery",
    "family_relationships",
    "figlet_font",
    "game_of_life",
    "group_anagrams",
    "jugs",
    "manipulate_matrix",
    "mini_sudoku",
    "needle_haystack",
    "number_format",
    "palindrome_generation",
    "palindrome_partitioning",
    "path_star",
    "polynomial_equations",
    "pool_matrix",
    "power_function",
    "prime_factorization",
    "products",
    "self_reference",
    "sentence_reordering",
    "shortest_path",
    "sudoku",
    "tower_of_hanoi",
    "tsumego",
    "word_ladder",
)
"""Scored by the generator itself, since several answers or ways to write one may be right. The
scorer of prime_factorization raises on words: that counts as wrong."""
EXACT: tuple[str, ...] = (
    "acre",
    "aiw",
    "arc_1d",
    "base_conversion",
    "basic_arithmetic",
    "binary_alternation",
    "caesar_cipher",
    "count_bits",
    "count_primes",
    "course_schedule",
    "game_of_life_halting",
    "gcd",
    "isomorphic_strings",
    "largest_island",
    "lcm",
    "leg_counting",
    "letter_counting",
    "list_functions",
    "mahjong_puzzle",
    "maze",
    "modulo_grid",
    "number_filtering",
    "number_sequence",
    "ransom_note",
    "rectangle_count",
    "rotate_matrix",
    "rotten_oranges",
    "simple_equations",
    "simple_geometry",
    "spell_backward",
    "spiral_matrix",
    "string_insertion",
    "string_manipulation",
    "string_splitting",
    "string_synthesis",
    "syllogism",
    "word_sequence_reversal",
    "word_sorting",
)
"""There is one right answer, and it must be that. Their own scorers also give something to text
that only contains it, to wrong words (game_of_life_halting gives 1 to any), or run it as code."""
GENERATORS = (*OWN, *EXACT)
EASY: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "products": {"min_digits": 1, "max_digits": 1},
    "gcd": {"max_value": 30},
    "spell_backward": {"max_word_len": 4},
    "count_bits": {"max_n": 255},
}
"""A first step for small models: these generators, set to their easiest."""
