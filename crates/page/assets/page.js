// Receives changes from the server and draws them: at most once per frame, and only changed parts.
import { drawMap, nodeMap } from "./map.js";
import { drawPanels, openNode, tick } from "./panels.js";
import { openReplay } from "./replay.js";
import { take, takeChanges, world } from "./world.js";

let isDue = false;

function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    const changes = takeChanges();
    drawMap(changes);
    drawPanels(changes.reset);
  });
}

function connect() {
  const source = new EventSource("changes");
  source.addEventListener("hello", (event) => {
    world.hello = JSON.parse(event.data);
    world.connected = true;
    if (world.hello.replay) openReplay(redraw);
    redraw();
  });
  source.addEventListener("message", (event) => {
    take(JSON.parse(event.data));
    redraw();
  });
  source.addEventListener("error", () => {
    world.connected = false;
    redraw();
    // After an HTTP error a browser does not reconnect by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

nodeMap(openNode);
connect();
setInterval(tick, 500);
