"""Conversations with tools: weather, calculator, calendar, files, and others that serve as company and as practice.

A family makes a tool (its name, its parameter names and its description vary) and requests for it. What training and the
suite share is the kind of tool, not its name, wording, cities, files or numbers.
"""
import json

import words as W
from phrases import ask, held_out, listing, part, say

def schema(rng, name, description, properties, required):
    function = {"name": name}
    if rng.random() < 0.93:
        function["description"] = description
    parameters = {"type": "object", "properties": properties}
    if rng.random() < 0.9:
        parameters["required"] = required
    if rng.random() < 0.08:
        parameters["additionalProperties"] = False
    function["parameters"] = parameters
    return {"type": "function", "function": function}


def prop(rng, description, kind="string", **more):
    p = {"type": kind}
    if description and rng.random() < 0.75:
        p["description"] = description
    p.update(more)
    return p


VERBS = "get fetch look_up find ask do run show my the use call read check new make open query".split()


def name_of(rng, held, train, other):
    """The tool's name: from a list, or in training often made up, so that it must be copied from the tool's description."""
    if held:
        return rng.choice(other if rng.random() < 0.4 else train)
    if rng.random() < 0.6:
        return rng.choice(train)
    from conversations import SPELLING
    stem = rng.choice(train).split("_")[-1].lower()
    while True:
        w = rng.choice(SPELLING)
        name = rng.choice([f"{rng.choice(VERBS)}_{stem}", f"{stem}_{w}", f"{w}_{stem}", f"{w}_{rng.choice(SPELLING)}", f"{rng.choice(VERBS)}{w.capitalize()}", f"{rng.choice(VERBS)}_{w}", w, f"{stem}{rng.randrange(1, 9)}", f"{rng.choice(VERBS)}_{w}_{stem}"])
        if name not in HELD_NAMES:
            return name


HELD_NAMES = {"weather_now", "query_weather", "calculate_expression", "solve_math", "find_events", "show_calendar", "book_event", "make_event", "show_file", "fetch_file"}


class Request(dict):
    """say: the user's words; phrase: a clause for "and"; args; result: the tool's text; answer; keys: what it must contain; why"""


class Family:
    def __init__(self, tool, request):
        self.tool, self.request = tool, request

    @property
    def name(self):
        return self.tool["function"]["name"]


def weather(rng, held):
    name = name_of(rng, held, ["get_weather", "get_current_weather", "weather", "current_weather", "weather_lookup", "fetch_weather", "weather_report", "lookup_weather", "getWeather", "check_weather"], ["weather_now", "query_weather"])
    key = rng.choice(["location", "city", "city", "location", "place", "town", "query"])
    properties = {key: prop(rng, rng.choice(["The city", "City name", "The city and country", "Name of the city, e.g. Paris", "The place to look up"]))}
    unit = rng.random() < 0.4
    if unit:
        properties[rng.choice(["unit", "unit", "units"])] = prop(rng, "The unit of temperature", enum=["celsius", "fahrenheit"])
    unit_key = list(properties)[-1]
    tool = schema(rng, name, rng.choice(["Get the current weather", "Get the current weather in a given location", "Returns the weather of a city", "Look up the weather for a place", "Current weather for a city", "Weather service"]), properties, [key])

    def request(rng):
        city = city_of(rng, held)
        args = {key: city}
        tail = ""
        if unit and rng.random() < 0.35:
            args[unit_key] = rng.choice(["celsius", "fahrenheit"])
            tail = " in " + args[unit_key].capitalize()
        user = ask(rng, held, ["find out the weather in {c}{t}.", "what kind of weather [is there|do they have] in {c}{t}?", "I wonder how the weather is in {c}{t}.", "please look up the weather for {c}{t}.", "let me know the weather in {c}{t}.", "how are the skies over {c}{t}?", "which weather has {c} today{t}?", "say what the weather in {c} is{t}.", "does {c} have good weather{t}?", "what is the weather [like |]in {c}{t}[?| today?| now?| right now?]", "how is the weather in {c}{t}[?| today?]", "what's the weather [like |]in {c}{t}[?| today?]", "[tell me|give me|show me|check|get] the weather [in|for] {c}{t}[.|, please.|]",
                               "[is it|will it be] [cold|warm|hot|sunny] in {c}[?| today?]" if not tail else "what is the temperature in {c}{t}?", "weather in {c}{t}[?|]", "what is the temperature in {c}{t}[?| now?]", "[can|could] you [check|tell me|look up] the weather [in|for] {c}{t}?",
                               "does it rain in {c}[?| today?]" if not tail else "how warm is it in {c}{t}?", "I want to know the weather in {c}{t}[.|]", "I am going to {c}. What is the weather there{t}?"],
                   ["please find out how the weather is in {c}{t}.", "what sort of weather does {c} have now{t}?"], c=city, t=tail)
        temp, sky = rng.randrange(-10, 40), rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "clear", "snowy", "stormy"])
        word = rng.choice(["condition", "conditions", "weather", "sky", "description"])
        result = rng.choice([json.dumps({"temperature": temp, word: sky}), json.dumps({"city": city, "temperature": temp, word: sky}), json.dumps({"temp": temp, word: sky, "humidity": rng.randrange(20, 99)}), f"{temp} degrees, {sky}", f"{sky}, {temp}°C",
                             json.dumps({word: sky, "temperature": temp, "unit": "celsius"})])
        return Request(say=user, phrase=f"the weather in {city}{tail}", args=args, result=result, answer=f"It is {sky} in {city}, with {temp} degrees.", keys=[sky, str(temp)], why=f"the weather in {city}")
    return Family(tool, request)


