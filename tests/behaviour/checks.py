"""Decides whether an answer to a prompt of suite.json is right. Used over HTTP (run.py) and by tools/train_tiny/evaluate.py."""
import json
import re


def words(text):
    return re.findall(r"[^\s,;]+", text.strip().rstrip("."))


def numbers(text):
    return [int(n) for n in re.findall(r"(?<![\d.])-?\d+(?![\d.]*\d)", text)]


def same(a, b):
    """Arguments as JSON values; 3 and 3.0 are the same number, "3" and 3 are not."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def right_calls(want, got):
    """The same calls in any order: function names and all arguments equal."""
    rest = list(got)
    for w in want:
        hit = next((g for g in rest if g["name"] == w["name"] and g["arguments"].keys() == w["arguments"].keys()
                    and all(same(g["arguments"][k], v) for k, v in w["arguments"].items())), None)
        if hit is None:
            return False
        rest.remove(hit)
    return not rest


def typed(value, schema):
    """A parameter's text as the JSON value its schema wants."""
    if schema.get("type") in ("number", "integer", "boolean", "array", "object"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


def read_calls(text, tools):
    """The calls written in a model's text: (text without them, calls, malformed)."""
    schemas = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools or []}
    calls, malformed = [], text.count("<tool_call>") != text.count("</tool_call>")
    for block in re.findall(r"<tool_call>(.*?)(?:</tool_call>|$)", text, re.S):
        m = re.fullmatch(r"\s*<function=([^>\n]+)>\n(.*?)</function>\s*", block, re.S)
        if not m or m[1] not in schemas:
            malformed = True
            continue
        found = re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", m[2], re.S)
        calls.append({"name": m[1], "arguments": {k: typed(v, schemas[m[1]].get(k, {})) for k, v in found}})
    return re.sub(r"<tool_call>.*?(</tool_call>|$)", "", text, flags=re.S).strip(), calls, malformed


def judge(case, answer):
    """None if right, else a short reason. answer: content, reasoning, calls [{name, arguments}], finished, malformed."""
    check, text = case["check"], answer["content"].strip()
    low = text.lower()
    if answer.get("malformed"):
        return "malformed tool call"
    if not answer["finished"]:
        return "did not stop"
    if case["thinking"] and not answer["reasoning"].strip():
        return "no reasoning"
    if not case["thinking"] and answer["reasoning"].strip():
        return "reasoning though it is off"
    if "calls" in check:
        return None if right_calls(check["calls"], answer["calls"]) else f"calls {answer['calls']}"
    if answer["calls"]:
        return f"unwanted calls {answer['calls']}"
    if not text:
        return "empty answer"
    if "any" in check and not any(k.lower() in low for k in check["any"]):
        return "none of the expected words"
    if "all" in check and not all(re.search(rf"(?<![^\W_]){re.escape(k.lower())}(?![^\W_])", low) for k in check["all"]):
        return "an expected word is missing"
    if "number" in check and numbers(text)[-1:] != [check["number"]]:
        return "wrong number"
    if "first_number" in check and numbers(text)[:1] != [check["first_number"]]:
        return "wrong number"
    if "sequence" in check and [w.strip(".").lower() for w in words(text)] != [w.lower() for w in check["sequence"]]:
        return "wrong sequence"
    if "exact" in check and low.rstrip(".") not in (check["exact"].lower(), check.get("word", check["exact"]).lower() + ": " + check["exact"].lower()):
        return "not the expected text"
    if "tail" in check and (words(low) or [""])[-1].strip(".\"'") != check["tail"].lower():
        return "wrong last word"
    if "json" in check or "json_strings" in check:
        try:
            value = json.loads(text)
        except ValueError:
            return "not JSON"
        if "json" in check and value != check["json"]:
            return "wrong JSON"
        if "json_strings" in check and not (isinstance(value, list) and len(value) == check["json_strings"] == len(set(map(str, value))) and all(isinstance(x, str) for x in value)):
            return "wrong JSON"
    if "story" in check:
        if any(k.lower() not in low for k in check["story"]):
            return "the story lacks what was asked for"
        if len(text.split()) < 40 or text.count(".") < 3:
            return "too short for a story"
    return None


def summary(results):
    """results: [(case, reason or None)] -> rows by kind and the totals that the project asks for."""
    kinds = {}
    for case, reason in results:
        row = kinds.setdefault(case["kind"], [0, 0])
        row[0] += reason is None
        row[1] += 1
    calls = [reason is None for case, reason in results if "calls" in case["check"]]
    rows = {k: {"right": r, "of": n, "share": round(r / n, 4)} for k, (r, n) in kinds.items()}
    total = sum(r is None for _, r in results)
    return {"kinds": rows, "right": total, "of": len(results), "share": round(total / len(results), 4),
            "tool_calls": {"right": sum(calls), "of": len(calls), "share": round(sum(calls) / max(1, len(calls)), 4)}}
