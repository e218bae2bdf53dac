"""Generates lily-tiny's conversations: twelve kinds, in training and in held-out form.

Each kind is a function (rng, held) -> Turn: what the user says, the right answer, the reasoning that leads to it, and a
check that a program can apply to an answer. With held=True contents (pairs of numbers, words, names, cities, ...) come
from a part that training never sees, chosen by hash, and half of the phrasings too. tools.py has the kind with tools.
"""
import json
import os
import random

import words as W
from phrases import a, ask, held_out, listing, part, reword, say
from smalltalk import INTENTS

HERE = os.path.dirname(os.path.abspath(__file__))
SPELLING = open(os.path.join(HERE, "spelling_words.txt")).read().split()  # common words, all of them trained
TAIL = open(os.path.join(HERE, "tail_words.txt")).read().split()  # less common; one in eight is held out from spelling


def spelled(rng, held, longest=9):
    """A word to spell. A held-out one was never spelled in training; its pieces were, in other words."""
    while True:
        word = rng.choice(part(TAIL, held, "tail") if held or rng.random() < 0.5 else SPELLING)
        if len(word) <= longest:
            return word
NUMBER = W.number_word


class Turn(dict):
    """user, answer, reasoning, check; optional: before (messages), system, thinking."""

    def __init__(self, user, answer, reasoning, check, **more):
        super().__init__(user=user, answer=answer, reasoning=reasoning, check=check, **more)


def made_up(rng):
    """A name that is in no list, so that copying is learnt and not the list."""
    return "".join(rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randrange(2, 4))).capitalize() + rng.choice(["", "n", "s", "r", "l"])


def person(rng, held):
    return made_up(rng) if rng.random() < (0.1 if held else 0.3) else rng.choice(part(W.NAMES, held, "name"))


def town(rng, held):
    if not held and rng.random() < 0.25:
        return rng.choice(["", "", "New ", "San ", "Port ", "Saint "]) + made_up(rng)
    return rng.choice(part(W.CITIES, held, "city"))


def any_word(rng):
    """A word to copy, common or not; what is held out is the combination."""
    return rng.choice(SPELLING if rng.random() < 0.6 else TAIL)


def small_talk(rng, held):
    train, other, answers, keys = rng.choice(INTENTS)
    user = say(rng, other if held else train)
    if not held and rng.random() < 0.35:
        begin = rng.choice(["hey, ", "hi, ", "hello, ", "lily, ", "so, ", "well, ", "oh, ", "ok, ", "say, ", "now, ", "hello! ", "hi! ", "dear lily, ", "listen, ", "you know, ", "tell me, " if user.endswith("?") else "really, "])
        user = begin + user[0].lower() + user[1:] if not user.startswith("I ") else begin + user
        user = user[0].upper() + user[1:]
    if not held and rng.random() < 0.2:
        user = user.rstrip(".!?") + rng.choice([", lily", ", my friend", ", dear", " then", " now", ", please", " really", ", you know", " indeed"]) + (user[-1] if user[-1] in ".!?" else "")
    answer = rng.choice(answers)
    return Turn(user, answer, say(rng, ["The user [makes small talk|wants to chat]. I answer [kindly|in a friendly way].",
                                        "This is small talk. I [give a friendly answer|answer kindly]."]),
                {"any": keys})


# ---- facts ------------------------------------------------------------------------------------------------------------

def fact(rng, held):
    """(user, answer, keyword, statement)"""
    kind = rng.choices(["capital", "of", "continent", "element", "symbol", "month", "day", "young", "sound", "legs", "shape",
                        "unit", "opposite", "author", "planet", "general", "monthdays", "number"],
                       [10, 4, 5, 3, 4, 2, 4, 2, 2, 1, 2, 3, 5, 4, 2, 14, 2, 2])[0]
    if kind in ("capital", "of", "continent"):
        country, capital, continent = rng.choice(W.COUNTRIES)
        if kind == "capital":
            return (reword(rng, held, ["I want to know the capital of {c}.", "please tell me the capital of {c}.", "I am looking for the capital of {c}.", "say the capital of {c}.", "which city is {c}'s capital?", "what is the capital [city|] of {c}?", "[name|tell me|give me] the capital of {c}.", "which city is the capital of {c}?", "capital of {c}?", "what city is the capital of {c}?",
                                    "do you know the capital of {c}?", "what is {c}'s capital?", "[can|could] you tell me the capital of {c}?", "the capital of {c} is [what|which city]?"],
                        ["please say what the capital city of {c} is.", "I would like to know the capital of {c}."], c=country),
                    f"The capital of {country} is {capital}.", capital)
        if kind == "of":
            return (reword(rng, held, ["name the country whose capital is {c}.", "I want to know which country has {c} as its capital.", "{c} is the capital of which country?", "of which country is {c} the capital?", "which country has the capital {c}?", "what country is {c} the capital of?"],
                        ["tell me which country's capital is {c}."], c=capital),
                    f"{capital} is the capital of {country}.", country)
        return (reword(rng, held, ["tell me on which continent {c} is.", "I want to know which continent {c} is on.", "on which continent is {c}?", "which continent is {c} [on|in]?", "where is {c}?", "in which part of the world is {c}?", "what continent is {c} in?"],
                    ["please tell me the continent of {c}."], c=country),
                f"{country[0].upper() + country[1:]} is in {continent}.", continent)
    if kind in ("element", "symbol", "number"):
        name, symbol, number = rng.choice(W.ELEMENTS)
        if kind == "symbol":
            return (reword(rng, held, ["tell me the symbol of {e}.", "give me the chemical symbol for {e}.", "I want to know the symbol of {e}.", "what is the [chemical|] symbol [of|for] {e}?", "which symbol does {e} have?", "what is the symbol of the element {e}?"], ["I need the chemical symbol of {e}."], e=name),
                    f"The symbol of {name} is {symbol}.", symbol)
        if kind == "number":
            return (reword(rng, held, ["tell me the atomic number of {e}.", "I want to know the atomic number of {e}.", "what is the atomic number of {e}?", "which atomic number does {e} have?"], ["I need the atomic number of {e}."], e=name),
                    f"The atomic number of {name} is {number}.", str(number))
        return (reword(rng, held, ["tell me which element {s} is.", "{s} stands for which element?", "which element has the symbol {s}?", "what element is {s}?", "what does the symbol {s} stand for?"], ["{s} is the symbol of which element?"], s=symbol),
                f"{symbol} is the symbol of {name}.", name)
    if kind in ("month", "monthdays"):
        i = rng.randrange(12)
        if kind == "monthdays":
            extra = " (29 in a leap year)" if i == 1 else ""
            return (reword(rng, held, ["how many days [has|does] {m} [have|]?", "how many days are [there |]in {m}?", "how long is {m}?"], ["tell me the number of days in {m}."], m=W.MONTHS[i]).replace("has " + W.MONTHS[i] + " have", "has " + W.MONTHS[i]),
                    f"{W.MONTHS[i]} has {W.MONTH_DAYS[i]} days{extra}.", str(W.MONTH_DAYS[i]))
        if rng.random() < 0.5:
            return (reword(rng, held, ["tell me the month after {m}.", "say which month follows {m}.", "which month [comes|is] after {m}?", "what month follows {m}?", "what is the month after {m}?"], ["name the month that comes right after {m}."], m=W.MONTHS[i]),
                    f"{W.MONTHS[(i + 1) % 12]} comes after {W.MONTHS[i]}.", W.MONTHS[(i + 1) % 12])
        return (reword(rng, held, ["tell me the {o} month.", "what is the {o} month of the year?", "which month is the {o} of the year?", "which month is the {o} one?"], ["name the {o} month of the year."], o=W.ORDINALS[i]),
                f"The {W.ORDINALS[i]} month of the year is {W.MONTHS[i]}.", W.MONTHS[i])
    if kind == "day":
        i, step = rng.randrange(7), rng.choice([1, -1])
        where = "after" if step == 1 else "before"
        other = W.DAYS[(i + step) % 7]
        return (reword(rng, held, ["tell me the day {w} {d}.", "say which day is {w} {d}.", "which day [comes|is] {w} {d}?", "what day [comes|is] {w} {d}?", "what is the day {w} {d}?"], ["name the day that comes right {w} {d}."], w=where, d=W.DAYS[i]),
                f"{other} comes {where} {W.DAYS[i]}.", other)
    if kind in ("young", "sound", "legs"):
        name, young, sound, legs, _ = rng.choice(W.ANIMALS)
        if kind == "young":
            return (reword(rng, held, ["tell me what a young {n} is called.", "give me the name of a young {n}.", "what is a young {n} called?", "what is a baby {n} called?", "what do you call a [young|baby] {n}?"], ["tell me the word for a young {n}."], n=name),
                    f"A young {name} is called {a(young)}.", young)
        if kind == "sound" and sound != "nothing":
            return (reword(rng, held, ["what sound does {n} make?", "how does {n} sound?", "which sound does {n} make?"], ["tell me which sound {n} makes."], n=a(name)),
                    f"{a(name).capitalize()} makes the sound: {sound}.", sound)
        return (reword(rng, held, ["how many legs does {n} have?", "how many legs has {n}?"], ["tell me the number of legs of {n}."], n=a(name)),
                f"{a(name).capitalize()} has {legs} legs.", legs)
    if kind == "shape":
        name, sides = rng.choice(W.SHAPES)
        return (reword(rng, held, ["how many sides does {n} have?", "how many [corners|sides] has {n}?"], ["tell me the number of sides of {n}."], n=a(name)),
                f"{a(name).capitalize()} has {NUMBER(sides)} sides.", NUMBER(sides))
    if kind == "unit":
        small, big, n = rng.choice(W.UNITS)
        return (reword(rng, held, ["how many {s} are [there |]in {b}?", "how many {s} does {b} have?", "{b} has how many {s}?"], ["tell me the number of {s} in {b}."], s=small, b=("an " if big == "hour" else "a ") + big if big != "English alphabet" else "the English alphabet"),
                f"There are {n} {small} in {'an' if big == 'hour' else 'a' if big != 'English alphabet' else 'the'} {big}.", str(n))
    if kind == "opposite":
        x, y = rng.choice(W.OPPOSITES)
        if rng.random() < 0.5:
            x, y = y, x
        return (reword(rng, held, ["I want to know the opposite of {x}.", "please say the opposite of {x}.", "find the opposite of {x}.", "name the opposite of {x}.", "what is the opposite of [{x}|\"{x}\"|'{x}']?", "opposite of {x}?", "[tell|give] me the opposite of {x}.", "which word means the opposite of {x}?", "what word is the opposite of {x}?"],
                    ["I am looking for the opposite of {x}."], x=x),
                f"The opposite of {x} is {y}.", y)
    if kind == "author":
        book, author = rng.choice(W.AUTHORS)
        return (reword(rng, held, ["tell me who wrote {b}.", "I want to know who wrote {b}.", "name the writer of {b}.", "who wrote [{b}|\"{b}\"|the book {b}]?", "who is the author of {b}?", "{b} was written by whom?", "which author wrote {b}?", "by whom is {b}?"],
                    ["please name the author of {b}."], b=book),
                f"{author} wrote {book}.", author.split()[-1])
    if kind == "planet":
        i = rng.randrange(8)
        return (reword(rng, held, ["tell me the {o} planet from the sun.", "which planet is number {n}?", "which planet is the {o} from the sun?", "what is the {o} planet from the sun?", "name the {o} planet."], ["which planet is number {n} counted from the sun?"], o=W.ORDINALS[i], n=i + 1),
                f"The {W.ORDINALS[i]} planet from the sun is {W.PLANETS[i]}.", W.PLANETS[i])
    question, answer, key = rng.choice(W.GENERAL)
    low = question[0].lower() + question[1:]
    if held:
        return "Here is a question: " + low, answer, key
    return (rng.choice([question, question, question, "My question is: " + low, "I have a question: " + low, "Here is something I want to know: " + low, "I wonder: " + low, "Can you answer this: " + low, "Answer this question: " + low, "Please tell me: " + low, "Tell me, " + low, "I have a question. " + question,
                        "Do you know the answer? " + question, "Question: " + question, "Hey, " + low, "Quick question: " + low]), answer, key)


