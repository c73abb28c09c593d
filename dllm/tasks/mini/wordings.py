"""How tasks are asked: templates that training sees, and templates that it never sees, some of them by writers of whom
it sees nothing or with words that it never meets.

``(a|b)`` is a choice, ``{items}``, ``{word}`` and ``{at}`` are filled in; what a template does not name is
put after it. The first template of each task is the plain one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

LISTED = "(list|names|items|words|entries)"
TRAINED: dict[str, tuple[str, ...]] = {
    "copy": (
        "Copy the list", "(Copy|Repeat)",
        f"(Copy|Repeat|Echo) (the|this|these|my) {LISTED}",
        "Write the (list|names) (again|unchanged)",
        f"Give (me|back) the same {LISTED}", "(Return|Print) the (list|names) (unchanged|as it is|as they are)",
        "Say {items} again", f"Repeat these {LISTED} in the same order",
        "(Copy|Repeat) (exactly|once more)", f"(Keep|Leave) (the|these) {LISTED} as they are", "Echo {items}",
        f"Write down (the|these) {LISTED} (as given|as they are)", f"The same {LISTED} once more", "Same list",
        f"Do not change (the|these) {LISTED}", "Repeat after me",
    ),
    "reverse": (
        "Reverse the list", "(Reverse|Flip|Backwards)",
        f"(Reverse|Flip|Invert) (the|this|these|my) {LISTED}", "Reverse the order of {items}",
        f"Write the {LISTED} backwards", f"(Give|Print|Return) the {LISTED} in reverse order",
        "(List|Put) these from last to first", f"Turn (this|the) {LISTED} around",
        "(Last|From the last) (name|item|entry) first", "In (reverse|reversed order)", "(Show|Print) {items} reversed",
        f"Read (the|these) {LISTED} from (end to start|the back)", "The other way round", "(Opposite|Reversed) order",
        "(Give|Show|Write) it in (opposite|reversed) order", "Mirror the list",
    ),
    "sort": (
        "Sort the list", "(Sort|Order|Alphabetize)",
        f"(Sort|Order) (the|this|these|my) {LISTED}",
        f"(Sort|Order|Arrange|Put) (the|these) {LISTED} (alphabetically|in alphabetical order|from A to Z)",
        "Sort {items} alphabetically", f"Write the {LISTED} in alphabetical order",
        "Alphabetize (this list|these names)",
        "(In|Into) alphabetical order", "By (letter|alphabet)", "Which comes first in the alphabet",
        f"(Rank|Line up|List) (the|these) {LISTED} (alphabetically|by alphabet|by their letters)",
        "(Show|Give|Print) (them|these) sorted", "What is the alphabetical order of {items}",
        "(Sorted|Alphabetical) list",
    ),
    "shuffle": (
        "Shuffle the list", "(Shuffle|Scramble|Mix|Jumble)",
        f"(Shuffle|Scramble|Mix|Randomize|Jumble) (the|this|these|my) {LISTED}",
        f"(Mix|Jumble) (up|) (the|these) {LISTED}", "Shuffle {items}",
        f"(Put|Write|Give|Print) (the|these) {LISTED} in (a random|another|a different) order",
        f"Change the order of (the|these) {LISTED}", f"Randomize the order of (the|these) {LISTED}",
        "Reorder (the list|these) (randomly|at random)",
        "(In|Into) (a random|any other|a new) order", "(Another|A different) order", "(Permute|Mix) them",
        "(Give|Show|Write) (them|these) (shuffled|mixed|scrambled)", "(Make|Find) a random (list|permutation)",
        "(New|Random) arrangement of {items}", f"(Stir|Toss) the {LISTED}", "Not in this order",
    ),
    "insert_index": (
        "Insert {word} at position {at}", "(Insert|Add|Put) {word} at (position|index|place) {at}",
        "(Insert|Add|Put) {word} (in|into) {items} at (position|index|place) {at}",
        "At (position|index) {at} (insert|add|put) {word}", "Put {word} in place {at} of the list",
        "{word} goes (to|in at) (position|index) {at}",
        "(Insert|Add) at (position|index) {at} the (name|word|item) {word}",
        "(New|Another) (name|item) {word} at (position|index) {at}", "Make room for {word} at (position|index) {at}",
        "The list with {word} (added|inserted) at (position|index) {at}",
        "{word} (should|has to) be (added|inserted|put) at (position|index|place) {at}",
    ),
    "insert_random": (
        "Insert {word} anywhere", "(Insert|Add|Put) {word} (anywhere|somewhere|at random|at a random position)",
        "(Insert|Add|Put) {word} (anywhere|somewhere) (in|into) {items}",
        "(Insert|Add) {word} wherever you (like|want)",
        "Add {word} to the list at (any|a random) (position|place)", "{word} goes (anywhere|somewhere) in this list",
        "(Insert|Add|Include) {word}", "(Insert|Add) {word} (to|into) {items}", "(Any|Some) place for {word}",
        "The list with {word} (added|inserted) (somewhere|anywhere)", "(Include|Slip) {word} (somewhere|at any point)",
        "{word} (should|must) be (added|put|inserted) (somewhere|anywhere|in any place)",
        "(Squeeze|Place|Stick) {word} in (anywhere|somewhere)",
    ),
    "remove_index": (
        "Remove position {at}", "(Remove|Delete|Drop) (position|index|place|item|number) {at}",
        "(Remove|Delete|Drop) the (name|item|entry) at (position|index) {at}",
        "(Remove|Delete) (position|index) {at} (from|of) {items}", "Take (position|number) {at} out of the list",
        "Take out (position|index|number) {at}",
        "(Erase|Cut|Strike|Cross out) (position|index|number|item) {at}", "The list minus (position|index) {at}",
        "(Position|Index|Number) {at} (has to go|must go|goes away|is wrong)",
        "The list but not (position|number) {at}",
        "(Leave out|Skip|Omit) (position|index|number|item) {at}", "No (position|index) {at}",
    ),
    "remove_random": (
        "Remove anyone", "(Remove|Delete|Drop) (anyone|any name|any item|one name|one item|someone)",
        "(Remove|Delete|Drop) (one|any one) of (them|these|the names|the items)",
        "(Remove|Delete) (one|any) of {items}",
        "Take (anyone|one name|one item) out of the list", "Remove a random (name|item|entry)",
        "Leave (anyone|one) out",
        "(Erase|Cut|Skip|Omit) (anyone|any one|someone|a name|one of these)", "The list minus (one|any one)",
        "(One|Any) (name|item) (has to go|must go|less)", "Make the list one shorter",
        "(Lose|Throw out|Cross out) (one|any) (of them|name|item)",
    ),
    "replace_index": (
        "Replace position {at} with {word}",
        "(Replace|Swap|Change) (position|index|item|number) {at} (with|for|to) {word}",
        "Replace the (name|item|entry) at (position|index) {at} (with|by) {word}",
        "Replace (position|index) {at} of {items} with {word}", "(Set|Change) (position|index|item) {at} to {word}",
        "At (position|index) {at} write {word} instead",
        "(Overwrite|Exchange|Substitute) (position|index|item|number) {at} (with|by|for) {word}",
        "{word} (replaces|takes the place of) (position|index|number|item) {at}",
        "(Position|Index|Item) {at} (becomes|should become|is now) {word}", "{word} instead of (number|index) {at}",
        "Let {word} take (position|index) {at} instead",
    ),
    "replace_random": (
        "Replace anyone with {word}", "(Replace|Swap) (anyone|any name|any item|one name|someone) (with|for|by) {word}",
        "Replace (one|any one) of (them|these|the names|the items) (with|by) {word}",
        "Replace (one|any) of {items} with {word}", "Change (any name|one of them|one item) to {word}",
        "Replace a random (name|item|entry) (with|by) {word}", "Write {word} instead of (anyone|one of them)",
        "(Exchange|Substitute|Overwrite) (anyone|one of them|any item|a name) (with|by|for) {word}",
        "{word} (replaces|takes the place of) (anyone|someone|one of them|any name)",
        "(Anyone|One of them|Someone) (becomes|should become|is now) {word}",
        "{word} instead of (any name|one of these)",
        "(Trade|Switch) (one|anyone|any of these) for {word}",
    ),
    "latin_square": (
        "Latin square", "(Make|Write|Build|Fill|Give me) a latin square (of|with|from|using)", "Latin square (of|with)",
        "Make a latin square", "A latin square of these (letters|symbols)",
        "(Fill|Make) a (square|grid) with {items} so that no letter repeats in a row or column",
        "Arrange {items} in a square, each letter once in every row and column",
        "(Generate|Create|Construct|Show) (a|one) latin square (of|with|for|from) {items}", "Build a latin grid",
        "(Square|Grid) of (the|these) letters without repeats", "Every row and column has each (letter|symbol) once",
        "(Latin|A latin) square with (the|these) (letters|symbols) please",
    ),
    "sudoku": (
        "Solve the sudoku", "(Solve|Complete|Finish|Fill) (the|this|my) (sudoku|puzzle|grid)", "Sudoku",
        "(Fill in|Complete) the (missing|empty) (cells|digits|numbers)", "What is the solution of this (sudoku|puzzle)",
        "(Find|Give me|Write) the solution of the (sudoku|puzzle)", "Here is a (sudoku|puzzle), solve it",
        "Help me with (this|my|the) (sudoku|puzzle)", "(The|What are the) missing (digits|numbers)",
        "(Sudoku|Puzzle) (solution|answer)", "(Work|Figure) out (the|this) (sudoku|puzzle)",
        "Fill the (gaps|holes|blanks) (of|in) (the|this) (sudoku|grid|puzzle)",
    ),
    "words_to_sentence": (
        "Write a sentence with {items}",
        "(Write|Make|Form|Give me|Build) a sentence (with|from|using|that has) {items}",
        "(Write|Make) a sentence (with|from|using) (these words|the words)", "Use {items} in a sentence",
        "Use (these words|the words) in (a|one) sentence", "One sentence (with|using) {items}",
        "Put {items} into (a|one) sentence",
        "(Create|Compose|Produce) a sentence (with|from|using|containing) {items}",
        "A sentence (that contains|that uses|containing|with) {items}", "(Combine|Join) {items} in (a|one) sentence",
        "(Sentence|One line) with {items}", "Write something that has {items} in it",
    ),
    "records": (
        "Write as JSON", "(Write|Convert|Turn|Put) (this|these|the) (rows|lines|records|people) (as|to|into) JSON",
        "JSON", "(Give|Make|Print) (me|) JSON (of|from|for) (this|these|the rows)", "As JSON please",
        "Make (JSON|a JSON list) with name, age and town", "Convert to JSON records",
        "(Rows|Lines|Records) to JSON",
        "(Format|Rewrite|Export|Encode|Save) (this|these|the data|the rows) (as|in) JSON",
        "JSON (array|records|objects) (of|with|for) (these|the people)", "Each person as a JSON object",
        "(Create|Build|Produce) (a JSON array|JSON objects|JSON) (from|with) (this|these)",
    ),
    "assign": (
        "Give everyone a town", "(Give|Assign|Deal) (everyone|everybody|each person|each name) (a|one|another) town",
        "(Assign|Deal|Match|Distribute) the towns to the (people|names)",
        "(Send|Move) (everyone|each person) to a town",
        "Pair (each person|each name|the names) with a town", "Who gets which town",
        "(Every|Each) (person|one|name) (gets|receives|has) (a|one) town", "Town for (everyone|each person)",
        "(Share out|Hand out|Divide) the towns (among|between) (the|these) (people|names)",
        "In which town does (everyone|each) live", "(Map|Link|Connect) the (people|names) (to|with) the towns",
    ),
}  # fmt: skip
HELD_BACK = 6  # one further template in six is never trained on, by its hash


def held_out(template: str) -> bool:
    return zlib.crc32(template.encode()) % HELD_BACK == 0


@cache
def read(name: str) -> dict[str, tuple[str, ...]]:
    """The templates of a file, by task."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    sections = (section.strip().splitlines() for section in text.split("\n\n"))
    return {head.strip("[]"): tuple(templates) for head, *templates in sections}


