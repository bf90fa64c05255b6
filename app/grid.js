// Draws a table of text, and changes what is there already instead of drawing it anew. What is
// sorted and searched is the browser's own business: no server is asked.
const FIRST = 40; // rows that are drawn before anybody scrolls
const SEARCHED = 20; // a table of more rows can be searched
const AHEAD = 300; // pixels below what is in view at which more rows are drawn
const LINES = [1, 1.4, 2, 2.6, 3.2, 4.2]; // on how many lines the texts of a column may be
const NARROW = 560; // pixels of a table on a phone, at most
// Letters that stay on one line; that a text has room for at most, and where it is the last way to fit.
const [SHORT, WIDEST, LAST] = [12, 56, 36];
const LONG = 90; // letters of a text that takes more lines than one wherever it is
const LETTER = 0.52; // a letter's width, in heights of the font
const PADDING = 20; // pixels of a column beside its letters
// Letters of a head's longer line, where it has two.
const halved = (title) =>
  Math.min(title.length, ...[...title.matchAll(/ /g)].map(({ index: at }) => Math.max(at, title.length - at - 1)));
const words = new Intl.Collator("en", { numeric: true });

// Text as somebody types it who searches.
const plain = (text) => text.toLowerCase().replaceAll("×", "x");
const fit = (node, kinds) => {
  while (node.children.length > kinds.length) node.lastChild.remove();
  kinds.forEach((kind, i) => {
    if (!node.children[i]) node.append(document.createElement(kind));
  });
  return node.children;
};
const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
const name = (node, text) => {
  if (node.className !== text) node.className = text;
};
const button = (cell, wanted) => {
  const there = cell.firstElementChild;
  if (Boolean(there) === wanted) return there ?? cell;
  cell.replaceChildren();
  if (!wanted) return cell;
  const made = cell.appendChild(document.createElement("button"));
  made.type = "button";
  made.tabIndex = -1; // one tab stop a table: arrows lead on
  return made;
};

class Grid {
  shown = FIRST;
  by = -1; // the column that rows are sorted by; -1: as they came
  turned = false; // whether the other way round
  asked = []; // words that a row must have

  constructor(root) {
    this.root = root;
    [this.tools, this.box] = root.children;
    [this.search, this.status] = this.tools.children;
    this.table = this.box.firstElementChild;
    [this.head, this.body] = this.table.children;
    this.search.oninput = () => {
      this.asked = plain(this.search.value).split(/\s+/).filter(Boolean);
      this.shown = FIRST;
      this.box.scrollTop = 0;
      this.draw();
    };
    this.box.onscroll = () => {
      if (this.box.scrollTop + this.box.clientHeight + AHEAD > this.box.scrollHeight) this.more();
    };
    this.table.onclick = (event) => {
      const cell = event.target.closest("button")?.parentElement;
      if (cell) this.press(cell, event.target.closest("button"));
    };
    this.table.onkeydown = (event) => this.move(event);
    this.table.addEventListener("focusin", (event) => this.stop(event.target));
    this.width = root.clientWidth;
    new ResizeObserver(() => {
      if (root.clientWidth === this.width) return;
      this.width = root.clientWidth;
      this.heads();
    }).observe(root);
  }

  more() {
    if (this.shown >= this.found.length) return false;
    this.shown += FIRST;
    this.draw();
    return true;
  }

  press(cell, pressed) {
    const row = cell.parentElement;
    if (row.parentElement === this.head) {
      this.sort(cell.cellIndex);
    } else if (pressed.className === "use") {
      this.trigger("row", this.found[row.sectionRowIndex]);
    } else {
      this.returns(pressed);
      this.trigger("cell", [this.found[row.sectionRowIndex], cell.cellIndex]);
    }
  }

  // A drawer that closes gives the focus back to the element that it sees, which is the host.
  returns(pressed) {
    const { host } = this.root.getRootNode();
    if (!host) return;
    host.tabIndex = -1;
    host.onfocus = () => {
      host.onfocus = null;
      host.removeAttribute("tabindex");
      pressed.focus();
    };
  }

  // Numbers begin with the largest, words with the first; a third press leads back.
  sort(column) {
    const falls = Boolean(this.data.values[column]);
    if (this.by !== column) [this.by, this.turned] = [column, falls];
    else if (this.turned === falls) this.turned = !falls;
    else this.by = -1;
    this.shown = FIRST;
    this.box.scrollTop = 0;
    this.draw();
  }

  // The rows that are asked for, in order.
  order() {
    const { rows, values } = this.data;
    let found = rows.map((_, i) => i);
    if (this.asked.length) {
      const texts = rows.map((row) => plain(row.join("\n")));
      found = found.filter((i) => this.asked.every((word) => texts[i].includes(word)));
    }
    const way = this.turned ? -1 : 1;
    const numbers = values[this.by];
    if (numbers) {
      const none = (i) => numbers[i] === null;
      found.sort((a, b) => none(a) - none(b) || way * (numbers[a] - numbers[b]));
    } else if (this.by >= 0) {
      const none = (i) => !rows[i][this.by];
      found.sort((a, b) => none(a) - none(b) || way * words.compare(rows[a][this.by], rows[b][this.by]));
    }
    return found;
  }

