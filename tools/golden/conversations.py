"""Random conversations, and the published chat template by jinja2 as transformers sets it up.

Shared by make_conversations.py (the committed sample) and tests/live/test_text.py (many more).
"""
import json
import random
import struct

import jinja2
import jinja2.sandbox

WORDS = ["the", "tide", "Größe", "naïve", "e\u0301te", "漂流", "код", "مرحبا", "किताब", "서울", "🙂", "👩\u200d🚀", "x = 1;", "don't",
         "3.14", "\u00a0", "\u3000", "\u200b", "\u0085", "\u2028", "\x1c", "\x1f", "\x00", "\x07", "\\", "\"", "'", "{}", "{{ x }}",
         "{% if %}", "&amp;", "<b>", "</b>"]
MARKERS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "<tool_response>", "</tool_response>", "<tool_call>",
           "<|im_end|>", "<|im_start|>", "<|image_pad|>", "<|endoftext|>", "</function>", "<parameter=x>"]
BLANKS = ["", "", "", " ", "\n", "\n\n", " \t", "\r\n", "\u3000", "\u00a0\n", "\x1d", "\u200b"]
NAMES = ["get_weather", "read_file", "搜索", "a.b-c", "f"]


class Source:
    def __init__(self, seed: int, markers: float = 0.15):
        self.random = random.Random(seed)
        self.markers = markers

    def text(self, most: int = 8) -> str:
        r = self.random
        words = [r.choice(MARKERS if r.random() < self.markers else WORDS) for _ in range(r.randint(0, most))]
        return r.choice(BLANKS) + r.choice([" ", " ", "\n", ""]).join(words) + r.choice(BLANKS)

    def number(self):
        r = self.random
        kind = r.randrange(6)
        if kind == 0:
            return r.randint(-10, 10)
        if kind == 1:
            return r.choice([2**63 - 1, -2**63, 2**64 - 1, 2**53 + 1, r.getrandbits(62)])
        if kind == 2:
            return r.choice([0.0, -0.0, 1.0, 0.1, 1e16, 1e15, 123456789012345680.0, 1e-4, 1e-5, 5e-324, 1.5e300, 1e22, 1e21,
                             9007199254740993.0, 0.30000000000000004])
        if kind == 3:
            return round(r.uniform(-1000, 1000), r.randint(0, 6))
        while True:
            value = struct.unpack("<d", struct.pack("<Q", r.getrandbits(64)))[0]
            if value == value and abs(value) != float("inf"):
                return value

    def value(self, depth: int = 0):
        r = self.random
        kind = r.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return self.text(4)
        if kind == 2:
            return r.choice([None, True, False])
        if kind < 5:
            return self.number()
        if kind == 5:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        return {self.key(): self.value(depth + 1) for _ in range(r.randint(0, 3))}

    def key(self) -> str:
        return self.random.choice(["path", "city", "ключ", "a b", "z", "n", "", "\n", "<|im_end|>", "\"q\""])

    def tool(self):
        r = self.random
        if r.random() < 0.2:
            return self.value()
        properties = {self.key(): {"type": r.choice(["string", "integer", "object"]), "description": self.text(4),
                                   "default": self.value(2)} for _ in range(r.randint(0, 3))}
        return {"type": "function", "function": {"name": r.choice(NAMES), "description": self.text(),
                                                 "parameters": {"type": "object", "properties": properties}}}

    def content(self):
        r = self.random
        kind = r.randrange(20)
        if kind < 13:
            return self.text()
        if kind == 13:
            return None
        if kind == 14 and r.random() < 0.05:
            return {"type": "text", "text": "a mapping"}
        if kind == 15 and r.random() < 0.05:
            return [{"type": "audio", "audio": "x"}]
        choices = [{"type": "text", "text": self.text(4)}, {"type": "text", "text": self.text(4)}, {"text": self.text(2)},
                   {"type": "image"}, {"type": "image_url", "image_url": {"url": "u"}}, {"image": "x", "text": "y"},
                   {"type": "video"}, {"type": "video", "video": "v"}]
        return [r.choice(choices) for _ in range(r.randint(0, 4))]

    def call(self):
        r = self.random
        function = {"name": r.choice(NAMES)}
        if r.random() < 0.95:
            function["arguments"] = {self.key(): self.value() for _ in range(r.randint(0, 3))}
        if r.random() < 0.01:
            function["arguments"] = "{\"a\": 1}"
        return {"id": "c1", "type": "function", "function": function} if r.random() < 0.8 else function

    def message(self, role: str):
        r = self.random
        message = {"role": role, "content": self.content()}
        if r.random() < 0.03:
            del message["content"]
        if role == "user" and r.random() < 0.15:
            message["content"] = r.choice(BLANKS) + "<tool_response>" + self.text(3) + "</tool_response>" + r.choice(BLANKS)
        if role == "system" and r.random() < 0.9:
            message["content"] = self.text()
        if role == "assistant":
            if r.random() < 0.4:
                message["reasoning_content"] = r.choice([self.text(), self.text(), "", None])
            if r.random() < 0.4:
                message["tool_calls"] = [self.call() for _ in range(r.randint(0, 3))]
        return message

    def conversation(self) -> dict:
        r = self.random
        roles = []
        if r.random() < 0.4:
            roles.append("system")
        for _ in range(0 if r.random() < 0.04 else r.randint(1, 3)):
            roles.append("user")
            for _ in range(r.choice([0, 1, 1, 2])):
                roles.append("assistant")
                roles += ["tool"] * r.choice([0, 0, 1, 1, 2])
        if r.random() < 0.15:
            roles.insert(r.randint(0, len(roles)), r.choice(["tool", "assistant", "system", "developer", "user", "tool"]))
        case = {"messages": [self.message(role) for role in roles]}
        if r.random() < 0.4:
            case["tools"] = [self.tool() for _ in range(r.randint(0, 2))]
        for flag, chance in (("add_generation_prompt", 0.8), ("enable_thinking", 0.5), ("preserve_thinking", 0.4),
                             ("add_vision_id", 0.3)):
            if r.random() < chance:
                case[flag] = r.random() < 0.6
        return case


def compile_template(text: str):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(text)


def render(template, case: dict) -> dict:
    """{"output": text} or {"error": words}."""
    try:
        return {"output": template.render(**case)}
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        return {"error": str(error)}
