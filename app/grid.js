// Draws a table of text, and changes what is there already instead of drawing it anew.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-grid");
  const [head, body] = root.querySelector("table").children;
  const fit = (node, kinds) => {
    while (node.children.length > kinds.length) node.lastChild.remove();
    kinds.forEach((kind, i) => {
      if (!node.children[i]) node.append(document.createElement(kind));
    });
    return [...node.children];
  };
  const say = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  root.ariaLabel = data.alt;
  const [top] = fit(head, ["tr"]);
  fit(top, data.columns.map(() => "th")).forEach((cell, i) => {
    cell.scope = "col";
    cell.className = data.numbers[i] ? "number" : "";
    say(cell, data.columns[i]);
  });
  const kinds = data.columns.map((_, i) => (i ? "td" : "th"));
  fit(body, data.rows.map(() => "tr")).forEach((line, row) => {
    fit(line, kinds).forEach((cell, column) => {
      if (!column) cell.scope = "row";
      let place = cell;
      const pressed = data.presses[column] && data.takes[row];
      cell.className = data.numbers[column] ? "number" : "";
      if (Boolean(cell.querySelector("button")) !== pressed) cell.replaceChildren();
      if (pressed) {
        place = cell.firstChild ?? cell.appendChild(document.createElement("button"));
        place.type = "button";
        place.onclick = () => setTriggerValue("cell", [row, column]);
      }
      say(place, data.rows[row][column]);
    });
  });
}
