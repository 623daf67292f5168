const rows = [...document.querySelectorAll("#cases tbody tr")];
const only = document.querySelector("#only"), search = document.querySelector("#search");
const show = () => {
  const text = search.value.toLowerCase();
  for (const row of rows)
    row.hidden = !(only.value === "all" || row.classList.contains(only.value)) ||
      !row.textContent.toLowerCase().includes(text);
};
only.addEventListener("change", show);
search.addEventListener("input", show);
document.querySelectorAll("#cases th[data-sort]").forEach((head, column) => {
  let up = true;
  head.addEventListener("click", () => {
    const key = (row) => row.children[column].dataset.key;
    rows.sort((a, b) => (up ? 1 : -1) * key(a).localeCompare(key(b), undefined, { numeric: true }));
    up = !up;
    document.querySelector("#cases tbody").append(...rows);
  });
});