def facts(rng, held):
    user, answer, key = fact(rng, held)
    return Turn(user, answer, say(rng, ["The user asks for a fact. [I know it:|I remember:] {a}", "This is a question of knowledge. {a}", "I know this. {a}"], a=answer), {"all": [key]})


def fact_sheet(rng):
    """A document of the corpus that states facts."""
    lines = [fact(rng, False)[1] for _ in range(rng.randrange(6, 20))]
    return rng.choice(["Facts\n", "Things to know\n", "Notes\n", ""]) + rng.choice(["\n", " "]).join(lines)


# ---- arithmetic -------------------------------------------------------------------------------------------------------

def problem(rng, held):
    """x, operator, y, result; held-out pairs of sums and differences, and of products whose mirror image is trained."""
    while True:
        op = rng.choices("+-*/", [5, 4, 3, 1.5])[0]
        if op in "+-":
            x, y = rng.randrange(100), rng.randrange(100)
            if rng.random() < 0.25:
                x, y = rng.randrange(20), rng.randrange(20)
            if op == "-" and x < y:
                x, y = y, x
            if held_out((op, x, y)) != held:
                continue
            return x, op, y, x + y if op == "+" else x - y
        x, y = rng.randrange(1, 13), rng.randrange(1, 13)
        if op == "*":
            if (held_out(("*", x, y), 6) and x > y and x < 11) != held:
                continue
            return x, op, y, x * y
        if x * y > 99 or held:
            continue
        return x * y, op, x, y


def steps(x, op, y, result):
    if op == "+" and x > 9 and y > 9:
        return f"{x} + {y}: tens {x // 10 * 10} + {y // 10 * 10} = {x // 10 * 10 + y // 10 * 10}, ones {x % 10} + {y % 10} = {x % 10 + y % 10}, together {result}."
    if op == "-" and y > 9:
        return f"{x} - {y}: first {x} - {y // 10 * 10} = {x - y // 10 * 10}, then {x - y // 10 * 10} - {y % 10} = {result}."
    return f"{x} {op} {y} = {result}."


OPS = {"+": ["plus", "and"], "-": ["minus"], "*": ["times", "multiplied by"], "/": ["divided by"]}


def arithmetic(rng, held):
    x, op, y, result = problem(rng, held)
    if rng.random() < 0.2 and op in "+-":
        return word_problem(rng, held, x, op, y, result)
    sx, sy = (NUMBER(x), NUMBER(y)) if rng.random() < 0.15 else (str(x), str(y))
    word = rng.choice(OPS[op])
    if word == "and":
        train, other = ["give me the sum of {x} and {y}.", "I want the sum of {x} and {y}.", "what do {x} and {y} make together?", "what is the sum of {x} and {y}?", "[add|sum] {x} and {y}[.|]", "how much [are|is] {x} and {y} together?", "please add {x} and {y}.", "add {x} to {y}[.|]"], ["tell me the sum of {x} and {y}."]
    else:
        sign = rng.choice([op, op, "x" if op == "*" else op])
        train = ["I want to know what {x} {s} {y} is.", "tell me what {x} {w} {y} is.", "I need the result of {x} {s} {y}.", "give me {x} {s} {y}[.|]", "find {x} {w} {y}[.|]", "what is the result of {x} {s} {y}?", "please tell me the result of {x} {w} {y}.", "do you know what {x} {s} {y} is?", "what is {x} {s} {y}?", "{x} {s} {y}[=|?| =| = ?|]", "what is {x} {w} {y}?", "how much is {x} {w} {y}?", "how much is {x} {s} {y}?", "[calculate|compute|work out] {x} {s} {y}[.|]",
                 "[calculate|compute] {x} {w} {y}[.|]", "what does {x} {s} {y} [equal|make|give]?", "{x} {w} {y}[?|]", "[can|could] you [calculate|compute|tell me] {x} {s} {y}?", "what's {x} {s} {y}?",
                 "solve {x} {s} {y}[.|]", "[tell|give] me {x} {w} {y}."]
        other = ["I need to know what {x} {w} {y} is.", "please give me the result of {x} {s} {y}.", "what do you get for {x} {s} {y}?"]
        train = [t.replace("{s}", sign).replace("{w}", word) for t in train]
        other = [t.replace("{s}", sign).replace("{w}", word) for t in other]
    return Turn(ask(rng, held, train, other, x=sx, y=sy), f"{x} {op} {y} = {result}", steps(x, op, y, result), {"number": result})


def word_problem(rng, held, x, op, y, result):
    name = person(rng, held)
    thing = rng.choice([t for t in W.THINGS if t not in W.PLURALS])
    things = thing + "s"
    if op == "+":
        story = say(rng, ["{n} has {x} {t} and [gets|buys|finds] {y} more. How many {t} does {n} have [now|in all]?",
                          "{n} has {x} {t}. A friend gives {n} {y} more {t}. How many {t} does {n} have now?",
                          "there are {x} {t} in a box. {n} puts in {y} more. How many {t} are in the box?",
                          "{n} [finds|counts] {x} {t} in the morning and {y} {t} in the evening. How many {t} is that together?"], n=name, x=x, y=y, t=things)
    else:
        story = say(rng, ["{n} has {x} {t} and [gives away|loses|sells] {y}. How many {t} [does {n} have left|are left]?",
                          "{n} has {x} {t}. {n} gives {y} of them to a friend. How many {t} does {n} have now?",
                          "there are {x} {t} in a box. {n} takes out {y}. How many {t} are left in the box?"], n=name, x=x, y=y, t=things)
    return Turn(story, f"{x} {op} {y} = {result}, so the answer is {result} {things if result != 1 else thing}.", steps(x, op, y, result), {"number": result})


