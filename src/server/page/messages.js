// How messages look. A view is made once for a message and refreshed as the message grows, so that what the reader
// opened, selected or focused stays so.

// Indents JSON without reading its values, so that nothing of them is lost (numbers of many digits, doubled keys).
function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let out = '';
  let depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === '{' || token === '[') {
      ++depth;
      out += token + line();
    } else if (token === '}' || token === ']') {
      --depth;
      out = /[{[]\s*$/.test(out.slice(-80)) && !out.endsWith('"') ? out.trimEnd() + token : out + line() + token;
    } else {
      out += token === ',' ? token + line() : token === ':' ? ': ' : token;
    }
  }
  return out;
}

const seconds = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);

function statsText(stats) {
  const parts = [];
  if (stats?.rate) {
    parts.push(`${stats.rate < 100 ? stats.rate.toFixed(1) : count(stats.rate)} tok/s`);
  }
  if (stats?.tokens) {
    parts.push(stats.thinking > 0 ? `${count(stats.tokens)} tokens, ${count(stats.thinking)} of them thinking` : `${count(stats.tokens)} tokens`);
  }
  if (stats?.wait !== undefined && stats?.wait !== null) {
    parts.push(`first after ${seconds(stats.wait)}`);
  }
  if (stats?.prompt) {
    parts.push(stats.cached > 0 ? `prompt ${count(stats.prompt)}, ${count(stats.cached)} cached` : `prompt ${count(stats.prompt)}`);
  }
  return parts.join(' · ');
}

function actionButton(name, label, click) {
  return make('button', {type: 'button', class: 'plain labelled', click}, icon(name), label);
}

// Enter sends, as in the composer; Escape gives up.
function onEditKeys(send, cancel) {
  return (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      cancel();
    }
  };
}

class UserView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.element = make('article', {class: 'message user', 'aria-label': 'You'});
    this.show();
  }

  show() {
    this.editButton = iconButton('edit', 'Edit and send again', () => this.edit());
    this.element.replaceChildren(
        make('div', {class: 'bubble'}, this.message.content),
        make('div', {class: 'actions'}, copyButton('Copy message', () => this.message.content), this.editButton));
  }

  edit() {
    if (this.actions.running()) {
      return;
    }
    const box = make('textarea', {'aria-label': 'Edit message', rows: String(Math.min(12, this.message.content.split('\n').length + 1))});
    box.value = this.message.content;
    const cancel = () => {
      this.show();
      this.editButton.focus();
    };
    const send = () => {
      if (box.value.trim() !== '') {
        this.actions.edit(this.message, box.value);
      }
    };
    box.addEventListener('keydown', onEditKeys(send, cancel));
    this.element.replaceChildren(make('div', {class: 'editor'}, box, make('div', {class: 'actions'},
        make('button', {type: 'button', click: cancel}, 'Cancel'),
        make('button', {type: 'button', class: 'primary', click: send}, 'Send'))));
    box.focus();
  }

  refresh() {}
}

