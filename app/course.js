// Draws memory over a step as areas; where one points, or leads the arrow keys, it says what is
// alive, and a click or Enter says why.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-course");
  const [picture, said, legend] = [".picture", ".said", ".legend"].map((s) => root.querySelector(s));
  const [LEFT, RIGHT, BASE] = [48, 12, 32];
  const safe = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const font = getComputedStyle(root);
  const say = (x, y, text, anchor = "end", more = "") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" ${more}>${safe(text)}</text>`;
  const dashed = `stroke="${data.limit_colour}" stroke-width="2" stroke-dasharray="9 6"`;
  const ticks = (top, about) => {
    const least = top / about;
    const ten = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= least);
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => +(i * step).toPrecision(6));
  };
  const many = data.stages.length > 1;
  const high = (data.height - BASE) / data.stages.length;
  const bottom = (row) => (row + 1) * high - (many && row < data.stages.length - 1 ? 0.12 * high : 0);
  const up = (row, gib) => bottom(row) - (gib / data.top) * (bottom(row) - row * high - (many ? 4 : 0));

  function drawn(width) {
    const across = (at) => LEFT + ((width - LEFT - RIGHT) * at) / data.end;
    const out = ticks(data.end, 8).map(
      (at) =>
        `<path class="grid" d="M${across(at)} 0V${data.height - BASE}"/>` +
        say(across(at), data.height - BASE + 15, at.toLocaleString("en"), "middle"),
    );
    out.push(say((LEFT + width - RIGHT) / 2, data.height - 3, data.unit, "middle"));
    data.stages.forEach((stage, row) => {
      ticks(data.top, many ? 3 : 5).forEach((gib) => {
        const y = up(row, gib);
        out.push(`<path class="grid" d="M${LEFT} ${y}H${width - RIGHT}"/>`, say(LEFT - 6, y + 4, `${gib}`));
      });
      const middle = (bottom(row) + row * high) / 2;
      out.push(say(11, middle, stage.name, "middle", `transform="rotate(-90 11 ${middle})"`));
      let under = stage.edges.slice(1).map(() => 0);
      const x = stage.edges.map((at) => across(at).toFixed(1));
      stage.sizes.forEach((sizes, part) => {
        if (!sizes) return;
        const over = under.map((low, i) => low + sizes[i]);
        const line = (tops) => tops.map((top) => up(row, top).toFixed(1));
        const [above, below] = [line(over), line(under)];
        let d = `M${x[0]} ${below[0]}`;
        above.forEach((y, i) => (d += `V${y}H${x[i + 1]}`));
        for (let i = below.length - 1; i >= 0; i--) d += `V${below[i]}H${x[i]}`;
        out.push(`<path class="area" fill="${data.parts[part][1]}" d="${d}Z"/>`);
        under = over;
      });
      if (data.limit) {
        const line = `d="M${LEFT} ${up(row, data.limit)}H${width - RIGHT}"`;
        out.push(`<path ${line} class="halo"/><path ${line} ${dashed}/>`);
      }
      if (stage.peak) {
        const [at, gib, text] = stage.peak;
        const [px, py, late] = [across(at), up(row, gib), at > data.end / 2];
        const above = up(row, Math.max(...under)) - 10; // of all areas, so that none is behind it
        out.push(
          `<path class="lead" d="M${px} ${py}V${above - 4}h${late ? -6 : 6}"/>`,
          say(px + (late ? -10 : 10), above, text, late ? "end" : "start", 'class="peak"'),
        );
      }
    });
    if (!data.limit) {
      out.push(say(width - RIGHT, 13, `↑ ${data.limit_text}`, "end", `style="fill:${data.limit_colour}"`));
    }
    return out.join("");
  }
  const keys = [
    ...data.parts.filter((_, part) => data.stages.some((s) => s.sizes[part])),
    ...(data.limit ? [[data.limit_text, ""]] : []),
  ];

  // The same, with its legend and without a page around it.
  function file() {
    const width = Math.max(600, root.clientWidth);
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `13px ${font.fontFamily}`;
    let [x, y] = [LEFT, 16];
    const marks = keys.map(([name, colour]) => {
      const long = pen.measureText(name).width + 34;
      if (x + long > width) [x, y] = [LEFT, y + 18];
      const mark = colour
        ? `<rect x="${x}" y="${y - 10}" width="11" height="11" fill="${colour}"/>`
        : `<path d="M${x} ${y - 4}h16" ${dashed}/>`;
      const text = mark + say(x + 20, y, name, "start");
      x += long;
      return text;
    });
    const style =
      `text{font:13px ${font.fontFamily.replace(/"/g, "'")};fill:${font.color}}.peak{font-weight:700}` +
      `.area{stroke:${font.color};stroke-opacity:.45;stroke-width:.75}` +
      `.grid,.lead{stroke:${font.color};fill:none}.grid{stroke-opacity:.15}` +
      `.halo{stroke:${font.getPropertyValue("--st-background-color")};stroke-width:5;stroke-opacity:.7}`;
    const back = font.getPropertyValue("--st-background-color");
    const size = `width="${width}" height="${data.height + y + 12}"`;
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" ${size}><style>${style}</style>` +
      `<rect ${size} fill="${back}"/>${marks.join("")}` +
      `<g transform="translate(0 ${y + 12})">${drawn(width)}</g></svg>`
    );
  }
  root.querySelector(".save").onclick = () => save(file(), data);

  const svg = picture.querySelector("svg");
  svg.style.height = `${data.height}px`;
  root.redraw = () => (svg.innerHTML = drawn(root.clientWidth) + '<path class="here"/>');
  root.redraw();
  if (!root.watched) {
    root.watched = new ResizeObserver(() => requestAnimationFrame(() => root.redraw()));
    root.watched.observe(root);
  }
  legend.replaceChildren(
    ...keys.map(([name, colour]) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      if (colour) mark.style.background = colour;
      else mark.style.borderTop = `2px dashed ${data.limit_colour}`;
      item.append(mark, name);
      return item;
    }),
  );
  picture.setAttribute("aria-label", data.alt);

  let at = null; // the stage and the slot that is pointed at
  const hide = () => {
    at = null;
    said.hidden = true;
    svg.querySelector(".here").setAttribute("d", "");
  };
  hide();
  const show = (row, slot) => {
    at = [row, slot];
    const { edges, words, paths } = data.stages[row];
    const [from, to] = [edges[slot], edges[slot + 1]];
    const width = root.clientWidth;
    const x = LEFT + ((width - LEFT - RIGHT) * (from + to)) / 2 / data.end;
    svg.querySelector(".here").setAttribute("d", `M${x} ${row * high}V${bottom(row)}`);
    const [first, rest] = data.words[words[slot]];
    const title = document.createElement("b");
    title.textContent = first;
    const times = `${from.toFixed(1)} to ${to.toFixed(1)} ${data.unit}`;
    said.replaceChildren(title, `\n${times}\n${rest}${paths[slot] ? "\nClick to see why." : ""}`);
    said.hidden = false;
    svg.style.cursor = paths[slot] ? "pointer" : "default";
    const after = x + 12 + said.offsetWidth < width;
    said.style.left = `${after ? x + 12 : Math.max(0, x - 12 - said.offsetWidth)}px`;
    said.style.top = `${row * high + 8}px`;
  };
  const why = () => {
    const path = at && data.stages[at[0]].paths[at[1]];
    if (path) setTriggerValue("why", path);
  };
  const pointed = (event) => {
    const box = svg.getBoundingClientRect();
    const time = ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * data.end;
    const row = Math.min(data.stages.length - 1, Math.floor((event.clientY - box.top) / high));
    const slot = data.stages[Math.max(0, row)].edges.findIndex((edge) => edge > time) - 1;
    if (time < 0 || slot < 0) hide();
    else show(Math.max(0, row), slot);
  };
  svg.onpointermove = pointed;
  svg.onpointerleave = hide;
  svg.onclick = (event) => {
    pointed(event);
    why();
  };
  picture.onfocus = () => picture.matches(":focus-visible") && show(...data.peak);
  picture.onblur = hide;
  picture.onkeydown = (event) => {
    const [row, slot] = at ?? data.peak;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Enter") return why();
    if (event.key === "Escape") return hide();
    if (!step && !down) return;
    event.preventDefault();
    const to = Math.min(data.stages.length - 1, Math.max(0, row + (down ?? 0)));
    show(to, Math.min(data.stages[to].words.length - 1, Math.max(0, slot + (step ?? 0))));
  };
}
