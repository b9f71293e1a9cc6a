// What the scripts of all widgets share: page.py puts it before each.

function make(tag, name, parent, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function isDark(el) {
  const [r, g, b] = getComputedStyle(el).color.match(/[\d.]+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140; // light text means a dark page
}
