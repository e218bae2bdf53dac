// What this browser keeps: settings in localStorage, conversations in IndexedDB, one record each. Where the browser
// keeps nothing (some private windows), the page works on and says so.

const kSettingsKey = 'lily.settings';
const kDefaults = {
  system: '', tools: '', thinking: true, preserve: false, key: '', theme: 'auto',
  temperature: '', top_p: '', top_k: '', min_p: '', presence_penalty: '', frequency_penalty: '', repetition_penalty: '',
  seed: '', max_tokens: '',
};

function loadSettings() {
  const settings = {...kDefaults};
  try {
    const stored = JSON.parse(localStorage.getItem(kSettingsKey) ?? '{}');
    for (const name of Object.keys(kDefaults)) {
      if (typeof stored?.[name] === typeof kDefaults[name]) {
        settings[name] = stored[name];
      }
    }
  } catch {
    // What cannot be read is as if it were not there.
  }
  return settings;
}

function saveSettings(settings) {
  try {
    localStorage.setItem(kSettingsKey, JSON.stringify(settings));
  } catch {
    toast('This browser did not keep the settings.');
  }
}

const asPromise = (asked) => new Promise((resolve, reject) => {
  asked.onsuccess = () => resolve(asked.result);
  asked.onerror = () => reject(asked.error);
});

class Store {
  async open() {
    this.channel = 'BroadcastChannel' in self ? new BroadcastChannel('lily') : null;
    try {
      const opening = indexedDB.open('lily', 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore('conversations', {keyPath: 'id'});
      this.database = await asPromise(opening);
    } catch {
      this.database = null;
    }
    return this.database !== null;
  }

  conversations(mode) {
    return this.database.transaction('conversations', mode).objectStore('conversations');
  }

  async all() {
    const records = this.database ? await asPromise(this.conversations('readonly').getAll()) : [];
    return records.map(wellFormed).filter((conversation) => conversation !== null);
  }

  async get(id) {
    return this.database ? wellFormed(await asPromise(this.conversations('readonly').get(id))) : null;
  }

  // tell: other windows of this page are to show it.
  async put(conversation, tell) {
    if (this.database) {
      const conversations = this.conversations('readwrite');
      const written = asPromise(conversations.put(conversation));
      conversations.transaction.commit();  // at once: the page may be on its way out
      await written;
      if (tell) {
        this.channel?.postMessage({changed: conversation.id});
      }
    }
  }

  async remove(id) {
    if (this.database) {
      await asPromise(this.conversations('readwrite').delete(id));
      this.channel?.postMessage({removed: id});
    }
  }

  // Another window of this page wrote something.
  onChange(changed, removed) {
    this.channel?.addEventListener('message', ({data}) => {
      if (data.changed) {
        changed(data.changed);
      } else {
        removed(data.removed);
      }
    });
  }
}

// A record as this version writes it; what has another form is left out, and never breaks the page.
function wellFormed(record) {
  if (typeof record?.id !== 'string' || !Array.isArray(record.messages)) {
    return null;
  }
  const messages = record.messages.filter((message) =>
    ['user', 'assistant', 'tool'].includes(message?.role) && typeof message.content === 'string');
  for (const message of messages.filter(({role}) => role === 'assistant')) {
    message.calls = (Array.isArray(message.calls) ? message.calls : []).filter((call) => typeof call?.arguments === 'string');
    message.reasoning ??= '';
    if (message.running) {  // the page was left while it was written
      message.running = false;
      message.stopped = true;
    }
  }
  return {...record, messages, title: String(record.title ?? ''), system: String(record.system ?? ''), tools: String(record.tools ?? '')};
}
