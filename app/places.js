// Links to the views, each with what the address says of the plan when it is wanted.
export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".memplan-places");
  const address = (to) => {
    const query = new URLSearchParams(location.search);
    query.delete(data.without);
    return new URL(`./${to.replace("/", "")}${query.size ? "?" : ""}${query}`, location).href;
  };
  const renew = () => root.querySelectorAll("a").forEach((a) => (a.href = address(a.dataset.to)));
  data.rows.forEach((links, n) => {
    const row = root.children[n];
    while (row.children.length > links.length) row.lastChild.remove();
    links.forEach((link, i) => {
      const a = row.children[i] ?? row.appendChild(document.createElement("a"));
      a.textContent = link.label;
      a.dataset.to = link.to;
      a.ariaCurrent = link.here ? "page" : null;
    });
  });
  renew();
  root.onpointerover = root.onpointerdown = root.onkeydown = renew;
  root.onclick = (event) => {
    const a = event.target.closest("a");
    if (!a || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // a new tab
    event.preventDefault();
    // A state, which each message repeats: a trigger is lost with a run that is stopped for the next.
    setStateValue("go", `${a.dataset.to} ${Date.now()}`);
  };
}