  draw() {
    const { data } = this;
    if (this.by >= data.columns.length) this.by = -1;
    this.found = this.order();
    this.uses = data.uses.some(Boolean);
    this.box.ariaLabel = data.alt;
    this.box.style.maxHeight = data.height ? `${data.height}px` : "";
    this.tools.hidden = data.rows.length <= SEARCHED;
    this.search.placeholder = "Search this table";
    this.search.ariaLabel = `Search: ${data.alt}`;
    const all = data.rows.length;
    const said = [...(this.asked.length ? [this.found.length] : []), all].map((n) => n.toLocaleString("en"));
    say(this.status, `${said.join(" of ")} rows`);
    this.heads();
    const kinds = data.columns.map((_, i) => (i ? "td" : "th"));
    const lines = fit(this.body, this.found.slice(0, this.shown).map(() => "tr"));
    for (let i = 0; i < lines.length; i++) this.row(lines[i], this.found[i], kinds);
    if (!this.table.querySelector('button[tabindex="0"]')) this.stop(this.table.querySelector("button"));
  }

  heads() {
    const { data } = this;
    const letters = this.widths();
    const [top] = fit(this.head, ["tr"]);
    [...fit(top, data.columns.map(() => "th"))].forEach((cell, i) => {
      const sorted = i === this.by ? (this.turned ? "descending" : "ascending") : "none";
      cell.scope = "col";
      if (cell.ariaSort !== sorted) cell.ariaSort = sorted;
      name(cell, data.values[i] ? "number" : "");
      const width = String(letters[i]);
      if (cell.dataset.width !== width) {
        cell.dataset.width = width;
        cell.style.setProperty("--letters", width);
      }
      const place = button(cell, true);
      say(place, data.columns[i]);
      if (place.title !== data.helps[i]) place.title = data.helps[i];
    });
  }

  // Letters for which each column has room at least. Where all are in view so, a text takes one line,
  // else a head two, then texts two or three; where they are not even then a text takes one again,
  // and the table scrolls: on a phone a name takes two all the same, or it alone would fill the page.
  widths() {
    const { data } = this;
    const texts = data.columns.map((_, i) =>
      Math.max(0, ...data.rows.map((row) => row[i].length + (i || !this.uses ? 0 : 10))),
    );
    const share = (lines, head = halved, widest = WIDEST) =>
      texts.map((text, i) => {
        const n = Math.max(text, head(data.columns[i]));
        return data.values[i] ? n : Math.min(widest, Math.max(Math.min(n, SHORT), n / lines));
      });
    const letter = parseFloat(getComputedStyle(this.root).fontSize) * LETTER;
    const fits = (each) => each.reduce((sum, n) => sum + n * letter + PADDING, 0) <= this.width;
    const scrolls = share(1).map((n, i) =>
      i === 1 && !data.values[i] && this.width < NARROW ? Math.max(Math.min(n, SHORT + 6), n / 2) : n,
    );
    const whole = share(1, (title) => title.length);
    const last = share(LINES.at(-1), halved, LAST);
    const found = [whole, ...LINES.map((lines) => share(lines)), last].find(fits);
    this.table.classList.toggle("scrolls", !found);
    this.table.classList.toggle("halved", found !== whole);
    return found ?? scrolls;
  }

  row(line, row, kinds) {
    const { data } = this;
    const cells = fit(line, kinds);
    for (let i = 0; i < kinds.length; i++) {
      const cell = cells[i];
      const text = data.rows[row][i];
      const kind = data.values[i] ? "number" : text.length > LONG ? "long" : "";
      name(cell, `${kind}${data.shares[i] ? " share" : ""}`);
      if (data.shares[i]) {
        cell.style.setProperty("--share", `${Math.min(100, Math.max(0, data.values[i]?.[row] ?? 0))}%`);
      }
      if (i) {
        say(button(cell, Boolean(text) && data.presses[i] && data.takes[row]), text);
        continue;
      }
      cell.scope = "row";
      if (this.uses) this.use(cell, data.rows[row], data.uses[row]);
      else say(cell, text);
    }
  }

  // The name of a row, with a button that makes it the plan.
  use(cell, [text, next], can) {
    if (cell.children.length !== 2) {
      cell.replaceChildren(document.createElement("span"), document.createElement("button"));
      Object.assign(cell.lastChild, { type: "button", className: "use", tabIndex: -1 });
      cell.lastChild.textContent = "Use";
    }
    say(cell.firstChild, text);
    cell.lastChild.ariaLabel = `Use ${text}, ${next}`;
    cell.lastChild.disabled = !can;
  }

  // The one button that Tab leads to.
  stop(wanted) {
    if (wanted?.tagName !== "BUTTON") return;
    this.table.querySelectorAll('button[tabindex="0"]').forEach((one) => (one.tabIndex = -1));
    wanted.tabIndex = 0;
  }

  move(event) {
    const here = event.target.closest("button");
    if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
    const line = here.closest("tr");
    const in_line = (row) => [...row.querySelectorAll("button:enabled")];
    const at = in_line(line);
    let next = null;
    if (event.key === "ArrowRight") next = at[at.indexOf(here) + 1];
    else if (event.key === "ArrowLeft") next = at[at.indexOf(here) - 1];
    else if (event.key === "Home") next = at[0];
    else if (event.key === "End") next = at.at(-1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const down = event.key === "ArrowDown";
      let lines = [...this.table.rows];
      if (down && line === lines.at(-1) && this.more()) lines = [...this.table.rows];
      const others = down ? lines.slice(lines.indexOf(line) + 1) : lines.slice(0, lines.indexOf(line)).reverse();
      const row = others.find((one) => in_line(one).length);
      const column = here.parentElement.cellIndex;
      const far = (one) => Math.abs(one.parentElement.cellIndex - column);
      next = row && in_line(row).reduce((best, one) => (far(one) < far(best) ? one : best));
    } else return;
    event.preventDefault();
    next?.focus();
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-grid");
  root.grid ??= new Grid(root);
  Object.assign(root.grid, { data, trigger: setTriggerValue });
  root.grid.draw();
}
