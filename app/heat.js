// Draws a table of cells from its data, and changes what is there already instead of drawing anew.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-heat");
  const make = (kind, into, name = "", text = "") => {
    const node = document.createElement(kind);
    if (name) node.className = name;
    if (text) node.textContent = text;
    into.appendChild(node);
    return node;
  };
  const shape = `${data.rows.join("\n")}\n\n${data.columns.join("\n")}`;
  const focused = () => root.getRootNode().activeElement;
  const had = root.contains(focused());
  const fresh = root.dataset.shape !== shape;
  if (fresh) {
    root.dataset.shape = shape;
    root.replaceChildren();
    const scroll = make("div", root, "scroll");
    const table = make("table", scroll);
    make("caption", table);
    const head = make("tr", make("thead", table));
    make("td", head, "corner");
    data.columns.forEach((text) => (make("th", head, "", text).scope = "col"));
    const body = make("tbody", table);
    data.rows.forEach((text) => {
      const row = make("tr", body);
      make("th", row, "", text).scope = "row";
      data.columns.forEach(() => {
        make("button", make("td", row)).type = "button";
      });
    });
    make("div", root, "key");
  }
  root.querySelector("caption").textContent = data.title;
  const head = root.querySelector(".corner");
  head.textContent = `${data.down} ↓\n${data.across} →`;
  const buttons = [...root.querySelectorAll("td button")];
  const width = data.columns.length;
  const own = Math.max(0, data.cells.findIndex((cell) => cell.own));
  const move = (from, by) => {
    const to = buttons[from + by];
    if (!to) return;
    buttons.forEach((b) => (b.tabIndex = -1));
    to.tabIndex = 0;
    to.focus();
  };
  buttons.forEach((button, i) => {
    const cell = data.cells[i];
    button.className = `${cell.verdict}${cell.own ? " own" : ""}`;
    button.parentElement.className = `${cell.right ? "right" : ""} ${cell.below ? "below" : ""}`;
    button.style.background = cell.colour;
    button.style.color = cell.ink;
    button.textContent = cell.text;
    button.title = cell.said;
    button.setAttribute("aria-label", cell.said.replaceAll("\n", ", "));
    button.disabled = cell.verdict === "none";
    if (fresh || !had) button.tabIndex = i === own ? 0 : -1;
    button.onclick = () => setTriggerValue("cell", i);
    button.onkeydown = (event) => {
      const column = i % width;
      const by = {
        ArrowRight: column < width - 1 ? 1 : 0,
        ArrowLeft: column > 0 ? -1 : 0,
        ArrowDown: width,
        ArrowUp: -width,
      }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      let at = i;
      while (by && buttons[at + by] && buttons[at + by].disabled) at += by;
      if (by) move(at, by);
    };
  });
  if (fresh && had && buttons[own]) buttons[own].focus();
  if (fresh && buttons[own]) {
    // On a phone the plan may be out of view.
    const scroll = root.querySelector(".scroll");
    const cell = buttons[own].parentElement;
    scroll.scrollLeft = cell.offsetLeft - (scroll.clientWidth - cell.offsetWidth) / 2;
  }
  const key = root.querySelector(".key");
  key.replaceChildren();
  data.key.forEach(([name, text, colour]) => {
    const item = make("span", key);
    const mark = make("i", item, name);
    if (colour) mark.style.background = colour;
    item.append(text);
  });
}
