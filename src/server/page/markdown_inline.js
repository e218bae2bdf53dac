// Markdown, second half: the text of a block into a tree of {kind, text | children}. CommonMark's algorithm of
// delimiter runs, in time linear in the text; HTML is text, images become links (the page loads nothing).

const kEntities = {
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', trade: '™', hellip: '…',
  mdash: '—', ndash: '–', laquo: '«', raquo: '»', times: '×', middot: '·', deg: '°', euro: '€', rarr: '→', larr: '←',
};
const kPlainRun = /[^\\`*_~[\]!<&$\nh]+/y;
const kBareLink = /https?:\/\/[^\s<>"'`\u3000-\u303f\uff00-\uffef]+/y;
const kAngleLink = /<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/y;
const kEntity = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
const kMathText = /\$\$(?=\S)[^\n]{0,999}?\$\$|\$(?=[^\s$\d])[^\n$]{0,399}?[^\s$\\]\$(?!\d)|\\\([^\n]{0,999}?\\\)|\\\[[^\n]{0,999}?\\\]/y;
const kPunctuation = /[\p{P}\p{S}]/u;
const kEastAsian = /[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]/;
const kLongestLink = 4096;
const kDeepestParentheses = 32;

// What a link may lead to: everything else is shown as the text it is.
function safeLink(target) {
  try {
    const url = new URL(target);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// A chain of nodes from which pieces can be cut out in constant time.
class Chain {
  constructor() {
    this.head = {};
    this.head.previous = this.head;
    this.head.next = this.head;
  }
  append(node) {
    node.previous = this.head.previous;
    node.next = this.head;
    this.head.previous.next = node;
    this.head.previous = node;
    return node;
  }
  static remove(node) {
    node.previous.next = node.next;
    node.next.previous = node.previous;
  }
  static insertAfter(place, node) {
    node.previous = place;
    node.next = place.next;
    place.next.previous = node;
    place.next = node;
  }
  // Moves what is strictly between two nodes into a new chain.
  static cut(from, to) {
    const chain = new Chain();
    if (from.next !== to) {
      chain.head.next = from.next;
      chain.head.previous = to.previous;
      from.next.previous = chain.head;
      to.previous.next = chain.head;
      from.next = to;
      to.previous = from;
    }
    return chain;
  }
  * [Symbol.iterator]() {
    for (let node = this.head.next; node !== this.head; node = node.next) {
      yield node;
    }
  }
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.chain = new Chain();
    this.delimiters = [];  // nodes of the chain that may open or close an emphasis
    this.brackets = [];
    this.ticks = this.findTicks();
  }

  // Starts of the runs of backticks by their length, so that looking for a partner never scans twice.
  findTicks() {
    const runs = new Map();
    for (const run of this.text.matchAll(/`+/g)) {
      if (!runs.has(run[0].length)) {
        runs.set(run[0].length, {starts: [], next: 0});
      }
      runs.get(run[0].length).starts.push(run.index);
    }
    return runs;
  }

  parse() {
    while (this.at < this.text.length) {
      this.step();
    }
    this.emphasise(0);
    return this.chain;
  }

  step() {
    const plain = matchAt(kPlainRun, this.text, this.at);
    if (plain !== null) {
      this.take(plain[0], plain[0].length);
      return;
    }
    const character = this.text[this.at];
    if (!this.special(character)) {
      this.take(character, 1);
    }
  }

  // False: the character means only itself here.
  special(character) {
    switch (character) {
      case '\\':
        return this.backslash();
      case '`':
        return this.code();
      case '*':
      case '_':
      case '~':
        return this.run(character);
      case '[':
        return this.open(1);
      case '!':
        return this.text[this.at + 1] === '[' && this.open(2);
      case ']':
        return this.close();
      case '<':
        return this.angle();
      case '&':
        return this.entity();
      case '$':
        return this.math();
      case '\n':
        return this.newline();
      default:
        return this.bareLink();
    }
  }

  take(text, length) {
    const last = this.chain.head.previous;
    if (last.kind === 'text' && !last.delimiter && !last.bracket) {
      last.text += text;
    } else {
      this.chain.append({kind: 'text', text});
    }
    this.at += length;
  }

  add(node, length) {
    this.chain.append(node);
    this.at += length;
  }

  newline() {
    const last = this.chain.head.previous;
    if (last.kind === 'text') {
      last.text = last.text.replace(/ +$/, '');
    }
    this.add({kind: 'break'}, 1);
    return true;
  }

  math() {
    const found = matchAt(kMathText, this.text, this.at);
    if (found === null) {
      return false;
    }
    this.add({kind: 'math', text: found[0]}, found[0].length);
    return true;
  }

  backslash() {
    const next = this.text[this.at + 1];
    if ((next === '(' || next === '[') && this.math()) {
      return true;
    }
    if (next === '\n') {
      this.add({kind: 'break'}, 2);
    } else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
      this.take(next, 2);
    } else {
      return false;
    }
    return true;
  }

  code() {
    const length = /`+/y;
    length.lastIndex = this.at;
    const run = length.exec(this.text)[0].length;
    const list = this.ticks.get(run) ?? {starts: [], next: 0};  // an escaped first tick makes a run of another length
    while (list.next < list.starts.length && list.starts[list.next] <= this.at) {
      ++list.next;
    }
    if (list.next === list.starts.length) {
      this.take('`'.repeat(run), run);
      return true;
    }
    const end = list.starts[list.next];
    let text = this.text.slice(this.at + run, end).replace(/\n/g, ' ');
    if (/^ .*[^ ].* $/.test(text)) {
      text = text.slice(1, -1);
    }
    this.add({kind: 'code', text}, end + run - this.at);
    return true;
  }

  entity() {
    const found = matchAt(kEntity, this.text, this.at);
    if (found === null) {
      return false;
    }
    const [whole, decimal, hex, name] = found;
    const code = decimal !== undefined ? Number(decimal) : parseInt(hex, 16);
    const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    const text = name !== undefined ? kEntities[name] : valid ? String.fromCodePoint(code) : '\ufffd';
    if (text === undefined || !Object.hasOwn(kEntities, name ?? 'amp')) {
      return false;
    }
    this.take(text, whole.length);
    return true;
  }

  link(target, shown, length) {
    const href = safeLink(target);
    if (href === null) {
      return false;
    }
    const children = new Chain();
    children.append({kind: 'text', text: shown});
    this.add({kind: 'link', href, children}, length);
    return true;
  }

  angle() {
    const found = matchAt(kAngleLink, this.text, this.at);
    if (found === null) {
      return false;
    }
    const target = /^(https?:|mailto:)/.test(found[1]) ? found[1] : `mailto:${found[1]}`;
    return this.link(target, found[1], found[0].length);
  }

  bareLink() {
    const found = /\w/.test(this.text[this.at - 1] ?? ' ') ? null : matchAt(kBareLink, this.text, this.at);
    if (found === null) {
      return false;
    }
    // Punctuation at the end belongs to the sentence, and so does a parenthesis that was opened outside.
    let target = found[0].slice(0, kLongestLink);
    let surplus = target.split(')').length - target.split('(').length;
    let end = target.length;
    while (/[.,;:!?*_~|\]]/.test(target[end - 1]) || (target[end - 1] === ')' && surplus > 0)) {
      surplus -= target[end - 1] === ')' ? 1 : 0;
      --end;
    }
    target = target.slice(0, end);
    return target.length > 8 && this.link(target, target, target.length);
  }

  // A run of *, _ or ~: what may open or close an emphasis is CommonMark's rule of flanking, made kinder to Chinese,
  // Japanese and Korean, which put no space around it.
  run(character) {
    let end = this.at;
    while (this.text[end] === character) {
      ++end;
    }
    const before = this.at === 0 ? ' ' : this.text[this.at - 1];
    const after = this.text[end] ?? ' ';
    const punctuationBefore = kPunctuation.test(before);
    const punctuationAfter = kPunctuation.test(after);
    const left = !/\s/.test(after) &&
        (!punctuationAfter || /\s/.test(before) || punctuationBefore || kEastAsian.test(before));
    const right = !/\s/.test(before) &&
        (!punctuationBefore || /\s/.test(after) || punctuationAfter || kEastAsian.test(after));
    const length = end - this.at;
    const node = {kind: 'text', text: this.text.slice(this.at, end), delimiter: character, count: length, length};
    node.opens = character === '_' ? left && (!right || punctuationBefore) : left;
    node.closes = character === '_' ? right && (!left || punctuationAfter) : right;
    this.add(node, length);
    if ((node.opens || node.closes) && (character !== '~' || length === 2)) {
      this.delimiters.push(node);
    }
    return true;
  }

  open(length) {
    const node = {kind: 'text', text: this.text.slice(this.at, this.at + length), bracket: true};
    this.add(node, length);
    this.brackets.push({node, image: length === 2, active: true, delimiters: this.delimiters.length});
    return true;
  }

  close() {
    const bracket = this.brackets.pop();
    const target = bracket?.active ? this.destination(this.at + 1) : null;
    const href = target === null ? null : safeLink(target.text);
    if (href === null) {
      return false;
    }
    this.emphasise(bracket.delimiters);
    const children = Chain.cut(bracket.node, this.chain.head);
    const shown = children.head.next === children.head ? null : children;
    Chain.remove(bracket.node);
    if (shown === null) {
      children.append({kind: 'text', text: bracket.image ? 'image' : target.text});
    }
    this.add({kind: 'link', href, children, title: target.title, image: bracket.image}, target.end - this.at);
    if (!bracket.image) {
      this.deactivateOuter();
    }
    return true;
  }

  // No link in a link. The brackets below one that is inactive are so already.
  deactivateOuter() {
    for (let i = this.brackets.length - 1; i >= 0; --i) {
      if (!this.brackets[i].image) {
        if (!this.brackets[i].active) {
          return;
        }
        this.brackets[i].active = false;
      }
    }
  }

  // "(destination "title")" from `at`.
  destination(at) {
    const space = /[ \n]*/y;
    if (this.text[at] !== '(') {
      return null;
    }
    at = matchAt(space, this.text, at + 1) && space.lastIndex;
    let text = '';
    const angled = matchAt(/<([^<>\n]*)>/y, this.text, at);
    if (angled !== null) {
      text = angled[1];
      at += angled[0].length;
    } else {
      const end = this.destinationEnd(at);
      text = this.text.slice(at, end).replace(/\\([!-/:-@[-`{-~])/g, '$1');
      at = end;
    }
    const title = matchAt(/[ \n]+(?:"([^"]{0,500})"|'([^']{0,500})')/y, this.text, at);
    at += title === null ? 0 : title[0].length;
    at = matchAt(space, this.text, at) && space.lastIndex;
    return this.text[at] === ')' ? {text, title: title?.[1] ?? title?.[2], end: at + 1} : null;
  }

  destinationEnd(at) {
    let depth = 0;
    const last = Math.min(this.text.length, at + kLongestLink);
    while (at < last && !/\s/.test(this.text[at])) {
      if (this.text[at] === '\\') {
        ++at;
      } else if (this.text[at] === '(') {
        if (++depth > kDeepestParentheses) {
          return at;
        }
      } else if (this.text[at] === ')') {
        if (depth-- === 0) {
          return at;
        }
      }
      ++at;
    }
    return Math.min(at, last);
  }

  // Pairs the delimiters from number `bottom` on, and forgets them.
  emphasise(bottom) {
    const stack = this.delimiters.splice(bottom);
    const floor = new Map();  // below this place there is no opener for such a closer
    const openers = [];
    for (const closer of stack) {
      if (closer.closes) {
        this.closeEmphasis(closer, openers, floor);
      }
      if (closer.opens && closer.count > 0) {
        openers.push(closer);
      }
    }
  }

  closeEmphasis(closer, openers, floor) {
    const key = `${closer.delimiter}${closer.opens}${closer.length % 3}`;
    while (closer.count > 0) {
      const lowest = floor.get(key) ?? 0;
      let at = openers.length - 1;
      while (at >= lowest && !this.matches(openers[at], closer)) {
        --at;
      }
      if (at < lowest) {
        floor.set(key, openers.length);
        return;
      }
      openers.length = at + 1;
      floor.forEach((value, name) => floor.set(name, Math.min(value, openers.length)));
      const opener = openers[at];
      const used = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
      const children = Chain.cut(opener, closer);
      const kind = closer.delimiter === '~' ? 'strike' : used === 2 ? 'strong' : 'emphasis';
      Chain.insertAfter(opener, {kind, children});
      for (const end of [opener, closer]) {
        end.count -= used;
        end.text = end.text.slice(used);
      }
      if (closer.delimiter === '~') {
        opener.count = closer.count = 0;
        opener.text = closer.text = '';
      }
      if (opener.count === 0) {
        openers.pop();
      }
    }
  }

  matches(opener, closer) {
    const bothWays = opener.closes || closer.opens;
    return opener.delimiter === closer.delimiter &&
        !(bothWays && (opener.length + closer.length) % 3 === 0 && (opener.length % 3 !== 0 || closer.length % 3 !== 0));
  }
}

const parseInline = (text) => new InlineParser(text).parse();
