"use strict";
// Every position has a history of events, so any forward can be shown without the ones before it: a picture costs a
// look at each position and a change of those that differ from the last picture.

const data = JSON.parse(document.getElementById("data").textContent);
const last = data.colours.length; // of the longer decode; both panes share colours and slider
const byId = (id) => document.getElementById(id);
const slider = byId("step"), tip = byId("tip"), playing = byId("play");
let step = -1, timer = 0;

function element(parent, name, className = "", text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

// -- the data ---------------------------------------------------------------------------------------------------

function histories(record) {
  const all = record.answer.map(() => []);
  record.turns.forEach((turn, index) => {
    const step = index + 1, commit = turn.commit;
    const put = (kind) => (at) => all[at].push({ step, kind });
    const corrected = new Set(turn.corrected), replaced = new Set(turn.replaced);
    turn.remask.forEach(put("remask"));
    turn.refused.forEach(put("refused"));
    commit.at.forEach((at, n) => all[at].push({
      step, kind: "commit", token: commit.token[n], p: commit.p[n], entropy: commit.entropy[n], drawn: commit.drawn[n], forced: !!commit.forced[n],
      by: replaced.has(at) ? "replaced" : corrected.has(at) ? "corrected" : "",
    }));
    turn.edit.at.forEach((at, n) => all[at].push({
      step, kind: "commit", token: turn.edit.token[n], p: turn.edit.p[n], entropy: turn.edit.entropy[n], drawn: turn.edit.drawn[n], by: "edited",
    }));
    turn.fill.forEach((at) => all[at].push({ step, kind: "fill", token: record.eos }));
    turn.roll.forEach(put("roll"));
  });
  return all;
}

function guessHistories(record) { // of every position: the model's proposals, each from the forward on that made it
  const all = record.answer.map(() => []);
  record.turns.forEach(({ guess }, index) => {
    guess.at.forEach((at, n) => all[at].push({ step: index + 1, token: guess.token[n], p: guess.p[n] }));
  });
  return all;
}

function showings(record) { // what undecided positions show after each forward; before the first one, the first noise
  const all = record.answer.map((token) => (record.noise ? [{ step: 0, token, drawn: false }] : []));
  record.turns.forEach(({ shown }, index) => shown.at.forEach((at, n) => {
    all[at].push({ step: index + 1, token: shown.token[n], drawn: !!shown.drawn[n] });
  }));
  return all;
}

function mixtures(record) { // of every position: the mixtures that it shows, each for the forward after that turn alone
  const all = record.answer.map(() => new Map());
  record.turns.forEach(({ mixed }, index) => mixed?.at.forEach((at, n) => {
    all[at].set(index + 1, { tokens: mixed.token[n], shares: mixed.p[n], mask: mixed.mask[n] });
  }));
  return all;
}

function eventAt(history, step) { // index of the last event up to a forward, -1: none
  let at = history.length - 1;
  while (at >= 0 && history[at].step > step) at--;
  return at;
}

function word(record, token) {
  if (token === record.eos) return "∎";
  const plain = record.words[token] ?? `<${token}>`;
  return plain.replaceAll("\n", "↵\n").replaceAll("\t", "→\t") || `<${token}>`;
}

// -- a pane -----------------------------------------------------------------------------------------------------

function new_pane(record) {
  const host = element(byId("panes"), "section", "pane");
  host.setAttribute("aria-label", record.heading);
  if (data.panes.length > 1) element(host, "h2", "", record.heading);
  const facts = element(host, "p", "facts");
  for (const [name, value] of Object.entries(record.facts)) {
    facts.append(facts.childNodes.length ? " · " : "");
    element(facts, "b", "", name);
    facts.append(` ${value}`);
  }
  const prompt = record.prompt.map((token) => record.words[token] ?? `<${token}>`).join("");
  if (prompt) {
    const box = element(host, "details", "prompt");
    box.open = prompt.length < 600;
    element(box, "summary", "", "Prompt");
    element(box, "pre", "", prompt.trimEnd());
  }
  const text = element(host, "div", "text");
  text.tabIndex = 0;
  text.setAttribute("role", "application");
  text.setAttribute("aria-label", `Answer of ${record.heading}; left and right arrows walk its tokens`);
  const edges = new Set(record.turns.map((turn) => turn.block[1]).filter((at) => at > 0));
  const pane = {
    record, text, history: histories(record), guesses: guessHistories(record), showing: showings(record), mixed: mixtures(record), shown: record.answer.map(() => ""), chosen: -1,
    edges, strip: null, totals: null, cached: record.turns.some(is_refresh), tokens: record.answer.map(() => element(text, "span", "t")), status: element(host, "p", "status"),
  };
  const width = measure(text);
  pane.tokens.forEach((span, at) => {
    span.at = at;
    const words = finalWords(pane, at);
    const seen = record.given[at] ? [] : [...pane.guesses[at], ...pane.showing[at]];
    span.style.width = `${Math.max(...words.map(width), ...seen.map((one) => width(word(record, one.token))))}em`;
    breakLine(span, lineEnds(words[0]));
  });
  pane.totals = totals(pane);
  pane.strip = new_strip(pane, host);
  text.addEventListener("pointerover", (event) => explain(pane, event.target.at ?? -1));
  text.addEventListener("pointerleave", () => explain(pane, -1));
  text.addEventListener("focus", () => choose(pane, Math.max(pane.chosen, 0)));
  text.addEventListener("blur", () => choose(pane, -1));
  text.addEventListener("keydown", (event) => walk(pane, event));
  return pane;
}

function finalWords(pane, at) { // what a position ends with, then all others that it ever held
  const { record } = pane;
  if (record.given[at]) return [word(record, record.answer[at])];
  const held = pane.history[at].filter((event) => "token" in event).reverse();
  return held.length ? held.map((event) => word(record, event.token)) : ["·"];
}

function totals(pane) { // committed positions after each forward
  const counts = new Array(pane.record.turns.length + 1).fill(0);
  const given = pane.record.given.reduce((sum, flag) => sum + flag, 0);
  const change = new Array(counts.length).fill(0);
  for (const history of pane.history) {
    let fixed = 0;
    for (const event of history) {
      if (event.kind === "refused") continue; // what stood there stays
      const now = event.kind === "commit" || event.kind === "fill" ? 1 : 0;
      change[event.step] += now - fixed;
      fixed = now;
    }
  }
  for (let at = 1; at < counts.length; at++) counts[at] = counts[at - 1] + change[at];
  return { counts, masks: pane.record.answer.length - given };
}

function show(pane, step) {
  const turns = pane.record.turns, next = turns[Math.min(step, turns.length - 1)];
  const [, begin, end] = step < turns.length && next ? next.block : [0, 0, 0];
  for (let at = 0; at < pane.tokens.length; at++) {
    const index = eventAt(pane.history[at], step);
    const event = pane.history[at][index];
    const fresh = event !== undefined && event.step === step;
    const inside = at >= begin && at < end;
    const guess = guessAt(pane, at, step, event);
    const laid = inside && !pane.record.given[at] ? pane.showing[at][eventAt(pane.showing[at], step)] : undefined;
    const mixed = pane.mixed[at].get(step);
    const code = `${index} ${fresh} ${inside} ${guess?.step} ${laid?.step} ${mixed ? step : ""}`;
    if (code !== pane.shown[at]) {
      pane.shown[at] = code;
      draw(pane, at, event, fresh, inside, guess, laid);
      mark_share(pane.tokens[at], mixed && mixed.shares[0]);
    }
  }
  pane.status.textContent = status(pane, Math.min(step, turns.length));
  pane.strip.move(step);
}

function guessAt(pane, at, step, event) { // the guess that is seen at a mask; one from before it was remasked is none
  if (event && "token" in event) return undefined;
  const guess = pane.guesses[at][eventAt(pane.guesses[at], step)];
  return guess && guess.step > (!event || event.kind === "refused" ? 0 : event.step) ? guess : undefined;
}

function before(history, refused) { // what a position is while a commit of it waits: as it was left before
  return history.slice(0, history.indexOf(refused)).findLast((event) => event.kind !== "refused");
}

function draw(pane, at, event, fresh, inside, guess, laid) {
  const waits = fresh && event.kind === "refused";
  if (event && event.kind === "refused") event = before(pane.history[at], event);
  const span = pane.tokens[at], record = pane.record, fixed = event && "token" in event;
  const guessed = !fixed && !record.given[at] && !waits && guess;
  const marks = ["kept", pane.edges.has(at) ? "edge" : "", at === pane.chosen ? "chosen" : "", at === data.parting?.position ? "parted" : ""];
  const [ground, letters] = fixed ? data.colours[event.step - 1] : ["", ""];
  if (fixed) {
    marks.push(event.forced && event.by !== "replaced" ? "forced" : "", event.by ?? "", fresh ? "fresh" : "");
  } else if (!record.given[at]) {
    const kind = laid ? (laid.drawn ? "mask drawn" : "mask noise") : guessed ? "guess" : "mask";
    marks.push(kind, inside ? "open" : "", waits ? "waits" : event ? "undone" : "", fresh ? "fresh" : "");
  }
  span.className = ["t", ...marks].filter(Boolean).join(" ");
  span.style.backgroundColor = ground;
  span.style.color = letters;
  const shown = fixed ? word(record, event.token) : laid ? word(record, laid.token) : guessed ? word(record, guess.token)
    : record.given[at] ? word(record, record.answer[at]) : waits ? "ø" : event ? "↶" : inside ? "░" : "·";
  span.textContent = shown.replaceAll("\n", "");
}

function status(pane, step) {
  const { counts, masks } = pane.totals, turns = pane.record.turns;
  const done = `${counts[step]} of ${masks} committed`;
  if (step === 0) return `before the first of ${turns.length} forwards · ${done}`;
  const turn = turns[step - 1], forced = turn.commit.forced.reduce((sum, flag) => sum + flag, 0);
  const parts = [
    `forward ${step} of ${turns.length}`, `block ${turn.block[0] + 1}`, `${done}, ${turn.commit.at.length} now`,
    forced ? `${forced} forced` : "", turn.remask.length ? `${turn.remask.length} remasked` : "",
    turn.shown.at.length ? `${turn.shown.drawn.reduce((sum, flag) => sum + flag, 0)} of ${turn.shown.at.length} draws kept` : "",
    turn.mixed ? `${turn.mixed.at.length} show mixtures` : "",
    turn.roll.length ? `${turn.roll.length} rolled back` : "", turn.edit.at.length ? `${turn.edit.at.length} edited` : "",
    turn.corrected.length ? `${turn.corrected.length} proposals corrected` : "", turn.refused.length ? `${turn.refused.length} refused` : "",
    turn.replaced.length ? `${turn.replaced.length} replaced` : "", turn.fill.length ? `${turn.fill.length} filled with end of text` : "",
    turn.doubted.length ? `${turn.doubted.length} doubted` : "", `${Math.round(mean(turn.queries))} query tokens`,
    pane.cached ? cache_use(turn.refreshed) : "",
    turn.candidates > 1 ? `candidate ${turn.kept + 1} of ${turn.candidates} kept` : "",
    turn.flops ? `${(turn.flops / 1e9).toPrecision(3)} GFLOP` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

function cache_use(refreshed) {
  const fresh = refreshed.filter((rows) => rows > 0).length;
  if (fresh === 0) return "cache reused";
  return fresh === refreshed.length ? "all layers refreshed" : `${fresh} of ${refreshed.length} layers refreshed`;
}

const is_refresh = (turn) => turn.refreshed.some((rows) => rows > 0);
const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / Math.max(numbers.length, 1);

// -- one token --------------------------------------------------------------------------------------------------

function explain(pane, at) {
  tip.hidden = at < 0;
  if (at < 0) return;
  const record = pane.record, lines = [], history = pane.history[at];
  tip.replaceChildren();
  element(tip, "p", "", `position ${at}${record.given[at] ? ", given" : history.length ? "" : ", never decided"}`);
  for (const event of history) {
    lines.push(element(tip, "p", event.step > step ? "later" : "", sentence(record, event)));
  }
  const laid = pane.showing[at][eventAt(pane.showing[at], step)], index = eventAt(history, step);
  const guess = record.given[at] || laid ? undefined : guessAt(pane, at, step, before_waiting(history, step));
  if (guess) element(tip, "p", "", `forward ${guess.step}: guessed ${JSON.stringify(record.words[guess.token] ?? "")}, probability ${guess.p}`);
  if (laid && index < 0 && !record.given[at]) {
    const what = laid.drawn ? `the draw of forward ${laid.step}` : "noise";
    element(tip, "p", "", `undecided, shows ${JSON.stringify(record.words[laid.token] ?? "")} (id ${laid.token}): ${what}`);
  }
  const mixed = pane.mixed[at].get(step);
  if (mixed) element(tip, "p", "", `the next forward sees ${mixture(record, mixed)}`);
  const box = pane.tokens[at].getBoundingClientRect(), room = document.documentElement;
  const left = Math.min(box.left, room.clientWidth - tip.offsetWidth - 8);
  const above = box.bottom + tip.offsetHeight + 10 > room.clientHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${above ? Math.max(box.top - tip.offsetHeight - 6, 4) : box.bottom + 6}px`;
}

function mixture(record, { tokens, shares, mask }) { // its likeliest tokens and the mask, with their shares
  const named = tokens.map((token, n) => `${percent(shares[n])} ${JSON.stringify(record.words[token] ?? "")}`);
  const more = 1 - mask - shares.reduce((sum, share) => sum + share, 0);
  return [...named, more > 0.0005 ? `${percent(more)} other tokens` : "", `${percent(mask)} mask`].filter(Boolean).join(", ");
}

function before_waiting(history, step) { // the last event up to a forward that is no commit in waiting
  return history.findLast((event) => event.step <= step && event.kind !== "refused");
}

function sentence(record, event) {
  if (event.kind === "remask") return `forward ${event.step}: remasked`;
  if (event.kind === "roll") return `forward ${event.step}: remasked by the block schedule`;
  if (event.kind === "refused") return `forward ${event.step}: refused by the constraint: it does not go with the others`;
  if (event.kind === "fill") return `forward ${event.step}: filled with end of text by the policy`;
  const token = `${JSON.stringify(record.words[event.token] ?? "")} (id ${event.token})`;
  const p = event.p === null ? ", confidence not known" : `, confidence ${event.p.toPrecision(4)}`;
  const entropy = event.entropy === undefined || event.entropy === null ? "" : `, entropy ${event.entropy.toPrecision(3)} nats`;
  const drawn = event.drawn ? `, drawn with probability ${Math.exp(event.drawn).toPrecision(3)}` : "";  // 0: not drawn
  return `forward ${event.step}: ${token}${p}${entropy}${drawn}${reason(event)}`;
}

function reason(event) { // why this token was committed, where it is not the rule's choice among the model's own
  if (event.by === "edited") return ", in the place of the token before";
  if (event.by === "replaced") return ", replaced by the constraint: the proposal did not go with the others";
  const corrected = event.by === "corrected" ? ", corrected by the constraint: the likeliest that fits" : "";
  return corrected + (event.forced ? ", forced: the rule had not accepted it" : "");
}

function choose(pane, at) {
  if (pane.chosen >= 0) pane.tokens[pane.chosen].classList.remove("chosen");
  pane.chosen = at;
  if (at >= 0) {
    pane.tokens[at].classList.add("chosen");
    pane.tokens[at].scrollIntoView({ block: "nearest" });
  }
  explain(pane, at);
}

function walk(pane, event) {
  const end = pane.tokens.length - 1, at = pane.chosen;
  const goal = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: end }[event.key];
  if (event.key === "Escape") pane.text.blur();
  if (goal === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  choose(pane, Math.min(Math.max(goal, 0), end));
}

// -- the strip of forwards --------------------------------------------------------------------------------------

function new_strip(pane, host) {
  const strip = element(host, "figure", "strip"), turns = pane.record.turns;
  strip.setAttribute("role", "img");
  strip.setAttribute("aria-label", `${turns.length} forwards; the line above describes the one the slider stands at`);
  const drawn = lanes(turns).map((lane) => {
    element(strip, "span", "", lane.name);
    return { ...lane, canvas: element(strip, "canvas") };
  });
  const cursor = element(strip, "div", "cursor");
  const left = () => drawn[0].canvas.offsetLeft, width = () => drawn[0].canvas.offsetWidth;
  const paint = () => drawn.forEach((lane) => paint_lane(lane, turns));
  strip.addEventListener("pointerdown", (event) => {
    const share = (event.clientX - strip.getBoundingClientRect().left - left()) / width();
    if (share >= 0) go(Math.min(Math.floor(share * last) + 1, last));
  });
  new ResizeObserver(() => { paint(); move(step); }).observe(strip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  function move(step) {
    cursor.hidden = step < 1 || step > turns.length;
    cursor.style.left = `${left() + (step - 1) * width() / last}px`;
    cursor.style.width = `${Math.max(width() / last, 4)}px`;
  }
  return { move };
}

function lanes(turns) { // a lane: its name, height, and for every forward rows of [height share, colour]
  const most = (values) => Math.max(1, ...values);
  const commits = most(turns.map((turn) => turn.commit.at.length));
  const queries = most(turns.flatMap((turn) => turn.queries));
  const layers = most(turns.map((turn) => turn.refreshed.length));
  const all = [
    { name: `committed (max ${commits})`, height: 34, bars: (turn, at) => [turn.commit.at.length / commits, data.colours[at][0]] },
    { name: `query tokens (max ${queries})`, height: 34, bars: (turn) => [mean(turn.queries) / queries, is_refresh(turn) ? "--accent" : "--bar"] },
  ];
  if (turns.some(is_refresh)) {
    all.push({
      name: "layers refreshed", height: Math.min(Math.max(layers * 4, 12), 96),
      cells: (turn) => turn.refreshed.map((rows) => (rows > 0 ? "--accent" : "--cool")),
    });
  }
  const marked = [
    ["edited", (turn) => turn.edit.at, "--accent"],
    ["remasked", "remask", "--undone"], ["rolled back", "roll", "--undone"], ["end of text", "fill", "--ink"],
    ["corrected", "corrected", "--bar"], ["refused", "refused", "--undone"], ["replaced", "replaced", "--accent"],
  ];
  for (const [name, key, colour] of marked) {
    const there = (turn) => (typeof key === "string" ? turn[key] : key(turn)).length > 0;
    if (turns.some(there)) {
      all.push({ name, height: 12, cells: (turn) => [there(turn) ? colour : ""] });
    }
  }
  return all;
}

function paint_lane(lane, turns) {
  const style = getComputedStyle(document.documentElement), scale = devicePixelRatio || 1;
  const width = lane.canvas.clientWidth, height = lane.height, pen = lane.canvas.getContext("2d");
  lane.canvas.width = width * scale;
  lane.canvas.height = height * scale;
  lane.canvas.style.height = `${height}px`;
  pen.scale(scale, scale);
  const ink = (name) => (name.startsWith("--") ? style.getPropertyValue(name) : name);
  turns.forEach((turn, at) => {
    const x = at * width / last, wide = Math.max(width / last - (width / last > 4 ? 1 : 0), 0.7);
    if (lane.bars) {
      const [share, colour] = lane.bars(turn, at);
      pen.fillStyle = ink(colour);
      pen.fillRect(x, height * (1 - share), wide, height * share);
    } else {
      const cells = lane.cells(turn);
      cells.forEach((colour, row) => {
        if (!colour) return;
        pen.fillStyle = ink(colour);
        pen.fillRect(x, row * height / cells.length, wide, height / cells.length - (cells.length > 12 ? 0 : 0.5));
      });
    }
    if (at > 0 && turn.block[0] !== turns[at - 1].block[0]) { // a block opens
      pen.fillStyle = ink("--ink");
      pen.fillRect(x - 0.5, 0, 1, height);
    }
  });
}

// -- the controls -----------------------------------------------------------------------------------------------

function go(to) {
  to = Math.min(Math.max(to, 0), last);
  if (to === step) return;
  step = to;
  slider.value = step;
  panes.forEach((pane) => {
    show(pane, step);
    if (pane.chosen >= 0) explain(pane, pane.chosen);
  });
  byId("where").textContent = `forward ${step} of ${last}`;
  slider.setAttribute("aria-valuetext", panes.map((pane) => pane.status.textContent).join("; "));
}

function play(on) {
  cancelAnimationFrame(timer);
  playing.setAttribute("aria-pressed", String(on));
  playing.textContent = on ? "❚❚ Pause" : "▶ Play";
  if (!on) return;
  if (step >= last) go(0);
  const pace = Math.min(Math.max(12000 / last, 25), 400), from = step;
  let began = null; // the first frame's time: a page opened in the background has none before somebody sees it
  const frame = (now) => {
    began ??= now;
    go(from + Math.floor((now - began) / pace));
    if (step >= last) play(false);
    else timer = requestAnimationFrame(frame);
  };
  timer = requestAnimationFrame(frame);
}

const running = () => playing.getAttribute("aria-pressed") === "true";
playing.addEventListener("click", () => play(!running()));
slider.addEventListener("input", () => { play(false); go(Number(slider.value)); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target === slider && event.key !== " ") return;
  if (event.key === " ") {
    if (event.target === playing || event.target.tagName === "SUMMARY") return; // the browser clicks it
    play(!running());
  } else {
    const goal = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last }[event.key];
    if (goal === undefined) return;
    play(false);
    go(goal);
  }
  event.preventDefault();
});
if (data.parting) {
  const button = element(byId("parting"), "button", "", `They part in forward ${data.parting.forward}`);
  button.type = "button";
  button.addEventListener("click", () => { play(false); go(data.parting.forward); });
  element(byId("parting"), "span", "", ` at position ${data.parting.position} of the answer: left ${data.parting.known[0]}; right ${data.parting.known[1]}`);
}
const panes = data.panes.map((record) => new_pane(record));
slider.max = last;
byId("last").textContent = last;
const ramp = data.colours.map((pair) => pair[0]);
byId("ramp").style.background = `linear-gradient(90deg, ${[...ramp, ...ramp.slice(-1)].join(",")})`;
go(last);
panes.forEach((pane) => { pane.text.style.minHeight = `${pane.text.offsetHeight}px`; }); // what is below stays in place
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
  go(0);
  play(true);
}
