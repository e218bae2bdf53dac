"""The page at /, in Chromium: with lily itself, and with a server that says what a model cannot be made to say."""
import json
import random
import threading

import pytest
from selenium.webdriver.common.keys import Keys

from browser import Browser, missing
from scripted_server import Answer, ScriptedServer, call, content, reasoning
from server_process import Server

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

RICH = """# Plan

A **short** plan with `code` and a [link](https://example.org/a).

1. Lilies
   - bulbs
2. Herbs

> A quote.

| Plant | Water |
|:------|------:|
| Lily | 1.5 l |
| A rather long name of a plant that is wide | """ + "wide " * 30 + """|

```python
def area(width: float) -> float:  # a comment that is longer than the screen of any telephone is wide
    return width * 2.5
```

averyveryverylongword""" + "o" * 200 + """

$$x_i^2$$

---
The end."""


@pytest.fixture(scope="module")
def lily():
    with Server(None, "--parallel", "2", "--ctx", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    chromium.size(1200, 850)
    chromium.dark(False)
    chromium.log()
    return chromium


@pytest.fixture
def scripted(lily):
    with ScriptedServer(lily.base) as server:  # a port of its own, so storage of its own
        yield server


def answer_html(browser) -> str:
    return browser.script("return [...document.querySelectorAll('.assistant')].at(-1).children[2].innerHTML")


# ---- with lily


def test_a_conversation_streams_and_a_reload_keeps_it(lily, browser):
    browser.open(lily.url("/"))
    browser.wait(lambda: browser.text("#model-name") == "lily-tiny", "the model's name")
    browser.ask_with({"temperature": 0})
    browser.say("What is 17 plus 25?")
    browser.wait(lambda: not browser.idle(), "the answer to begin")
    browser.wait_for_answer()
    assert "42" in browser.text(".assistant > .markdown")
    assert browser.text(".thinking summary").startswith("Thought")
    assert "tok/s" in browser.text(".stats") and "tokens" in browser.text(".stats"), browser.text(".stats")
    assert browser.text("#context-text").endswith("of 2,048 tokens"), browser.text("#context-text")
    before, address = answer_html(browser), browser.driver.current_url
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".assistant"), "the conversation to come back")
    assert browser.driver.current_url == address
    assert answer_html(browser) == before and "17 plus 25" in browser.text(".bubble")
    assert browser.text("#list a") == "What is 17 plus 25?" == browser.text("#title")
    browser.say("Spell the word cat.")
    browser.wait_for_answer()
    assert len(browser.all(".assistant")) == 2
    assert browser.log() == ""


def test_stop_ends_the_generation_in_the_server(model, browser):
    # One thread, so that a busy machine still has time for the page while the answer runs. What random weights think is not shown.
    with Server(model, "--threads", "1") as server:
        browser.open(server.url("/"))
        browser.ask_with(server.endless)
        browser.say("Go on and on.")
        browser.wait(lambda: "tok/s" in browser.text(".assistant"), "the answer to run")
        assert browser.one("#send").get_attribute("aria-label") == "Stop"
        browser.one("#send").click()
        browser.wait_for_answer()
        server.wait_for_metric('lily_jobs_total{end="cancelled"} 1')
        assert "stopped" in browser.text(".stats")
        browser.say("Once more.")
        browser.wait(lambda: len(browser.all(".assistant")) == 2 and not browser.idle(), "a second answer")
        browser.keys(Keys.ESCAPE)
        browser.wait_for_answer()
        server.wait_for_metric('lily_jobs_total{end="cancelled"} 2')


def test_a_tool_loop_with_the_model(browser):
    with Server(None, "--ctx", "2048") as server:  # an address of its own: the tools are kept by the browser
        browser.open(server.url("/"))
        browser.one("#open-settings").click()
        browser.one("#tools-example").click()
        browser.keys(Keys.ESCAPE)
        browser.ask_with({"temperature": 0})
        browser.say("What is the weather in Oslo?")
        browser.wait(lambda: browser.all(".call"), "a call")
        browser.wait_for_answer()
        assert browser.text(".call .name") == "get_weather" and "Oslo" in browser.text(".call pre")
        browser.one(".call textarea").send_keys('{"temperature": 4, "sky": "rain"}')
        browser.keys(Keys.ENTER)
        browser.wait(lambda: "4" in browser.text(".assistant > .markdown"), "an answer made of the result")
        browser.wait_for_answer()
        assert len(browser.all(".call")) == 1


