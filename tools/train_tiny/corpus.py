#!/usr/bin/env python3
"""Gathers the plain-text part of lily-tiny's training data from Debian packages.

The packages are fetched with `apt-get download`, unpacked beside the output (nothing is installed, `bible-kjv` apart,
whose reader is needed to print its text), turned into plain text, cleaned, cut into documents, and written as
  OUT/text-train.jsonl.xz, OUT/text-heldout.jsonl.xz   one {"source", "text"} per line
  OUT/corpus.json                                       sizes and licences per source, for the model card
  OUT/glosses.json                                      short definitions of common words, from WordNet
Every document whose hash falls in the last 1 % is held out. The result depends on the package versions alone.
"""
import argparse
import glob
import gzip
import hashlib
import html.parser
import json
import lzma
import os
import re
import subprocess

# package -> (licence as its debian/copyright states it, what is taken)
SOURCES = {
    "bible-kjv": ("public domain (the program that prints it: GPL-2+)", "King James Bible"),
    "wordnet-base": ("WordNet 3.0 licence (permissive, BSD-like)", "definitions and example sentences"),
    "dict-jargon": ("public domain", "The Jargon File 4.4.7"),
    "dict-devil": ("public domain", "The Devil's Dictionary, Ambrose Bierce, 1911"),
    "sqlite3-doc": ("public domain", "SQLite documentation"),
    "postgresql-doc-15": ("PostgreSQL licence (permissive)", "PostgreSQL 15 manual"),
    "rust-doc": ("MIT or Apache-2.0", "the books among the Rust documentation"),
    "python3.11-doc": ("PSF-2.0", "Python 3.11 documentation"),
    "python-django-doc": ("BSD-3-Clause", "Django 3.2 documentation"),
    "apache2-doc": ("Apache-2.0", "Apache HTTP Server documentation (English)"),
    "nodejs-doc": ("MIT", "Node.js 18 documentation"),
    "doc-debian": ("GPL-2+ and Open Publication License", "Debian FAQ, social contract"),
    "debian-policy": ("GPL-2+", "Debian Policy"),
    "debian-reference-en": ("GPL-2+", "Debian Reference"),
    "developers-reference": ("GPL-2+", "Debian Developer's Reference"),
}
BLOCK = {"p", "div", "li", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "tr", "dt", "dd", "table", "ul", "ol", "dl",
         "section", "br", "blockquote", "article"}
SKIP = {"script", "style", "nav", "head", "footer", "svg", "button", "select", "form", "header"}


