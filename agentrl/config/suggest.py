"""The right spelling, for every word that a person can misspell."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """ " Did you mean 'x'?", or the list of options when it is short, or nothing.

    >>> did_you_mean("contdown", ["countdown", "reasoning_gym"])
    " Did you mean 'countdown'?"
    """
    known = sorted(set(options))
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(known)}." if 0 < len(known) <= 24 else ""