def test_the_key_is_asked_for_and_kept(browser):
    with Server(None, "--api-key", "sesame", "--ctx", "1024") as server:
        browser.open(server.url("/"))
        browser.wait(lambda: "API key" in browser.text("#banner"), "the page to ask for a key")
        browser.one("#banner button").click()
        browser.keys("sesame", Keys.ESCAPE)
        browser.wait(lambda: browser.text("#model-name") == "lily-tiny", "the key to be taken")
        browser.driver.refresh()
        browser.wait(lambda: browser.text("#model-name") == "lily-tiny", "the key to be kept")
        browser.one("#think").click()
        browser.say("Hello!")
        browser.wait_for_answer()
        assert browser.text(".assistant > .markdown") != "" and not browser.all(".error:not([hidden])")


# ---- what a hostile model might say


PAYLOADS = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2"><svg onload="window.hacked = 3"></svg><iframe srcdoc="<script>top.hacked=4</script>"></iframe>
<a href="javascript:window.hacked=5">a</a> &lt;img src=x onerror=window.hacked=6&gt; &#60;script&#62;window.hacked=7&#60;/script&#62;

[one](javascript:window.hacked=8) [two](JaVaScRiPt:window.hacked=8) [three](java\\nscript:window.hacked=8)
[four](data:text/html,<script>window.hacked=8</script>) [five](&#106;avascript:window.hacked=8) [six](vbscript:x) [seven](//evil.example/x)
[eight]( javascript:window.hacked=8) [nine](<javascript:window.hacked=8>) [ten](file:///etc/passwd) [eleven](blob:http://x/y)
<javascript:window.hacked=9> <https://example.org/"onmouseover="window.hacked=10>
![pixel](/pixel.png) ![pixel](HERE/pixel.png) ![p](data:image/svg+xml,<svg onload=alert(1)>)
[ok](https://example.org/"><script>window.hacked=11</script>) [titled](https://example.org "\\"><img src=x onerror=window.hacked=12>")
https://example.org/"><img/src=x/onerror=window.hacked=13>

| <img src=x onerror=window.hacked=14> | [x](javascript:window.hacked=15) |
|---|---|
| `<script>window.hacked=16</script>` | <style>*{display:none}</style> |

```html"><img/src=x/onerror=window.hacked=17>
<script>window.hacked = 18</script>
</code></pre><script>window.hacked = 19</script>
```
$<img src=x onerror=window.hacked=20>$ <form action=/steal><input name=q></form> <base href=//evil.example> <meta http-equiv=refresh content=0>"""
ALLOWED = {"ARTICLE", "DETAILS", "SUMMARY", "DIV", "SPAN", "P", "A", "BR", "CODE", "PRE", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD",
           "BUTTON", "svg", "use", "EM", "STRONG", "DEL", "SECTION", "TEXTAREA", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "H3"}


def test_what_a_model_says_is_only_ever_text(scripted, browser):
    payloads = PAYLOADS.replace("HERE", scripted.url(""))
    arguments = json.dumps({"x": "</code><script>window.hacked=21</script>", "__proto__": {"y": 1}})
    scripted.answers += [
        Answer(reasoning(payloads, 40) + content(payloads, 40) + call(0, "\"><img src=x>", "<img src=x onerror=window.hacked=22>", arguments),
               finish="tool_calls"),
        Answer(status=400, error={"message": "<img src=x onerror=window.hacked=23>", "code": "<script>window.hacked=24</script>"}),
    ]
    browser.open(scripted.url("/"))
    browser.say("<img src=x onerror=window.hacked=25>")
    browser.wait_for_answer()
    browser.one(".thinking summary").click()
    for _ in range(2):
        browser.wait(lambda: browser.text(".thinking .markdown"), "the thinking to be shown")
        assert browser.text(".assistant > .markdown").count("<img src=x onerror=window.hacked=14>") == 1
        tags = set(browser.script("return [...document.querySelectorAll('#log *')].map((e) => e.tagName)"))
        assert tags <= ALLOWED, tags - ALLOWED
        handlers = browser.script("return [...document.querySelectorAll('#log *')].flatMap((e) => [...e.attributes])"
                                  ".map((a) => a.name).filter((n) => n.startsWith('on') || n === 'style' || n === 'src')")
        assert handlers == []
        links = browser.script("return [...document.querySelectorAll('#log a')].map((e) => [e.href, e.rel, e.target, e.textContent])")
        assert links and all(href.startswith(("https://example.org", "http://x/", scripted.url(""))) for href, *_ in links), links
        assert all("noopener" in rel and target == "_blank" for _, rel, target, _ in links)
        assert browser.script("return window.hacked") is None
        browser.driver.refresh()  # the same from storage
        browser.wait(lambda: browser.all(".thinking summary"), "the conversation to come back")
        browser.one(".thinking summary").click()
    browser.say("and now an error")
    browser.wait_for_answer()
    assert "<img src=x onerror=window.hacked=23>" in browser.text(".error")
    assert browser.script("return window.hacked") is None
    assert set(scripted.paths) <= {"/", "/v1/models", "/v1/chat/completions"}, scripted.paths


def test_the_policy_would_stop_what_the_page_let_through(scripted, browser):
    browser.open(scripted.url("/"))
    # Not in the script itself, which the driver may run above the policy.
    refused = browser.driver.execute_async_script("""
        const finished = arguments[0];
        const refused = [];
        const attempts = {
          html: () => { document.body.innerHTML += '<b>x</b>'; },
          script: () => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s); },
          evaluation: () => window.eval('window.hacked = 2'),
          handler: () => { const b = document.createElement('button'); b.setAttribute('onclick', 'window.hacked = 3'); b.click(); },
        };
        setTimeout(() => {
          for (const [name, attempt] of Object.entries(attempts)) {
            try { attempt(); } catch (error) { refused.push(name); }
          }
          const image = document.createElement('img');
          image.onload = () => finished([...refused, 'but not the image']);
          image.onerror = () => finished(refused);
          image.src = '/pixel.png';
          document.body.append(image);
        });""")
    assert refused == ["html", "script", "evaluation", "handler"]
    assert browser.script("return window.hacked") is None
    assert "/pixel.png" not in scripted.paths


# ---- Markdown

CASES = {
    "a *b* **c** ***d*** ~~e~~ `f*g*`": "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> <code>f*g*</code></p>",
    "2 * 3 * 4 and snake_case_name and __init__": "<p>2 * 3 * 4 and snake_case_name and <strong>init</strong></p>",
    "**Note:** x\nnext \\*line\\*": "<p><strong>Note:</strong> x<br>next *line*</p>",
    "**注意：**水": "<p><strong>注意：</strong>水</p>",
    "\\``x` and `y`": "<p>`<code>x</code> and <code>y</code></p>",
    "``a`b`` and ` and &amp; &copy; &nope;": "<p><code>a`b</code> and ` and &amp; © &amp;nope;</p>",
    "It costs $5 or $10, $x_1 + y_1$ is math, \\(a_1\\) too":
        '<p>It costs $5 or $10, <span class="math">$x_1 + y_1$</span> is math, <span class="math">\\(a_1\\)</span> too</p>',
    "# One #\n\nTwo\n---\n### Three": '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4><h5 class="level-3">Three</h5>',
    "#hash is text\n***\n#": '<p>#hash is text</p><hr><h3 class="level-1"></h3>',
    "- a\n- b\n  - c\n\n1) x\n2) y": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>x</li><li>y</li></ol>",
    "3. **a**\n  - b\n4. c": '<ol start="3"><li><strong>a</strong><ul><li>b</li></ul></li><li>c</li></ol>',
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "- [x] done\n- [ ] open": '<ul><li class="task"><input>done</li><li class="task"><input>open</li></ul>',
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "a | b\n--|:-:\n1 | `x\\|y`\n\nz":
        '<table><thead><tr><th>a</th><th class="center">b</th></tr></thead><tbody><tr><td>1</td><td class="center">'
        "<code>x|y</code></td></tr></tbody></table><p>z</p>",
    "```js\nlet a\n\n  # b\n```\nend": "<pre>let a\n\n  # b</pre><p>end</p>",
    "~~~\n```\n~~~\n    indented": "<pre>```</pre><pre>indented</pre>",
    "1. a\n   ```\n   b\n   ```\n2. c": "<ol><li>a<pre>b</pre></li><li>c</li></ol>",
    "```\nnot closed <b>": "<pre>not closed &lt;b&gt;</pre>",
    "[a](https://x.org/(b) \"t\") <https://y.org> (https://z.org/q?a=1&b=2).":
        '<p><a href="https://x.org/(b)">a</a> <a href="https://y.org/">https://y.org</a> '
        '(<a href="https://z.org/q?a=1&amp;b=2">https://z.org/q?a=1&amp;b=2</a>).</p>',
    "[a [b](https://x.org)](https://y.org) [c](notalink) ![d](https://z.org/i.png)":
        '<p>[a <a href="https://x.org/">b</a>](<a href="https://y.org/">https://y.org</a>) [c](notalink) <a href="https://z.org/i.png">d</a></p>',
    "<b>html</b> <!-- c -->": "<p>&lt;b&gt;html&lt;/b&gt; &lt;!-- c --&gt;</p>",
}
# What was rendered, with code blocks, tables and attributes reduced to what the cases speak of.
REDUCED = """
    const copy = [...document.querySelectorAll('.assistant')].at(-1).children[2].cloneNode(true);
    copy.querySelectorAll('.code').forEach((e) => {
      const pre = document.createElement('pre');
      pre.textContent = e.querySelector('pre').textContent;
      e.replaceWith(pre);
    });
    copy.querySelectorAll('.table').forEach((e) => e.replaceWith(e.firstChild));
    copy.querySelectorAll('*').forEach((e) => [...e.attributes].forEach((a) => {
      if (!['href', 'class', 'start'].includes(a.name)) e.removeAttribute(a.name);
    }));
    return copy.innerHTML;"""


def test_markdown(scripted, browser):
    browser.open(scripted.url("/"))
    scripted.answers += [Answer(content(text, 400)) for text in CASES]
    wrong = []
    for text, expected in CASES.items():
        browser.say("next")
        browser.wait_for_answer()
        if (got := browser.script(REDUCED)) != expected:
            wrong.append(f"{text!r}\n  expected {expected}\n  got      {got}")
    assert not wrong, "\n".join(wrong)


def test_a_stream_renders_as_the_whole_does(scripted, browser):
    text = "\n\n".join([*CASES, RICH, *CASES])
    browser.open(scripted.url("/"))
    scripted.answers.append(Answer([step for i, part in enumerate(content(text, 3)) for step in ([part] if i % 40 else [0.03, part])]))
    browser.say("everything, in small pieces")
    browser.wait_for_answer()
    streamed = answer_html(browser)
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".assistant"), "the conversation to come back")
    assert answer_html(browser) == streamed


def test_random_markdown_renders_the_same_in_pieces_and_whole(scripted, browser):
    """Every text of two hundred made of what Markdown gives a meaning to; their pieces are cut at random."""
    draw = random.Random(5)
    parts = ["\n", "\n", "\n\n", "- ", "* ", "1. ", "2) ", "> ", "# ", "```", "```py\n", "~~~", "|", "|-|-|\n", "a|b\n", "---\n", "=", "    ", "\t", "*", "**",
             "_", "~~", "`", "``", "[", "](https://x.org)", "](", "![", "<", "https://x.org/a_b", "&amp;", "$", "$$", "\\(", "\\", "word", "x", "注意：", "[x] "]
    browser.open(scripted.url("/"))
    for _ in range(10):
        text = "\n\n# next\n\n".join("".join(draw.choices(parts, k=draw.randint(1, 50))) for _ in range(20))
        steps = []
        while text:
            cut = draw.randint(1, 60)
            steps += [{"content": text[:cut]}, *([0.01] if draw.random() < 0.3 else [])]
            text = text[cut:]
        scripted.answers.append(Answer(steps))
        browser.say("random")
        browser.wait_for_answer()
    everything = "return [...document.querySelectorAll('.assistant')].map((e) => e.children[2].innerHTML)"
    streamed = browser.script(everything)
    browser.driver.refresh()
    browser.wait(lambda: len(browser.all(".assistant")) == 10, "the conversation to come back")
    assert browser.script(everything) == streamed
    assert not browser.all(".bare") and browser.log() == ""


HARD = {"stars": "*a **b " * 8000, "brackets": "[" * 30_000 + "](" * 10_000, "quotes": "> " * 5000 + "x", "ticks": "`" + "`` ` " * 9000,
        "links": "[a](" * 9000, "fences": "`" * 40_000 + "\nx", "lists": "\n".join(" " * i + "- x" for i in range(400)),
        "entities": "&#" * 20_000, "math": "\\(" * 20_000, "underscores": "_a__b" * 8000, "table": "|" * 20_000 + "\n" + "|-" * 20_000,
        "urls": "http://x" + ")" * 4000 + "https://[" * 4000, "code": "```c\n" + "/* \" ' " * 9000, "one word": "x" * 300_000}


@pytest.mark.parametrize("name", HARD)
def test_no_text_takes_long(scripted, browser, name):
    browser.open(scripted.url("/"))
    scripted.answers.append(Answer([{"content": HARD[name]}]))
    browser.say("hard")
    browser.wait_for_answer()
    assert not browser.all(".error:not([hidden])") and browser.text(".assistant > .markdown")
    assert browser.log() == ""


def test_a_long_answer_stays_quick(scripted, browser):
    browser.open(scripted.url("/"))
    text = (RICH + "\n\n") * 120
    scripted.answers.append(Answer(content(text, 60)))
    browser.say("long")
    browser.wait_for_answer()
    assert len(browser.all(".assistant .code")) == 120


# ---- what goes wrong


def test_errors_are_said_and_can_be_retried(scripted, browser):
    scripted.answers += [
        Answer(status=429, error={"message": "The queue is full.", "code": "queue_full"}, headers={"Retry-After": "7"}),
        Answer(content("Half an ans"), error={"message": "The device failed.", "code": None}),
        Answer(content("Cut off he"), finish=None),
        Answer(content("All is well.")),
    ]
    browser.open(scripted.url("/"))
    browser.say("try")
    for words in (["The queue is full.", "7 s", "429", "queue_full"], ["The device failed."], ["ended before the answer did"]):
        browser.wait_for_answer()
        shown = browser.text(".error:not([hidden])")
        assert all(word in shown for word in words), shown
        browser.one(".error:not([hidden]) button").click()
    browser.wait_for_answer()
    assert browser.text(".assistant > .markdown") == "All is well." and len(browser.all(".assistant")) == 1
    assert not browser.all(".error:not([hidden])")
    assert [len(request["messages"]) for request in scripted.requests] == [1, 1, 1, 1]


def test_a_server_that_is_gone_is_said(lily, browser):
    with ScriptedServer(lily.base) as server:
        browser.open(server.url("/"))
        browser.wait(lambda: browser.text("#model-name") == "scripted", "the model's name")
    browser.say("anybody?")
    browser.wait_for_answer()
    assert "cannot be reached" in browser.text(".error")
    browser.wait(lambda: browser.one("#model").get_attribute("data-state") == "offline", "the state to be shown")


def test_a_model_that_is_loading_is_waited_for(scripted, browser):
    scripted.loading = True
    browser.open(scripted.url("/"))
    browser.wait(lambda: "being loaded" in browser.text("#banner"), "the page to say so")
    scripted.loading = False
    browser.wait(lambda: browser.text("#model-name") == "scripted" and browser.text("#banner") == "", "the model to be there")


def test_leaving_the_page_in_the_middle_keeps_what_was_said(scripted, browser):
    scripted.answers.append(Answer(content("The first half.") + [threading.Event()]))
    browser.open(scripted.url("/"))
    browser.say("begin")
    browser.wait(lambda: "first half." in browser.text(".assistant > .markdown"), "the first half")
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".assistant"), "the conversation to come back")
    assert browser.text(".assistant > .markdown") == "The first half." and "stopped" in browser.text(".stats")
    assert scripted.ended_early.wait(60)
    scripted.answers.append(Answer(content(" The second.")))
    browser.one(".assistant .labelled").click()  # Continue
    browser.wait_for_answer()
    assert browser.text(".assistant > .markdown") == "The first half. The second."
    assert scripted.requests[-1]["continue_final_message"] is True
    assert scripted.requests[-1]["messages"][-1] == {"role": "assistant", "content": "The first half."}


