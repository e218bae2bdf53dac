// Markdown's blocks into nodes of the page, and a view that grows with the text of an answer.

const kMostHighlighted = 60_000;  // characters of a code block; a longer one stays in one colour

function renderInline(chain, parent, inLink = false) {
  for (const node of chain) {
    switch (node.kind) {
      case 'text':
        parent.append(node.text);
        break;
      case 'break':
        parent.append(make('br'));
        break;
      case 'code':
        parent.append(make('code', {}, node.text));
        break;
      case 'math':
        parent.append(make('span', {class: 'math'}, node.text));
        break;
      case 'link': {
        // A link's title says where it leads, whatever its text says.
        const link = inLink
          ? make('span')
          : make('a', {href: node.href, title: node.href, target: '_blank', rel: 'noopener noreferrer nofollow'});
        renderInline(node.children, link, true);
        parent.append(link);
        break;
      }
      default: {
        const element = make({strong: 'strong', emphasis: 'em', strike: 'del'}[node.kind]);
        renderInline(node.children, element, inLink);
        parent.append(element);
      }
    }
  }
  parent.normalize();
  return parent;
}

function renderCode(block) {
  const code = make('code');
  code.append(...(block.text.length > kMostHighlighted ? [block.text] : highlight(block.text, block.language)));
  const label = block.language === '' ? 'code' : block.language.slice(0, 40);
  return make('div', {class: 'code'},
      make('div', {class: 'code-bar'}, make('span', {}, label), copyButton('Copy code', () => code.textContent)),
      make('pre', {tabindex: '0', role: 'region', 'aria-label': `${label} block`}, code));
}

function renderList(block) {
  const list = make(block.ordered ? 'ol' : 'ul', {start: block.ordered && block.first !== 1 ? block.first : null});
  for (const blocks of block.items) {
    const item = make('li');
    const task = blocks[0]?.kind === 'paragraph' ? /^\[([ xX])\][ \n]+/.exec(blocks[0].text) : null;
    if (task !== null) {
      blocks[0].text = blocks[0].text.slice(task[0].length);
      item.className = 'task';
      const done = task[1] !== ' ';
      item.append(make('input', {type: 'checkbox', disabled: true, checked: done, 'aria-label': done ? 'done' : 'to do'}));
    }
    for (const inner of blocks) {
      if (inner.kind === 'paragraph' && !block.loose) {
        renderInline(parseInline(inner.text), item);
      } else {
        item.append(renderBlock(inner));
      }
    }
    list.append(item);
  }
  return list;
}

function renderTable(block) {
  const row = (cells, tag) => make('tr', {}, ...cells.map((cell, i) =>
    renderInline(parseInline(cell), make(tag, {class: block.align[i] || null, scope: tag === 'th' ? 'col' : null}))));
  return make('div', {class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table'},
      make('table', {}, make('thead', {}, row(block.head, 'th')), make('tbody', {}, ...block.rows.map((cells) => row(cells, 'td')))));
}

function renderBlock(block) {
  switch (block.kind) {
    case 'heading':  // the page's own headings are h1 and h2
      return renderInline(parseInline(block.text), make(`h${Math.min(6, block.level + 2)}`, {class: `level-${block.level}`}));
    case 'rule':
      return make('hr');
    case 'code':
      return renderCode(block);
    case 'math':
      return make('div', {class: 'math'}, block.text);
    case 'quote':
      return make('blockquote', {}, ...block.blocks.map(renderBlock));
    case 'list':
      return renderList(block);
    case 'table':
      return renderTable(block);
    default:
      return renderInline(parseInline(block.text), make('p'));
  }
}

// The nodes of a growing text. A block is settled, and never touched again, when two whole lines of a later block
// stand: nothing that follows can change it then. So a long answer costs what its last block costs.
class MarkdownView {
  constructor(element) {
    this.element = element;
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.text = '';
    this.settled = 0;  // characters
    this.open = [];    // nodes of what may still change
  }

  update(text) {
    if (text === this.text) {
      return;
    }
    try {
      this.grow(text);
    } catch (error) {  // a fault of this page: the reader still gets the answer
      console.error(error);
      this.reset();
      this.text = text;
      this.element.replaceChildren(make('div', {class: 'bare'}, text));
    }
  }

  grow(text) {
    if (!text.startsWith(this.text.slice(0, this.settled))) {
      this.reset();
    }
    this.text = text;
    const lines = splitLines(text.slice(this.settled));
    const blocks = new BlockParser(lines, 0).parse();
    const nodes = blocks.map(renderBlock);
    this.open.forEach((node) => node.remove());
    this.element.append(...nodes);
    let fixed = blocks.length - 1;
    while (fixed > 0 && blocks[fixed].start + 2 > lines.length - 1) {
      --fixed;
    }
    if (fixed > 0) {
      this.settled += offsetOfLine(text, this.settled, blocks[fixed].start);
    }
    this.open = nodes.slice(Math.max(fixed, 0));
  }
}

// Where line number `line` starts, counted from `from`.
function offsetOfLine(text, from, line) {
  let at = from;
  for (let i = 0; i < line; ++i) {
    at = text.indexOf('\n', at) + 1;
  }
  return at - from;
}