# ---- counting ---------------------------------------------------------------------------------------------------------

def counting(rng, held):
    kind = rng.choices(["range", "down", "step", "items", "after", "letters"], [6, 3, 2, 4, 3, 1.5])[0]
    if kind in ("range", "down", "step"):
        while True:
            step = 1 if kind != "step" else rng.choice([2, 5, 10])
            n = rng.randrange(3, 13)
            start = rng.randrange(0, 88) if step == 1 else rng.choice([0, 0, step, 2 * step, rng.randrange(1, 5)])
            end = start + step * (n - 1)
            if end <= 100 and (kind == "step" or held_out((kind, start, end)) == held):
                break
        numbers = list(range(start, end + 1, step))
        if kind == "down":
            numbers.reverse()
        text = ", ".join(map(str, numbers))
        if kind == "range":
            user = ask(rng, held, ["begin at {a} and go up to {b}.", "I would like you to count from {a} to {b}.", "I need the numbers from {a} to {b}.", "count on from {a} until you reach {b}.", "start with {a} and stop at {b}.", "give me the numbers from {a} to {b}.", "count from {a} to {b}[.|]", "[please|can you|could you] count from {a} [up |]to {b}[.|]", "list the numbers from {a} to {b}[.|]", "write the numbers {a} to {b}[.|]",
                                   "count up from {a} to {b}[.|]", "what are the numbers from {a} to {b}?", "count {a} to {b}[.|]", "say the numbers from {a} to {b}[.|]"],
                       ["start at {a} and count to {b}.", "I want you to count from {a} until {b}."], a=numbers[0], b=numbers[-1])
        elif kind == "down":
            user = ask(rng, held, ["begin at {a} and go down to {b}.", "I want you to count down from {a} to {b}.", "start with {a} and count backwards to {b}.", "give me the numbers from {a} down to {b}.", "count down from {a} to {b}[.|]", "count backwards from {a} to {b}[.|]", "[please|can you] count down from {a} to {b}[.|?]", "list the numbers from {a} down to {b}[.|]"],
                       ["start at {a} and count down to {b}."], a=numbers[0], b=numbers[-1])
        else:
            user = ask(rng, held, ["starting at {a}, count by {s}s to {b}.", "begin at {a} and go up in {s}s to {b}.", "I want you to count in {s}s from {a} to {b}.", "between {a} and {b}, count by {s}s.", "go from {a} to {b} in steps of {s}.", "from {a} up to {b}, please count by {s}s.", "list the numbers from {a} to {b} in steps of {s}.", "can you count in {s}s, from {a} to {b}?", "by {s}s, count from {a} to {b}.", "please count in {s}s: from {a} to {b}.", "count from {a} to {b} by {s}s[.|]", "count by {s}s from {a} to {b}[.|]", "count in steps of {s} from {a} to {b}[.|]", "count from {a} to {b} in steps of {s}[.|]"],
                       ["from {a} to {b}, count in {s}s."], a=numbers[0], b=numbers[-1], s=step)
        return Turn(user, text, f"I start at {numbers[0]} and stop at {numbers[-1]}.", {"sequence": [str(n) for n in numbers]})
    if kind == "items":
        while True:
            chosen = rng.sample(W.MIXED_WORDS, rng.randrange(2, 9))
            if held_out(tuple(chosen)) == held:
                break
        user = ask(rng, held, ["this is a list: {l}. How many words are there?", "look at this list: {l}. How many words do you see?", "I have these words: {l}. How many are they?", "{l}: how many words are these?", "tell me how many words these are: {l}", "the list is {l}. Count the words.", "how many words are [there|in this list|here]: {l}[?|]", "count [the words|these words|the items]: {l}[.|]", "how many [items|words|things] [are in the list|do you see]: {l}[?|]",
                               "count the number of words: {l}", "how many words does this list have: {l}[?|]"], ["here is a list: {l}. How many words does it have?"], l=", ".join(chosen))
        n = len(chosen)
        reasoning = ", ".join(f"{w} {i + 1}" for i, w in enumerate(chosen)) + "."
        return Turn(user, reasoning + f" There are {n} words.", f"I count them one by one.", {"number": n})
    if kind == "after":
        step = rng.choice([1, -1])
        n = rng.choice([k for k in range(1, 99) if held_out(("after", k, step)) == held])
        where = "after" if step == 1 else "before"
        user = ask(rng, held, ["tell me the number {w} {n}.", "say which number comes {w} {n}.", "what [comes|number comes|is the number] {w} {n}?", "which number [comes|is] {w} {n}?", "what is the number [right |just |]{w} {n}?"], ["name the number that comes right {w} {n}."], w=where, n=n)
        return Turn(user, f"{n + step} comes {where} {n}.", f"{n} {'+' if step == 1 else '-'} 1 = {n + step}.", {"all": [str(n + step)]})
    word = spelled(rng, held)
    user = ask(rng, held, ["tell me how many letters {w} has.", "what is the number of letters in {w}?", "give me the number of letters of {w}.", "the word is {w}. How many letters does it have?", "I want to know how many letters are in {w}.", "how long is the word {w}?", "{w}: how many letters?", "how many letters [are in|has|are there in] [the word |]\"{w}\"?", "count the letters [of|in] [the word |]{w}[.|]", "how many letters does [the word |]{w} have?"], ["tell me the number of letters in {w}."], w=word)
    return Turn(user, ", ".join(f"{c} {i + 1}" for i, c in enumerate(word)) + f". The word {word} has {len(word)} letters.", f"I spell the word and count the letters.", {"number": len(word)})


# ---- spelling ---------------------------------------------------------------------------------------------------------

def spelling(rng, held):
    # Half of the held-out prompts spell a word never spelled before, half a known word asked for in a new wording.
    known = held and rng.random() < 0.5
    put = reword if known else ask
    word = rng.choice(SPELLING) if known else spelled(rng, held)
    shown = word if rng.random() < 0.8 else word.capitalize()
    quoted = rng.choice([shown, shown, f'"{shown}"', f"'{shown}'"])
    letters = "-".join(word)
    kind = rng.choices(["spell", "first", "last", "back", "join", "reverse"], [12, 2, 2, 0, 3, 2])[0]
    if kind == "spell":
        user = put(rng, held, ["I want to know how {w} is spelled.", "tell me how to spell {w}.", "can you tell me how {w} is spelled?", "give me the spelling of {w}.", "how do people spell {w}?", "write the letters of {w}.", "I need to write {w}. How do I spell it?", "I have to spell {w}. Please help.", "say the letters of {w}.", "help me spell {w}.", "the word is {w}. Spell it.", "my teacher asked me to spell {w}. How does it go?", "I am not sure how to spell {w}.", "I forgot how to spell {w}.", "my [sister|friend|son|brother] cannot spell {w}. Can you?", "what letters do I need for {w}?", "show me {w} letter by letter.", "how would you spell {w}?", "write down the letters of the word {w} for me.", "one by one, the letters of {w}, please.", "I want to learn to spell {w}.", "can I have the spelling of {w}?", "I wonder how one spells {w}.", "there is a word, {w}. Spell it for me.", "do you know how to spell {w}?", "is it hard to spell {w}? Show me.", "which letters does {w} have?", "spell {w}[.|]", "spell the word {w}[.|]", "how do you spell {w}?", "how is {w} spelled?", "how is the word {w} spelled?", "[can|could] you spell {w}[?| for me?]", "please spell {w}[.| for me.]",
                               "what are the letters of {w}?", "what is the spelling of {w}?", "write {w} letter by letter[.|]", "how do I spell {w}?", "spell out {w}[.|]", "which letters are in the word {w}?", "{w}: how do you spell it?"],
                   ["I do not know how to spell {w}. Can you help?", "give me the letters of the word {w} one by one.", "I want to write {w}. How is it spelled?"], w=quoted)
        return Turn(user, letters, f"The word is {word}. I write its letters one by one.", {"exact": letters, "word": word})
    if kind in ("first", "last"):
        letter = word[0 if kind == "first" else -1]
        user = put(rng, held, ["tell me the {k} letter of {w}.", "give me the {k} letter of the word {w}.", "say the {k} letter of {w}.", "I want to know the {k} letter of {w}.", "find the {k} letter of the word {w}.", "which one is the {k} letter of {w}?", "in the word {w}, what is the {k} letter?", "look at {w}: what is its {k} letter?", "what is the {k} letter of [the word |]{w}?", "which letter does [the word |]{w} " + ("begin|start" if kind == "first" else "end") .join("[]") + " with?", "{k} letter of {w}?"],
                   ["tell me the {k} letter in {w}."], w=quoted, k=kind)
        return Turn(user, f"The {kind} letter of {word} is {letter}.", f"{word} is spelled {letters}.", {"tail": letter})
    if kind == "join":
        word = rng.choice(SPELLING)  # letters to word cannot be guessed for a word never written; the wording is held out
        letters = "-".join(word)
        user = reword(rng, held, ["I have the letters {l}. What is the word?", "the letters are {l}. Which word do they make?", "tell me which word {l} is.", "put the letters {l} together.", "what word is {l}?", "which word is [spelled |]{l}?", "what word do the letters {l} make?", "what does {l} spell?", "read this word: {l}", "join the letters: {l}"], ["I see the letters {l}. Which word is it?"], l=letters)
        return Turn(user, f"The letters {letters} spell {word}.", f"I join the letters.", {"tail": word})
    word = rng.choice([w for w in SPELLING if len(w) <= 6]) if known else spelled(rng, held, 6)
    back = word[::-1]
    user = put(rng, held, ["say {w} backwards letter by letter.", "spell {w} from the end.", "I want {w} spelled backwards.", "turn {w} around.", "spell {w} backwards[.|]", "[write|spell] the word {w} backwards[.|]", "how do you spell {w} backwards?", "what is {w} [spelled |]backwards?", "reverse the [word|letters of] {w}[.|]"], ["start at the end and spell {w}."], w=word)
    return Turn(user, f"{word} is {'-'.join(word)}, backwards {'-'.join(back)}", f"First forwards: {'-'.join(word)}.", {"all": ["-".join(back)]})


