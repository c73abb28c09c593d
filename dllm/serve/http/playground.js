"use strict";
// Nothing is stored: the last runs live in this page alone. Whatever a model or the server says is set as text.

const byId = (id) => document.getElementById(id);
// SERVED: what the server says of itself: model, gradient (of the trace page, early to late), examples, defaults, command.
const GRADIENT = SERVED.gradient;
const GROUPS = ["sampler", "blocks", "cache", "eos"], OWN = "", KEPT = 20;
const NARROW = 640; // pixels of a phone's window
const UNFOLDED = 3; // options of a part that are seen at once: a dozen of them would push the canvas off the screen
const slider = byId("step"), runs = [];
let scale = 1; // the last forward of the runs that are shown, where the colours end
// What stands in the field of a form, and the example that it begins with.
const FORMS = {
  json_schema: ["JSON schema", '{"type": "array", "items": {"type": "string"}}'],
  regex: ["Pattern, in Python's syntax", '\\[".*"\\]'],
  grammar: ["Grammar, in Lark's syntax", 'start: WORD (" " WORD)*\n%import common.WORD'],
  choice: ["Texts, one in a line", "yes\nno"],
};
// Where the repository explains a part.
const PAGES = {
  sampler: (name) => `docs/samplers/${name}.md`, blocks: () => "docs/blocks.md", cache: () => "docs/caches.md", eos: () => "docs/blocks.md",
};
const FIELDS = ["prompt", "form", "formtext", "length", "temperature", "seed"]; // of the page, in its address
let offered = {}, panes = [], shown = null, control = null, following = true, timer = 0, measured = null;

function element(parent, name, className = "", text = "", more = {}) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  Object.assign(made, more);
  parent.append(made);
  return made;
}

// -- colours ----------------------------------------------------------------------------------------------------

