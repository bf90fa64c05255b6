// Files that are dropped anywhere on the page, but on what takes files itself.
const binary = (blob) =>
  new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsBinaryString(blob);
  });
const taken = (event) => event.target.closest?.('[data-testid="stFileUploaderDropzone"]');
export default function ({ data, setTriggerValue }) {
  document.body.ondragover = (event) => {
    if (event.dataTransfer?.types.includes("Files") && !taken(event)) event.preventDefault();
  };
  document.body.ondrop = async (event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length || taken(event)) return;
    event.preventDefault();
    const read = async (file) => {
      const pickle = new Uint8Array(await file.slice(0, 1).arrayBuffer())[0] === 0x80;
      if (!pickle) return [file.name, file.size > data.most ? "" : await file.text(), "", file.size];
      return [file.name, "", btoa(await binary(file.slice(0, data.held)))];
    };
    setTriggerValue("dropped", await Promise.all(files.map(read)));
  };
  return () => (document.body.ondragover = document.body.ondrop = null);
}
