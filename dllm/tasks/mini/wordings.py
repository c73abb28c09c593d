"""How tasks are asked: templates that training sees, and templates that it never sees.

``(a|b)`` is a choice, ``{items}``, ``{word}`` and ``{at}`` are filled in; what a template does not name is
put after it. The first template of each task is the plain one.
"""

from __future__ import annotations

import re
from functools import cache

THINGS = "(list|names|items|words|entries)"
TRAINED: dict[str, tuple[str, ...]] = {
    "copy": (
        "Copy the list", "(Copy|Repeat)",
        f"(Copy|Repeat|Echo) (the|this|these|my) {THINGS}",
        "Write the (list|names) (again|unchanged)",
        f"Give (me|back) the same {THINGS}", "(Return|Print) the (list|names) (unchanged|as it is|as they are)",
        "Say {items} again", f"Repeat these {THINGS} in the same order",
    ),
    "reverse": (
        "Reverse the list", "(Reverse|Flip|Backwards)",
        f"(Reverse|Flip|Invert) (the|this|these|my) {THINGS}", "Reverse the order of {items}",
        f"Write the {THINGS} backwards", f"(Give|Print|Return) the {THINGS} in reverse order",
        "(List|Put) these from last to first", f"Turn (this|the) {THINGS} around",
    ),
    "sort": (
        "Sort the list", "(Sort|Order|Alphabetize)",
        f"(Sort|Order) (the|this|these|my) {THINGS}",
        f"(Sort|Order|Arrange|Put) (the|these) {THINGS} (alphabetically|in alphabetical order|from A to Z)",
        "Sort {items} alphabetically", f"Write the {THINGS} in alphabetical order",
        "Alphabetize (this list|these names)",
    ),
    "shuffle": (
        "Shuffle the list", "(Shuffle|Scramble|Mix|Jumble)",
        f"(Shuffle|Scramble|Mix|Randomize|Jumble) (the|this|these|my) {THINGS}",
        f"(Mix|Jumble) (up|) (the|these) {THINGS}", "Shuffle {items}",
        f"(Put|Write|Give|Print) (the|these) {THINGS} in (a random|another|a different) order",
        f"Change the order of (the|these) {THINGS}", f"Randomize the order of (the|these) {THINGS}",
        "Reorder (the list|these) (randomly|at random)",
    ),
    "insert_index": (
        "Insert {word} at position {at}", "(Insert|Add|Put) {word} at (position|index|place) {at}",
        "(Insert|Add|Put) {word} (in|into) {items} at (position|index|place) {at}",
        "At (position|index) {at} (insert|add|put) {word}", "Put {word} in place {at} of the list",
        "{word} goes (to|in at) (position|index) {at}",
    ),
    "insert_random": (
        "Insert {word} anywhere", "(Insert|Add|Put) {word} (anywhere|somewhere|at random|at a random position)",
        "(Insert|Add|Put) {word} (anywhere|somewhere) (in|into) {items}",
        "(Insert|Add) {word} wherever you (like|want)",
        "Add {word} to the list at (any|a random) (position|place)", "{word} goes (anywhere|somewhere) in this list",
    ),
    "remove_index": (
        "Remove position {at}", "(Remove|Delete|Drop) (position|index|place|item|number) {at}",
        "(Remove|Delete|Drop) the (name|item|entry) at (position|index) {at}",
        "(Remove|Delete) (position|index) {at} (from|of) {items}", "Take (position|number) {at} out of the list",
        "Take out (position|index|number) {at}",
    ),
    "remove_random": (
        "Remove anyone", "(Remove|Delete|Drop) (anyone|any name|any item|one name|one item|someone)",
        "(Remove|Delete|Drop) (one|any one) of (them|these|the names|the items)",
        "(Remove|Delete) (one|any) of {items}",
        "Take (anyone|one name|one item) out of the list", "Remove a random (name|item|entry)",
        "Leave (anyone|one) out",
    ),
    "replace_index": (
        "Replace position {at} with {word}",
        "(Replace|Swap|Change) (position|index|item|number) {at} (with|for|to) {word}",
        "Replace the (name|item|entry) at (position|index) {at} (with|by) {word}",
        "Replace (position|index) {at} of {items} with {word}", "(Set|Change) (position|index|item) {at} to {word}",
        "At (position|index) {at} write {word} instead",
    ),
    "replace_random": (
        "Replace anyone with {word}", "(Replace|Swap) (anyone|any name|any item|one name|someone) (with|for|by) {word}",
        "Replace (one|any one) of (them|these|the names|the items) (with|by) {word}",
        "Replace (one|any) of {items} with {word}", "Change (any name|one of them|one item) to {word}",
        "Replace a random (name|item|entry) (with|by) {word}", "Write {word} instead of (anyone|one of them)",
    ),
    "latin_square": (
        "Latin square", "(Make|Write|Build|Fill|Give me) a latin square (of|with|from|using)", "Latin square (of|with)",
        "Make a latin square", "A latin square of these (letters|symbols)",
        "(Fill|Make) a (square|grid) with {items} so that no letter repeats in a row or column",
        "Arrange {items} in a square, each letter once in every row and column",
    ),
    "sudoku": (
        "Solve the sudoku", "(Solve|Complete|Finish|Fill) (the|this|my) (sudoku|puzzle|grid)", "Sudoku",
        "(Fill in|Complete) the (missing|empty) (cells|digits|numbers)", "What is the solution of this (sudoku|puzzle)",
        "(Find|Give me|Write) the solution of the (sudoku|puzzle)", "Here is a (sudoku|puzzle), solve it",
    ),
    "words_to_sentence": (
        "Write a sentence with {items}",
        "(Write|Make|Form|Give me|Build) a sentence (with|from|using|that has) {items}",
        "(Write|Make) a sentence (with|from|using) (these words|the words)", "Use {items} in a sentence",
        "Use (these words|the words) in (a|one) sentence", "One sentence (with|using) {items}",
        "Put {items} into (a|one) sentence",
    ),
    "records": (
        "Write as JSON", "(Write|Convert|Turn|Put) (this|these|the) (rows|lines|records|people) (as|to|into) JSON",
        "JSON", "(Give|Make|Print) (me|) JSON (of|from|for) (this|these|the rows)", "As JSON please",
        "Make (JSON|a JSON list) with name, age and town", "Convert to JSON records",
    ),
    "assign": (
        "Give everyone a town", "(Give|Assign|Deal) (everyone|everybody|each person|each name) (a|one|another) town",
        "(Assign|Deal|Match|Distribute) the towns to the (people|names)",
        "(Send|Move) (everyone|each person) to a town",
        "Pair (each person|each name|the names) with a town", "Who gets which town",
    ),
}  # fmt: skip
UNSEEN: dict[str, tuple[str, ...]] = {
    "copy": ("Just copy it", "Write out exactly the same names again", "I need the same list again, unchanged"),
    "reverse": ("Start with the last and end with the first", "Go through the list backwards", "Reverse it all"),
    "sort": ("Bring these into alphabetical order", "I need them from A to Z", "Sort these names for me"),
    "shuffle": ("I need a random order of these", "Scramble it all up", "Make the order random"),
    "insert_index": ("Put {word} into the list, at index {at}", "I want {word} at position {at}",
                     "Please place {word} at {at}"),
    "insert_random": ("Put {word} in at any place", "I want {word} somewhere among them",
        "Add {word}, anywhere is fine"),
    "remove_index": ("Get rid of the name at index {at}", "I want position {at} removed", "Without position {at}"),
    "remove_random": ("Get rid of one of them", "I want one name removed, any of them", "Drop one at random"),
    "replace_index": ("I want {word} in place of position {at}", "Put {word} instead of item {at}",
                      "Write {word} over position {at}"),
    "replace_random": ("Put {word} in place of anyone", "Swap one of them for {word}",
        "I want {word} instead of someone"),
    "latin_square": ("I need a latin square from these letters", "Put these letters in a latin square",
                     "Latin square please, letters"),
    "sudoku": ("Please find the missing digits of this sudoku", "I cannot solve this sudoku", "Complete it, a sudoku"),
    "words_to_sentence": ("I need one sentence that has the words {items}", "Form a good sentence from {items}",
                          "Say something with {items}"),
    "records": ("I need these people as JSON", "Here are rows, give JSON", "Put it all in a JSON list"),
    "assign": ("Which town does each person get", "Each name needs one of the towns",
        "Distribute one town to everybody"),
}  # fmt: skip
BEFORE = ("Please ", "Can you ", "Could you ", "Now ", "I want you to ", "Your task: ", "Hello! ", "OK, ")
AFTER = ("please", "thanks", "for me", "now")
SEPARATORS = (":\n", ": ", "\n", ":", " ", ":\n\n", ". ", "? ", " - ", ";\n", ".\n")
LABELS = ("People", "Towns", "Names")  # of lists in a request


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of the requests that training sees, in lower case."""
    texts = [text for templates in TRAINED.values() for text in templates]
    plain = re.sub(r"\{\w+\}", " ", " ".join([*texts, *BEFORE, *AFTER, *LABELS])).lower()
    return tuple(sorted({*re.findall("[a-z]+", plain), "name", "age", "town"}))
