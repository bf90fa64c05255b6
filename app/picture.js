// Saves what a component draws as a file: the text of an SVG, or a PNG of twice its size.
function save(text, { file, format }) {
  const saved = (address) => {
    const link = document.createElement("a");
    Object.assign(link, { href: address, download: `${file}.${format}` }).click();
  };
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  if (format === "svg") return saved(address);
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    saved(canvas.toDataURL("image/png"));
  };
  image.src = address;
}
