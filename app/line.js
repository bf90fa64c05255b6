// Draws a line of figures, and changes what is there already instead of drawing it anew.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-line");
  const seen = new Map([...root.children].map((node) => [node.dataset.of, node]));
  let last = null;
  for (const item of data.items) {
    const of = item.path ?? item.text;
    let node = seen.get(of);
    seen.delete(of);
    if (!node) {
      node = document.createElement("div");
      node.dataset.of = of;
      const body = item.path ? node.appendChild(document.createElement("button")) : node;
      if (item.path) body.type = "button";
      for (const kind of ["i", "p"]) body.appendChild(document.createElement(kind));
      body.querySelector("i").ariaHidden = "true";
      body.querySelector("p").append(document.createElement("strong"), "");
    }
    const names = ["item"];
    if (item.path) names.push(`st-key-why_${item.path.replace(/[^a-zA-Z0-9_-]/g, "-")}`);
    if (item.verdict) names.push(`st-key-verdict_${item.verdict}`);
    node.className = names.join(" ");
    for (const [name, value] of [
      ["data-help", item.help],
      ["aria-description", item.help],
      ["role", item.help && "note"],
      ["tabindex", item.help && "0"],
    ]) {
      if (value) node.setAttribute(name, value);
      else node.removeAttribute(name);
    }
    node.querySelector("i").textContent = item.icon ?? "";
    const [bold, text] = node.querySelector("p").childNodes;
    bold.textContent = item.bold ?? "";
    text.data = item.text ?? "";
    if (item.path) node.firstChild.onclick = () => setTriggerValue("why", item.path);
    const place = last ? last.nextSibling : root.firstChild;
    if (place !== node) root.insertBefore(node, place);
    last = node;
  }
  seen.forEach((node) => node.remove());
}
