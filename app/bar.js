// Draws the bar from its data, and changes what is there already instead of drawing it anew.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-bar");
  const make = (name, kind, into) => {
    const node = document.createElement(kind);
    node.className = name;
    into.appendChild(node);
    return node;
  };
  if (!root.firstChild) {
    const track = make("track", "div", root);
    make("limit", "div", track);
    const below = make("below", "div", root);
    make("legend", "div", below);
    make("limit-text", "span", below);
  }
  const track = root.querySelector(".track");
  const limit = root.querySelector(".limit");
  const seen = new Map([...track.querySelectorAll(".part")].map((n) => [n.dataset.part, n]));
  let before = 0;
  for (const part of data.parts) {
    let node = seen.get(part.key);
    if (!node) {
      node = make("part", "button", track);
      node.type = "button";
      node.style.width = "0";
    }
    seen.delete(part.key);
    track.insertBefore(node, limit);
    node.dataset.part = part.key;
    node.dataset.bytes = part.bytes;
    node.title = `${part.name}: ${part.text}. Click to see why.`;
    node.setAttribute("aria-label", `${part.name}: ${part.text}, why?`);
    node.style.color = part.ink;
    node.style.background = part.hatched
      ? `repeating-linear-gradient(135deg, ${part.colour} 0 2px, transparent 2px 6px)`
      : part.colour;
    // Its size stands on the longer side of the limit.
    const [left, right] = [data.limit - before, before + part.share - data.limit];
    const crossed = Math.max(0, Math.min(left, right));
    node.style.padding = left < right ? `0 0 0 ${crossed}%` : `0 ${crossed}% 0 0`;
    node.textContent = part.share - crossed > 9 && !part.hatched ? part.text : "";
    before += part.share;
    node.onclick = () => setTriggerValue("why", part.path);
    requestAnimationFrame(() => (node.style.width = `${part.share}%`));
  }
  seen.forEach((node) => node.remove());
  limit.style.left = `calc(${data.limit}% - 1px)`;
  const legend = root.querySelector(".legend");
  legend.replaceChildren(
    ...data.legend.map((part) => {
      const item = document.createElement("span");
      const mark = make("mark", "i", item);
      mark.style.background = part.hatched
        ? `repeating-linear-gradient(135deg, ${part.colour} 0 2px, transparent 2px 4px)`
        : part.colour;
      item.append(part.name);
      return item;
    }),
  );
  const said = root.querySelector(".limit-text");
  said.replaceChildren();
  if (data.limit_text) make("line", "i", said);
  said.append(data.limit_text);
}