# ---- tools, settings, the list


def test_tool_calls_are_shown_and_answered(scripted, browser):
    arguments = '{"city": "Paris", "days": [1, 2], "exact": 12345678901234567890}'
    scripted.answers += [
        Answer(reasoning("Two calls.") + call(0, "call_a", "get_weather", arguments) + call(1, "call_b", "get_time", "{}"), finish="tool_calls"),
        Answer(content("It is 21 degrees at noon.")),
    ]
    browser.open(scripted.url("/"))
    browser.one("#open-settings").click()
    browser.one("#tools-example").click()
    browser.keys(Keys.ESCAPE)
    assert "get_weather" in browser.text("#system-note")
    browser.say("Weather and time in Paris?")
    browser.wait_for_answer()
    assert scripted.requests[0]["tools"][0]["function"]["name"] == "get_weather"
    names = [element.text for element in browser.all(".call .name")]
    assert names == ["get_weather", "get_time"]
    assert '\n  "days": [\n    1,\n    2\n  ],\n  "exact": 12345678901234567890\n' in browser.all(".call pre")[0].text + "\n"
    first, second = browser.all(".call textarea")
    first.send_keys("21 degrees")
    second.send_keys("noon")
    browser.keys(Keys.ENTER)
    browser.wait(lambda: "noon." in browser.text(".assistant > .markdown"), "the answer after the results")
    sent = scripted.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "Two calls."
    assert sent[1]["tool_calls"][0] == {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    assert sent[2:] == [{"role": "tool", "tool_call_id": "call_a", "content": "21 degrees"},
                        {"role": "tool", "tool_call_id": "call_b", "content": "noon"}]
    browser.driver.refresh()
    browser.wait(lambda: len(browser.all(".call .result pre")) == 2, "the calls to come back")


def test_settings_are_sent_and_kept(scripted, browser):
    values = {"temperature": "0.5", "top_p": "0.9", "top_k": "20", "min_p": "0.05", "presence_penalty": "-1.5",
              "frequency_penalty": "0.25", "repetition_penalty": "1.1", "seed": "42", "max_tokens": "77"}
    scripted.answers += [Answer(content("a")), Answer(content("b")), Answer(content("c"))]
    browser.open(scripted.url("/"))
    browser.say("with the model's own settings")
    browser.wait_for_answer()
    assert not set(values) & set(scripted.requests[0]) and scripted.keys[0] is None
    assert scripted.requests[0]["chat_template_kwargs"]["enable_thinking"] is True

    browser.one("#open-settings").click()
    browser.one("#s-system").send_keys("Be brief.")
    browser.one("#s-thinking").click()
    browser.one("#s-key").send_keys("secret")
    for name, value in values.items():
        browser.one(f"#s-{name}").send_keys(value)
    browser.script("document.querySelector('#s-theme').value = 'dark';"
                   "document.querySelector('#s-theme').dispatchEvent(new Event('input', {bubbles: true}))")
    browser.keys(Keys.ESCAPE)
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".assistant"), "the conversation to come back")
    assert browser.script("return getComputedStyle(document.documentElement).colorScheme") == "dark"
    browser.say("with others")
    browser.wait_for_answer()
    request = scripted.requests[1]
    assert {name: request[name] for name in values} == {name: float(value) for name, value in values.items()}
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert request["chat_template_kwargs"]["enable_thinking"] is False
    assert scripted.keys[1] == "Bearer secret"

    browser.one("#open-settings").click()
    browser.one("#s-temperature").clear()
    browser.one("#s-temperature").send_keys("warm")
    browser.one("#s-tools").send_keys("{")
    assert "Temperature" in browser.text("#e-numbers") and "JSON" in browser.text("#e-tools")
    assert browser.one("#s-temperature").get_attribute("aria-invalid") == "true"
    browser.keys(Keys.ESCAPE)
    browser.say("with a wrong one")
    browser.wait_for_answer()
    assert "temperature" not in scripted.requests[2] and "tools" not in scripted.requests[2] and scripted.requests[2]["seed"] == 42


