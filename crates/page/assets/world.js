// The state received from the server: nodes, pods, verdicts, moments and more, and what changed since the last frame.

export const world = {
  nodes: new Map(),
  pods: new Map(),
  appWrappers: new Map(),
  verdicts: new Map(),
  moments: new Map(),
  replacements: [],
  missing: null,
  caption: null,
  recovered: 0,
  leads: null,
  paused: null,
  hello: { canWish: false, speed: 1, hasOperator: true, replay: false },
  connected: false,
  /** In a replay: the start of its history. */
  began: null,
};

let changes = fresh();
let clock = { cluster: 0, local: 0 };

function fresh() {
  return { reset: false, nodes: new Set(), pods: new Map() };
}

/** The changes since the last call. */
export function takeChanges() {
  const seen = changes;
  changes = fresh();
  return seen;
}

/** The cluster's time in milliseconds. In the demo it passes faster than real time. */
export function now() {
  return clock.cluster + (performance.now() - clock.local) * world.hello.speed;
}

export function take(delta) {
  clock = { cluster: delta.now, local: performance.now() };
  world.recovered = delta.recovered;
  world.leads = delta.leads;
  world.paused = delta.paused ?? null;
  if (delta.reset) {
    for (const kind of ["nodes", "pods", "appWrappers", "verdicts", "moments"]) world[kind].clear();
    world.caption = null;
    world.replacements = [];
    world.missing = null;
    changes = fresh();
    changes.reset = true;
  }
  for (const name of delta.goneNodes ?? []) {
    world.nodes.delete(name);
    changes.nodes.add(name);
  }
  for (const uid of delta.gonePods ?? []) {
    world.pods.delete(uid);
    changes.pods.set(uid, null);
  }
  for (const uid of delta.goneAppWrappers ?? []) world.appWrappers.delete(uid);
  for (const [subject, recovery] of delta.goneVerdicts ?? []) {
    world.verdicts.get(subject)?.delete(recovery);
    if (world.verdicts.get(subject)?.size === 0) world.verdicts.delete(subject);
  }
  for (const node of delta.nodes ?? []) {
    world.nodes.set(node.name, node);
    changes.nodes.add(node.name);
  }
  for (const pod of delta.pods ?? []) {
    world.pods.set(pod.uid, pod);
    changes.pods.set(pod.uid, pod);
  }
  for (const wrapper of delta.appWrappers ?? []) world.appWrappers.set(wrapper.uid, wrapper);
  for (const verdict of delta.verdicts ?? []) {
    if (!world.verdicts.has(verdict.subject)) world.verdicts.set(verdict.subject, new Map());
    world.verdicts.get(verdict.subject).set(verdict.recovery, verdict);
  }
  for (const moment of delta.moments ?? []) world.moments.set(moment.number, moment);
  if (delta.replacements) world.replacements = delta.replacements;
  if (delta.missing) world.missing = delta.missing;
  if (delta.caption) world.caption = delta.caption;
}

/** Asks the server to inject a fault into a node. Returns the error, or nothing. */
export async function wish(node, fault) {
  try {
    const path = `nodes/${encodeURIComponent(node)}/${fault}`;
    const answer = await fetch(path, { method: "POST", headers: { "X-Salvor-Page": "1" } });
    return answer.ok ? "" : await answer.text();
  } catch {
    return "The server does not answer.";
  }
}
