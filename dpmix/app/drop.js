"use strict";
// Files that are dropped on the page, or chosen, are copied into its folder (dpmix/app/incoming.py).

async function addFiles(files) {
  const most = Number(byId("add").dataset.most), problems = [], added = [];
  for (const [at, file] of files.entries()) {
    try {
      if (file.size > most) throw new Error(`${file.name}: more than ${most / 1e9} GB; copy it into the folder yourself`);
      added.push(await post(`drop?name=${encodeURIComponent(file.name)}`, file, `copying ${file.name} (${at + 1} of ${files.length}) …`));
    } catch (error) { problems.push(error.message); }
  }
  byId("begin").open = true;
  byId("added").textContent = added.length ? `Copied: ${added.join(", ")}.` : "";
  const ticked = [...tickedFiles(), ...added];
  await showFiles();
  for (const box of document.querySelectorAll(".file")) box.checked = ticked.includes(box.value) && !box.disabled;
  if (state.view) await showWorkspaces();
  await showRuns();
  if (problems.length) throw new Error(problems.join("; "));
}

// A folder has no content to send.
function dropped(transfer) {
  const folders = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory);
  if (folders.length) throw new Error(`${folders[0].name}: is a folder; drop its files`);
  return [...transfer.files];
}

document.addEventListener("DOMContentLoaded", () => {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (on) => document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // else the browser would open the file instead of the page
    event.dataTransfer.dropEffect = "copy";
    mark(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    guarded(() => addFiles(dropped(event.dataTransfer)));
  });
  byId("choose-files").onclick = () => byId("add").click();
  byId("add").onchange = () => guarded(async () => {
    const files = [...byId("add").files];
    byId("add").value = "";
    await addFiles(files);
  });
});
