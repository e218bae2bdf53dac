// The list of conversations: search, rename, delete with a way back.

class Sidebar {
  // actions: {all(), current(), isRunning(id), rename(conversation, title), remove(conversation)}
  constructor(actions) {
    this.actions = actions;
    this.renaming = null;
    byId('search').addEventListener('input', () => this.draw());
    byId('search').addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && byId('search').value !== '') {
        event.stopPropagation();
        byId('search').value = '';
        this.draw();
      }
    });
    byId('open-sidebar').addEventListener('click', () => this.toggle(true));
    byId('close-sidebar').addEventListener('click', () => this.toggle(false));
    byId('shade').addEventListener('click', () => this.toggle(false));
    this.narrow = matchMedia('(max-width: 760px)');
    this.narrow.addEventListener('change', () => this.toggle(false));
    this.toggle(false);
  }

  // On a narrow screen the list lies over the conversation, and only one of the two can be reached.
  toggle(open) {
    const over = this.narrow.matches && open;
    const had = this.isOpen();
    document.body.classList.toggle('sidebar-open', over);
    byId('sidebar').inert = this.narrow.matches && !open;
    byId('main').inert = over;
    byId('open-sidebar').setAttribute('aria-expanded', String(over));
    if (over) {
      byId('close-sidebar').focus();
    } else if (had) {
      byId('open-sidebar').focus();
    }
  }

  isOpen() {
    return document.body.classList.contains('sidebar-open');
  }

  matching() {
    const wanted = byId('search').value.trim().toLowerCase();
    const all = [...this.actions.all()].sort((a, b) => b.updated - a.updated);
    return wanted === '' ? all : all.filter((conversation) =>
      titleOf(conversation).toLowerCase().includes(wanted) ||
      conversation.messages.some(({content}) => content.toLowerCase().includes(wanted)));
  }

  draw() {
    const found = this.matching();
    const items = found.map((conversation) => this.item(conversation));
    if (items.length === 0) {
      const empty = byId('search').value === '' ? 'Nothing yet' : 'Nothing found';
      items.push(make('li', {class: 'hint'}, empty));
    }
    byId('list').replaceChildren(...items);
    byId('list').querySelector('input')?.select();
  }

  item(conversation) {
    if (this.renaming === conversation.id) {
      return make('li', {class: 'current'}, this.renameBox(conversation));
    }
    const title = titleOf(conversation);
    const here = this.actions.current().id === conversation.id;
    return make('li', {class: here ? 'current' : null},
        make('a', {href: `#c=${conversation.id}`, title, 'aria-current': here ? 'page' : null},
            this.actions.isRunning(conversation.id) ? make('span', {class: 'pulse', role: 'img', 'aria-label': 'being answered'}) : null, title),
        iconButton('edit', `Rename ${title}`, () => {
          this.renaming = conversation.id;
          this.draw();
        }),
        iconButton('trash', `Delete ${title}`, () => this.actions.remove(conversation)));
  }

  renameBox(conversation) {
    const box = make('input', {type: 'text', 'aria-label': 'New title', maxlength: '200'});
    box.value = titleOf(conversation);
    const end = (keep) => {
      if (this.renaming !== conversation.id) {
        return;
      }
      this.renaming = null;
      if (keep && box.value.trim() !== '' && box.value.trim() !== titleOf(conversation)) {
        this.actions.rename(conversation, box.value.trim());
      }
      this.draw();
      byId('list').querySelector(`a[href="#c=${conversation.id}"]`)?.focus();
    };
    box.addEventListener('blur', () => end(true));
    box.addEventListener('keydown', onEditKeys(() => end(true), () => end(false)));
    return box;
  }
}
