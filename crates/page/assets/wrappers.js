// AppWrappers: their phases, their resets, and what they wait for.
import { age, element, waiting } from "./parts.js";
import { world } from "./world.js";

const MOST = 12;
/** Phases that need attention come first. */
const ORDER = ["Failed", "Resetting", "Suspending", "Terminating", "Resuming"];
const KNOWN = new Set([...ORDER, "Running", "Suspended", "Succeeded"]);

function rank({ phase, unhealthy }) {
  const place = ORDER.indexOf(phase);
  if (place >= 0) return place;
  return unhealthy ? ORDER.length : ORDER.length + 1;
}

export function drawWrappers() {
  const section = document.getElementById("wrappers");
  const all = [...world.appWrappers.values()];
  section.hidden = all.length === 0;
  if (all.length === 0) return;
  const name = (w) => `${w.name} ${w.namespace}`;
  all.sort((a, b) => rank(a) - rank(b) || (name(a) < name(b) ? -1 : 1));
  section.querySelector("ul").replaceChildren(...all.slice(0, MOST).map(draw));
  const more = section.querySelector(".more");
  more.hidden = all.length <= MOST;
  more.textContent = `and ${(all.length - MOST).toLocaleString("en")} more`;
}

function draw(wrapper) {
  const { namespace, name, phase, unhealthy } = wrapper;
  const verdict = world.verdicts.get(`${namespace}/${name}`)?.get("appwrapper");
  const isUnwell = unhealthy && phase === "Running";
  const item = element("li", `${KNOWN.has(phase) ? phase : "Other"}${isUnwell ? " unwell" : ""}`);
  const head = element("div", "who");
  const title = element("b", "", name);
  title.append(element("small", "", namespace));
  head.append(title, element("em", "", (phase || "New") + (isUnwell ? ", unhealthy" : "")));
  item.append(head, element("p", "resets", resets(wrapper)));
  const why = verdict?.message ?? unhealthy;
  if (why) item.append(element("p", "", why));
  if (verdict?.blockedBy) item.append(element("p", "", `Blocked: ${verdict.blockedBy}`));
  if (verdict?.verdict === "Wait" && verdict.until) {
    const until = Date.parse(verdict.until);
    const left = element("p", "until", "Waiting: ");
    const time = element("span", "", waiting(until));
    time.dataset.until = until;
    left.append(time, `, until ${new Date(until).toLocaleTimeString("en-GB")}`);
    item.append(left);
  }
  if (wrapper.lastReset) {
    item.append(element("p", "past", `${phase === "Failed" ? "Failed" : "Last reset"}: ${wrapper.lastReset}`));
  }
  return item;
}

function resets({ resets: count, retries, retryLimit, since, phase }) {
  const times = count === 1 ? "1 reset" : `${count} resets`;
  const spent = `${retries} of ${retryLimit} retries used`;
  return phase ? `${times}, ${spent}, in this phase for ${age(since)}` : `${times}, ${spent}`;
}