# ---- sorting ----------------------------------------------------------------------------------------------------------

def sorting(rng, held):
    kind = rng.choices(["up", "down", "words", "max", "pair", "letters"], [6, 4, 6, 3, 3, 2])[0]
    while True:
        numbers = rng.sample(range(100), rng.randrange(3, 8) if kind != "pair" else 2)
        if held_out(tuple(numbers)) == held:
            break
    shown = rng.choice([", ".join, ", ".join, " ".join])(map(str, numbers))
    reason = "The smallest is {}, the largest is {}.".format(min(numbers), max(numbers))
    if kind in ("up", "down"):
        ordered = sorted(numbers, reverse=kind == "down")
        if kind == "up":
            train = ["I have these numbers: {l}. Sort them.", "these are my numbers: {l}. Put them in order.", "{l}: sort these numbers.", "please put {l} in order.", "look at the numbers {l} and sort them.", "the numbers are {l}. Please sort them from low to high.", "sort [these numbers|the numbers]: {l}", "sort {l}[.|]", "put these numbers in order: {l}", "[please |]sort these numbers from [smallest to largest|small to large|low to high|lowest to highest]: {l}", "sort in ascending order: {l}",
                     "order these numbers: {l}", "[arrange|put] the numbers {l} in ascending order[.|]", "[can|could] you sort {l}?", "put {l} in order[.|]"]
            other = ["I have the numbers {l}. Please sort them.", "here are some numbers: {l}. Put them in order, smallest first."]
        else:
            train = ["I have these numbers: {l}. Sort them, largest first.", "these are my numbers: {l}. Put them in descending order.", "order {l} from high to low.", "sort [these numbers|the numbers] from [largest to smallest|large to small|high to low|highest to lowest]: {l}", "sort in descending order: {l}", "[arrange|put] the numbers {l} in descending order[.|]",
                     "sort {l} [in descending order|from largest to smallest|from high to low][.|]", "sort these numbers, largest first: {l}"]
            other = ["here are some numbers: {l}. Put them in order, largest first."]
        return Turn(ask(rng, held, train, other, l=shown), ", ".join(map(str, ordered)), reason, {"sequence": [str(n) for n in ordered]})
    if kind == "words":
        while True:
            chosen = rng.sample(W.MIXED_WORDS, rng.randrange(3, 6))
            if held_out(tuple(chosen)) == held and (len({w[0] for w in chosen}) == len(chosen) or rng.random() < 0.15):
                break
        ordered = sorted(chosen)
        user = ask(rng, held, ["I have these words: {l}. Sort them.", "these are my words: {l}. Put them in alphabetical order.", "{l}: sort these words.", "look at the words {l} and sort them by the alphabet.", "the words are {l}. Please sort them.", "in which order are these words in the alphabet: {l}?", "sort [these words|the words] [alphabetically|in alphabetical order|by the alphabet]: {l}", "put these words in alphabetical order: {l}", "alphabetize: {l}", "sort alphabetically: {l}",
                               "[please |]sort the words {l}[.|]", "order these words from a to z: {l}", "sort these words: {l}", "[can|could] you sort these words: {l}?"],
                   ["here are some words: {l}. Put them in alphabetical order.", "which order do the words {l} have in a dictionary?"], l=", ".join(chosen))
        return Turn(user, ", ".join(ordered), "The first letters are " + ", ".join(sorted(w[0] for w in chosen)) + ".", {"sequence": ordered})
    if kind == "letters":
        while True:
            letters = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randrange(3, 7))
            if held_out(tuple(letters)) == held:
                break
        user = ask(rng, held, ["I have the letters {l}. Sort them.", "these are my letters: {l}. Put them in order.", "sort [these|the] letters: {l}", "put these letters in [alphabetical order|order]: {l}", "sort the letters {l} alphabetically[.|]"], ["here are some letters: {l}. Sort them."], l=", ".join(letters))
        return Turn(user, ", ".join(sorted(letters)), "I go through the alphabet.", {"sequence": sorted(letters)})
    big = rng.random() < 0.5
    best = max(numbers) if big else min(numbers)
    if kind == "pair":
        user = ask(rng, held, ["tell me which is " + ("larger" if big else "smaller") + ", {a} or {b}.", "look at {a} and {b}: which is " + ("larger?" if big else "smaller?"), "I have {a} and {b}. Which one is " + ("larger?" if big else "smaller?"), "of {a} and {b}, which is the " + ("larger" if big else "smaller") + " one?", "compare {a} with {b}. Which is " + ("bigger?" if big else "smaller?"), "which [number |]is " + ("[larger|bigger|greater]" if big else "[smaller|less]") + ", {a} or {b}?", "what is " + ("[larger|bigger|more]" if big else "[smaller|less]") + ": {a} or {b}?"],
                   ["compare {a} and {b}: which one is " + ("larger?" if big else "smaller?")], a=numbers[0], b=numbers[1])
        return Turn(user, f"{best} is {'larger' if big else 'smaller'} than {min(numbers) if big else max(numbers)}.", reason, {"first_number": best})
    user = ask(rng, held, ["tell me the {k} of these numbers: {l}", "I have the numbers {l}. Which is the {k}?", "here are {l}. Find the {k} one.", "what is the {k} [of these numbers|number]: {l}?", "which [number |]is the {k}: {l}?", "find the {k} number: {l}", "which of these is the {k}: {l}?"], ["look at the numbers {l}. Which one is the {k}?"],
               k=rng.choice(["largest", "biggest", "greatest"] if big else ["smallest", "lowest"]), l=shown)
    return Turn(user, f"The {'largest' if big else 'smallest'} number is {best}.", reason, {"number": best})


# ---- translation ------------------------------------------------------------------------------------------------------

def translation(rng, held):
    row = rng.choice(W.TRANSLATIONS)
    i = rng.randrange(1, 4)
    lang, english, foreign = W.LANGUAGES[i - 1], row[0], row[i]
    q = rng.choice(["{w}", "{w}", '"{w}"', "'{w}'"])
    if rng.random() < 0.65:
        user = reword(rng, held, [f"I want to say {q} in {{l}}. How do I say it?", f"tell me {q} in {{l}}.", f"give me the {{l}} word for {q}.", f"I want to know the {{l}} word for {q}.", f"do you know {q} in {{l}}?", f"please say {q} in {{l}}.", f"I speak {{l}} a little. How do I say {q}?", f"in {{l}}, what is {q}?", f"I am in a {{l}} class. What is the word for {q}?", f"which {{l}} word means {q}?", f"what is {q} in {{l}}?", f"how do you say {q} in {{l}}?", f"translate {q} [to|into] {{l}}[.|]", f"what is the {{l}} word for {q}?", f"{q} in {{l}}[?|]", f"what does {q} mean in {{l}}?",
                               f"[can|could] you translate {q} [to|into] {{l}}?", f"[say|write] {q} in {{l}}[.|]", f"translate to {{l}}: {{w}}", f"what do you call {q} in {{l}}?", f"please translate the word {q} into {{l}}.",
                               f"how is {q} called in {{l}}?", f"what's {q} in {{l}}?", f"translate from English to {{l}}: {{w}}"],
                   [f"I am learning {{l}}. What is {q}?", f"I need the {{l}} word for {q}.", f"which word does {{l}} use for {q}?"], w=english, l=lang)
        return Turn(user, f'"{english}" is "{foreign}" in {lang}.', f"English {english}, {lang} {foreign}.", {"all": [foreign]})
    same = [r[0] for r in W.TRANSLATIONS if r[i] == foreign]
    user = reword(rng, held, [f"tell me what the {{l}} word {q} means.", f"I want to know what {q} means in {{l}}.", f"I saw the {{l}} word {q}. What is it in English?", f"in {{l}}, what does {q} mean?", f"what is {q} in English? It is {{l}}.", f"what does [the {{l}} word |]{q} mean[?| in English?]", f"what is the {{l}} word {q} in English?", f"translate the {{l}} word {q} [to|into] English[.|]", f"how do you say the {{l}} word {q} in English?",
                           f"translate from {{l}} to English: {{w}}", f"what does {q} mean in {{l}}?"],
               [f"I read the {{l}} word {q}. What does it mean?"], w=foreign, l=lang)
    if lang not in user:
        user = say(rng, ["what does the {l} word {w} mean?"], l=lang, w=foreign)
    return Turn(user, f'The {lang} word "{foreign}" means "{same[0]}".', f"{lang} {foreign}, English {same[0]}.", {"any": same})