def test_edit_and_answer_again(scripted, browser):
    scripted.answers += [Answer(content(text)) for text in ("one", "two", "three", "four")]
    browser.open(scripted.url("/"))
    browser.say("first")
    browser.wait_for_answer()
    browser.say("second")
    browser.wait_for_answer()
    browser.all("[aria-label='Answer again']")[-1].click()
    browser.wait_for_answer()
    assert [element.text for element in browser.all(".assistant > .markdown")] == ["one", "three"]
    browser.one("#input").click()
    browser.keys(Keys.ARROW_UP)
    assert browser.focused().get_attribute("value") == "second"
    browser.keys(" thoughts", Keys.ENTER)
    browser.wait_for_answer()
    assert [element.text for element in browser.all(".bubble")] == ["first", "second thoughts"]
    assert [message["content"] for message in scripted.requests[-1]["messages"]] == ["first", "one", "second thoughts"]


def test_the_list_of_conversations(scripted, browser):
    scripted.answers += [Answer(content(f"answer {i}")) for i in range(3)]
    browser.open(scripted.url("/"))
    for text in ("about apples", "about pears", "about plums"):
        browser.one("#new").click()
        browser.say(text)
        browser.wait_for_answer()
    titles = lambda: browser.script("return [...document.querySelectorAll('#list a')].map((link) => link.textContent)")
    browser.wait(lambda: titles() == ["about plums", "about pears", "about apples"], "the list")
    browser.one("#search").send_keys("answer 1")
    browser.wait(lambda: titles() == ["about pears"], "the one that was looked for")
    browser.keys(Keys.ESCAPE)
    browser.wait(lambda: len(titles()) == 3, "all of them again")
    browser.all("#list a")[2].click()
    browser.wait(lambda: browser.text("#title") == "about apples", "the first conversation")
    browser.one("#list .current button[aria-label^='Rename']").click()
    browser.keys("Fruit", Keys.ENTER)
    browser.wait(lambda: "Fruit" in titles() and browser.text("#title") == "Fruit", "the new name")
    browser.one("#list .current button[aria-label^='Delete']").click()
    browser.wait(lambda: "Fruit" not in titles() and not browser.all(".bubble"), "it to be gone")
    browser.one("#toast button").click()
    browser.wait(lambda: browser.text("#title") == "Fruit", "it to be undone")
    window = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.open(scripted.url("/"))
    browser.wait(lambda: "Fruit" in titles(), "the list in the other window")
    second = browser.driver.current_window_handle
    browser.driver.switch_to.window(window)
    browser.one("#list .current button[aria-label^='Delete']").click()
    browser.driver.switch_to.window(second)
    browser.wait(lambda: "Fruit" not in titles(), "the other window to follow")
    browser.driver.close()
    browser.driver.switch_to.window(window)
    browser.driver.refresh()
    browser.wait(lambda: titles() == ["about plums", "about pears"], "the rest to come back")


