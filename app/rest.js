// Says that nobody has changed the plan for a moment; `data.run` is another after each change.
//
// Who goes Back in this moment has asked for another plan. The server may take that message and this
// one for a single one, of somebody who went nowhere, and would lead to the newest plan again. So it
// is not said at an address that the run was not of, or only after long.
const PATIENCE = 10; // moments; by then what Back asked for is drawn, with a moment of its own

function address(query) {
  const said = new URLSearchParams(query);
  ["embed", "embed_options"].forEach((name) => said.delete(name)); // Streamlit's own
  said.sort();
  return said.toString();
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const box = (parentElement.getRootNode().host ?? parentElement).closest(".st-key-rests");
  // As high as what stood there last, so that nothing jumps.
  if (box) box.style.minHeight = window.memplanRests ?? "";
  let moments = 0;
  const wait = setInterval(() => {
    if (++moments < PATIENCE && address(location.search) !== address(data.query)) return;
    clearInterval(wait);
    setTriggerValue("over", data.run);
  }, data.quiet);
  return () => {
    clearInterval(wait);
    setTimeout(() => {
      if (!box?.isConnected || box.querySelector(".st-key-rest")) return;
      box.style.minHeight = "";
      window.memplanRests = `${box.offsetHeight}px`;
    }, 300);
  };
}