function colours(turn, last) {
  const place = Math.min(Math.max((turn - 1) / Math.max(last - 1, 1), 0), 1) * (GRADIENT.length - 1);
  const at = Math.min(Math.floor(place), GRADIENT.length - 2), part = place - at;
  const rgb = GRADIENT[at].map((low, n) => Math.round(low + (GRADIENT[at + 1][n] - low) * part));
  const linear = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return [`rgb(${rgb.join(" ")})`, (light + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff"];
}

// -- what to choose ---------------------------------------------------------------------------------------------

function newPane(number) {
  const host = element(byId("panes"), "section", "pane");
  host.setAttribute("aria-label", `Setting ${number + 1}`);
  const box = element(host, "fieldset", "choices");
  element(box, "legend", "", `Setting ${number + 1}`);
  const row = element(box, "div", "row");
  const pane = { number, host, chosen: {}, fields: {}, options: {}, tokens: [], history: [] };
  for (const group of GROUPS) {
    const label = element(row, "label", "", group), select = element(label, "select", "", "", { name: group });
    element(select, "option", "", `${SERVED.defaults[group].words} (default)`, { value: OWN });
    for (const [name, offer] of Object.entries(offered[group] ?? {})) {
      element(select, "option", "", name, { value: name, title: offer.doc });
    }
    const options = element(row, "span", "options");
    select.addEventListener("change", () => { showOptions(pane, group, options); explainParts(pane); });
    pane.chosen[group] = select;
    pane.options[group] = options;
    pane.fields[group] = [];
  }
  pane.about = element(box, "div", "about");
  pane.said = element(host, "ul", "said");
  pane.refused = element(host, "p", "refused", "", { hidden: true });
  pane.refused.setAttribute("role", "alert");
  pane.text = element(host, "div", "text");
  pane.text.setAttribute("role", "img");
  pane.status = element(host, "p", "status");
  pane.status.setAttribute("role", "status");
  pane.note = element(host, "p", "note", "", { hidden: true });
  pane.reply = element(host, "pre", "reply");
  pane.reply.setAttribute("aria-label", `Reply of setting ${number + 1}`);
  pane.download = element(host, "button", "", "Download trace", { type: "button", disabled: true });
  pane.download.addEventListener("click", () => download(pane));
  explainParts(pane);
  return pane;
}

function explainParts(pane) { // what each chosen part does, and all that its file says of it
  pane.about.replaceChildren();
  for (const group of GROUPS) {
    const name = pane.chosen[group].value || SERVED.defaults[group].name, offer = offered[group]?.[name];
    if (!offer || (pane.chosen[group].value === OWN && group !== "sampler")) continue;
    const box = element(pane.about, offer.about ? "details" : "div");
    element(box, offer.about ? "summary" : "p", "", `${group} ${name}: ${offer.doc}`);
    if (!offer.about) continue;
    element(box, "pre", "", offer.about);
    const more = element(box, "p", "", `Its page: ${PAGES[group](name)}`);
    for (const paper of offer.papers ?? []) {
      more.append(" · ");
      element(more, "a", "", `arXiv ${paper}`, { href: `https://arxiv.org/abs/${paper}`, target: "_blank", rel: "noreferrer" });
    }
  }
}

function showOptions(pane, group, host) {
  host.replaceChildren();
  const choice = pane.chosen[group].value, options = Object.entries(offered[group][choice]?.options ?? {});
  let place = host;
  pane.fields[group] = options.map(([name, option], number) => {
    if (number === UNFOLDED && options.length > UNFOLDED + 1) {
      const rest = element(host, "details");
      element(rest, "summary", "", `${options.length - UNFOLDED} more of ${choice}`);
      place = element(rest, "div", "row");
    }
    const label = element(place, "label", "", name);
    label.title = option.note ?? "";
    return { name, option, input: newField(label, `${group}.${name}`, group, option) };
  });
}

function newField(label, name, group, option) {
  const words = option.kind === "part" ? Object.keys(offered[group]) : option.choices ?? [];
  if (words.length) {
    const select = element(label, "select", "", "", { name });
    for (const word of option.null ? [OWN, ...words] : words) element(select, "option", "", word, { value: word });
    select.value = option.default ?? OWN;
    return select;
  }
  const input = element(label, "input", "", "", { name });
  if (option.kind === "boolean") return Object.assign(input, { type: "checkbox", checked: option.default });
  const numeric = option.kind === "number" || option.kind === "integer";
  Object.assign(input, numeric ? { type: "number", step: option.kind === "integer" ? "1" : "any" } : { type: "text" });
  if (numeric && option.most !== null) input.max = option.most;
  const given = option.default;
  input.value = given === null ? "" : Array.isArray(given) ? given.join(", ") : given;
  if (option.null) input.placeholder = "none";
  return input;
}

function valueOf({ option, input }) {
  if (option.kind === "boolean") return input.checked;
  const text = input.value.trim();
  if (text === "" && (option.null || input.type === "number")) return option.null ? null : option.default;
  if (option.kind === "number" || option.kind === "integer") return Number(text);
  if (option.kind === "numbers" || option.kind === "integers") return text.split(/[\s,]+/).filter(Boolean).map(Number);
  return text;
}

function showForm() {
  const [label, example] = FORMS[byId("form").value] ?? [];
  byId("written").hidden = !label;
  byId("written").querySelector("span").textContent = label ?? "";
  byId("formtext").value = example ?? "";
}

function form() { // the request's response_format field
  const type = byId("form").value, text = byId("formtext").value;
  if (type === "regex") return { type, pattern: text };
  if (type === "grammar") return { type, grammar: text };
  if (type === "choice") return { type, options: text.split("\n").filter(Boolean) };
  return type === "json_schema" ? { type, json_schema: { name: "form", schema: parsed(text) } } : { type };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The schema is not JSON: ${error.message}.`);
  }
}

function settings(pane) { // the request's diffusion field: what differs from the server's own
  const found = {};
  for (const group of GROUPS) {
    const name = pane.chosen[group].value;
    if (name === OWN) continue;
    const changed = pane.fields[group].map((field) => [field.name, valueOf(field), field.option.default])
      .filter(([, value, given]) => JSON.stringify(value) !== JSON.stringify(given));
    found[group] = { name, ...Object.fromEntries(changed.map(([key, value]) => [key, value])) };
  }
  return found;
}

// -- a run ------------------------------------------------------------------------------------------------------

function newTrack() {
  return { frames: [], widths: [], notes: [], reply: "", cost: null, refused: "", state: "waiting", began: performance.now(), seconds: 0 };
}

async function run() {
  if (byId("run").disabled) return;
  stop();
  play(false);
  tell("");
  if (!byId("prompt").value.trim()) {
    tell("The prompt is empty: write what is to be answered.");
    byId("prompt").focus();
    return;
  }
  keepInAddress();
  const ours = control = new AbortController();
  const prompt = byId("prompt").value;
  const made = { prompt, label: prompt.trim().slice(0, 40), tracks: panes.map(newTrack) };
  runs.unshift(made);
  runs.length = Math.min(runs.length, KEPT);
  byId("earlier").replaceChildren();
  runs.forEach((entry, at) => element(byId("earlier"), "option", "", `${runs.length - at}: ${entry.label}`, { value: at }));
  following = true;
  look(made);
  busy(true);
  toAnswer();
  await Promise.all(panes.map((pane, at) => ask(pane, made.tracks[at], made, ours.signal)));
  if (control !== ours) return;
  busy(false);
  if (innerWidth < NARROW) toAnswer(); // the page has become longer
  if (byId("talk").checked) remember(made);
}

function toAnswer() { // on a phone the answer takes the place of what was chosen
  panes[0].host.querySelector(".text").scrollIntoView({ block: innerWidth < NARROW ? "start" : "nearest" });
}

function remember(made) { // the turn of a conversation, where it was answered
  const done = panes.filter((pane, at) => made.tracks[at].state === "done");
  for (const pane of done) {
    pane.history.push({ role: "user", content: made.prompt }, { role: "assistant", content: made.tracks[pane.number].reply });
    showHistory(pane);
  }
  if (done.length === panes.length) byId("prompt").value = "";
}

function showHistory(pane) {
  pane.said.replaceChildren();
  for (const { role, content } of pane.history) element(pane.said, "li", role, content || "(the answer is empty)");
}

function forget() { // a new conversation
  for (const pane of panes) {
    pane.history = [];
    showHistory(pane);
  }
}

function request(pane) { // its address and its body
  const chat = byId("chat").checked, text = byId("prompt").value, length = Number(byId("length").value);
  const history = byId("talk").checked ? pane.history : [];
  const form_ = form();
  return { chat, body: {
    ...(chat ? { messages: [...history, { role: "user", content: text }] } : { prompt: text }),
    max_tokens: length, temperature: Number(byId("temperature").value), seed: Number(byId("seed").value),
    ...(form_.type === "text" ? {} : { response_format: form_ }), diffusion: settings(pane),
  } };
}

async function ask(pane, track, made, signal) {
  try {
    const { chat, body } = request(pane);
    const diffusion = { ...body.diffusion, snapshots: true, trace: true };
    const reply = await reach(chat ? "v1/chat/completions" : "v1/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, signal,
      body: JSON.stringify({ ...body, stream: true, diffusion }),
    });
    track.state = "decoding";
    for await (const event of events(reply.body)) take(track, event, made);
    track.state = track.cost ? "done" : "cut off";
  } catch (error) {
    if (error.name === "AbortError") track.state = "stopped";
    else Object.assign(track, { state: "refused", refused: error.message });
  }
  track.seconds = (performance.now() - track.began) / 1000;
  if (track.cost) track.widths = widthsOf(track);
  draw(made);
}

async function reach(address, options = {}) { // addresses are relative: the page may lie behind a path
  let reply;
  try {
    reply = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running, and can this machine reach it?");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => null);
  throw new Error(said?.error?.message ?? `Not this server answered, but something before it (status ${reply.status}).`);
}

async function* events(body) { // the data of server-sent events
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Error("The server went away in the middle of the answer.");
    });
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const line = block.split("\n").find((one) => one.startsWith("data: "));
      if (line && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function take(track, event, made) {
  if (event.error) throw new Error(event.error.message);
  if (event.diffusion) {
    const { ends, guessed_ends } = event.diffusion;
    const frame = { ...event.diffusion, ends: new Set(ends), guessed: new Set(guessed_ends) };
    frame.undone = undoneIn(frame, track.frames.at(-1));
    track.frames.push(frame);
    if (frame.mixtures) byId("mixes").hidden = false;
    frame.words.forEach((_, at) => { // while it is decoded, a box only grows
      track.widths[at] = Math.max(track.widths[at] ?? 0, width(shownAt(frame, at)));
    });
  }
  for (const choice of event.choices) {
    track.reply += choice.delta?.content ?? choice.text ?? "";
    if (choice.finish_reason) Object.assign(track, { cost: choice.diffusion, notes: choice.diffusion.notes ?? [] });
  }
  track.seconds = (performance.now() - track.began) / 1000;
  draw(made);
}

function undoneIn(frame, before) { // masks that the frame before had committed, or that were such already
  return new Map(frame.words.flatMap((word, at) => {
    if (word !== null || !before) return [];
    return before.words[at] !== null ? [[at, true]] : before.undone.has(at) ? [[at, false]] : [];
  }));
}

function stop() {
  control?.abort();
  control = null;
  busy(false);
}

function busy(now) {
  byId("stop").disabled = !now;
}

// -- the picture ------------------------------------------------------------------------------------------------

function look(made) {
  shown = made;
  slider.value = 0;
  draw(made);
}

function draw(made) {
  if (made !== shown) return;
  const last = Math.max(0, ...made.tracks.map((track) => track.frames.length));
  slider.max = last;
  if (following) slider.value = last;
  const step = Number(slider.value);
  const now = made.tracks.map((track) => track.frames[Math.min(step, track.frames.length) - 1]?.turn ?? 0);
  const whole = made.tracks.map((track) => track.frames.at(-1)?.turn ?? 0);
  scale = Math.max(1, ...whole); // of both sides: a colour is the same forward in each
  byId("last").textContent = last ? scale : "last";
  byId("where").textContent = last ? `forward ${Math.max(...now)} of ${Math.max(...whole)}` : "";
  panes.forEach((pane, at) => drawPane(pane, made.tracks[at], step));
}

function drawPane(pane, track, step) {
  const count = track ? Math.min(step, track.frames.length) : 0, frame = track?.frames[count - 1];
  pane.refused.hidden = !track?.refused;
  pane.refused.textContent = track?.refused ?? "";
  const empty = track?.state === "done" && !track.reply.trim();
  pane.reply.textContent = empty ? "(the answer is empty)" : track?.reply ?? "";
  pane.note.hidden = !track?.notes.length;
  pane.note.textContent = track?.notes.join(" ") ?? "";
  pane.download.disabled = !track?.cost?.trace;
  pane.status.textContent = track ? statusOf(track, frame) : "";
  const first = track?.frames[0], words = frame?.words ?? first?.words.map(() => null) ?? [];
  pane.text.style.minHeight = track && track.state === "decoding" ? `${pane.text.offsetHeight}px` : "";
  if (pane.tokens.length !== words.length) {
    pane.text.replaceChildren();
    pane.tokens = words.map(() => element(pane.text, "span", "t"));
  }
  words.forEach((word, at) => drawToken(pane.tokens[at], word, at, frame, track));
  pane.text.setAttribute("aria-label", words.map((word) => word ?? "·").join(""));
}

function drawToken(span, word, at, frame, track) { // a frame may be late: it says itself when each token was committed
  const decided = word !== null, turn = decided ? frame.turns[at] : 0, guess = decided ? null : frame?.guesses[at];
  const [ground, letters] = turn ? colours(turn, scale) : ["", ""];
  const shown = frame ? shownAt(frame, at) : "·", undone = !decided && shown === "↶", noise = frame?.shown;
  span.className = ["t", "kept", decided ? "" : undone ? "mask undone" : noise ? "noise" : guess ? "guess" : "mask", turn && turn === frame.turn ? "fresh" : ""].join(" ");
  span.style.backgroundColor = ground;
  span.style.color = letters;
  span.style.width = `${track.widths[at] ?? width("·")}em`;
  span.textContent = shown.replaceAll("\n", "");
  breakLine(span, track.breaks ? track.breaks[at] : lineEnds(shown));
  const mixed = frame?.mixtures?.[at];
  mark_share(span, mixed?.[1]);
  const what = undone ? ", remasked" : turn ? `, forward ${turn}` : decided ? ", given" : guess ? `, ${noise ? `likeliest ${guess[0]}` : "guessed"} with ${guess[1]}` : "";
  const share = mixed ? `; the next forward sees ${percent(mixed[1])} ${visible(mixed[0])}` : "";
  span.title = `position ${at}${what}${share}`;
}

function shownAt(frame, at) { // the word of a position: committed, just remasked, guessed, or masked
  const word = frame.words[at], guess = frame.guesses[at];
  if (word !== null) return frame.ends.has(at) ? "∎" : visible(word);
  if (frame.undone.get(at) || (frame.undone.has(at) && !guess)) return "↶";
  if (frame.shown) return visible(frame.shown[at]); // noise, or a draw, as the next forward sees it
  return guess ? (frame.guessed.has(at) ? "∎" : visible(guess[0])) : "·";
}

const width = (text) => (measured ??= measure(panes[0].text))(text); // in em

function widthsOf(track) { // of all that a place ever showed: every picture then has its tokens in the same places
  const last = track.frames.at(-1);
  if (!last) return [];
  track.breaks = last.words.map((_, at) => lineEnds(shownAt(last, at)));
  return last.words.map((_, at) => Math.max(track.widths[at] ?? 0, width(shownAt(last, at))));
}

const visible = (word) => word.replaceAll("\n", "↵\n").replaceAll("\t", "→\t") || "∅";

function statusOf(track, frame) {
  const decided = frame ? frame.words.filter((word) => word !== null).length : 0;
  const parts = [
    track.state, frame ? `forward ${frame.turn}` : "", frame ? `${decided} of ${frame.words.length} committed` : "",
    track.cost ? `${track.cost.nfe} forward${track.cost.nfe === 1 ? "" : "s"} in all` : "", track.cost ? `${track.cost.tpf.toFixed(2)} tokens per forward` : "",
    `${(track.cost?.seconds ?? track.seconds).toFixed(2)} s`,
  ];
  return parts.filter(Boolean).join(" · ");
}

function download(pane) {
  const trace = shown?.tracks[pane.number]?.cost?.trace;
  if (!trace) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
  link.download = `${trace.id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// -- to take along ----------------------------------------------------------------------------------------------

const quoted = (text) => `'${String(text).replaceAll("'", "'\\''")}'`; // for a shell

function asCommand(pane) { // the command line's words for what this pane asks
  const { body } = request(pane), words = [];
  for (const group of GROUPS) {
    const { name, ...options } = body.diffusion[group] ?? {};
    if (!name) words.push(...SERVED.defaults[group].overrides);
    else words.push(`${group}=${name}`, ...Object.entries(options).map(([key, value]) => setting(group, key, value)));
  }
  words.push(...SERVED.overrides, `gen_length=${body.max_tokens}`, `seed=${body.seed}`);
  if (body.temperature) words.push(`sampling.temperature=${body.temperature}`);
  if (!byId("chat").checked) words.push("chat=false");
  const form_ = body.response_format;
  if (form_) words.push(...constraint(form_));
  return `${SERVED.command} ${quoted(byId("prompt").value)} ${words.join(" ")}`;
}

function setting(group, key, value) {
  const inner = offered[group][panes[0].chosen[group].value]?.options[key]?.kind === "part";
  if (inner) return `${group}/${key}=${value}`;
  const text = Array.isArray(value) ? `[${value.join(",")}]` : String(value);
  return /^[\w.,[\]-]*$/.test(text) ? `${group}.${key}=${text}` : quoted(`${group}.${key}=${text}`);
}

function constraint(form_) {
  const held = form_.pattern ?? form_.grammar ?? (form_.json_schema ? JSON.stringify(form_.json_schema.schema) : "");
  const key = { regex: "pattern", grammar: "grammar", json_schema: "schema" }[form_.type];
  if (form_.type === "choice") return ["constraint=choice", quoted(`constraint.options=[${form_.options.join(",")}]`)];
  if (form_.type === "json_object") return ["constraint=json"];
  return [`constraint=${form_.type}`, quoted(`constraint.${key}=${held}`)];
}

function curlCommand(pane) {
  const { chat, body } = request(pane), address = new URL(chat ? "v1/chat/completions" : "v1/completions", location.href);
  address.hash = "";
  return `curl ${quoted(address)} -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify({ model: SERVED.model, ...body }))}`;
}

function asPython(pane) {
  const { chat, body } = request(pane), base = new URL("v1", location.href);
  base.hash = "";
  const { diffusion, ...plain } = body;
  const given = Object.entries({ model: SERVED.model, ...plain }).map(([key, value]) => `    ${key}=${python(value)},\n`);
  const more = Object.keys(diffusion).length ? `    extra_body=${python({ diffusion })},\n` : "";
  return `from openai import OpenAI\n\nclient = OpenAI(base_url=${python(String(base))}, api_key="none")\n`
    + `reply = client.${chat ? "chat." : ""}completions.create(\n${given.join("")}${more})\n`
    + `print(reply.choices[0].${chat ? "message.content" : "text"})\n`;
}

function python(value) { // a value of JSON as Python writes it
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

async function copy(kind) {
  const made = { command: asCommand, curl: curlCommand, python: asPython, link: () => (keepInAddress(), location.href) };
  try {
    const text = made[kind](panes[0]);
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch (error) {
    tell(error.message.startsWith("The ") ? error.message : made[kind](panes[0])); // no clipboard: to be marked by hand
  }
}

function tell(sentence) {
  byId("said").textContent = sentence;
}

// -- the address ------------------------------------------------------------------------------------------------

function keepInAddress() { // behind the #, which no server is sent
  const found = new URLSearchParams();
  for (const name of FIELDS) if (byId(name).value !== byId(name).defaultValue) found.set(name, byId(name).value);
  if (byId("chat").checked !== byId("chat").defaultChecked) found.set("chat", byId("chat").checked);
  if (byId("compare").checked) found.set("compare", "true");
  panes.forEach((pane, at) => {
    const { ...chosen } = settings(pane);
    if (Object.keys(chosen).length) found.set(`setting${at + 1}`, JSON.stringify(chosen));
  });
  history.replaceState(null, "", `#${found}`);
}

function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (found.has("chat")) byId("chat").checked = found.get("chat") === "true";
  byId("compare").checked = found.get("compare") === "true";
  compare();
  for (const name of FIELDS) {
    if (found.has(name)) byId(name).value = found.get(name);
    if (name === "form") showForm();
  }
  panes.forEach((pane, at) => {
    let chosen = {};
    try {
      chosen = JSON.parse(found.get(`setting${at + 1}`) ?? "{}");
    } catch {
      tell("The address holds settings that cannot be read.");
    }
    for (const group of GROUPS) if (offered[group]?.[chosen[group]?.name]) choose(pane, group, chosen[group]);
  });
}

function choose(pane, group, { name, ...options }) {
  pane.chosen[group].value = name;
  showOptions(pane, group, pane.options[group]);
  for (const field of pane.fields[group]) {
    if (!(field.name in options)) continue;
    const value = options[field.name];
    if (field.option.kind === "boolean") field.input.checked = value;
    else field.input.value = value === null ? "" : Array.isArray(value) ? value.join(", ") : value;
  }
  explainParts(pane);
}

// -- play -------------------------------------------------------------------------------------------------------

function play(on) {
  clearInterval(timer);
  byId("play").setAttribute("aria-pressed", String(on));
  byId("play").textContent = on ? "❚❚ Pause" : "▶ Play";
  if (!on || !shown) return;
  if (Number(slider.value) >= Number(slider.max)) go(0);
  timer = setInterval(() => {
    go(Number(slider.value) + 1);
    if (Number(slider.value) >= Number(slider.max)) play(false);
  }, 1000 / Number(byId("speed").value));
}

function go(step) {
  slider.value = step;
  following = slider.value === slider.max;
  if (shown) draw(shown);
}

const playing = () => byId("play").getAttribute("aria-pressed") === "true";

// -- start ------------------------------------------------------------------------------------------------------

function compare() {
  while (panes.length > (byId("compare").checked ? 2 : 1)) panes.pop().host.remove();
  while (panes.length < (byId("compare").checked ? 2 : 1)) panes.push(newPane(panes.length));
  if (shown) draw(shown);
}

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
byId("stop").addEventListener("click", stop);
byId("play").addEventListener("click", () => play(!playing()));
byId("speed").addEventListener("change", () => { if (playing()) play(true); });
byId("talk").addEventListener("change", () => { byId("chat").checked ||= byId("talk").checked; forget(); });
byId("copy").addEventListener("change", (event) => { if (event.target.value) copy(event.target.value); event.target.value = ""; });
SERVED.examples.forEach((text) => {
  const button = element(byId("examples"), "button", "", text.split("\n")[0].slice(0, 40), { type: "button", title: text });
  button.addEventListener("click", () => { byId("prompt").value = text; run(); });
});
byId("compare").addEventListener("change", compare);
byId("form").addEventListener("change", showForm);
byId("earlier").addEventListener("change", (event) => { following = true; look(runs[Number(event.target.value)]); });
slider.addEventListener("input", () => { play(false); go(slider.value); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  if (event.key === "Escape") stop();
});
byId("ramp").style.background = `linear-gradient(to right, ${GRADIENT.map((rgb) => `rgb(${rgb.join(" ")})`).join(", ")})`;

reach("v1/parts").then(async (reply) => {
  offered = await reply.json();
  byId("form").replaceChildren();
  for (const [type, offer] of Object.entries(offered.response_format)) {
    element(byId("form"), "option", "", type.replace("_", " "), { value: type, title: offer.doc });
  }
}).catch((error) => {
  element(byId("panes"), "p", "refused", `What may be chosen is not known. ${error.message}`);
}).finally(() => {
  readAddress();
  byId("run").disabled = false;
});
