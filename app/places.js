// Links to the views, each with what the address says of the plan when it is wanted; and files that
// are dropped anywhere on the page, but on what takes files itself.
const binary = (blob) =>
  new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsBinaryString(blob);
  });
const PHONE = 768; // pixels of a window at most in which the sidebar is a sheet over the page
// A sheet that was left open covers no page that is opened later: Streamlit remembers it as it does
// the sidebar of a wide window.
window.memplanForgets ??= document.addEventListener("visibilitychange", () => {
  if (!document.hidden || innerWidth > PHONE) return;
  Object.keys(localStorage)
    .filter((key) => key.startsWith("stSidebarCollapsed-"))
    .forEach((key) => localStorage.removeItem(key));
}) ?? true;
const own = (event) => event.target.closest?.('[data-testid="stFileUploaderDropzone"]');
export default function (component) {
  const { data, parentElement, setStateValue, setTriggerValue } = component;
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
  document.body.ondragover = (event) => {
    if (data.drops && event.dataTransfer?.types.includes("Files") && !own(event)) event.preventDefault();
  };
  document.body.ondrop = async (event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!data.drops || !files.length || own(event)) return;
    event.preventDefault();
    const read = async (file) => {
      const pickle = new Uint8Array(await file.slice(0, 1).arrayBuffer())[0] === 0x80;
      if (!pickle) return [file.name, file.size > data.most ? "" : await file.text(), "", file.size];
      return [file.name, "", btoa(await binary(file.slice(0, data.held)))];
    };
    setTriggerValue("dropped", await Promise.all(files.map(read)));
  };
  root.onpointerover = root.onpointerdown = root.onkeydown = renew;
  root.onclick = (event) => {
    const a = event.target.closest("a");
    if (!a || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // a new tab
    event.preventDefault();
    // A state, which each message repeats: a trigger is lost with a run that is stopped for the next.
    setStateValue("go", `${a.dataset.to} ${Date.now()}`);
  };
}