# ---- for everybody


def nameless(browser) -> list[str]:
    """Things one can act on that have no accessible name."""
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "link", "textbox", "searchbox", "checkbox", "combobox", "spinbutton", "dialog", "navigation"}
    return [node["role"]["value"] for node in tree
            if not node.get("ignored") and node.get("role", {}).get("value") in roles and not node.get("name", {}).get("value", "").strip()]


def test_the_keyboard_is_enough(scripted, browser):
    gate = threading.Event()
    scripted.answers += [Answer(content("Some text.") + [gate]), Answer(content("Done.\n\n```js\nlet a\n```"))]
    browser.open(scripted.url("/"))
    assert browser.focused().get_attribute("id") == "input"
    browser.keys("one")
    browser.chord(Keys.SHIFT, Keys.ENTER)
    browser.keys("two", Keys.ENTER)
    browser.wait(lambda: "Some text." in browser.text(".assistant > .markdown"), "the answer to begin")
    assert browser.script("return document.querySelector('.bubble').textContent") == "one\ntwo"
    browser.keys(Keys.ESCAPE)
    browser.wait_for_answer()
    assert scripted.ended_early.wait(60) and browser.text("#status") == "Stopped"
    browser.keys("go on", Keys.ENTER)
    browser.wait_for_answer()
    assert browser.text("#status").startswith("Answer: Done.")

    # Everything can be reached by Tab, shows that it has the focus, and has a name.
    reached = []
    for _ in range(40):
        browser.keys(Keys.TAB)
        element = browser.focused()
        if element.tag_name == "body":  # between the end and the beginning
            continue
        reached.append(element.get_attribute("aria-label") or element.get_attribute("id") or element.text)
        outline = browser.script("const s = getComputedStyle(document.activeElement);"
                                 "return s.outlineStyle !== 'none' || document.activeElement.id === 'input'")
        assert outline, reached
    for wanted in ("Settings", "new", "Search conversations", "Copy code", "Answer again", "Send", "think", "Rename one two", "Delete one two"):
        assert wanted in reached, (wanted, reached)
    assert nameless(browser) == []

    browser.one("#open-settings").send_keys(Keys.ENTER)
    browser.wait(lambda: browser.one("#settings").is_displayed(), "the settings to open")
    assert nameless(browser) == []
    browser.keys(Keys.ESCAPE)
    assert browser.focused().get_attribute("id") == "open-settings"