def calculator(rng, held):
    name = name_of(rng, held, ["calculator", "calculate", "compute", "evaluate", "math", "calc", "evaluate_expression", "do_math"], ["calculate_expression", "solve_math"])
    two = rng.random() < 0.25
    if two:
        x_key, y_key = rng.choice([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")])
        op_key = rng.choice(["operation", "operator", "op"])
        properties = {x_key: prop(rng, "The first number", "number"), y_key: prop(rng, "The second number", "number"), op_key: prop(rng, "What to do with them", enum=["add", "subtract", "multiply", "divide"])}
        required = list(properties)
    else:
        key = rng.choice(["expression", "expression", "formula", "query", "input", "expr"])
        properties = {key: prop(rng, rng.choice(["The expression to evaluate", "A mathematical expression, e.g. 2 + 2", "What to calculate"]))}
        required = [key]
    tool = schema(rng, name, rng.choice(["Evaluate a mathematical expression", "Calculates", "A calculator for arithmetic", "Compute the result of an expression", "Do arithmetic", "Performs a calculation"]), properties, required)

    def request(rng):
        while True:
            op = rng.choice("+-*/")
            x, y = rng.randrange(2, 10 ** rng.randrange(2, 5)), rng.randrange(2, 10 ** rng.randrange(1, 4))
            if op == "/":
                x = x * y
            if held_out(("calc", x, op, y)) == held and x * y < 10 ** 7:
                break
        r = {"+": x + y, "-": x - y, "*": x * y, "/": x // y if op == "/" else 0}[op]
        word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[op]
        user = ask(rng, held, ["I want to know what {x} {w} {y} is.", "find out what {x} {o} {y} is.", "please work out {x} {w} {y}.", "tell me how much {x} {o} {y} is.", "let me know the result of {x} {w} {y}.", "give me the result of {x} {o} {y}.", "what is {x} {o} {y}?", "what is {x} {w} {y}?", "[calculate|compute|evaluate|work out] {x} {o} {y}[.|]", "how much is {x} {w} {y}?", "how much is {x} {o} {y}?", "[can|could] you [calculate|compute] {x} {w} {y}?", "{x} {o} {y}[?| = ?]",
                               "[please |]use the calculator [for|to compute] {x} {o} {y}[.|]", "I need the result of {x} {o} {y}[.|]", "what does {x} {w} {y} make?"],
                   ["please find out how much {x} {w} {y} is.", "I would like to know {x} {o} {y}."], x=x, y=y, o=op, w=word)
        args = {x_key: x, y_key: y, op_key: {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}[op]} if two else {key: f"{x} {op} {y}"}
        result = rng.choice([str(r), json.dumps({"result": r}), f"{x} {op} {y} = {r}", json.dumps({"value": r}), f"Result: {r}"])
        return Request(say=user, phrase=f"{x} {op} {y}", args=args, result=result, answer=f"{x} {op} {y} = {r}", keys=[str(r)], why=f"{x} {op} {y}")
    return Family(tool, request)


TITLES = ["Dentist", "Lunch with {n}", "Meeting with {n}", "Yoga", "Team meeting", "Call {n}", "Piano lesson", "Dinner with {n}", "Swimming", "Doctor", "Interview", "Birthday of {n}", "Football", "Haircut", "Coffee with {n}", "Train to {c}", "Flight to {c}", "Project review"]


def title(rng, held):
    if not held and rng.random() < 0.2:
        from conversations import any_word
        return " ".join(any_word(rng) for _ in range(rng.randrange(1, 4))).capitalize()
    return rng.choice(TITLES).replace("{n}", name_in(rng, held)).replace("{c}", city_of(rng, held))


def date(rng, held):
    while True:
        m, d = rng.randrange(12), rng.randrange(1, 29)
        if held_out(("date", m, d)) == held:
            break
    dates = [f"2026-{m + 1:02}-{d:02}", f"{W.MONTHS[m]} {d}", f"{d} {W.MONTHS[m]}", f"2027-{m + 1:02}-{d:02}"]
    return rng.choice(dates if held else dates + [rng.choice(W.DAYS), "today", "tomorrow"])


def when(d):
    return d if d in ("today", "tomorrow") else "on " + d


def clock(rng):
    return rng.choice([f"{rng.randrange(8, 21)}:{rng.choice(['00', '15', '30', '45'])}", f"{rng.randrange(1, 12)} {rng.choice(['am', 'pm'])}", f"{rng.randrange(10, 21)}:{rng.choice(['00', '30'])}"])


def calendar(rng, held):
    name = name_of(rng, held, ["get_events", "list_events", "calendar", "check_calendar", "get_calendar", "calendar_lookup", "get_calendar_events", "read_calendar", "view_calendar"], ["find_events", "show_calendar"])
    key = rng.choice(["date", "date", "day", "when"])
    tool = schema(rng, name, rng.choice(["List the events of a day", "Get the calendar events for a date", "Look up the calendar", "Returns all appointments of a day", "Reads the user's calendar"]), {key: prop(rng, rng.choice(["The date", "The day to look up", "Date, e.g. 2026-05-01 or tomorrow"]))}, [key])

    def request(rng):
        d = date(rng, held)
        user = ask(rng, held, ["find out what I have {d}.", "please look at my calendar {d}.", "let me know what is planned {d}.", "tell me what my calendar has {d}.", "I want to know my events {d}.", "what does my day look like {d}?", "what does my calendar show {d}?", "what [do I have|is|is on my calendar|is in my calendar] {d}?", "what events do I have {d}?", "[show|list|check|tell me] my [events|appointments|calendar] [for |]{d}[.|]", "do I have [anything|any events|an appointment|something] {d}?", "what are my [plans|appointments|events] {d}?",
                               "am I [free|busy] {d}?", "what is my schedule {d}?", "[can|could] you [check|look at] my calendar [for |]{d}?", "is there anything in my calendar {d}?"],
                   ["please find out what my calendar says {d}.", "how does my calendar look {d}?"], d=when(d)).replace("for on ", "for ").replace("What is on ", "What is planned on ")
        n = rng.choice([0, 1, 1, 2, 2, 3])
        events = [(f"{h}:{rng.choice(['00', '30'])}", title(rng, held)) for h in sorted(rng.sample(range(8, 20), n))]
        style = rng.choice(["json", "text", "wrapped"])
        result = json.dumps([{"time": t, "title": e} for t, e in events]) if style == "json" else json.dumps({"events": [{"title": e, "time": t} for t, e in events]}) if style == "wrapped" else "\n".join(f"{t} {e}" for t, e in events) or "No events"
        said = when(d)
        answer = f"You have no events {said}." if not n else f"You have {W.number_word(n)} event{'s' if n > 1 else ''} {said}: " + listing(f"{e} at {t}" for t, e in events) + "."
        return Request(say=user, phrase=f"my events {when(d)}", args={key: d}, result=result, answer=answer, keys=[x for t, e in events for x in (e, t)] or ["no events"], why=f"the events {when(d)}")
    return Family(tool, request)


def add_event(rng, held):
    name = name_of(rng, held, ["create_event", "add_event", "schedule_event", "new_event", "schedule_meeting", "add_to_calendar", "create_calendar_event"], ["book_event", "make_event"])
    t_key, d_key, h_key = rng.choice(["title", "title", "name", "summary", "event"]), rng.choice(["date", "day", "date"]), rng.choice(["time", "start", "start_time", "time"])
    tool = schema(rng, name, rng.choice(["Add an event to the calendar", "Create a calendar event", "Put an appointment into the calendar", "Schedules an event"]),
                  {t_key: prop(rng, "The title of the event"), d_key: prop(rng, "The date"), h_key: prop(rng, "The time")}, [t_key, d_key, h_key])

    def request(rng):
        e, d, h = title(rng, held), date(rng, held), clock(rng)
        user = ask(rng, held, ["please write {q} into my calendar {d} at {h}.", "I want {q} in my calendar, {d} at {h}.", "{q} is {d} at {h}. Note it in my calendar.", "note down {q}, {d} at {h}.", "plan {q} for me {d} at {h}.", "make a note of {q} {d} at {h}.", "remember {q} in the calendar, {d} at {h}.", "[add|put] {q} [to|into] my calendar {d} at {h}[.|]", "[create|schedule|add|make] an event [called|named] {q} {d} at {h}[.|]", "[schedule|plan] {q} {d} at {h}[.|]", "[please |]add an event: {q}, {d} at {h}[.|]", "[can|could] you add {q} to my calendar {d} at {h}?",
                               "I have {q} {d} at {h}. [Please add it.|Add it to my calendar.|Put it in my calendar.]"],
                   ["please note {q} in my calendar, {d} at {h}."], q=rng.choice([e, e, f'"{e}"', f"'{e}'"]), d=when(d), h=h)
        result = rng.choice(["ok", json.dumps({"status": "ok"}), json.dumps({"success": True}), "Event created", json.dumps({"id": rng.randrange(1, 999), "status": "created"}), "done"])
        return Request(say=user, phrase=None, args={t_key: e, d_key: d, h_key: h}, result=result, answer=f"I have added {e} {when(d)} at {h}.", keys=[e, h], why=f"a place for {e} in the calendar")
    return Family(tool, request)


def file_name(rng, held):
    from conversations import any_word
    word = lambda: any_word(rng)
    stem = rng.choice([word(), word(), f"{word()}_{word()}", f"{word()}-{word()}", f"{word()}{rng.randrange(1, 30)}"])
    folder = rng.choice(["", "", "", f"{word()}/", f"/home/{word()}/", f"/tmp/", f"docs/", f"src/", f"./", "/etc/"])
    return folder + stem + "." + rng.choice(["txt", "txt", "md", "json", "py", "csv", "log", "cfg", "html", "yaml", "toml", "c"])


def read_file(rng, held):
    from conversations import any_word
    name = name_of(rng, held, ["read_file", "open_file", "file_read", "get_file", "get_file_contents", "read", "cat_file", "load_file", "readFile", "view_file"], ["show_file", "fetch_file"])
    key = rng.choice(["path", "path", "filename", "file", "file_path", "file_name"])
    tool = schema(rng, name, rng.choice(["Read a file", "Returns the contents of a file", "Read a text file from disk", "Open a file and return its text", "Get the contents of a file"]), {key: prop(rng, rng.choice(["The path of the file", "Path to the file", "Which file to read", "Name of the file"]))}, [key])

    def request(rng):
        f = file_name(rng, held)
        user = ask(rng, held, ["find out what {f} says.", "please look into {f}.", "have a look at {f}[.|, please.]", "take a look at {f} for me.", "let me know what is in {f}.", "let me see {f}.", "what text is in {f}?", "please find what {f} contains.", "what stands in {f}?", "I need the text of {f}.", "I wonder what is written in {f}.", "what [does|is in] [the file |]{f} [say|contain|]?", "read [the file |]{f}[.|, please.| for me.|]", "[open|show|show me|print] [the file |]{f}[.|]", "what is [written |]in [the file |]{f}?", "what are the contents of [the file |]{f}?", "[can|could] you [read|open] [the file |]{f}[?| for me?]",
                               "[please |]read {f} and tell me what it says[.|]", "tell me what [the file |]{f} [says|contains][.|]", "I want to see [the file |]{f}[.|]"],
                   ["please find out what is written in {f}.", "have a look into {f} for me."], f=rng.choice([f, f, f'"{f}"', f"'{f}'", f"`{f}`"])).replace("What does the file", "What does the file")
        user = user.replace(" ?", "?")
        text = " ".join(any_word(rng) for _ in range(rng.randrange(2, 9)))
        if rng.random() < 0.5:
            text = rng.choice(["Buy {x} and {y}.", "The password is {x}.", "Meet {n} at {h}.", "{n} lives in {c}.", "Remember the {x}.", "Total: {k}", "version = {k}", "Call {n} about the {x}.", "name: {n}", "Dear {n}, see you in {c}."]) \
                .replace("{x}", rng.choice(W.FRUITS + W.THINGS)).replace("{y}", rng.choice(W.FOODS)).replace("{n}", name_in(rng, held)).replace("{c}", city_of(rng, held)).replace("{h}", clock(rng)).replace("{k}", str(rng.randrange(1000)))
        result = text if rng.random() < 0.75 else json.dumps({"content": text})
        return Request(say=user, phrase=f"the file {f}", args={key: f}, result=result, answer=f"The file {f} says: {text}", keys=[text], why=f"the file {f}")
    return Family(tool, request)


def simple(names, others, key_names, descriptions, make):
    """A family with one parameter, for company and practice: make(rng, held) -> value, phrasings, held phrasing, result, answer, keys."""
    def family(rng, held):
        name, key = name_of(rng, held, names, others), rng.choice(key_names)
        kind = "integer" if key in ("minutes", "seconds", "duration", "n") else "string"
        tool = schema(rng, name, rng.choice(descriptions), {key: prop(rng, "", kind)}, [key])

        def request(rng):
            value, train, other, result, answer, keys = make(rng, held)
            return Request(say=ask(rng, held, train, [other], v=value), phrase=None, args={key: value}, result=result, answer=answer, keys=keys, why=str(value))
        return Family(tool, request)
    return family


def city_of(rng, held):
    from conversations import town
    return town(rng, held)


def name_in(rng, held):
    from conversations import person
    return person(rng, held)


def make_time(rng, held):
    c, h = city_of(rng, held), f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    return c, ["what time is it in {v}?", "what is the time in {v}[?| now?]", "[tell me|get|check] the time in {v}[.|]"], "how late is it in {v}?", rng.choice([h, json.dumps({"time": h})]), f"It is {h} in {c}.", [h]


def make_search(rng, held):
    from conversations import SPELLING
    q = " ".join(rng.choice(SPELLING) for _ in range(rng.randrange(1, 4)))
    r = rng.randrange(2, 90)
    return q, ["search [the web |]for {v}[.|]", "look up {v} [online|on the web|on the internet][.|]", "find [pages|information|something] about {v}[.|]", "[can|could] you search for {v}?"], "please do a search for {v}.", json.dumps({"results": r}), f"I found {r} results for {q}.", [str(r)]


def make_timer(rng, held):
    n = rng.randrange(2, 90)
    return n, ["set a timer for {v} minutes[.|]", "start a timer of {v} minutes[.|]", "[can|could] you set a {v} minute timer?", "remind me in {v} minutes[.|]"], "I need a timer for {v} minutes.", rng.choice(["ok", json.dumps({"status": "ok"})]), f"The timer is set for {n} minutes.", [str(n)]


def make_song(rng, held):
    from conversations import SPELLING
    s = " ".join(rng.choice(SPELLING).capitalize() for _ in range(rng.randrange(1, 4)))
    return s, ["play [the song |]{v}[.|]", "[can|could] you play {v}?", "I want to hear {v}[.|]"], "please put on the song {v}.", rng.choice(["ok", "playing", json.dumps({"status": "playing"})]), f"Now playing {s}.", [s]


def make_stock(rng, held):
    s = "".join(rng.choice("ABCDEFGHIKLMNOPRSTVXZ") for _ in range(rng.choice([3, 4])))
    p = rng.randrange(5, 900)
    return s, ["what is the [price|stock price] of {v}?", "how much is {v} stock?", "[get|check|show me] the stock price of {v}[.|]"], "tell me what a share of {v} costs.", rng.choice([str(p), json.dumps({"price": p})]), f"The price of {s} is {p}.", [str(p)]


def make_population(rng, held):
    c = rng.choice(W.COUNTRIES)[0]
    p = rng.randrange(1, 300)
    return c, ["how many people live in {v}?", "what is the population of {v}?", "[get|tell me|look up] the population of {v}[.|]"], "how many inhabitants does {v} have?", rng.choice([f"{p} million", json.dumps({"population": f"{p} million"})]), f"About {p} million people live in {c}.", [str(p)]


def make_light(rng, held):
    room = rng.choice(["kitchen", "bedroom", "bathroom", "garden", "office", "hall", "garage", "living room", "cellar", "attic"])
    return room, ["turn on the light in the {v}[.|]", "switch on the {v} light[.|]", "[please |]turn the lights on in the {v}[.|]", "make it bright in the {v}[.|]"], "I need light in the {v}.", rng.choice(["ok", "on", json.dumps({"status": "on"})]), f"The light in the {room} is on.", [room]


def send_message(rng, held):
    from conversations import SPELLING
    name = name_of(rng, held, ["send_email", "send_message", "email", "send_mail", "message", "send_text"], ["write_email", "post_message"])
    t_key, b_key = rng.choice(["to", "recipient", "name"]), rng.choice(["body", "text", "message", "content"])
    tool = schema(rng, name, rng.choice(["Send a message", "Sends an email", "Send a message to a person"]), {t_key: prop(rng, "Who gets it"), b_key: prop(rng, "The text")}, [t_key, b_key])

    def request(rng):
        n = name_in(rng, held)
        text = rng.choice(["I will be late", "see you tomorrow", "happy birthday", "the meeting is at " + clock(rng), "please call me", "dinner is ready", "I am in " + city_of(rng, held), "do not forget the " + rng.choice(W.THINGS), " ".join(rng.choice(SPELLING) for _ in range(3))])
        user = ask(rng, held, ["send [a message to |]{n}: {t}", "send {n} the message \"{t}\"[.|]", "[tell|write|text] {n}: {t}", "[please |]send \"{t}\" to {n}[.|]"], ["let {n} have this message: {t}"], n=n, t=text)
        return Request(say=user, phrase=None, args={t_key: n, b_key: text}, result=rng.choice(["sent", "ok", json.dumps({"status": "sent"})]), answer=f"I have sent the message to {n}.", keys=[n], why=f"a message to {n}")
    return Family(tool, request)


def convert(rng, held):
    name = name_of(rng, held, ["convert_currency", "currency_converter", "exchange", "convert"], ["exchange_money"])
    a_key, f_key, t_key = rng.choice(["amount", "value"]), rng.choice(["from", "source", "from_currency"]), rng.choice(["to", "target", "to_currency"])
    tool = schema(rng, name, rng.choice(["Convert money", "Converts an amount of money into another currency"]), {a_key: prop(rng, "How much", "number"), f_key: prop(rng, ""), t_key: prop(rng, "")}, [a_key, f_key, t_key])

    def request(rng):
        x, (f, t) = rng.randrange(2, 1000), rng.sample(["EUR", "USD", "GBP", "JPY", "CHF", "SEK", "NOK", "PLN", "CAD", "AUD"], 2)
        r = round(x * rng.randrange(50, 200) / 100, 2)
        user = ask(rng, held, ["convert {x} {f} to {t}[.|]", "how much is {x} {f} in {t}?", "what is {x} {f} in {t}?", "change {x} {f} into {t}[.|]"], ["I have {x} {f}. How much {t} is that?"], x=x, f=f, t=t)
        return Request(say=user, phrase=None, args={a_key: x, f_key: f, t_key: t}, result=rng.choice([str(r), json.dumps({"result": r})]), answer=f"{x} {f} is {r} {t}.", keys=[str(r)], why=f"{x} {f} in {t}")
    return Family(tool, request)


MAIN = [weather, calculator, calendar, read_file]
OTHERS = [add_event, send_message, convert,
          simple(["get_time", "current_time", "time_in", "get_local_time"], ["world_clock"], ["city", "location", "timezone"], ["Get the time in a city", "Current local time"], make_time),
          simple(["search", "web_search", "search_web", "google"], ["find_online"], ["query", "q", "search_query"], ["Search the web", "Find pages on the internet"], make_search),
          simple(["set_timer", "timer", "start_timer"], ["new_timer"], ["minutes", "duration"], ["Start a timer", "Set a timer in minutes"], make_timer),
          simple(["play_music", "play_song", "music"], ["play_track"], ["song", "title", "track"], ["Play a song", "Plays music"], make_song),
          simple(["get_stock_price", "stock_price", "stocks"], ["share_price"], ["symbol", "ticker"], ["Get the price of a stock"], make_stock),
          simple(["get_population", "population", "country_population"], ["count_people"], ["country", "name"], ["Population of a country"], make_population),
          simple(["turn_on_light", "light_on", "switch_light"], ["lamp_on"], ["room", "place"], ["Turn on a light", "Switch on the light in a room"], make_light)]


def call(family, args):
    return {"type": "function", "function": {"name": family.name, "arguments": args}}


def conversation(rng, held, shape=None):
    import conversations as C
    shape = shape or rng.choices(["one", "two", "result", "none", "missing"], [7, 3, 4, 2.5, 1.5])[0]
    think = rng.random() < 0.4
    makers = rng.sample(MAIN, rng.choices([1, 2, 3, 4], [5, 4, 2, 1])[0])
    if not held and rng.random() < 0.45:
        makers = makers[:2] + rng.sample(OTHERS, rng.choice([1, 1, 2]))
    elif held and rng.random() < 0.3:
        makers = makers[:2] + [add_event]
    rng.shuffle(makers)
    families = [m(rng, held) for m in makers]
    if len({f.name for f in families}) < len(families):
        return conversation(rng, held, shape)
    tools = [f.tool for f in families]
    messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(C.SYSTEMS)})
    if rng.random() < 0.12:
        h = C.SIMPLE[rng.choice(["small_talk", "facts", "translation", "spelling"])](rng, False)
        messages += [{"role": "user", "content": h["user"]}, {"role": "assistant", "content": h["answer"]}]
    if rng.random() < 0.1 and not held:
        f = rng.choice(families)
        r = f.request(rng)
        messages += [{"role": "user", "content": r["say"]}, {"role": "assistant", "content": "", "tool_calls": [call(f, r["args"])]}, {"role": "tool", "content": r["result"]}, {"role": "assistant", "content": r["answer"]}]
    reason = lambda text: text if think else ""
    out = {"kind": "tools", "shape": shape, "thinking": think, "tools": tools, "messages": messages}

    if shape in ("none", "missing"):
        if shape == "none":
            kinds = ["small_talk", "facts", "translation", "spelling", "sorting"] + ["arithmetic"] * (calculator not in makers)
            t = C.SIMPLE[rng.choice(kinds)](rng, held)
            while any(w in t["user"].lower() for w in ("weather", "rain", "time", "calendar", "cold outside", "date", "day is it", "help", "what can", "how many", "population")):
                t = C.SIMPLE[rng.choice(kinds)](rng, held)
            messages.append({"role": "user", "content": t["user"]})
            messages.append({"role": "assistant", "reasoning_content": reason("No tool is needed. " + t["reasoning"]), "content": t["answer"]})
            out["check"] = {"no_call": True, **t["check"]}
            return out
        # Small sums need no calculator, so its absence is no reason to give up; any other absent tool is.
        absent = rng.choice([m for m in MAIN + ([] if held else OTHERS[3:]) if m not in makers and m is not calculator] or [weather])
        if absent in makers:
            return conversation(rng, held, shape)
        f = absent(rng, held)
        r = f.request(rng)
        messages.append({"role": "user", "content": r["say"]})
        messages.append({"role": "assistant", "reasoning_content": reason("None of the tools can do this."), "content": rng.choice(["I am sorry, I have no tool for that.", "I cannot do that, because I have no tool for it."])})
        out["check"] = {"no_call": True, "any": ["no tool", "cannot"]}
        return out

    if shape == "two":
        f = rng.choice(families)
        g = f if rng.random() < 0.5 or len(families) == 1 else rng.choice([x for x in families if x is not f])
        r, s = f.request(rng), g.request(rng)
        while f is g and r["args"] == s["args"]:
            s = g.request(rng)
        if r["phrase"] and s["phrase"] and rng.random() < 0.6:
            user = ask(rng, held, ["find out {p} and {q}.", "two things, please: {p} and {q}.", "please find {p} and also {q}.", "let me know {p} and {q}.", "I need two things: {p} and {q}.", "both {p} and {q}, please.", "[tell me|show me|give me|get|check|look up] {p} and {q}[.|, please.|]", "what is {p} and {q}?", "I need {p} and {q}[.|]", "I want to know {p} and {q}[.|]", "[can|could] you [check|get|tell me] {p} and [also |]{q}?"], ["please find out two things: {p} and {q}."], p=r["phrase"], q=s["phrase"])
            if r["phrase"].startswith("the weather in ") and s["phrase"].startswith("the weather in ") and rng.random() < 0.7:
                user = user.replace(" and the weather in ", " and in ").replace(" and also the weather in ", " and also in ")
        else:
            second = s["say"][0].lower() + s["say"][1:] if s["say"].split()[0] in ("What", "How", "Is", "Tell", "Read", "Open", "Show", "Check", "Get", "Calculate", "Compute", "Can", "Could", "Please", "Give", "List", "Do", "Does", "Will") else s["say"]
            user = r["say"].rstrip(".") + rng.choice([" And ", " Also, ", " And also ", " Then "] if r["say"].endswith("?") else [". And ", ". Also, ", ". Then "]) + second
        calls = [(f, r), (g, s)]
    else:
        f = rng.choice(families)
        r = f.request(rng)
        user, calls = (r["say"] if held else C.noisy(rng, r["say"], "json")), [(f, r)]
    messages.append({"role": "user", "content": user})
    why = " and ".join(r["why"] for _, r in calls)
    need = say(rng, ["I need {w}. I call {f}.", "The user asks for {w}. I use {f}.", "For this I call {f}."], w=why, f=" and ".join(dict.fromkeys(f.name for f, _ in calls)) + (" twice" if len(calls) == 2 and calls[0][0] is calls[1][0] else ""))
    turn = {"role": "assistant", "reasoning_content": reason(need), "content": "", "tool_calls": [call(f, r["args"]) for f, r in calls]}
    messages.append(turn)
    if shape in ("one", "two") and (held or rng.random() < 0.5):
        out["check"] = {"calls": [{"name": f.name, "arguments": r["args"]} for f, r in calls]}
        return out
    for _, r in calls:
        messages.append({"role": "tool", "content": r["result"]})
    answer = " ".join(r["answer"] if r["answer"][-1] in ".!?" or len(calls) == 1 else r["answer"] + "." for _, r in calls)
    messages.append({"role": "assistant", "reasoning_content": reason("The tool has answered. I tell the user."), "content": answer})
    out["check"] = {"no_call": True, "all": [k for _, r in calls for k in r["keys"]]}
    return out
