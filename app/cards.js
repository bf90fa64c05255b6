// Draws the cards once; a press on a button of theirs opens the plan that it names.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".memplan-cards");
  if (!root.firstChild) root.innerHTML = data.html;
  root.onclick = (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    setTriggerValue("opened", button.value);
    root.closest('[data-testid="stMain"]')?.scrollTo({ top: 0 }); // where its verdict is
  };
}