class AnswerView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.summary = make('span');
    this.thinkingText = make('div', {class: 'markdown'});
    this.thinking = make('details', {class: 'thinking', hidden: true, toggle: () => this.onToggle()},
        make('summary', {}, icon('think'), this.summary), this.thinkingText);
    this.waiting = make('p', {class: 'waiting', hidden: true}, make('span', {class: 'pulse', 'aria-hidden': 'true'}), make('span'));
    this.content = make('div', {class: 'markdown'});
    this.calls = make('div', {class: 'calls'});
    this.fault = make('div', {class: 'error', role: 'alert', hidden: true});
    this.foot = make('div', {class: 'actions'});
    this.element = make('article', {class: 'message assistant', 'aria-label': 'Answer'},
        this.thinking, this.waiting, this.content, this.calls, this.fault, this.foot);
    this.contentView = new MarkdownView(this.content);
    this.thinkingView = new MarkdownView(this.thinkingText);
    this.drawn = {};
  }

  // Does the drawing only when what it shows has changed.
  when(part, state, draw) {
    const key = JSON.stringify(state);
    if (this.drawn[part] !== key) {
      this.drawn[part] = key;
      draw();
    }
  }

  // state: {run (while it is written), last, results: Map of call id -> text}
  refresh(state) {
    const {message} = this;
    const {run} = state;
    this.element.setAttribute('aria-busy', String(Boolean(run)));
    this.element.classList.toggle('running', Boolean(run));
    this.refreshThinking(run);
    this.contentView.update(message.content);
    const came = message.content !== '' || message.calls.length > 0;
    this.waiting.hidden = !run || came || message.reasoning !== '';
    if (!this.waiting.hidden) {
      this.waiting.lastChild.textContent = run.waitText;
    }
    this.when('calls', [message.calls, [...state.results], Boolean(run), state.last], () => this.drawCalls(state));
    this.when('fault', [message.error, Boolean(run)], () => this.drawFault(run));
    this.refreshFoot(state);
  }

  refreshThinking(run) {
    const {message} = this;
    this.thinking.hidden = message.reasoning === '';
    const open = run && message.thought === undefined;
    this.thinking.classList.toggle('live', Boolean(open));
    const elapsed = open && run.first !== undefined ? (performance.now() - run.first) / 1000 : message.thought;
    this.summary.textContent = (open ? 'Thinking' : 'Thought') + (elapsed >= 0.1 ? ` for ${seconds(elapsed)}` : '');
    this.showThinking();
  }

  // What was opened to be read does not move away.
  onToggle() {
    if (this.thinking.open) {
      this.actions.reads();
    }
    this.showThinking();
  }

  showThinking() {
    if (this.thinking.open) {
      this.thinkingView.update(this.message.reasoning.trim());
    }
  }

  drawCalls({run, last, results}) {
    const open = [];
    const cards = this.message.calls.map((call, number) => {
      const pretty = prettyJson(call.arguments);
      const code = make('code');
      code.append(...highlight(pretty, 'json'));
      const card = make('section', {class: 'call', 'aria-label': `Call of ${call.name}`},
          make('div', {class: 'code-bar'}, make('span', {class: 'name'}, icon('tool'), call.name || 'tool'), copyButton('Copy arguments', () => pretty)),
          make('pre', {tabindex: '0', role: 'region', 'aria-label': 'Arguments'}, code));
      if (results.has(call.id)) {
        card.append(make('div', {class: 'result'}, make('span', {class: 'hint'}, 'Result'), make('pre', {tabindex: '0'}, results.get(call.id))));
      } else if (!run && last) {
        const box = make('textarea', {rows: '2', placeholder: 'What the tool answers', 'aria-label': `Result of ${call.name}, call ${number + 1}`});
        open.push({call, box});
        card.append(make('div', {class: 'result'}, box));
      }
      return card;
    });
    if (open.length > 0) {
      const send = () => this.actions.answerCalls(open.map(({call, box}) => ({role: 'tool', id: call.id, content: box.value})));
      for (const {box} of open) {
        box.addEventListener('keydown', onEditKeys(send, () => byId('input').focus()));
      }
      cards.push(make('div', {class: 'actions'}, make('button', {type: 'button', class: 'primary', click: send},
          open.length > 1 ? 'Send results' : 'Send result')));
    }
    this.calls.replaceChildren(...cards);
  }

  drawFault(run) {
    const {error} = this.message;
    this.fault.hidden = !error || Boolean(run);
    if (this.fault.hidden) {
      this.fault.replaceChildren();
      return;
    }
    const wait = error.retryAfter ? ` It asks to wait ${error.retryAfter} s.` : '';
    const about = [error.status > 0 ? `status ${error.status}` : '', error.code ?? ''].filter((part) => part !== '').join(', ');
    this.fault.replaceChildren(
        make('p', {}, icon('warning'), make('span', {}, error.message + wait, about === '' ? null : make('span', {class: 'hint'}, ` (${about})`))),
        make('div', {class: 'actions'},
            make('button', {type: 'button', click: () => this.actions.again(this.message)}, icon('again'), 'Retry'),
            error.status === 401 ? make('button', {type: 'button', click: () => this.actions.enterKey()}, 'Enter an API key') : null));
  }

  refreshFoot(state) {
    const {message} = this;
    const {run, last} = state;
    if (run) {
      const elapsed = run.first === undefined ? 0 : (performance.now() - run.first) / 1000;
      this.drawn.foot = '';
      this.foot.replaceChildren(make('span', {class: 'stats'},
          elapsed > 1 ? `about ${(run.pieces / elapsed).toFixed(1)} tok/s` : ''));
      return;
    }
    this.when('foot', [last, message.stats, message.finish, message.stopped, message.content === ''], () => {
      const cut = message.finish === 'length' ? 'cut: no tokens were left' : message.stopped ? 'stopped' : '';
      const text = [cut, statsText(message.stats)].filter((part) => part !== '').join(' · ');
      const more = last && cut !== '' && message.content !== '' && message.calls.length === 0;
      this.foot.replaceChildren(
          ...(message.content === '' ? [] : [copyButton('Copy answer', () => message.content)]),
          ...(last && !message.error ? [iconButton('again', 'Answer again', () => this.actions.again(message))] : []),
          ...(more ? [actionButton('forward', 'Continue', () => this.actions.continue(message))] : []),
          make('span', {class: 'stats'}, text));
    });
  }
}