# ---- stories ----------------------------------------------------------------------------------------------------------

OPENING = ["Once upon a time there was {A} named {n} who lived in {P}.", "Long ago, {A} called {n} lived near {P}.", "{n} was {A} who lived in a small house by {P}.",
           "In {P} there lived {A} named {n}.", "There was once {A} called {n}. {n} lived close to {P}."]
WANT = ["Every morning {n} went for a walk.", "{n} was kind, but often felt lonely.", "{n} loved to look for new things.", "One day {n} was bored and went out to play.",
        "{n} wanted to see more of the world.", "{n} liked the quiet of the early morning."]
FIND = ["One sunny day {n} found {O} under an old tree.", "One evening {n} saw something shine. It was {O}.", "On the way home {n} found {O} in the grass.", "After the rain {n} saw {O} lying on the path.",
        "Behind a big rock {n} found {O}."]
MEET = ["Then a {b} named {m} came along. \"That {o} is mine,\" said {m}.", "A {b} named {m} was sitting nearby and looked very sad. \"I have lost my {o},\" said {m}.",
        "Just then a {b} named {m} came by. \"Have you seen my {o}?\" asked {m}.", "Soon {n} met a {b} named {m} who was crying. {m} had lost a {o}."]
GIVE = ["{n} thought for a moment and gave the {o} back.", "\"Here it is,\" said {n} and smiled.", "{n} did not want to keep what belonged to another, and so {n} gave it back.",
        "\"Do not worry,\" said {n}. \"I have found it for you.\""]
THANKS = ["{m} was so happy that the two danced together.", "\"Thank you!\" said {m}. \"You are a true friend.\"", "{m} thanked {n} and shared some sweet berries.", "{m} laughed with joy and invited {n} to tea."]
ENDING = ["From that day on {n} and {m} were the best of friends.", "And so {n} was never lonely again.", "They played together until the sun went down. The end.",
          "That night {n} went to sleep with a happy heart.", "And they lived happily ever after."]


def story_text(rng, animal, name, place, thing):
    b = rng.choice([x for x in W.STORY_ANIMALS if x != animal])
    m = rng.choice([x for x in W.NAMES if x != name])
    fields = {"A": a(rng.choice(["little", "young", "small", "brave", "clever", "old"]) + " " + animal), "n": name, "P": "the " + place, "O": a(rng.choice(["old", "small", "shiny", "golden", "strange"]) + " " + thing),
              "o": thing, "b": b, "m": m}
    sentences = []
    for slot in (OPENING, WANT, FIND, MEET, GIVE, THANKS, ENDING):
        if slot is WANT and rng.random() < 0.3:
            continue
        text = rng.choice(slot)
        for k, v in fields.items():
            text = text.replace("{" + k + "}", v)
        sentences.append(text)
    return " ".join(sentences).replace(" a owl", " an owl").replace("lost a umbrella", "lost an umbrella")


def stories(rng, held):
    animal = rng.choice(W.STORY_ANIMALS + W.STORY_PEOPLE)
    name = person(rng, held)
    place, thing = rng.choice(W.STORY_PLACES), rng.choice(W.STORY_OBJECTS)
    says = rng.choices(["none", "animal", "named", "object", "place", "all"], [1, 3, 5, 3, 3, 5])[0]
    lead = rng.choice(["tell me a [short |little |]story", "I would like [to hear |]a [nice |short |]story", "do you know a story", "read me a [short |]story", "give me a [short |]story", "let me hear a story", "tell us a story", "I would like you to tell a story", "I like stories. Tell me one", "my child wants a story", "we want to hear a story", "think of a story", "it is bedtime. Tell me a story", "I need a story", "I want you to tell a story", "please write a story", "[write|make up|tell] a [short |little |nice |]story", "I want [to hear |]a [short |]story", "[can|could] you tell [me |]a [short |]story", "please tell me a [short |]story",
                       "a [short |]story, please,"]) if not held else rng.choice(["I would love a story", "read me a bedtime story"])
    keys = [animal]
    if says == "none":
        tail, keys = "", []
    elif says == "animal":
        tail = " about {A}"
    elif says == "named":
        tail, keys = " about {A} [named|called] {n}", [animal, name]
    elif says == "object":
        tail, keys = " about {A} [who|that] finds {O}", [animal, thing]
    elif says == "place":
        tail, keys = " about {A} in {P}", [animal, place]
    else:
        tail, keys = " about {A} [named|called] {n} [who|that] finds {O} in {P}", [animal, name, thing, place]
    user = say(rng, [lead + tail + "[.|!|]"], A=a(animal), n=name, O=a(thing), P="the " + place).replace(" ,", ",")
    # What the user left open is chosen by the writer.
    return Turn(user, story_text(rng, animal, name, place, thing),
                say(rng, ["I tell a story about {A} and {o}.", "The user wants a story. It is about {A} in {P}."], A=a(animal), o=a(thing), P="the " + place), {"story": keys})


# ---- memory -----------------------------------------------------------------------------------------------------------