def more() -> dict[str, tuple[str, ...]]:
    """Further templates of each task, as different people would ask."""
    return read("more_wordings.txt")


def many() -> dict[str, tuple[str, ...]]:
    """Nine times as many, a third of them nearly all of words that the others hold, too."""
    return read("many_wordings.txt")


def all_further() -> dict[str, tuple[str, ...]]:
    """All of these, one in six held back."""
    return {task: (*of, *many()[task]) for task, of in more().items()}


def others() -> dict[str, tuple[str, ...]]:
    """Templates of two writers that training never sees."""
    return read("others_wordings.txt")


def _shown(templates: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Without those held back."""
    return {task: tuple(text for text in of if not held_out(text)) for task, of in templates.items()}


FURTHER, MANY = _shown(more()), _shown(many())  # what mini-llada and mini-dream see besides TRAINED
BEFORE = (
    "Please ", "Can you ", "Could you ", "Now ", "I want you to ", "Your task: ", "Hello! ", "OK, ",
    "I would like you to ", "Would you ", "We have to ", "Let us ", "You should ", "I must ", "My task is to ",
    "Here is a list. ", "Hi, ",
)  # fmt: skip
AFTER = (
    "please",
    "thanks",
    "for me",
    "now",
    "if you can",
    "right now",
    "as you like",
    "would you",
    "thank you",
    "for us",
)
# Words that a request may hold and that say nothing of what is asked; each is one token. Training strews them, and
# invented words, into half of its requests: without them "Just copy it" and other words that were never met
# took the fifth recipe from 94 to 45 of 100.
_IDLE = (
    "a about actually all also am an and any are as at be because been being below both but by did do does down each "
    "even exactly few fine following get getting give given go going good got great had has have he hello her here "
    "him his hope how i if in into is it its itself just kindly know let like little long look lot made make many "
    "maybe me might more most much must my need nice nicely now of off ok on only or our over own perfectly perhaps "
    "properly quickly quite really see shall she should show simple simply small so some something soon still such "
    "take tell than that the their them then there they thing think this those time to today too try two under up us "
    "use used very want was way we well were what when where which while who will wish work would yes you your"
)
FILLERS = tuple(_IDLE.split())
SEPARATORS = (":\n", ": ", "\n", ":", " ", ":\n\n", ". ", "? ", " - ", ";\n", ".\n")
LABELS = ("People", "Towns", "Names")  # of lists in a request


def words_asked(text: str) -> set[str]:
    """The words of templates, in lower case."""
    return set(re.findall("[a-z]+", re.sub(r"\{\w+\}", " ", text).lower()))


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of TRAINED and of what is around requests, in lower case."""
    texts = [text for templates in TRAINED.values() for text in templates]
    return tuple(sorted({*words_asked(" ".join([*texts, *BEFORE, *AFTER, *LABELS])), "name", "age", "town"}))


@cache
def further_vocabulary() -> tuple[str, ...]:
    """The words that FURTHER alone brings, in lower case: one token each, those that MANY brings are spelt."""
    return tuple(sorted(_words_of(FURTHER) - {*vocabulary(), *FILLERS}))


def _words_of(templates: Mapping[str, Sequence[str]]) -> set[str]:
    return {word for of in templates.values() for text in of for word in words_asked(text)}


@cache
def met() -> frozenset[str]:
    """The words that training meets in requests."""
    return frozenset((*vocabulary(), *FILLERS, *_words_of(FURTHER), *_words_of(MANY)))


def _never_trained(strange: bool) -> dict[str, tuple[str, ...]]:
    """Held-back templates: of words that training meets in others, or with a word that it never meets."""
    return {
        task: tuple(
            text for text in all_further()[task]
            if held_out(text) and (not words_asked(text) <= met()) == strange
        )
        for task in TRAINED
    }  # fmt: skip


UNSEEN, STRANGE = _never_trained(strange=False), _never_trained(strange=True)
SOURCES = {
    "trained": TRAINED, "more": FURTHER, "many": MANY, "unseen": UNSEEN, "others": others(),
    "strange": STRANGE,
}  # fmt: skip
