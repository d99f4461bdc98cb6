// The choice of a version: those that publish.py has put beside this one. Without them there is none.
const box = document.getElementById("versions");
const root = new URL(box.dataset.root || ".", location);
fetch(new URL("../versions.json", root)).then((answer) => answer.json()).then((versions) => {
  const here = root.pathname.split("/").at(-2);
  const page = location.pathname.slice(root.pathname.length);
  const choice = box.querySelector("select");
  for (const one of versions) choice.add(new Option(one, one, false, one === here));
  choice.onchange = async () => {
    const there = new URL(`../${choice.value}/`, root);
    const same = new URL(page, there);
    location = (await fetch(same, { method: "HEAD" })).ok ? same : there;
  };
  box.hidden = false;
}).catch(() => {});