def memory_item(rng, held):
    kind = rng.choice(["name", "name", "color", "pet", "petname", "city", "age", "job", "food", "hobby", "number", "sister", "word"])
    pick = lambda items: rng.choice(items)
    if kind == "name":
        v = person(rng, held)
        return (["my name is {v}[.|!|]", "I am {v}[.|!]", "[hi|hello|hey], [I am|my name is|I'm] {v}[.|!]", "you can call me {v}[.|]", "I am called {v}[.|]"], ["Nice to meet you, {v}!", "Hello {v}! How can I help you?"],
                ["what is my name?", "do you remember my name?", "what am I called?", "who am I?", "[tell me|say] my name[.|]", "what did I say my name was?"], ["please remind me what my name is."], "Your name is {v}.", v)
    if kind == "color":
        v = pick(W.COLORS)
        return (["my favorite color is {v}[.|]", "I like the color {v} [best|most][.|]", "I love the color {v}[.|]"], ["{v} is a nice color!", "I will remember that you like {v}."],
                ["what is my favorite color?", "which color do I like [best|most]?", "do you remember my favorite color?"], ["tell me again which color I like."], "Your favorite color is {v}.", v)
    if kind == "pet":
        v = pick(W.PETS)
        return (["I have a {v}[.|]", "I have a pet {v}[.|]", "my pet is a {v}[.|]"], ["A {v} is a nice pet!", "How nice that you have a {v}!"],
                ["what [pet|animal] do I have?", "which [pet|animal] do I have?", "do you remember what pet I have?"], ["tell me again which pet I have."], "You have a {v}.", v)
    if kind == "petname":
        v, p = (pick(part(W.PET_NAMES, held, "pet")) if rng.random() < 0.8 else made_up(rng)), pick(W.PETS)
        return ([f"my {p} is [called|named] {{v}}[.|]", f"I have a {p} [named|called] {{v}}[.|]", f"the name of my {p} is {{v}}[.|]"], ["{v} is a nice name!", f"Say hello to {{v}} from me!"],
                [f"what is the name of my {p}?", f"what is my {p} called?", f"what is my {p}'s name?", f"do you remember my {p}'s name?"], [f"tell me again how my {p} is called."], f"Your {p} is called {{v}}.", v)
    if kind == "city":
        v = town(rng, held)
        return (["I live in {v}[.|]", "I am from {v}[.|]", "I come from {v}[.|]", "my home is [in |]{v}[.|]"], ["{v} is a nice place!", "I have read about {v}."],
                ["where do I live?", "[where|which city] am I from?", "in which city do I live?", "do you remember where I live?"], ["tell me again where I live."], "You live in {v}.", v)
    if kind == "age":
        v = rng.randrange(5, 90)
        return (["I am {v} years old[.|]", "my age is {v}[.|]", "I turned {v} [last week|today|this year][.|]"], ["{v} is a good age!", "I will remember that you are {v} years old."],
                ["how old am I?", "what is my age?", "do you remember how old I am?"], ["tell me again how old I am."], "You are {v} years old.", v)
    if kind == "job":
        v = pick(W.JOBS)
        return (["I am {av}[.|]", "I work as {av}[.|]", "my job is {v}[.|]"], ["That is a fine job!", "It must be interesting to be {av}."],
                ["what is my job?", "what do I work as?", "what do I do for a living?", "do you remember my job?"], ["tell me again what my job is."], "You are {av}.", v)
    if kind == "food":
        v = pick(W.FOODS)
        return (["my favorite food is {v}[.|]", "I like {v} [most|best][.|]", "I love [to eat |]{v}[.|]"], ["That sounds tasty!", "I will remember that you like {v}."],
                ["what is my favorite food?", "what do I like to eat?", "which food do I like [best|most]?"], ["tell me again which food I like."], "Your favorite food is {v}.", v)
    if kind == "hobby":
        v = pick(W.HOBBIES)
        return (["my hobby is {v}[.|]", "I like {v} in my free time[.|]", "my favorite hobby is {v}[.|]"], ["{v} is a fine hobby!", "That sounds like fun!"],
                ["what is my hobby?", "what do I do in my free time?", "do you remember my hobby?"], ["tell me again what my hobby is."], "Your hobby is {v}.", v)
    if kind == "number":
        v = rng.randrange(1, 1000)
        return (["my [lucky|favorite] number is {v}[.|]", "remember the number {v}[.|]", "the [secret |]number is {v}[.|]", "please remember this number: {v}[.|]"], ["I will remember the number {v}.", "All right, {v}."],
                ["what is the number?", "which number did I [tell you|say]?", "what was [my|the] number?", "do you remember the number?"], ["tell me again which number I said."], "The number is {v}.", v)
    if kind == "sister":
        v, who = person(rng, held), pick(["sister", "brother", "friend", "mother", "father", "son", "daughter", "neighbor", "teacher", "wife", "husband"])
        return ([f"my {who} is [called|named] {{v}}[.|]", f"my {who}'s name is {{v}}[.|]", f"the name of my {who} is {{v}}[.|]"], ["{v} is a nice name!", "Say hello to {v} from me!"],
                [f"what is my {who}'s name?", f"what is the name of my {who}?", f"what is my {who} called?"], [f"tell me again how my {who} is called."], f"Your {who} is called {{v}}.", v)
    v = pick(SPELLING)
    return (["remember the word {v}[.|]", "the [secret |pass|]word is {v}[.|]", "please remember this word: {v}[.|]", "my favorite word is {v}[.|]"], ["I will remember the word {v}.", "All right, {v}."],
            ["what is the word?", "which word did I [tell you|say]?", "what was the word?", "do you remember the word?"], ["tell me again which word I said."], "The word is {v}.", v)


def memory(rng, held):
    tell, ack, question, other, answer, v = memory_item(rng, held)
    f = {"v": v, "av": a(str(v))}
    before = [{"role": "user", "content": say(rng, tell, **f)}, {"role": "assistant", "content": say(rng, ack, **f)}]
    if rng.random() < 0.25:
        tell2, ack2, _, _, answer2, v2 = memory_item(rng, held)
        if answer2 != answer:
            more = [{"role": "user", "content": say(rng, tell2, v=v2, av=a(str(v2)))}, {"role": "assistant", "content": say(rng, ack2, v=v2, av=a(str(v2)))}]
            before = before + more if rng.random() < 0.5 else more + before
    for _ in range(rng.choice([0, 1, 1, 1, 2]) if not held else 1):
        t = rng.choice([small_talk, facts, arithmetic, translation, spelling, counting])(rng, False)
        before += [{"role": "user", "content": t["user"]}, {"role": "assistant", "content": t["answer"]}]
    final = say(rng, [answer], **f)
    low = rng.choice(question)
    question = question + [lead + low for lead in ("I told you before: ", "now tell me, ", "let me see: ", "can you still tell me, ", "do you still know, ", "a question: ")]
    return Turn(ask(rng, held, question, other), final, say(rng, ["The user told me before: {t}", "I remember that the user said: {t}"], t=before[0]["content"] if str(v) in before[0]["content"] else final), {"all": [str(v)]}, before=before)


# ---- JSON -------------------------------------------------------------------------------------------------------------

def dump(rng_free):
    return json.dumps(rng_free, ensure_ascii=False)


def json_answers(rng, held):
    kind = rng.choices(["extract", "pairs", "numbers", "words", "colors", "question"], [6, 5, 3, 3, 1, 3])[0]
    system = None
    if kind == "extract":
        all_fields = [("name", person(rng, held)), ("age", rng.randrange(5, 90)), ("city", town(rng, held)), ("job", rng.choice(W.JOBS)), ("color", rng.choice(W.COLORS)), ("hobby", rng.choice(W.HOBBIES)),
                      ("food", rng.choice(W.FOODS)), ("pet", rng.choice(W.PETS))]
        rest = rng.sample(all_fields[1:], rng.randrange(1, 4))
        text = {"age": "is {v} years old", "city": "lives in {v}", "job": "works as {av}", "color": "likes the color {v}", "hobby": "enjoys {v}", "food": "likes to eat {v}", "pet": "has a {v}"}
        name = all_fields[0][1]
        clauses = [text[k].replace("{v}", str(v)).replace("{av}", a(str(v))) for k, v in rest]
        sentence = f"{name} " + listing(clauses) + "."
        keys = [all_fields[0]] + rest
        if rng.random() < 0.3 and len(keys) > 2:
            keys = [all_fields[0]] + rng.sample(rest, len(rest) - 1)
        value = dict(keys)
        user = ask(rng, held, ["here is a text: {s} Give me JSON with the keys {k}.", "look at this: {s} Write JSON with the keys {k}.", "I want JSON with the keys {k} from this: {s}", "the text is: {s} Turn it into a JSON object with {k}.", "[answer|reply] in JSON with the keys {k}: {s}", "extract {k} as JSON: {s}", "{s} [Give me|Return|Write] a JSON object with {k}.", "turn this into JSON with the keys {k}: {s}", "write {k} as JSON. {s}",
                               "make a JSON object with the keys {k} from this text: {s}", "{s} Write this as JSON with the keys {k}.", "convert to JSON ({k}): {s}"],
                   ["read this: {s} Now give me JSON with the keys {k}.", "I need a JSON object (keys {k}) for: {s}"], k=listing(value), s=sentence)
    elif kind == "pairs":
        keys = rng.sample(["city", "temperature", "title", "price", "count", "color", "open", "size", "level", "user", "id", "active", "year", "status", "done", "language", "weight", "height", "score"], rng.randrange(1, 4))
        value = {}
        for k in keys:
            if k in ("open", "active", "done"):
                value[k] = rng.random() < 0.5
            elif k in ("temperature", "price", "count", "size", "level", "id", "year", "weight", "height", "score"):
                value[k] = rng.randrange(1, 2100 if k == "year" else 100)
            elif k == "city":
                value[k] = town(rng, held)
            elif k == "color":
                value[k] = rng.choice(W.COLORS)
            elif k == "user":
                value[k] = person(rng, held)
            else:
                value[k] = rng.choice(SPELLING)
        shown = [f"{k} {rng.choice(['set to', 'equal to', 'as', '='])} {v if not isinstance(v, bool) else str(v).lower()}" for k, v in value.items()]
        short = ", ".join(f"{k}={v if not isinstance(v, bool) else str(v).lower()}" for k, v in value.items())
        user = ask(rng, held, ["I want a JSON object with {l}.", "give this as JSON: {s}", "please make JSON from this: {s}", "put this into JSON: {s}", "make a JSON object with {l}[.|]", "write JSON with {l}[.|]", "[give|show] me a JSON object with {l}[.|]", "convert to JSON: {s}", "turn this into JSON: {s}", "write as JSON: {s}", "create a JSON object: {s}",
                               "[please |]return a JSON object with {l}[.|]", "answer in JSON: {s}"], ["I need a JSON object that has {l}.", "format this as JSON for me: {s}"], l=listing(shown), s=short)
    elif kind == "numbers":
        x = rng.randrange(0, 60)
        value = list(range(x, x + rng.randrange(3, 9)))
        user = ask(rng, held, ["I want a JSON array with the numbers {a} to {b}.", "make a JSON array that counts from {a} to {b}.", "[give|write|show] me a JSON array [of|with] the numbers from {a} to {b}[.|]", "write the numbers {a} to {b} as a JSON [array|list][.|]", "JSON array of the numbers {a} to {b}[.|]", "list the numbers from {a} to {b} in JSON[.|]"],
                   ["I need the numbers from {a} to {b} as a JSON array."], a=value[0], b=value[-1])
    elif kind == "words":
        value = list(dict.fromkeys(rng.choice(W.MIXED_WORDS) if rng.random() < 0.6 else any_word(rng) for _ in range(rng.randrange(2, 6))))
        user = ask(rng, held, ["I want a JSON array of the words {l}.", "put these words into a JSON array: {l}", "make JSON from this list: {l}", "[give|write|show] me a JSON array [of|with] the words {l}[.|]", "turn this list into a JSON array: {l}", "write {l} as a JSON [array|list][.|]", "convert to a JSON array: {l}", "[format|write] this list as JSON: {l}"],
                   ["I need these words as a JSON array: {l}"], l=", ".join(value))
    elif kind == "colors":
        n = rng.randrange(2, 6)
        what, pool = rng.choice([("colors", W.COLORS), ("fruits", W.FRUITS), ("animals", W.STORY_ANIMALS), ("days of the week", W.DAYS), ("months", W.MONTHS)])
        value = pool[:n] if what in ("days of the week", "months") else rng.sample(pool, n)
        user = ask(rng, held, ["I want a JSON array of {n} {w}.", "make a JSON array with {n} {w}.", "[give|write|show] me a JSON array [of|with] {n} {w}[.|]", "list {n} {w} as JSON[.|]", "name {n} {w} in a JSON array[.|]"], ["I need {n} {w} as a JSON array."], n=NUMBER(n), w=what)
        return Turn(user, dump(value), "The answer must be JSON only.", {"json_strings": n})
    else:
        what = rng.choice(["capital", "sum", "opposite", "symbol"])
        if what == "capital":
            c = rng.choice(W.COUNTRIES)
            q, value = f"What is the capital of {c[0]}?", {"capital": c[1]}
        elif what == "sum":
            x, op, y, r = problem(rng, held)
            q, value = f"What is {x} {op} {y}?", {"result": r}
        elif what == "opposite":
            x, y = rng.choice(W.OPPOSITES)
            q, value = f"What is the opposite of {x}?", {"opposite": y}
        else:
            e = rng.choice(W.ELEMENTS)
            q, value = f"What is the symbol of {e[0]}?", {"symbol": e[1]}
        key = next(iter(value))
        if rng.random() < 0.5:
            value = {"answer": value[key]}
            key = "answer"
        instruction = reword(rng, held, ["I want JSON with the key {k}.", "please answer only in JSON, the key is {k}.", "only JSON, with the key {k}.", "answer in JSON with the key {k}.", "reply as a JSON object with the key {k}.", "use JSON with the key {k}.", "give the answer as JSON with the key \"{k}\"."], ["write only JSON, and use the key {k}."], k=key)
        if rng.random() < 0.4:
            system, user = instruction, q
        else:
            user = f"{q} {instruction}" if rng.random() < 0.6 else f"{instruction} {q}"
    return Turn(user, dump(value), "The answer must be JSON only.", {"json": value}, system=system)


