"""Renders conversations with the real chat template and says which characters the model must learn to write."""
import json
import os

import jinja2

HERE = os.path.dirname(os.path.abspath(__file__))
END = "<|im_end|>"
TURN = "<|im_start|>assistant\n<think>\n"
NO_THINK = "\n</think>\n\n"


def environment():
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)

    def fail(message):
        raise ValueError(message)
    env.globals["raise_exception"] = fail
    return env


TEMPLATE = environment().from_string(open(os.path.join(HERE, "..", "..", "tests", "data", "qwen36", "chat_template.jinja"), encoding="utf-8").read())


def prompt(messages, tools, thinking):
    """What a server gives to the model before it answers."""
    return TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)


def document(conversation):
    """(text, [(begin, end), ...]): the spans that the model writes itself, <|im_end|> included.

    Only answers after the last question carry a think block, as they do when they are generated; earlier ones, which the
    template renders without it, are context and not learnt. With thinking off the empty block belongs to the prompt.
    """
    text = TEMPLATE.render(messages=conversation["messages"], tools=conversation["tools"], add_generation_prompt=False)
    spans, at = [], 0
    while (at := text.find(TURN, at)) >= 0:
        begin = at + len(TURN)
        if text.startswith(NO_THINK, begin):
            begin += len(NO_THINK)
        end = text.index(END, begin) + len(END)
        spans.append((begin, end))
        at = end
    return text, spans