class Text(html.parser.HTMLParser):
    """Keeps the text of a page, one block per line, without navigation."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.skip, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag in SKIP:
            self.skip += 1
        elif tag in BLOCK:
            self.out.append("\n")
        self.pre += tag == "pre"

    def handle_endtag(self, tag):
        if tag in SKIP:
            self.skip = max(0, self.skip - 1)
        elif tag in BLOCK:
            self.out.append("\n")
        self.pre = max(0, self.pre - (tag == "pre"))

    def handle_data(self, data):
        if not self.skip:
            self.out.append(data if self.pre else re.sub(r"\s+", " ", data))


def page(path):
    raw = (gzip.open(path) if path.endswith(".gz") else open(path, "rb")).read()
    parser = Text()
    parser.feed(raw.decode("utf-8", "replace"))
    return "".join(parser.out)


def dictd(path):
    return gzip.open(path).read().decode("utf-8", "replace")


def pages(root, pattern, drop=()):
    for path in sorted(glob.glob(os.path.join(root, pattern), recursive=True)):
        if os.path.isfile(path) and not any(d in path for d in drop):
            yield page(path)


def wordnet(root):
    names = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
    lines = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(f"{root}/usr/share/wordnet/data.{part}", encoding="utf-8"):
            if line.startswith("  "):
                continue
            head, gloss = line.rstrip().split(" | ", 1)
            field = head.split(" ")
            words = [re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in field[4:4 + 2 * int(field[3], 16):2]]
            also = f" (also: {', '.join(words[1:])})" if len(words) > 1 else ""
            lines.append(f"{words[0]}, {names[field[2]]}{also}: {gloss.strip()}")
    # Neighbours in the file are related; small groups make documents of one subject.
    for i in range(0, len(lines), 16):
        yield "\n".join(lines[i:i + 16])


def glosses(root, wanted, longest=90, most=2400):
    """[(word, first sentence of its first sense)] for the shortest definitions of the wanted words."""
    folder, gloss, out = f"{root}/usr/share/wordnet/", {}, {}
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(f"{folder}data.{part}", encoding="utf-8"):
            if not line.startswith("  "):
                head, text = line.rstrip().split(" | ", 1)
                gloss[part, head.split(" ")[0]] = text.split(";")[0].strip()
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(f"{folder}index.{part}", encoding="utf-8"):
            field = line.split()
            if line.startswith("  ") or field[0] not in wanted or field[0] in out:
                continue
            text = gloss[part, field[4 + int(field[3]) + 2]]
            if len(text) < longest and '"' not in text:
                out[field[0]] = text[0].upper() + text[1:] + "."
    return sorted((w, out[w]) for w in sorted(out, key=lambda w: len(out[w]))[:most])


def bible(_root):
    out = subprocess.run(["bible", "-l", "200", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    chapter, verses = None, []
    for line in out.splitlines():
        m = re.match(r"(\S+?)(\d+):(\d+) (.*)", line)
        if not m:
            continue
        if (m[1], m[2]) != chapter:
            if verses:
                yield f"{chapter[0]} {chapter[1]}\n" + "\n".join(verses)
            chapter, verses = (m[1], m[2]), []
        verses.append(m[4])
    yield f"{chapter[0]} {chapter[1]}\n" + "\n".join(verses)


def entries(text):
    """Headwords of a dictd file start in column 0, their text is indented."""
    for entry in re.split(r"\n(?=\S)", text):
        if len(entry) > 60 and not entry.startswith("00-database"):
            yield re.sub(r"\n[ \t]+", "\n", entry)


def documents(name, root):
    doc = f"{root}/usr/share/doc/"
    if name == "bible-kjv":
        yield from bible(root)
    elif name == "wordnet-base":
        yield from wordnet(root)
    elif name.startswith("dict-"):
        yield from entries(dictd(glob.glob(f"{root}/usr/share/dictd/*.dict.dz")[0]))
    elif name == "sqlite3-doc":
        yield from pages(doc + "sqlite3", "**/*.html", ("releaselog", "keyword", "crossref", "doclist", "changes.html", "sitemap", "toc"))
    elif name == "postgresql-doc-15":
        yield from pages(doc, "**/*.html", ("bookindex", "release-", "legalnotice", "features-sql", "sql-keywords"))
    elif name == "rust-doc":
        for book in ("book", "nomicon", "edition-guide", "embedded-book", "rust-by-example", "reference", "cargo"):
            yield from pages(doc + f"rust-doc/html/{book}", "**/*.html", ("print.html", "print", "second-edition", "2018-edition", "first-edition"))
    elif name == "python3.11-doc":
        yield from pages(doc + "python3.11/html", "**/*.html", ("genindex", "whatsnew/changelog", "py-modindex", "search", "/_static", "unicode"))
    elif name == "python-django-doc":
        yield from pages(doc, "**/*.html", ("genindex", "py-modindex", "search.html", "_modules"))
    elif name == "apache2-doc":
        yield from pages(doc, "**/manual/en/**/*.html", ("sitemap", "directive-dict", "quickreference"))
    elif name == "nodejs-doc":
        yield from pages(doc, "**/api/*.html", ("all.html",))
    else:
        for path in sorted(glob.glob(doc + "**/*.txt*", recursive=True)):
            text = (gzip.open(path) if path.endswith(".gz") else open(path, "rb")).read().decode("utf-8", "replace")
            yield text
        yield from pages(doc, "**/*.en.html", ())


def clean(text):
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\u00b6\uf0c1\u00a7]", "", text.replace("\r", "").replace("\u00a0", " "))
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    text = re.sub(r"[-=_*~.]{6,}", "-----", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def split(text, limit=3000):
    """Cuts at blank lines or line ends into pieces of about `limit` characters."""
    piece = ""
    for para in re.split(r"(?<=\n)", text):
        if len(piece) + len(para) > limit and piece:
            yield piece.strip()
            piece = ""
        piece += para[:limit]
    if piece.strip():
        yield piece.strip()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out")
    args.add_argument("--unpacked", help="folder with the packages already unpacked, one folder per package")
    args = args.parse_args()
    unpacked = args.unpacked or os.path.join(args.out, "packages")
    os.makedirs(args.out, exist_ok=True)
    report, seen = {}, set()
    with lzma.open(f"{args.out}/text-train.jsonl.xz", "wt", preset=6) as train, \
            lzma.open(f"{args.out}/text-heldout.jsonl.xz", "wt", preset=6) as held:
        for name, (licence, what) in SOURCES.items():
            root = os.path.join(unpacked, name)
            if not os.path.isdir(root):
                subprocess.run(["apt-get", "download", "-qq", name], check=True, cwd=args.out)
                subprocess.run(["dpkg", "-x", glob.glob(f"{args.out}/{name}_*.deb")[0], root], check=True)
            row = report[name] = {"licence": licence, "what": what, "train_bytes": 0, "heldout_bytes": 0, "documents": 0}
            for text in documents(name, root):
                for piece in split(clean(text)):
                    letters = sum(c.isalpha() or c == " " for c in piece)
                    digest = hashlib.sha256(piece.encode()).digest()
                    if len(piece) < 120 or letters < 0.6 * len(piece) or digest in seen:
                        continue
                    seen.add(digest)
                    out, key = (held, "heldout_bytes") if digest[0] * 256 + digest[1] < 656 else (train, "train_bytes")
                    out.write(json.dumps({"source": name, "text": piece}, ensure_ascii=False) + "\n")
                    row[key] += len(piece.encode())
                    row["documents"] += 1
            print(name, row["documents"], row["train_bytes"], row["heldout_bytes"], flush=True)
    json.dump(report, open(f"{args.out}/corpus.json", "w"), indent=1)
    common = set(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "spelling_words.txt")).read().split())
    json.dump(glosses(os.path.join(unpacked, "wordnet-base"), common), open(f"{args.out}/glosses.json", "w"))


if __name__ == "__main__":
    main()
