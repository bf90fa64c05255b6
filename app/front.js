// Runs before Streamlit's own scripts, on the page itself.
(() => {
  // They are beside the page, and so is the server. Not told so, the page looks for the server below
  // each view's own address first, and is answered twice that there is none.
  const here = new URL("./", window.location.origin + window.location.pathname).href;
  window.__streamlit = { BACKEND_BASE_URL: here };

  // The server sends in one frame all that it has to say. It is taken apart in one task, so that the
  // page is drawn once for all of it.
  const apart = (event) => {
    if (!event.isTrusted) return; // a part
    event.stopImmediatePropagation();
    const lengths = new DataView(event.data);
    for (let at = 0; at < event.data.byteLength; ) {
      const from = at + 4;
      at = from + lengths.getUint32(at);
      event.target.dispatchEvent(new MessageEvent("message", { data: event.data.slice(from, at) }));
    }
  };
  const Socket = window.WebSocket;
  window.WebSocket = class extends Socket {
    constructor(address, ...more) {
      const ours = String(address).endsWith("/_stcore/stream");
      super(ours ? `${address}?in_one_frame` : address, ...more);
      if (ours) this.addEventListener("message", apart);
    }
  };
})();
