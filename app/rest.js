// Says that nobody has changed the plan for a moment; `data.run` is another after each change.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const box = (parentElement.getRootNode().host ?? parentElement).closest(".st-key-rests");
  // As high as what stood there last, so that nothing jumps.
  if (box) box.style.minHeight = window.memplanRests ?? "";
  const wait = setTimeout(() => setTriggerValue("over", data.run), data.quiet);
  return () => {
    clearTimeout(wait);
    setTimeout(() => {
      if (!box?.isConnected || box.querySelector(".st-key-rest")) return;
      box.style.minHeight = "";
      window.memplanRests = `${box.offsetHeight}px`;
    }, 300);
  };
}