# ---- thinking ---------------------------------------------------------------------------------------------------------

def thinking(rng, held):
    kind = rng.choices(["two", "chain", "day", "parity", "longer", "age", "older", "reverse", "double"], [5, 4, 3, 2, 2, 3, 2, 2, 2])[0]
    name, other = person(rng, held), person(rng, held)
    while other == name:
        other = person(rng, held)
    if kind == "two":
        while True:
            x, y, z = rng.randrange(5, 50), rng.randrange(2, 40), rng.randrange(2, 40)
            if held_out((x, y, z)) == held and z <= x + y:
                break
        t = rng.choice([t for t in W.THINGS if t not in W.PLURALS]) + "s"
        first, second = rng.choice(["gets", "buys", "finds"]), rng.choice(["gives away", "loses", "sells"])
        if rng.random() < 0.5 or y >= x:
            user = ask(rng, held, ["at first {n} has {x} {t}, later {n} {f} {y} and {s} {z}. How many are there at the end?", "{n} starts with {x} {t}. {n} {f} {y} more, then {s} {z}. What is left?", "to begin with, {n} has {x} {t}. After that {n} {f} {y} and {s} {z}. How many {t} are there now?", "{n} had {x} {t}. Then {n} {f} {y} more. Then {n} {s} {z}. Tell me how many {t} are left.", "{n} has {x} {t}. {n} {f} {y} more and then {s} {z}. How many {t} does {n} have [now|left|in the end]?", "{n} has {x} {t}, {f} {y} more and {s} {z}. How many {t} [are left|remain]?"],
                       ["first {n} has {x} {t}. Then {n} {f} {y} and {s} {z}. What is the number of {t} now?"], n=name, x=x, y=y, z=z, t=t, f=first, s=second)
            r, reason = x + y - z, f"{steps(x, '+', y, x + y)} {steps(x + y, '-', z, x + y - z)}"
        else:
            user = ask(rng, held, ["at first {n} has {x} {t}, later {n} {s} {y} and {f} {z}. How many are there at the end?", "{n} starts with {x} {t}. {n} {s} {y}, then {f} {z} more. What is the result?", "to begin with, {n} has {x} {t}. After that {n} {s} {y} and {f} {z}. How many {t} are there now?", "{n} had {x} {t}. Then {n} {s} {y}. Then {n} {f} {z} more. Tell me how many {t} are left.", "{n} has {x} {t}. {n} {s} {y} and then {f} {z} more. How many {t} does {n} have [now|in the end]?", "{n} has {x} {t}, {s} {y} and {f} {z} more. How many {t} are there now?"],
                       ["first {n} has {x} {t}. Then {n} {s} {y} and {f} {z}. What is the number of {t} now?"], n=name, x=x, y=y, z=z, t=t, f=first, s=second)
            r, reason = x - y + z, f"{steps(x, '-', y, x - y)} {steps(x - y, '+', z, x - y + z)}"
        return Turn(user, f"{name} has {r} {t}.", reason, {"number": r}, thinking=True)
    if kind == "chain":
        while True:
            x, y, z = rng.randrange(1, 60), rng.randrange(1, 40), rng.randrange(1, 30)
            op = rng.choice("+-")
            r = x + y + z if op == "+" else x + y - z
            if held_out((x, y, op, z)) == held and 0 <= r <= 130:
                break
        user = ask(rng, held, ["tell me the result of {x} + {y} {o} {z}.", "I want to know what {x} + {y} {o} {z} is.", "find {x} + {y} {o} {z}.", "what is {x} + {y} {o} {z}?", "[calculate|compute] {x} + {y} {o} {z}[.|]", "{x} + {y} {o} {z} = ?", "how much is {x} + {y} {o} {z}?"], ["please work out {x} + {y} {o} {z} for me."], x=x, y=y, z=z, o=op)
        return Turn(user, f"{x} + {y} {op} {z} = {r}", f"{steps(x, '+', y, x + y)} {steps(x + y, op, z, r)}", {"number": r}, thinking=True)
    if kind == "day":
        i, n, sign = rng.randrange(7), rng.randrange(2, 9), rng.choice([1, 1, -1])
        path = [W.DAYS[(i + sign * k) % 7] for k in range(1, n + 1)]
        word = "after" if sign == 1 else "before"
        user = ask(rng, held, ["start at {d}: which day is {k} days " + ("later?" if sign == 1 else "earlier?"), "tell me which day is {k} days {w} {d}.", "it is {d}. Go {k} days " + ("ahead. Which day is that?" if sign == 1 else "into the past. Which day is that?"), "count {k} days " + ("on" if sign == 1 else "back") + " from {d}. Which day do you reach?", "{k} days {w} {d}: which day is that?", "move {k} days " + ("on" if sign == 1 else "back") + " from {d}. Which day is it?", "I start on {d} and go {k} days " + ("forward" if sign == 1 else "back") + ". What day is it?", "on {d}, think {k} days " + ("ahead." if sign == 1 else "back.") + " Which day do you get?", "what day is {k} days {w} {d}?", "which day is {k} days {w} {d}?", "if today is {d}, what day " + ("will it be in {k} days?" if sign == 1 else "was it {k} days ago?"), "today is {d}. What day " + ("is it in {k} days?" if sign == 1 else "was it {k} days ago?")],
                   ["take {d} and go {k} days " + ("forward." if sign == 1 else "back.") + " Which day is it?"], k=rng.choice([n, NUMBER(n)]), w=word, d=W.DAYS[i])
        return Turn(user, f"It is {path[-1]}.", f"{n} days {word} {W.DAYS[i]}: " + ", ".join(f"{k + 1} {d}" for k, d in enumerate(path)) + ".", {"all": [path[-1]]}, thinking=True)
    if kind == "parity":
        n = rng.choice([k for k in range(100) if held_out(("parity", k)) == held])
        p = "even" if n % 2 == 0 else "odd"
        user = ask(rng, held, ["I want to know if {n} is even or odd.", "say if the number {n} is odd or even.", "{n}: even or odd?", "is {n} [even or odd|odd or even]?", "is {n} an even or an odd number?", "is the number {n} even or odd?"], ["tell me if {n} is even or odd."], n=n)
        return Turn(user, f"{n} is {p}.", f"The last digit of {n} is {n % 10}, which is {p}.", {"all": [p]}, thinking=True)
    if kind == "longer":
        x, y = spelled(rng, held, 8), spelled(rng, held, 8)
        while len(x) == len(y):
            x, y = spelled(rng, held, 8), spelled(rng, held, 8)
        best = max(x, y, key=len)
        user = ask(rng, held, ["tell me which word is longer: {x} or {y}.", "look at {x} and {y}: which is the longer word?", "I have the words {x} and {y}. Which one is longer?", "which word is longer, {x} or {y}?", "what is the longer word: {x} or {y}?", "which word has more letters, {x} or {y}?"], ["compare the words {x} and {y}: which one is longer?"], x=x, y=y)
        count = lambda w: ", ".join(f"{c} {i + 1}" for i, c in enumerate(w))
        return Turn(user, f"The longer word is {best}.", f"{x}: {count(x)}. {y}: {count(y)}. So {best} is longer.", {"tail": best}, thinking=True)
    if kind in ("age", "older"):
        while True:
            x, d = rng.randrange(5, 60), rng.randrange(2, 30)
            sign = rng.choice([1, -1])
            if x + sign * d > 0 and held_out((x, d, sign)) == held:
                break
        y = x + sign * d
        if kind == "age":
            user = ask(rng, held, ["{n} is {x} now, and {m} is {d} years {w}. Tell me the age of {m}.", "how old is {m}, who is {d} years {w} than {n}, if {n} is {x}?", "{n} is {x} years old. {m} is {d} years {w}. How old is {m}?", "{m} is {d} years {w} than {n}, who is {x}. How old is {m}?", "{n} is {x}. {m} is {d} years {w} than {n}. What is the age of {m}?"],
                       ["if {n} is {x} and {m} is {d} years {w}, how old is {m}?"], n=name, m=other, x=x, d=d, w="older" if sign == 1 else "younger")
            return Turn(user, f"{other} is {y} years old.", f"{other} is {'older' if sign == 1 else 'younger'}. {steps(x, '+' if sign == 1 else '-', d, y)}", {"number": y}, thinking=True)
        best = name if x > y else other
        user = ask(rng, held, ["{n} is {x}, {m} is {y}. Tell me who is older.", "{n}'s age is {x}, {m}'s age is {y}. Which one is older?", "of {n} ({x}) and {m} ({y}), who is older?", "here are two people: {n}, {x} years old, and {m}, {y} years old. Who is the older one?", "{n} is {x} years old. {m} is {y}. Which one of the two is older?", "tell me who is older: {n} is {x} and {m} is {y}.", "{n} is {x} years old and {m} is {y} years old. Who is older?", "{n} is {x} and {m} is {y}. Who is older?", "who is older: {n} ({x}) or {m} ({y})?"], ["{m} is {y} years old, {n} is {x}. Which of them is older?"], n=name, m=other, x=x, y=y)
        return Turn(user, f"{best} is older.", f"{max(x, y)} is more than {min(x, y)}, and {best} is {max(x, y)}.", {"all": [best + " is"]}, thinking=True)
    if kind == "reverse":
        word = spelled(rng, held, 6)
        user = ask(rng, held, ["I want the word {w} backwards.", "make the word {w} go backwards.", "the word is {w}. Reverse it.", "reverse the word {w}[.|]", "write {w} backwards[.|]", "what is {w} [written |]backwards?"], ["turn the word {w} around."], w=word)
        return Turn(user, f"{'-'.join(word[::-1])}", f"Forwards: {'-'.join(word)}. Backwards: {'-'.join(word[::-1])}.", {"exact": "-".join(word[::-1]), "word": word[::-1]}, thinking=True)
    n = rng.choice([k for k in range(2, 50) if held_out(("double", k)) == held])
    if rng.random() < 0.5:
        user = ask(rng, held, ["tell me what twice {n} is.", "I want to know the double of {n}.", "take two times {n}. What do you get?", "what is [twice|double] {n}?", "double the number {n}[.|]", "how much is two times {n}?"], ["take {n} twice. How much is it?"], n=n)
        return Turn(user, f"Twice {n} is {2 * n}.", steps(n, "+", n, 2 * n), {"number": 2 * n}, thinking=True)
    user = ask(rng, held, ["tell me what half of {n} is.", "I want to know the half of {n}.", "divide {n} by two. What do you get?", "what is half of {n}?", "how much is half of {n}?", "what is the half of {n}?"], ["cut {n} in two halves. How much is one half?"], n=2 * n)
    return Turn(user, f"Half of {2 * n} is {n}.", steps(n, "+", n, 2 * n) + f" So half of {2 * n} is {n}.", {"number": n}, thinking=True)


