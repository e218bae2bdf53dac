// The settings' dialog. What is wrong is said beside the field and not sent; all else is kept at once.

class SettingsDialog {
  // changed(): settings or the current conversation have new values. current(): the conversation that is shown.
  constructor(settings, current, changed) {
    this.settings = settings;
    this.current = current;
    this.changed = changed;
    this.dialog = byId('settings');
    this.inputs = new Map();
    for (const [name, [label, least, most, step]] of Object.entries(kNumbers)) {
      const input = make('input', {id: `s-${name}`, inputmode: step === '1' && least >= 0 ? 'numeric' : 'text', autocomplete: 'off',
                                   placeholder: 'default', title: most >= 1e6 ? `from ${least}` : `${least} to ${most}`, 'aria-describedby': 'e-numbers'});
      this.inputs.set(name, input);
      byId('numbers').append(make('div', {}, make('label', {for: `s-${name}`}, label), input));
    }
    byId('open-settings').addEventListener('click', () => this.open());
    byId('settings-form').addEventListener('input', () => this.read());
    byId('defaults').addEventListener('click', () => {
      this.inputs.forEach((input) => {
        input.value = '';
      });
      this.read();
    });
    byId('tools-example').addEventListener('click', () => {
      byId('s-tools').value = JSON.stringify(kExampleTools, null, 2);
      this.read();
    });
    this.dialog.addEventListener('click', (event) => {
      if (event.target === this.dialog) {  // beside the panel
        this.dialog.close();
      }
    });
    this.applyTheme();
  }

  open(field = null) {
    const {settings} = this;
    byId('s-system').value = this.current().system;
    byId('s-tools').value = this.current().tools;
    byId('s-thinking').checked = settings.thinking;
    byId('s-preserve').checked = settings.preserve;
    byId('s-key').value = settings.key;
    byId('s-theme').value = settings.theme;
    this.inputs.forEach((input, name) => {
      input.value = settings[name];
    });
    this.check();
    this.dialog.showModal();
    if (field !== null) {
      byId(field).focus();
    }
  }

  read() {
    const {settings} = this;
    settings.system = this.current().system = byId('s-system').value;
    settings.tools = this.current().tools = byId('s-tools').value;
    settings.thinking = byId('s-thinking').checked;
    settings.preserve = byId('s-preserve').checked;
    settings.key = byId('s-key').value.trim();
    settings.theme = byId('s-theme').value;
    this.inputs.forEach((input, name) => {
      settings[name] = input.value;
    });
    this.check();
    this.applyTheme();
    saveSettings(settings);
    this.changed();
  }

  check() {
    const faults = [];
    this.inputs.forEach((input, name) => {
      const {fault} = parseNumber(name, input.value);
      input.setAttribute('aria-invalid', String(fault !== undefined));
      if (fault !== undefined) {
        faults.push(`${fault} It is not sent.`);
      }
    });
    this.say('e-numbers', faults.join(' '));
    const {fault} = parseTools(byId('s-tools').value);
    byId('s-tools').setAttribute('aria-invalid', String(fault !== undefined));
    this.say('e-tools', fault === undefined ? '' : `${fault} No tools are sent.`);
  }

  say(id, text) {
    if (byId(id).textContent !== text) {
      byId(id).textContent = text;
    }
  }

  applyTheme() {
    const {theme} = this.settings;
    if (theme === 'auto') {
      delete document.documentElement.dataset.theme;
    } else {
      document.documentElement.dataset.theme = theme;
    }
  }
}
