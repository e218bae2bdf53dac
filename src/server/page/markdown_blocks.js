// Markdown, first half: lines into blocks. CommonMark with GitHub's tables, except that HTML and link definitions
// are text, and that children of a list may be indented by two columns under any marker, as models do it.
// A block is {kind, start, ...}; `start` is its first line.

const kDeepest = 12;  // nesting of quotes and lists; deeper ones are text
const kFence = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:( +)(.*)|$)/;
const kUnderline = /^ {0,3}(=+|-{2,})[ \t]*$/;
const kDelimiterRow = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const kMathOpen = /^ {0,3}(\$\$|\\\[)/;

const isBlank = (line) => line === undefined || line.trim() === '';
const indentOf = (line) => line.length - line.trimStart().length;

// Tabs at the start of a line are columns.
function expandTabs(line) {
  if (!line.includes('\t')) {
    return line;
  }
  let out = '';
  for (let i = 0; i < line.length; ++i) {
    if (line[i] === '\t') {
      out += ' '.repeat(4 - (out.length % 4));
    } else if (line[i] === ' ') {
      out += ' ';
    } else {
      return out + line.slice(i);
    }
  }
  return out;
}

function splitLines(text) {
  return text.split(/\r?\n/).map(expandTabs);
}

// The cells of a table's row; \| is a bar.
function cellsOf(line) {
  const cells = [''];
  const row = line.trim().replace(/^\|/, '');
  for (let i = 0; i < row.length; ++i) {
    if (row[i] === '\\' && row[i + 1] === '|') {
      cells[cells.length - 1] += '|';
      ++i;
    } else if (row[i] === '|') {
      cells.push('');
    } else {
      cells[cells.length - 1] += row[i];
    }
  }
  if (cells.length > 1 && cells[cells.length - 1].trim() === '') {
    cells.pop();
  }
  return cells.map((cell) => cell.trim());
}

function startsTable(lines, at) {
  const head = lines[at];
  const row = lines[at + 1];
  return head.includes('|') && row !== undefined && row.includes('-') && row.includes('|') &&
      kDelimiterRow.test(row) && cellsOf(head).length === cellsOf(row).length;
}

// Whether a line ends the paragraph before it.
function interrupts(line) {
  const item = kItem.exec(line);
  return kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) || kMathOpen.test(line) ||
      (item !== null && !isBlank(item[5]) && (item[3] === undefined || Number(item[3]) === 1));
}

