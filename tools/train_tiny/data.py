"""Endless training batches: documents are generated, rendered, tokenised and packed by worker processes.

A batch is B rows of T tokens, each row several whole documents and a padded end:
  tokens uint16 [B, T]; pos int16 [B, T], counted from 0 in each document; weight uint8 [B, T], what the token is worth as a
  target: 0 context, 1 plain text, 2 an answer; cu int32 [DOCS + 1], begins of documents in the flattened batch.
Worker w of a run is seeded by (seed, run, w) and its batches are taken in turn, so a run repeats exactly.
"""
import json
import lzma
import multiprocessing
import random

import numpy as np

TEXT_SHARE = 0.06  # of the documents; about 20 % of the tokens
MIX = {"small_talk": 10, "facts": 10, "arithmetic": 12, "counting": 9, "spelling": 15, "sorting": 10, "translation": 9, "stories": 8,
       "memory": 9, "json": 9, "thinking": 12, "tools": 19, "echo": 4, "define": 2, "sheet": 1.5}
DOCS = 640  # most documents in a batch


class Source:
    """Documents as (ids, weights)."""

    def __init__(self, tokenizer_path, text_path, glosses_path, seed, run, worker, workers):
        from tokenizers import Tokenizer

        import conversations
        self.c = conversations
        if glosses_path and not conversations.GLOSSES:
            conversations.GLOSSES.extend(json.load(open(glosses_path)))
        self.tokenizer = Tokenizer.from_file(tokenizer_path)
        self.end = self.tokenizer.token_to_id("<|endoftext|>")
        self.rng = random.Random(f"{seed} {run} {worker}")
        self.text = []
        if text_path:
            with lzma.open(text_path, "rt", encoding="utf-8") as lines:
                self.text = [json.loads(line)["text"] for i, line in enumerate(lines) if i % workers == worker]
        self.order = []
        self.kinds, self.shares = list(MIX), list(MIX.values())

    def plain(self, text, longest):
        ids = self.tokenizer.encode(text).ids + [self.end]
        return ids[:longest], [1] * min(len(ids), longest)

    def next(self, longest):
        import render
        rng = self.rng
        if self.text and rng.random() < TEXT_SHARE:
            if not self.order:
                self.order = list(range(len(self.text)))
                rng.shuffle(self.order)
            return self.plain(self.text[self.order.pop()], longest)
        kind = rng.choices(self.kinds, self.shares)[0]
        if kind == "sheet":
            return self.plain(self.c.fact_sheet(rng), longest)
        while True:
            text, spans = render.document(self.c.conversation(rng, kind, False))
            e = self.tokenizer.encode(text)
            if len(e.ids) <= longest:
                break
        weights = [0] * len(e.ids)
        n = 0
        for i, (begin, _) in enumerate(e.offsets):
            while n < len(spans) and begin >= spans[n][1]:
                n += 1
            if n < len(spans) and begin >= spans[n][0]:
                weights[i] = 2
        return e.ids, weights


def batches(source, B, T):
    """Packs documents, longest first, each into the fullest row that still has room."""
    pool = []
    while True:
        size = sum(len(d[0]) for d in pool)
        while size < 1.12 * B * T:
            pool.append(source.next(T))
            size += len(pool[-1][0])
        pool.sort(key=lambda d: -len(d[0]))
        tokens = np.full((B, T), source.end, np.uint16)
        pos, weight = np.zeros((B, T), np.int16), np.zeros((B, T), np.uint8)
        used, rest, begins = [0] * B, [], []
        for ids, w in pool:
            limit = T - len(ids)
            r = max(range(B), key=[u if u <= limit else -1 for u in used].__getitem__)
            if used[r] > limit or len(begins) >= DOCS - B:
                rest.append((ids, w))
                continue
            at, n = used[r], len(ids)
            tokens[r, at:at + n], weight[r, at:at + n], pos[r, at:at + n] = ids, w, np.arange(n)
            begins.append(r * T + at)
            used[r] += n
        for r in range(B):
            if used[r] < T:
                pos[r, used[r]:] = np.arange(T - used[r])
                begins.append(r * T + used[r])
        cu = np.full(DOCS + 1, B * T, np.int32)
        cu[:len(begins)] = sorted(begins)
        pool = rest[:4000]
        yield tokens, pos, weight, cu


def work(queue, paths, seed, run, worker, workers, B, T):
    for batch in batches(Source(*paths, seed, run, worker, workers), B, T):
        queue.put(batch)


class Loader:
    def __init__(self, paths, seed, run, workers, B, T, ahead=24):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(ahead) for _ in range(workers)]
        self.processes = [context.Process(target=work, args=(q, paths, seed, run, w, workers, B, T), daemon=True) for w, q in enumerate(self.queues)]
        for p in self.processes:
            p.start()
        self.turn = 0

    def next(self):
        batch = self.queues[self.turn].get(timeout=120)
        self.turn = (self.turn + 1) % len(self.queues)
        return batch

    def close(self):
        for p in self.processes:
            p.terminate()
