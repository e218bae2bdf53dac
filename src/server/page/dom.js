// Building the page. Text goes in as text nodes only: no function here or elsewhere takes HTML.

const byId = (id) => document.getElementById(id);

// make('button', {class: 'plain', click: handler}, 'text', node, null): a function is a listener, null and false
// are left out.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      element.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function icon(name) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(space, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

function iconButton(name, label, click) {
  return make('button', {type: 'button', class: 'plain small', 'aria-label': label, title: label, click}, icon(name));
}

// What a screen reader says.
function announce(text) {
  byId('status').textContent = text;
}

let toastTimer = 0;
// A passing message, with one thing to do about it.
function toast(text, action, act) {
  const hide = () => {
    byId('toast').hidden = true;
  };
  const button = action
    ? make('button', {
        type: 'button',
        class: 'link',
        click: () => {
          hide();
          act();
        },
      }, action)
    : null;
  byId('toast').replaceChildren(text, ...(button ? [' ', button] : []));
  byId('toast').hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, 8000);
}

// The clipboard API is missing on pages that came over plain HTTP from another machine.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = make('textarea', {class: 'unseen', 'aria-hidden': 'true'});
    const focused = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const copied = document.execCommand('copy');
    box.remove();
    focused?.focus();
    return copied;
  }
}

function copyButton(label, text) {
  const button = iconButton('copy', label, async () => {
    const copied = await copyText(text());
    announce(copied ? 'Copied' : 'Copying failed');
    button.replaceChildren(icon(copied ? 'check' : 'warning'));
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}

const count = (number) => Math.round(number).toLocaleString('en');