def wider_than_the_screen(browser) -> list[str]:
    return browser.script("""
        const page = document.scrollingElement;
        const out = page.scrollWidth > innerWidth ? ['page'] : [];
        for (const id of ['scroll', 'sidebar', 'settings']) {
          const e = document.getElementById(id);
          if (e.clientWidth > 0 && e.scrollWidth > e.clientWidth) out.push(id);
        }
        for (const e of document.querySelectorAll('main > .bar *, .dock *, .message, .bubble, .markdown > *, .actions > *')) {
          const box = e.getBoundingClientRect();
          if (box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5)) out.push(`${e.tagName} ${e.className.baseVal ?? e.className}`);
        }
        return out;""")


@pytest.mark.parametrize("width", [320, 375])
def test_a_phone_is_wide_enough(scripted, browser, width):
    browser.size(width, 660)
    browser.open(scripted.url("/"))
    assert wider_than_the_screen(browser) == []
    scripted.answers += [
        Answer(reasoning("thought " * 60) + content(RICH), usage={"prompt_tokens": 500, "completion_tokens": 400, "total_tokens": 900}),
        Answer(call(0, "call_a", "a_function_with_quite_a_long_name_" * 3, json.dumps({"text": "x" * 300})), finish="tool_calls"),
        Answer(status=500, error={"message": "A fault with-a-long-word-" + "x" * 200}),
    ]
    for text in ("a question that is long enough to be broken over several lines, and " + "x" * 80, "tools", "error"):
        browser.one("#input").click()
        browser.keys(text)
        browser.one("#send").click()  # Enter is for lines where there is no keyboard
        browser.wait_for_answer()
        assert wider_than_the_screen(browser) == []
    browser.one(".thinking summary").click()
    browser.one("#open-sidebar").click()
    browser.wait(lambda: browser.focused().get_attribute("id") == "close-sidebar", "the list to open")
    browser.wait(lambda: browser.script("return document.getAnimations().length") == 0, "it to stop moving")
    assert wider_than_the_screen(browser) == []
    browser.keys(Keys.ESCAPE)
    assert browser.focused().get_attribute("id") == "open-sidebar"
    browser.one("#open-settings").click()
    assert wider_than_the_screen(browser) == []
    browser.keys(Keys.ESCAPE)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(scripted, browser, dark):
    """Contrast of every text against what is behind it, as WCAG counts it."""
    browser.dark(dark)
    scripted.answers += [Answer(reasoning("thought") + content(RICH)), Answer(status=500, error={"message": "A fault", "code": "x"})]
    browser.open(scripted.url("/"))
    for text in ("rich", "error"):
        browser.say(text)
        browser.wait_for_answer()
    faint = browser.script("""
        const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
        const over = (top, below) => below.map((value, i) => value + (top[i] - value) * top[3] / 255);
        const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const ground = (e) => e === null ? [255, 255, 255] : over(rgba(getComputedStyle(e).backgroundColor), ground(e.parentElement));
        const faint = [];
        for (const e of document.querySelectorAll('body *')) {
          const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim() !== '');
          if (!own || !e.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
          const back = ground(e);
          const [a, b] = [light(over(rgba(getComputedStyle(e).color), back)), light(back)];
          const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (contrast < 4.5) faint.push(`${e.tagName}.${e.className} ${contrast.toFixed(2)}: ${e.textContent.slice(0, 30)}`);
        }
        return faint;""")
    assert faint == []
