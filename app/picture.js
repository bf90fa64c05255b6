// Saves what a component draws as a file, below a title: the text of an SVG, or a PNG of twice its
// size. A file has no fonts of its own: letters are as wide at most as those that were measured.
const ABOVE = 28; // pixels of the title
function titled(text, title) {
  const [, width, height] = text.match(/width="([\d.]+)" height="([\d.]+)"/);
  const [, back] = text.match(/<rect [^>]*fill="([^"]*)"/);
  const inside = text
    .replace("<svg ", `<svg y="${ABOVE}" `)
    .replace(/text\{font:([\d.]+)px [^;]*;/, (_, px) => `text{font:${0.86 * px}px Arial,Helvetica,sans-serif;`);
  const said = title.replace(/[&<>]/g, (mark) => `&#${mark.charCodeAt(0)};`);
  const size = `width="${width}" height="${Number(height) + ABOVE}"`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" ${size}><rect ${size} fill="${back}"/>` +
    `<text x="8" y="19" style="font-weight:700">${said}</text>${inside}</svg>`
  );
}
function save(drawn, { file, format, title }) {
  const text = title ? titled(drawn, title) : drawn;
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
