"use strict";
(() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const answer = find("form.answer");
  const keys = find("#keys");
  const place = find("[data-here]");
  let comment = answer && find("textarea", answer);
  let pressed; // the chosen option on which a click began; keys of radio buttons also make clicks

  const notice = (level, text) =>
    find("#notices").append(Object.assign(document.createElement("p"), { className: `notice ${level}`, textContent: text }));

  // What an expert types stays in this browser until the server has stored it.
  const draft = (id) => `memalign-review:${document.body.dataset.who}:${id}`;
  const save = () => {
    const typed = [...new FormData(answer)].filter(([name, value]) => answer.elements[name].type !== "hidden" && value !== "");
    localStorage.setItem(draft(answer.dataset.draft), JSON.stringify(typed));
  };
  const typedIn = (id) => JSON.parse(localStorage.getItem(draft(id)) || "[]");
  const restore = () => {
    const typed = typedIn(answer.dataset.draft);
    for (const [name, value] of typed) if (answer.elements[name] && answer.elements[name].type !== "hidden") answer.elements[name].value = value;
    if (typed.length) notice("good", "What you chose and typed here before is back.");
  };
  const done = new URLSearchParams(location.search).get("done");
  if (done) {
    localStorage.removeItem(draft(done));
    history.replaceState(null, "", location.pathname);
  }
  const missing = !answer && /^\/review\/case\/([^/]+)$/.exec(location.pathname);
  const unsent = missing ? typedIn(decodeURIComponent(missing[1])).map(([, value]) => value) : [];
  if (unsent.length) notice("warn text", `You chose and typed here, and it may not be stored: copy what you want to keep.\n\n${unsent.join("\n")}`);

  // The field that a digit answers: the focused one, or else the first without an answer.
  const questions = answer ? all(".field:not(.comment)", answer) : [];
  const isOpen = (field) => !find("input:checked", field) && !find("input[type=number]", field)?.value;
  let last = questions[0];
  const current = () => {
    const focused = document.activeElement?.closest(".field");
    return questions.includes(focused) ? focused : questions.find(isOpen) || last;
  };
  const point = () => questions.forEach((field) => field.classList.toggle("next", questions.length > 1 && field === current()));
  const toggle = (option) => {
    option.checked = !option.checked;
    option.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const choose = (digit, event) => {
    last = current();
    const number = last && find("input[type=number]", last);
    if (number) return number.focus(); // the digit is typed there
    const option = last && find(`[data-digit="${digit}"]`, last);
    if (!option) return;
    event.preventDefault();
    if (questions.length === 1) option.focus();
    toggle(option);
    (questions.find(isOpen) || last).scrollIntoView({ block: "nearest" });
  };

  const quote = () => {
    const text = getSelection().toString().trim().replace(/\s+/g, " ");
    if (!text || !comment || !find("article").contains(getSelection().anchorNode)) return;
    const before = comment.value && !/\s$/.test(comment.value) ? `${comment.value} ` : comment.value;
    comment.value = `${before}“${text.length > 500 ? `${text.slice(0, 500)}…` : text}” `;
    comment.dispatchEvent(new Event("input", { bubbles: true }));
    getSelection().removeAllRanges();
    comment.focus();
  };

  // The comment on a question is the next field.
  const toComment = () => find("textarea", last?.nextElementSibling || answer).focus();

  document.addEventListener("keydown", (event) => {
    const target = event.target instanceof Element ? event.target : document.body;
    pressed = null;
    // Of a layout without Latin letters, the place on the keyboard counts.
    const key = event.key > "~" ? event.code.replace(/^(Key|Digit|Numpad)/, "").toLowerCase() : event.key;
    const typing = target.closest("textarea, select, input:not([type=radio])");
    if (event.repeat || event.isComposing) {
      if (key === "Enter" && target.type !== "textarea") event.preventDefault();
      return;
    }
    if (key === "Enter" && (event.ctrlKey || event.metaKey) && typing?.form) {
      event.preventDefault();
      return typing.form.requestSubmit(find("button", typing.form));
    }
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (key === "Escape") return typing?.blur();
    if (typing && !(typing.type === "number" && /^[a-z?]$/.test(key))) return;
    if (/^\d$/.test(key)) return choose(key, event);
    if (key === "Enter" && target.closest("a, button, summary")) return;
    const button = find(`[data-key="${CSS.escape(key)}"]`);
    const act = { w: answer && toComment, q: answer && quote, "?": () => keys.showModal() }[key] || (button && (() => button.click()));
    if (!act) return;
    event.preventDefault();
    act();
  });

  document.addEventListener("submit", (event) => {
    const form = event.target, question = event.submitter?.dataset.confirm;
    if (form.method === "dialog") return;
    if (form.ariaBusy === "true" || (question && !confirm(question))) return event.preventDefault();
    form.ariaBusy = "true"; // so that nothing is sent twice
    setTimeout(() => (form.ariaBusy = null), 5000); // the request may have been stopped
  });
  // A click on the chosen option takes the choice back. The second one of a double click does not.
  document.addEventListener("mousedown", (event) => (pressed = event.detail < 2 ? event.target.closest(".option")?.querySelector("input:checked") : null));
  document.addEventListener("click", (event) => {
    if (event.target === pressed) {
      toggle(pressed);
      pressed = null;
    }
    if (event.target.closest("[data-keys]")) keys.showModal();
  });
  window.addEventListener("pageshow", () => all("[aria-busy]").forEach((form) => (form.ariaBusy = null)));
  for (const fault of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(fault, () => notice("bad", "This could not be loaded. Try again in a moment."));
  }
  all("[data-keys]").forEach((button) => (button.hidden = false));

  if (answer) {
    if ("fresh" in answer.dataset) restore();
    answer.addEventListener("input", () => {
      save();
      point();
      all(".preview").forEach((preview) => preview.replaceChildren()); // they are of an earlier answer
    });
    answer.addEventListener("focusin", (event) => {
      if (event.target.matches("textarea")) comment = event.target;
      point();
    });
    point();
  }
  if (place) {
    const body = new URLSearchParams({ token: place.dataset.token });
    const beat = () => document.hidden || fetch(`${place.dataset.here}/beat`, { method: "POST", body }).catch(() => {});
    setInterval(beat, 60000);
  }
})();
