// The page: which conversation is shown, what runs, what the server says of itself.

const kSuggestions = ['What is 17 plus 25?', 'Tell me a short story about a fox.', 'Translate "good morning" into French.'];

class App {
  constructor() {
    this.settings = loadSettings();
    this.store = new Store();
    this.conversations = new Map();
    this.current = newConversation(this.settings);
    this.runs = new Map();  // conversation id -> what is being answered there
    this.views = new WeakMap();
    this.saves = new Map();  // conversation id -> timer
    this.model = {id: 'lily', context: null};
    this.sticky = true;  // the newest text stays in sight
    this.dialog = new SettingsDialog(this.settings, () => this.current, () => this.onSettings());
    this.sidebar = new Sidebar({
      all: () => this.conversations.values(),
      current: () => this.current,
      isRunning: (id) => this.runs.has(id),
      rename: (conversation, title) => this.rename(conversation, title),
      remove: (conversation) => this.remove(conversation),
    });
    this.actions = {
      running: () => this.runs.has(this.current.id),
      edit: (message, text) => this.edit(message, text),
      again: (message) => this.again(message),
      continue: (message) => this.answer(this.current, message),
      answerCalls: (results) => this.send(results),
      enterKey: () => this.dialog.open('s-key'),
      reads: () => {
        this.sticky = false;
      },
    };
    this.listen();
  }

  async start() {
    this.findServer();
    const kept = await this.store.open();
    for (const conversation of await this.store.all()) {
      this.conversations.set(conversation.id, conversation);
    }
    this.store.onChange((id) => this.onChanged(id), (id) => this.forget(id));
    if (!kept) {
      toast('This browser keeps no conversations here: they are gone when the page is closed.');
    }
    this.opened = true;
    this.openFromAddress();
    byId('input').focus();
  }

