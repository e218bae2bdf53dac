"""Small helpers by which conversations.py varies its wording and keeps a held-out part of everything."""
import hashlib
import re


def bucket(key, parts):
    """A stable hash of `key` in 0..parts-1: the same on every machine and in every run."""
    return int.from_bytes(hashlib.sha256(str(key).encode()).digest()[:4], "big") % parts


def held_out(key, one_in=8):
    return bucket(key, one_in) == 0


PARTS = {}


def part(items, held, salt="", one_in=8):
    """The training or the held-out part of a list, split by hash."""
    key = (id(items), held, salt, one_in)
    if key not in PARTS:
        out = [x for x in items if held_out(f"{salt}{x}", one_in) == held]
        PARTS[key] = (out or list(items), items)  # keeps `items` alive, so that its id stays its own
    return PARTS[key][0]


CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(rng, template):
    """Replaces every [a|b|c] by one of its alternatives, innermost first."""
    while True:
        m = CHOICE.search(template)
        if not m:
            return template
        template = template[:m.start()] + rng.choice(m.group(1).split("|")) + template[m.end():]


def say(rng, templates, **fields):
    """One template, its alternatives chosen, then its {fields} filled in."""
    text = expand(rng, rng.choice(templates))
    for k, v in fields.items():
        text = text.replace("{" + k + "}", str(v))
    return text[0].upper() + text[1:] if text and text[0].islower() and not text.startswith(("e.g",)) else text


def ask(rng, held, train, other, **fields):
    """A user's sentence: from `train` in training; from `other`, never seen in training, for half of the held-out prompts."""
    return say(rng, other if held and rng.random() < 0.5 else train, **fields)


def reword(rng, held, train, other, **fields):
    """As ask(), where the content itself is trained (a fact, a word of the list): held-out prompts always have a new wording."""
    return say(rng, other if held else train, **fields)


def a(noun):
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def listing(items, last="and"):
    items = [str(i) for i in items]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" {last} " + items[-1]