class BlockParser {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.blocks = [];
  }

  parse() {
    while (this.at < this.lines.length) {
      if (isBlank(this.lines[this.at])) {
        ++this.at;
        continue;
      }
      const start = this.at;
      const block = this.next();
      this.blocks.push({start, ...block});
    }
    return this.blocks;
  }

  next() {
    const line = this.lines[this.at];
    if (indentOf(line) >= 4) {
      return this.indentedCode();
    }
    if (kFence.test(line)) {
      return this.fencedCode();
    }
    if (kHeading.test(line)) {
      ++this.at;
      const [, marks, text = ''] = kHeading.exec(line);
      return {kind: 'heading', level: marks.length, text: text.replace(/(^|[ \t]+)#+[ \t]*$/, '').trim()};
    }
    if (kRule.test(line)) {
      ++this.at;
      return {kind: 'rule'};
    }
    if (kMathOpen.test(line)) {
      return this.math();
    }
    if (this.depth < kDeepest && kQuote.test(line)) {
      return this.quote();
    }
    if (this.depth < kDeepest && kItem.test(line)) {
      return this.list();
    }
    return startsTable(this.lines, this.at) ? this.table() : this.paragraph();
  }

  indentedCode() {
    const code = [];
    while (this.at < this.lines.length && (isBlank(this.lines[this.at]) || indentOf(this.lines[this.at]) >= 4)) {
      code.push(this.lines[this.at++].slice(4));
    }
    while (isBlank(code[code.length - 1])) {
      code.pop();
    }
    return {kind: 'code', language: '', text: code.join('\n')};
  }

  fencedCode() {
    const [, indent, fence, info] = kFence.exec(this.lines[this.at++]);
    const closes = (line) => {
      const found = kFence.exec(line);
      return found !== null && found[3] === '' && found[2][0] === fence[0] && found[2].length >= fence.length;
    };
    const code = [];
    while (this.at < this.lines.length && !closes(this.lines[this.at])) {
      const line = this.lines[this.at++];
      code.push(line.slice(Math.min(indent.length, indentOf(line))));
    }
    ++this.at;
    return {kind: 'code', language: info.trim().split(/[\s{,]/)[0], text: code.join('\n')};
  }

  // $$ ... $$ and \[ ... \] are shown as they were written.
  math() {
    const open = kMathOpen.exec(this.lines[this.at])[1];
    const close = open === '$$' ? '$$' : '\\]';
    const text = [];
    let from = this.lines[this.at].indexOf(open) + 2;
    while (this.at < this.lines.length) {
      const line = this.lines[this.at++];
      text.push(line);
      if (line.indexOf(close, from) >= 0 || isBlank(line)) {
        break;
      }
      from = 0;
    }
    return {kind: 'math', text: text.join('\n').trim()};
  }

  quote() {
    const inner = [];
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      if (kQuote.test(line)) {
        inner.push(line.replace(kQuote, ''));
      } else if (isBlank(line) || isBlank(inner[inner.length - 1]) || interrupts(line)) {
        break;
      } else {
        inner.push(line);
      }
      ++this.at;
    }
    return {kind: 'quote', blocks: new BlockParser(inner, this.depth + 1).parse()};
  }

  list() {
    const first = kItem.exec(this.lines[this.at]);
    const ordered = first[3] !== undefined;
    const mark = first[2].slice(-1);
    const items = [];
    let loose = false;
    while (this.at < this.lines.length) {
      const marker = kItem.exec(this.lines[this.at]);
      if (marker === null || marker[2].slice(-1) !== mark || kRule.test(this.lines[this.at])) {
        break;
      }
      const {inner, blankAfter} = this.itemLines(marker);
      const blocks = new BlockParser(inner, this.depth + 1).parse();
      const more = this.at < this.lines.length && kItem.exec(this.lines[this.at])?.[2].slice(-1) === mark;
      loose = loose || (blankAfter && more) || this.hasGap(inner, blocks);
      items.push(blocks);
    }
    return {kind: 'list', ordered, first: ordered ? Number(first[3]) : 1, loose, items};
  }

  // Whether two blocks of an item have a blank line between them.
  hasGap(inner, blocks) {
    return blocks.slice(1).some((block) => isBlank(inner[block.start - 1]) && block.kind === 'paragraph');
  }

  itemLines(marker) {
    const indent = marker[1].length;
    const spaces = marker[4] === undefined || marker[4].length > 4 ? 1 : marker[4].length;
    const content = indent + marker[2].length + spaces;
    const inner = [this.lines[this.at++].slice(content)];
    let blanks = 0;
    let fence = null;
    const track = (line) => {
      const found = kFence.exec(line);
      if (found !== null && fence === null) {
        fence = found[2];
      } else if (found !== null && found[2][0] === fence[0] && found[2].length >= fence.length) {
        fence = null;
      }
    };
    track(inner[0]);
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      const belongs = indentOf(line) >= indent + 2;
      if (isBlank(line)) {
        ++blanks;
      } else if (belongs || (blanks === 0 && fence === null && !interrupts(line) && !kItem.test(line))) {
        inner.push(...Array(blanks).fill(''));
        blanks = 0;
        inner.push(line.slice(Math.min(indentOf(line), content)));
        track(inner[inner.length - 1]);
      } else {
        break;
      }
      ++this.at;
    }
    return {inner, blankAfter: blanks > 0};
  }

  table() {
    const head = cellsOf(this.lines[this.at]);
    const align = cellsOf(this.lines[this.at + 1]).map((cell) => {
      const left = cell.startsWith(':');
      const right = cell.endsWith(':');
      return left && right ? 'center' : right ? 'right' : left ? 'left' : '';
    });
    const rows = [];
    this.at += 2;
    while (this.at < this.lines.length && !isBlank(this.lines[this.at]) && !interrupts(this.lines[this.at])) {
      const cells = cellsOf(this.lines[this.at++]);
      rows.push(head.map((_, i) => cells[i] ?? ''));
    }
    return {kind: 'table', head, align, rows};
  }

  paragraph() {
    const text = [this.lines[this.at++].trimStart()];
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      const underline = kUnderline.exec(line);
      if (underline !== null) {
        ++this.at;
        return {kind: 'heading', level: underline[1][0] === '=' ? 1 : 2, text: text.join('\n').trim()};
      }
      if (isBlank(line) || interrupts(line) || startsTable(this.lines, this.at)) {
        break;
      }
      text.push(line.trimStart());
      ++this.at;
    }
    return {kind: 'paragraph', text: text.join('\n').trimEnd()};
  }
}