  listen() {
    const input = byId('input');
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.runs.has(this.current.id)) {
        this.stop();
      } else {
        this.submit();
      }
    });
    input.addEventListener('input', () => this.fitInput());
    input.addEventListener('keydown', (event) => this.onInputKey(event));
    document.addEventListener('keydown', (event) => this.onKey(event));
    byId('new').addEventListener('click', () => this.startNew());
    byId('think').addEventListener('click', () => {
      this.settings.thinking = !this.settings.thinking;
      saveSettings(this.settings);
      this.onSettings();
    });
    addEventListener('hashchange', () => this.openFromAddress());
    addEventListener('pagehide', () => {
      this.runs.forEach((run) => this.leave(run));
      this.saveWhatWaits();
    });
    this.listenToScroll();
  }

  // Reading upwards leaves the newest text; reaching the end follows it again.
  listenToScroll() {
    const scroll = byId('scroll');
    let before = 0;
    let touched = -Infinity;  // the last time a hand was at it: a new layout moves the text too
    for (const kind of ['wheel', 'touchmove', 'pointerdown', 'keydown']) {
      scroll.addEventListener(kind, () => {
        touched = performance.now();
      }, {passive: true});
    }
    scroll.addEventListener('scroll', () => {
      const left = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
      if (left < 30) {
        this.sticky = true;
      } else if (scroll.scrollTop < before - 2 && performance.now() - touched < 1500) {
        touched = performance.now();
        this.sticky = false;
      }
      before = scroll.scrollTop;
      byId('latest').hidden = this.sticky || left < 200;
    });
    byId('latest').addEventListener('click', () => {
      this.sticky = true;
      this.follow();
    });
    new ResizeObserver(() => {
      this.follow();
      requestAnimationFrame(() => this.follow());
    }).observe(scroll);
  }

  follow() {
    if (this.sticky) {
      byId('scroll').scrollTop = byId('scroll').scrollHeight;
    }
  }

  onKey(event) {
    if (event.key !== 'Escape' || byId('settings').open) {
      return;
    }
    if (this.sidebar.isOpen()) {
      this.sidebar.toggle(false);
    } else {
      this.stop();
    }
  }

  onInputKey(event) {
    const onTouch = matchMedia('(pointer: coarse)').matches;  // whose keyboards have no other way to start a line
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !onTouch) {
      event.preventDefault();
      this.submit();
    } else if (event.key === 'ArrowUp' && byId('input').value === '') {
      const last = this.current.messages.findLast(({role}) => role === 'user');
      if (last !== undefined && !this.runs.has(this.current.id)) {
        event.preventDefault();
        this.views.get(last).edit();
      }
    }
  }

  fitInput() {
    const input = byId('input');
    input.style.height = 'auto';
    input.style.height = `${input.scrollHeight}px`;
  }

  // ---- the server

  async findServer() {
    clearTimeout(this.serverTimer);
    try {
      this.model = await servedModel(this.settings.key);
      this.showServer('ready', this.model.id);
    } catch (error) {
      const loading = error.status === 503;
      if (error.status === 401) {
        this.showServer('key', 'key needed', 'This server asks for an API key.', 'Enter it');
      } else {
        this.showServer(loading ? 'loading' : 'offline', loading ? 'loading' : 'offline', loading ? 'The model is being loaded.' : error.message);
        this.serverTimer = setTimeout(() => this.findServer(), loading ? 1500 : 4000);
      }
    }
    this.showContext();
  }

  showServer(state, name, text = '', action = '') {
    byId('model').dataset.state = state;
    byId('model').title = name;
    byId('model-name').textContent = name;
    const button = action === '' ? [] : [' ', make('button', {type: 'button', class: 'link', click: () => this.dialog.open('s-key')}, action)];
    if (byId('banner').dataset.text !== text) {
      byId('banner').dataset.text = text;
      byId('banner').replaceChildren(...(text === '' ? [] : [make('p', {}, text, ...button)]));
    }
    if (this.opened && this.current.messages.length === 0) {
      this.draw();
    }
  }

  onSettings() {
    byId('think').setAttribute('aria-pressed', String(this.settings.thinking));
    if (this.current.messages.length > 0) {
      this.save(this.current);
    }
    this.showSystem();
    if (byId('model').dataset.state === 'key') {
      clearTimeout(this.serverTimer);
      this.serverTimer = setTimeout(() => this.findServer(), 400);
    }
  }

  // ---- conversations

  openFromAddress() {
    const id = /^#c=(\w+)$/.exec(location.hash)?.[1];
    const found = this.conversations.get(id);
    if (found === undefined && id !== undefined) {
      history.replaceState(null, '', location.pathname);
    }
    this.show(found ?? newConversation(this.settings));
  }

  show(conversation) {
    this.current = conversation;
    byId('log').replaceChildren();
    this.views = new WeakMap();
    this.sticky = true;
    this.sidebar.toggle(false);
    this.draw();
    this.onSettings();
    this.follow();
  }

  startNew() {
    history.pushState(null, '', location.pathname);
    this.show(newConversation(this.settings));
    byId('input').focus();
  }

  rename(conversation, title) {
    conversation.title = title;
    this.save(conversation, true);
    this.draw();
  }

  remove(conversation) {
    this.runs.get(conversation.id)?.controller.abort();
    clearTimeout(this.saves.get(conversation.id));
    const here = this.current.id === conversation.id;
    this.forget(conversation.id);
    this.store.remove(conversation.id);
    byId('new').focus();
    toast(`Deleted "${titleOf(conversation)}".`, 'Undo', () => {
      this.conversations.set(conversation.id, conversation);
      this.save(conversation, true);
      if (here) {
        location.hash = `c=${conversation.id}`;
      }
      this.sidebar.draw();
    });
  }

  forget(id) {
    this.conversations.delete(id);
    if (this.current.id === id) {
      history.replaceState(null, '', location.pathname);
      this.show(newConversation(this.settings));
    } else {
      this.sidebar.draw();
    }
  }

  // Another window changed a conversation; what is being answered here is newer.
  async onChanged(id) {
    const changed = this.runs.has(id) ? null : await this.store.get(id);
    if (changed !== null && !this.runs.has(id)) {
      this.conversations.set(id, changed);
      if (this.current.id === id) {
        this.show(changed);
      } else {
        this.sidebar.draw();
      }
    }
  }

  async save(conversation, now = false) {
    const write = async () => {
      this.saves.delete(conversation.id);
      if (!this.conversations.has(conversation.id)) {
        return;
      }
      try {
        await this.store.put(conversation, !this.runs.has(conversation.id));
      } catch (error) {
        toast(`This browser did not keep the conversation: ${error.message}`);
      }
    };
    if (now) {
      clearTimeout(this.saves.get(conversation.id));
      await write();
    } else if (!this.saves.has(conversation.id)) {
      this.saves.set(conversation.id, setTimeout(write, 700));
    }
  }

  saveWhatWaits() {
    for (const id of [...this.saves.keys()]) {
      const conversation = this.conversations.get(id);
      if (conversation !== undefined) {
        this.save(conversation, true);
      }
    }
  }

  // ---- sending

  submit() {
    const text = byId('input').value;
    if (!this.runs.has(this.current.id) && text.trim() !== '') {
      byId('input').value = '';
      this.fitInput();
      this.send([{role: 'user', content: text}]);
    }
  }

  send(messages) {
    const conversation = this.current;
    conversation.messages.push(...messages);
    conversation.updated = Date.now();
    if (!this.conversations.has(conversation.id)) {
      this.conversations.set(conversation.id, conversation);
      history.replaceState(null, '', `#c=${conversation.id}`);
    }
    this.sticky = true;
    byId('input').focus();
    this.answer(conversation);
  }

  edit(message, text) {
    const {messages} = this.current;
    messages.length = messages.indexOf(message);
    this.send([{role: 'user', content: text}]);
  }

  again(message) {
    const {messages} = this.current;
    messages.length = messages.indexOf(message);
    this.send([]);
  }

  stop() {
    this.runs.get(this.current.id)?.controller.abort();
  }

  // Asks for the next message of a conversation, or for the rest of its last one.
  async answer(conversation, continued = null) {
    const message = continued ?? {role: 'assistant', content: '', reasoning: '', calls: []};
    const run = {conversation, message, controller: new AbortController(), began: performance.now(), pieces: 0, waitText: 'Waiting for the model'};
    const body = requestBody(conversation, conversation.messages, this.settings, this.model.id, continued !== null);
    if (continued === null) {
      conversation.messages.push(message);
    }
    Object.assign(message, {running: true, error: undefined, stopped: undefined, finish: undefined, stats: undefined});
    this.runs.set(conversation.id, run);
    this.save(conversation, true);
    this.draw();
    this.follow();
    announce('Answering');
    run.clock = setInterval(() => this.onClock(run), 500);
    try {
      await streamChat(body, this.settings.key, run.controller.signal, (chunk) => {
        if (takeChunk(message, run, chunk)) {
          this.schedule(run);
        }
        this.save(conversation);
      });
    } catch (error) {
      if (error.name === 'AbortError' || message.stopped) {
        message.stopped = true;
      } else {
        message.error = {message: error.message, status: error.status ?? 0, code: error.code ?? null, retryAfter: error.retryAfter ?? null};
      }
    }
    this.finish(run);
  }

  // The page goes away, and its requests with it: what has come so far is kept.
  leave({conversation, message, controller}) {
    message.stopped = true;
    message.running = false;
    this.save(conversation, true);
    controller.abort();
  }

  finish(run) {
    const {conversation, message} = run;
    clearInterval(run.clock);
    clearTimeout(run.timer);
    this.runs.delete(conversation.id);
    message.running = false;
    message.calls = message.calls.filter((call) => call);
    message.stats = statsOf(run);
    if (message.reasoning !== '') {
      message.thought ??= (run.last - run.first) / 1000;
    }
    conversation.updated = Date.now();
    this.save(conversation, true);
    this.draw();
    this.follow();
    if (this.current === conversation) {
      const calls = message.calls.map(({name}) => `Calls ${name}.`).join(' ');
      announce(message.error ? '' : message.stopped ? 'Stopped' : `Answer: ${message.content.slice(0, 1500)} ${calls}`);
    }
    if (message.error?.status === 0 || message.error?.status === 401 || message.error?.status === 503) {
      this.findServer();
    }
  }

  onClock(run) {
    const waited = (performance.now() - run.began) / 1000;
    run.waitText = waited < 3 ? 'Waiting for the model' : `Reading the prompt, or waiting in the queue: ${Math.round(waited)} s`;
    this.schedule(run);
  }

  // Draws soon, and no more often than drawing takes a fraction of the time.
  schedule(run) {
    if (run.timer !== undefined) {
      return;
    }
    run.timer = setTimeout(() => {
      run.timer = undefined;
      if (this.current === run.conversation) {
        const since = performance.now();
        this.refreshView(run.message);
        this.follow();
        run.cost = performance.now() - since;
      }
    }, Math.max(16, 4 * (run.cost ?? 0)));
  }

  // ---- drawing

  results() {
    return new Map(this.current.messages.filter(({role}) => role === 'tool').map(({id, content}) => [id, content]));
  }

  refreshView(message) {
    const run = this.runs.get(this.current.id);
    this.views.get(message)?.refresh({
      run: run?.message === message ? run : null,
      last: this.current.messages[this.current.messages.length - 1] === message,
      results: this.results(),
    });
  }

  // Brings the log in line with the conversation: views of messages that are still there stay.
  draw() {
    const {messages} = this.current;
    const wanted = messages.filter(({role}) => role !== 'tool').map((message) => {
      if (!this.views.has(message)) {
        this.views.set(message, message.role === 'user' ? new UserView(message, this.actions) : new AnswerView(message, this.actions));
      }
      return this.views.get(message).element;
    });
    const log = byId('log');
    [...log.children].filter((child) => !wanted.includes(child)).forEach((child) => child.remove());
    wanted.filter((element) => element.parentNode !== log).forEach((element) => log.append(element));
    messages.forEach((message) => this.refreshView(message));
    if (messages.length === 0) {
      log.append(this.welcome());
    }
    this.showSystem();
    this.showState();
    this.sidebar.draw();
  }

  welcome() {
    const ready = byId('model').dataset.state === 'ready';
    return make('div', {class: 'welcome'}, icon('lily'),
        make('h2', {}, ready ? `Talk to ${this.model.id}` : 'Talk to lily'),
        make('div', {class: 'suggestions'}, ...kSuggestions.map((text) => make('button', {
          type: 'button',
          click: () => this.runs.has(this.current.id) || this.send([{role: 'user', content: text}]),
        }, text))));
  }

  showSystem() {
    const old = byId('system-note');
    const text = this.current.system.trim();
    old?.remove();
    if (text !== '' || this.current.tools.trim() !== '') {
      const tools = parseTools(this.current.tools).value ?? [];
      const names = tools.map((tool) => tool.function.name).join(', ');
      byId('log').prepend(make('button', {id: 'system-note', type: 'button', class: 'plain', click: () => this.dialog.open('s-system')},
          [text === '' ? '' : `System prompt: ${text}`, names === '' ? '' : `Tools: ${names}`].filter((part) => part !== '').join(' · ')));
    }
  }

  showState() {
    const title = titleOf(this.current);
    const running = this.runs.has(this.current.id);
    byId('title').textContent = title;
    document.title = this.current.messages.length > 0 ? `${title} · lily` : 'lily';
    byId('send').setAttribute('aria-label', running ? 'Stop' : 'Send');
    byId('send').title = running ? 'Stop (Esc)' : 'Send (Enter)';
    byId('send-icon').setAttribute('href', running ? '#i-stop' : '#i-send');
    this.showContext();
  }

  showContext() {
    const used = this.current.messages.findLast((message) => message.stats?.total)?.stats.total;
    byId('context').hidden = used === undefined;
    if (used !== undefined) {
      const {context} = this.model;
      byId('context-text').textContent = context ? `${count(used)} of ${count(context)} tokens` : `${count(used)} tokens`;
      byId('context').title = 'Context used by the conversation up to its last answer';
      const share = context ? Math.min(1, used / context) : 0;
      byId('context-bar').style.width = `${Math.max(2, 100 * share)}%`;
      byId('context').classList.toggle('nearly-full', share > 0.85);
    }
  }
}

new App().start();