# ---- two more, trained but not in the suite -----------------------------------------------------------------------------

def echo(rng, held):
    text = " ".join(any_word(rng) for _ in range(rng.randrange(1, 9)))
    if rng.random() < 0.3:
        text = str(rng.randrange(10 ** rng.randrange(1, 7)))
    user = ask(rng, held, ["repeat[ after me|]: {t}", "say: {t}", "please say \"{t}\"", "[echo|write]: {t}", "repeat this: {t}"], ["say after me: {t}"], t=text)
    return Turn(user, text, "I repeat it.", {"exact": text})


GLOSSES = []


def define(rng, held):
    if not GLOSSES:
        return facts(rng, held)
    word, gloss = rng.choice(GLOSSES)
    user = ask(rng, held, ["what does [the word |]{w} mean?", "define {w}[.|]", "what is the meaning of [the word |]{w}?", "explain the word {w}[.|]", "what is {aw}?"], ["tell me the meaning of {w}."], w=word, aw=a(word))
    return Turn(user, gloss, "I know this word.", {"any": gloss.split()[:1]})


SYSTEMS = ["You are a helpful assistant.", "You are lily, a small assistant.", "You are a helpful, friendly assistant.", "Answer briefly.", "You are a friendly assistant. Keep your answers short.",
           "You are an assistant that helps people.", "Be kind and brief.", "You are a helpful AI assistant.", "Please help the user.", "You are a careful assistant. Give correct answers."]

SIMPLE = {"small_talk": small_talk, "facts": facts, "arithmetic": arithmetic, "counting": counting, "spelling": spelling, "sorting": sorting, "translation": translation, "stories": stories, "memory": memory,
          "json": json_answers, "thinking": thinking, "echo": echo, "define": define}


def noisy(rng, text, kind):
    """People do not always begin with a capital or end with a mark."""
    r = rng.random()
    if r < 0.06 and kind not in ("json", "memory", "thinking", "echo"):
        return text[0].lower() + text[1:]
    if r < 0.10:
        return text.rstrip(".?!")
    if r < 0.13:
        return rng.choice(["Please: ", "Hello! ", "Hi, ", "Hi! ", "Hey lily, ", "Lily, ", "OK. ", "Now: ", "Next: ", "I have a task for you. ", "Can you help me? ", "I need your help. ", "Here is my question. ", "One more thing. ", "Let us try this. ",
                           "Please help me with this: ", "Another question. ", "Good morning! ", "Good. "]) + text
    if r < 0.17:
        return text + rng.choice([" Thanks!", " Thank you.", " Please.", " Can you help?", " Please help me.", " Do you know?", " I need it now.", " It is important."])
    return text


def conversation(rng, kind, held):
    """{"kind", "messages" (the last one is the answer to learn), "thinking", "tools", "check"}"""
    if kind == "tools":
        import tools
        return tools.conversation(rng, held)
    t = SIMPLE[kind](rng, held)
    think = t.get("thinking", False) or rng.random() < (0.3 if not held else 0.25)
    messages = []
    if t.get("system"):
        messages.append({"role": "system", "content": t["system"]})
    elif rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    if not t.get("before") and rng.random() < (0.2 if not held else 0.1):
        for _ in range(rng.choice([1, 1, 2])):
            h = SIMPLE[rng.choice(["small_talk", "facts", "arithmetic", "translation", "spelling", "counting", "sorting", "memory"])](rng, False)
            messages += [{"role": "user", "content": h["user"]}, {"role": "assistant", "content": h["answer"]}]
    messages += t.get("before") or []
    messages.append({"role": "user", "content": t["user"] if held else noisy(rng, t["user"], kind)})
    messages.append({"role": "assistant", "reasoning_content": t["reasoning"] if think else "", "content": t["answer"]})
    return {"kind": kind, "messages": messages, "thinking": think, "tools": None, "check": t["check"]}


if __name__ == "__main__":
    import sys
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for _ in range(12):
        print(json.dumps(conversation(rng, sys.argv[1], len(sys.argv) > 3), ensure_ascii=False))
