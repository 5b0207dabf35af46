// A recorded history: the current time and the controls that change it. Each browser has its own current time.
import { tick } from "./panels.js";
import { clock, element } from "./parts.js";
import { take, world } from "./world.js";

const SPEEDS = [1, 2, 4, 8, 20, 60, 300];
/** Milliseconds between two frames. */
const PERIOD = 100;
/** Limits the step after the tab was hidden. */
const LONGEST_LEAP = 1000;

const bar = document.getElementById("replay");
const slider = bar.querySelector("input");
const speeds = bar.querySelector("select");
const play = bar.querySelector(".play");

let outline = null;
let redraw = () => {};
/** Milliseconds since the start. */
let at = 0;
/** The version of the last answer. */
let version = null;
let plays = false;
let isHeld = false;
let wanted = null;
let isAsking = false;

/** Called for every connection: a restarted server may have another history. */
export async function openReplay(draw) {
  redraw = draw;
  world.hello.speed = 0;
  const answer = await fetch("replay");
  if (!answer.ok) return;
  const isFirst = outline === null;
  outline = await answer.json();
  version = null;
  world.began = outline.began;
  bar.hidden = false;
  document.getElementById("chart").style.display = "none";
  slider.max = outline.ends;
  if (isFirst) {
    offerSpeeds(outline.speed);
    at = linked();
  }
  drawLane();
  setPlays(plays && !isFirst);
  show(at);
}

/** The time of a link such as `#t=310`, in seconds. */
function linked() {
  const seconds = Number(/^#t=([0-9.]+)$/.exec(location.hash)?.[1]);
  return Number.isFinite(seconds) ? seconds * 1000 : 0;
}

function offerSpeeds(first) {
  const all = [...new Set([...SPEEDS, first])].sort((a, b) => a - b);
  speeds.replaceChildren(...all.map((speed) => {
    const option = element("option", "", `${speed}×`);
    option.value = speed;
    option.selected = speed === first;
    return option;
  }));
}

// ---- the time ------------------------------------------------------------------------------------

/** Shows a time. While a request is in flight, only the last requested time is kept. */
async function show(time) {
  at = Math.min(Math.max(Math.round(time), 0), outline.ends);
  drawTime();
  wanted = at;
  if (isAsking) return;
  isAsking = true;
  try {
    while (wanted !== null) {
      const asked = wanted;
      wanted = null;
      const answer = await fetch(version === null ? `at/${asked}` : `at/${asked}/since/${version}`);
      if (!answer.ok) throw new Error(await answer.text());
      const delta = await answer.json();
      version = delta.version;
      take(delta);
      redraw();
      tick();
    }
  } catch {
    // The event stream notices when the server is back.
    version = null;
    setPlays(false);
  } finally {
    isAsking = false;
  }
}

function setPlays(on) {
  plays = on;
  play.textContent = on ? "Pause" : "Play";
  play.setAttribute("aria-pressed", String(on));
  world.hello.speed = on ? Number(speeds.value) : 0;
  if (outline) drawTime();
}

function toggle() {
  if (!plays && at >= outline.ends) show(0);
  setPlays(!plays);
}

const GO = {
  nextChange: () => outline.changes.find((time) => time > at) ?? outline.ends,
  previousChange: () => outline.changes.findLast((time) => time < at) ?? 0,
  nextEvent: () => outline.events.find((time) => time > at) ?? outline.ends,
  previousEvent: () => outline.events.findLast((time) => time < at) ?? 0,
};

function step(go) {
  setPlays(false);
  show(GO[go]());
}

let last = performance.now();
setInterval(() => {
  const passed = Math.min(performance.now() - last, LONGEST_LEAP);
  last = performance.now();
  if (!plays || isHeld) return;
  show(at + passed * Number(speeds.value));
  if (at >= outline.ends) setPlays(false);
}, PERIOD);

// ---- drawing -------------------------------------------------------------------------------------

function drawTime() {
  slider.value = at;
  // Steps may be less than a second apart.
  const rest = plays ? "" : `.${String(at % 1000).padStart(3, "0")}`;
  const text = `${clock(at)}${rest} of ${clock(outline.ends)}`;
  slider.setAttribute("aria-valuetext", text);
  bar.querySelector(".time").textContent = text;
  const cursor = bar.querySelector(".cursor");
  for (const end of ["x1", "x2"]) cursor.setAttribute(end, place(at));
}

function place(time) {
  return outline.ends > 0 ? ((time / outline.ends) * 1000).toFixed(1) : "0";
}

/** Draws the failures and the number of pods that were stuck or on unreachable nodes, over the whole history. */
function drawLane() {
  const { samples, episodes, ends } = outline;
  const most = Math.max(4, ...samples.map(([silent, stuck]) => silent + stuck));
  const area = (of) => {
    const points = samples.map((sample, i) => `${(((i + 1) / samples.length) * 1000).toFixed(1)},${(40 - (of(sample) / most) * 34).toFixed(1)}`);
    return `0,40 ${points.join(" ")} 1000,40`;
  };
  bar.querySelector(".silent").setAttribute("points", area(([silent, stuck]) => silent + stuck));
  bar.querySelector(".stuck").setAttribute("points", area(([, stuck]) => stuck));
  bar.querySelector(".failures").replaceChildren(...episodes.map((episode) => {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const [from, to] = [Number(place(episode.at)), Number(place(Math.min(episode.until ?? ends, ends)))];
    mark.setAttribute("x", from);
    mark.setAttribute("width", Math.max(2, to - from));
    mark.setAttribute("height", 40);
    return mark;
  }));
}

// ---- input ---------------------------------------------------------------------------------------

play.addEventListener("click", toggle);
speeds.addEventListener("change", () => setPlays(plays));
slider.addEventListener("input", () => show(Number(slider.value)));
slider.addEventListener("pointerdown", () => { isHeld = true; });
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { isHeld = false; });
bar.querySelector(".buttons").addEventListener("click", (event) => {
  const go = event.target.dataset.go;
  if (go) step(go);
});
addEventListener("hashchange", () => {
  if (outline) show(linked());
});
document.addEventListener("keydown", (event) => {
  if (!outline || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
  const on = event.target instanceof Element ? event.target : document.body;
  if (event.key === " ") {
    // These elements handle the key themselves.
    if (on.closest("button, summary, a, select")) return;
    event.preventDefault();
    toggle();
    return;
  }
  const direction = { ArrowLeft: "previous", ArrowRight: "next" }[event.key];
  if (!direction || (on === slider && !event.shiftKey) || on.closest("select")) return;
  event.preventDefault();
  step(direction + (event.shiftKey ? "Event" : "Change"));
});
