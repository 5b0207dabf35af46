// Helpers of all panels: elements, and times as text.
import { now } from "./world.js";

export function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Formats a duration in milliseconds like a clock. */
export function clock(time) {
  const seconds = Math.floor(time / 1000);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours > 0 ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

export function age(since) {
  const seconds = Math.max(0, Math.round((now() - since) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

export function waiting(until) {
  const seconds = Math.ceil((until - now()) / 1000);
  return seconds > 0 ? `${seconds} s left` : "now";
}
