// Draws a plot that app/plot.py has placed. Where one points, or leads the arrow keys, it says what
// is there; a click or Enter takes it.
export default function (component) {
  const { data: given, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-plot");
  let data = given;
  const [picture, said, svg] = [".picture", ".said", "svg"].map((s) => root.querySelector(s));
  const font = getComputedStyle(root);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${font.fontSize} ${font.fontFamily}`;
  const long = (text) => pen.measureText(text).width;
  const safe = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const [LINE, NARROW] = [16, 560];
  const [GAP, NEAR] = [18, 9]; // pixels between two names of a legend
  let patterns, boxes;

  function filled(colour, pattern) {
    if (!pattern) return colour;
    const ink = pattern.bare ? colour : "rgb(255 255 255 / 60%)";
    const id = `p${patterns.size}`;
    const name = [...patterns].find(([, p]) => p[0] === colour && p[1] === pattern.shape)?.[0] ?? id;
    const path = {
      "/": "M-1 1L1 -1M0 6L6 0M5 7L7 5", "\\": "M-1 5L1 7M0 0L6 6M5 -1L7 1", "-": "M0 3H6",
      x: "M0 0L6 6M0 6L6 0", "|": "M3 0V6", "+": "M0 3H6M3 0V6", ".": "M2 3H4",
    }[pattern.shape];
    const back = pattern.bare ? "" : `<path d="M0 0H6V6H0Z" fill="${colour}"/>`;
    const wide = pattern.shape === "." ? 2 : 1.3;
    patterns.set(name, [colour, pattern.shape,
      `<pattern id="${name}" width="6" height="6" patternUnits="userSpaceOnUse">${back}` +
      `<path d="${path}" fill="none" stroke="${ink}" stroke-width="${wide}"/></pattern>`]);
    return `url(#${name})`;
  }
  const words = (x, y, text, anchor = "start", more = "") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" ${more}>${safe(text)}</text>`;
  // In its middle, since names of GPUs differ at their ends.
  const cut = (text, width) => {
    let [n, short] = [text.length, text];
    while (n > 2 && long(short) > width) {
      n -= 1;
      short = `${text.slice(0, Math.ceil(n / 3))}…${text.slice(Math.ceil(n / 3) - n)}`;
    }
    return short;
  };
  function mark(symbol, x, y, size, fill) {
    const r = size / 2;
    const paths = {
      circle: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
      diamond: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`,
      square: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
      "triangle-up": `M${x} ${y - r}L${x + r} ${y + r}H${x - r}Z`,
    };
    if (symbol === "line-ns-open") {
      return `<path d="M${x} ${y - r}V${y + r}" stroke="${fill}" stroke-width="3"/>`;
    }
    if (symbol === "x") {
      const cross = `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`;
      return `<path class="halo" d="${cross}" stroke-width="5.5"/><path d="${cross}" stroke="${fill}" stroke-width="3"/>`;
    }
    return `<path d="${paths[symbol] ?? paths.circle}" class="halo" fill="${fill}" stroke-width="1.2"/>`;
  }
  function keys(width) {
    let [x, y] = [2, 12];
    const names = data.legend.reduce((sum, { name }) => sum + long(name) + 18, 2);
    // Nearer to each other where they are in one row then.
    const room = Math.floor((width - names) / Math.max(1, data.legend.length - 1));
    const gap = room >= NEAR ? Math.min(room, GAP) : GAP;
    const out = data.legend.map((each) => {
      const need = long(each.name) + 18 + gap;
      if (x > 2 && x + need - gap > width) [x, y] = [2, y + LINE + 2];
      const dashes = each.dash === "9 6" ? "6 3" : each.dash;
      const line = each.stroke
        ? `<path d="M${x - 1} ${y - 4}h15" stroke="${each.stroke}" stroke-width="2" stroke-dasharray="${dashes}"/>`
        : "";
      const box = `<path class="box" d="M${x} ${y - 10}h12v12h-12Z" fill="${filled(each.fill, each.pattern)}"/>`;
      const point = each.symbol ? mark(each.symbol, x + 6, y - 4, line ? 6 : 10, each.fill) : "";
      const look = line || point ? line + point : box;
      const text = look + words(x + 18, y, each.name);
      x += need;
      return text;
    });
    return [out.join(""), data.legend.length ? y + 10 : 6];
  }

  function drawn(width) {
    [patterns, boxes] = [new Map(), []];
    if (given.narrow) data = { ...given, ...(width < NARROW ? given.narrow : {}) };
    const [legend, top] = keys(width);
    const most = Math.max(0, ...data.up.ticks.map(([, text]) => long(text)));
    const side = data.up.title ? LINE + 4 : 0;
    const left = data.hidden ? 4 : Math.min(most + 10 + side, Math.max(0.42 * width, 60));
    const right = data.hidden ? 4 : 14;
    const below = data.hidden ? 4 : (data.across.title ? 2 * LINE + 4 : LINE + 4);
    const bottom = data.height - below;
    const X = (share) => left + share * (width - left - right);
    const Y = (share) => bottom - share * (bottom - top);
    const n = (value) => value.toFixed(1);
    const out = [];
    // Axes
    let last = -Infinity;
    data.across.ticks.toSorted((a, b) => a[0] - b[0]).forEach(([at, text]) => {
      const [x, half] = [X(at), long(text) / 2];
      if (data.across.grid) out.push(`<path class="grid" d="M${n(x)} ${n(top)}V${n(bottom)}"/>`);
      const place = Math.min(x, width - half);
      if (place - half < last + 8) return;
      last = place + half;
      out.push(words(n(place), bottom + 15, text, "middle"));
    });
    data.up.ticks.forEach(([at, text]) => {
      if (data.up.grid) out.push(`<path class="grid" d="M${n(left)} ${n(Y(at))}H${n(width - right)}"/>`);
      out.push(words(n(left - 7), n(Y(at) + 4), cut(text, left - 8 - side), "end"));
    });
    if (!data.hidden) {
      const middle = (left + width - right) / 2;
      const title = data.across.title;
      const at = Math.min(middle, width - long(title) / 2);
      out.push(words(n(at), data.height - 5, title, "middle"));
      const high = (top + bottom) / 2;
      if (data.up.title) out.push(words(12, n(high), data.up.title, "middle", `transform="rotate(-90 12 ${n(high)})"`));
    }
    // Data, which nothing outside the axes is shown of
    const inside = [];
    const path = (at) => at.map(([x, y], i) => `${i ? "L" : "M"}${n(X(x))} ${n(Y(y))}`).join("");
    for (const area of data.areas) {
      inside.push(`<path class="area" d="${path(area.at)}Z" fill="${filled(area.fill, area.pattern)}"/>`);
    }
    const over = [];
    for (const bar of data.bars) {
      const [x0, x1, y0, y1] = [X(bar.x[0]), X(bar.x[1]), Y(bar.y[1]), Y(bar.y[0])];
      const shape = `M${n(x0)} ${n(y0)}H${n(x1)}V${n(y1)}H${n(x0)}Z`;
      const fill = filled(bar.fill, bar.pattern);
      inside.push(`<path class="bar" d="${shape}" fill="${fill}" fill-opacity="${bar.opacity}"/>`);
      if (bar.said) boxes.push({ x0, x1, y0, y1, of: bar });
      const middle = n((y0 + y1) / 2 + 4);
      if (bar.text && bar.outside) {
        const room = x1 + 6 + long(bar.text) < width;
        over.push(words(n(room ? x1 + 5 : x0 - 5), middle, bar.text, room ? "start" : "end"));
      } else if (bar.text && long(bar.text) + 8 < x1 - x0) {
        over.push(words(n((x0 + x1) / 2), middle, bar.text, "middle", `style="fill:${bar.ink}"`));
      }
    }
    for (const line of data.lines) {
      inside.push(
        `<path class="line" d="${path(line.at)}" fill="none" stroke="${line.stroke}" stroke-width="${line.width}" stroke-dasharray="${line.dash}"/>`,
      );
    }
    for (const shape of data.shapes) {
      const [x0, x1, y0, y1] = [X(shape.x[0]), X(shape.x[1]), Y(shape.y[0]), Y(shape.y[1])];
      const d = shape.box ? `M${n(x0)} ${n(y0)}H${n(x1)}V${n(y1)}H${n(x0)}Z` : `M${n(x0)} ${n(y0)}L${n(x1)} ${n(y1)}`;
      inside.push(`<path d="${d}" fill="none" stroke="${shape.stroke}" stroke-width="${shape.width}" stroke-dasharray="${shape.dash}"/>`);
    }
    for (const each of data.marks) {
      const [x, y] = [X(each.at[0]), Y(each.at[1])];
      if (each.at[1] < -1e-3 || each.at[1] > 1.001 || each.at[0] < -1e-3 || each.at[0] > 1.001) continue;
      if (each.symbol) over.push(`<g class="mark">${mark(each.symbol, x, y, each.size, each.fill)}</g>`);
      if (each.said) boxes.push({ x0: x, x1: x, y0: y, y1: y, of: each });
    }
    for (const note of data.notes) {
      const high = LINE * note.lines.length;
      const y = Y(note.y) + { top: 13, middle: 17 - high / 2 - 4, bottom: 12 - high }[note.side];
      const lines = note.lines.map((runs, i) => {
        const bits = runs.map(([bold, text]) => `<tspan${bold ? ' font-weight="700"' : ""}>${safe(text)}</tspan>`);
        const colour = note.colour ? `style="fill:${note.colour}"` : "";
        return `<text class="note" xml:space="preserve" x="${n(X(note.x) + note.shift)}" y="${n(y + i * LINE)}" text-anchor="${note.anchor}" ${colour}>${bits.join("")}</text>`;
      });
      over.push(...lines);
    }
    const clip = `<clipPath id="c"><path d="M${n(left - 2)} ${n(top - 2)}H${n(width - right + 2)}V${n(bottom + 2)}H${n(left - 2)}Z"/></clipPath>`;
    const defs = [...patterns.values()].map(([, , text]) => text).join("");
    return `<defs>${clip}${defs}</defs>${legend}${out.join("")}<g clip-path="url(#c)">${inside.join("")}</g>${over.join("")}`;
  }

  const back = font.getPropertyValue("--st-background-color");
  const style =
    `text{font:${font.fontSize} ${font.fontFamily.replace(/"/g, "'")};fill:${font.color}}` +
    `.halo{stroke:${back}}` +
    `.bar,.area,.box{stroke:${font.color};stroke-opacity:.45;stroke-width:.75}` +
    `.note{paint-order:stroke;stroke:${back};stroke-width:3px}` +
    `.grid{stroke:${font.color};fill:none;stroke-opacity:.15}`;
  root.querySelector(".save").onclick = () => {
    const width = Math.max(600, root.clientWidth);
    const inside = drawn(width);
    const size = `width="${width}" height="${data.height}"`;
    const text = `<svg xmlns="http://www.w3.org/2000/svg" ${size}><style>${style}</style>` +
      `<rect ${size} fill="${back}"/>${inside}</svg>`;
    root.redraw();
    save(text, data);
  };

  let at = -1; // the box that is pointed at
  const hide = () => {
    at = -1;
    said.hidden = true;
    svg.style.cursor = "default";
    svg.querySelector(".here")?.setAttribute("d", "");
  };
  const show = (box) => {
    at = box;
    const { x0, x1, y0, y1, of } = boxes[box];
    said.replaceChildren(
      ...of.said.flatMap((runs) => [
        ...runs.map(([bold, text]) => Object.assign(document.createElement(bold ? "b" : "span"), { textContent: text })),
        document.createElement("br"),
      ]),
    );
    said.hidden = false;
    const [more, width] = [x0 === x1 ? 8 : 1, root.clientWidth];
    svg.querySelector(".here").setAttribute("d", `M${x0 - more} ${y0 - more}H${x1 + more}V${y1 + more}H${x0 - more}Z`);
    svg.style.cursor = of.take === null ? "default" : "pointer";
    const x = Math.min(x0 === x1 ? x1 + 14 : (x0 + x1) / 2, x1 + 14);
    said.style.left = `${Math.max(0, x + said.offsetWidth < width ? x : Math.min(x0 - 14, width) - said.offsetWidth)}px`;
    said.style.top = `${y1 + 10 + said.offsetHeight > data.height + 40 ? Math.max(0, y0 - 10 - said.offsetHeight) : y1 + 10}px`;
  };
  const take = () => {
    const of = boxes[at]?.of;
    if (of && of.take !== null) setTriggerValue("taken", of.take);
  };
  const pointed = (event) => {
    const place = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const away = ({ x0, x1, y0, y1 }) => {
      const [h, v] = [Math.max(x0 - x, 0, x - x1), Math.max(y0 - y, 0, y - y1)];
      return x0 === x1 ? Math.hypot(h, v) : h || v ? Infinity : 0;
    };
    let [best, least] = [-1, 18];
    boxes.forEach((box, i) => {
      const far = away(box);
      if (far < least || (far === least && far === 0)) [best, least] = [i, far];
    });
    if (best < 0) hide();
    else if (best !== at || said.hidden) show(best);
  };
  svg.onpointermove = pointed;
  svg.onpointerleave = hide;
  svg.onclick = (event) => {
    pointed(event);
    take();
  };
  picture.onfocus = () => boxes.length && picture.matches(":focus-visible") && show(0);
  picture.onblur = hide;
  picture.onkeydown = (event) => {
    if (event.key === "Enter") return take();
    if (event.key === "Escape") return hide();
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step || !boxes.length) return;
    event.preventDefault();
    show(Math.min(boxes.length - 1, Math.max(0, at + step)));
  };
  picture.setAttribute("aria-label", data.alt);

  root.redraw = () => {
    const inside = drawn(root.clientWidth);
    svg.style.height = `${data.height}px`;
    svg.innerHTML = `${inside}<path class="here"/>`;
    hide();
  };
  root.redraw();
  if (!root.watched) {
    let width = root.clientWidth;
    root.watched = new ResizeObserver(() => {
      if (root.clientWidth === width) return;
      width = root.clientWidth;
      requestAnimationFrame(() => root.redraw());
    });
    root.watched.observe(root);
  }
}
