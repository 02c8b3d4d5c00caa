// Elements. Text from data only ever becomes a text node.
import { utc, local } from "./format.js";

export const $ = (id) => document.getElementById(id);

// plain returns a text whose control characters, and those that turn the direction of what follows, are seen.
const plain = (value) => String(value).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => (c === "\n" ? c : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")));
const child = (c) => (c instanceof Node ? c : plain(c));

// el returns an element. Of props, on* are listeners, the rest attributes; text is a class.
export function el(tag, props, ...children) {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(typeof props === "string" ? { class: props } : props || {})) {
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else if (typeof value === "boolean" && !name.startsWith("aria-")) node.toggleAttribute(name, value);
		else if (value != null) node.setAttribute(name, String(value));
	}
	node.append(...children.filter((c) => c != null).map(child));
	return node;
}

// text sets an element's text, if it is another one: a selection stays.
export function text(node, value) {
	const t = value == null ? "" : plain(value);
	if (node.textContent !== t) node.textContent = t;
}

// figure sets a text that may be unknown.
export function figure(node, value) {
	node.classList.toggle("unknown", value == null);
	text(node, value ?? "unknown");
}

// parts replaces an element's children, if they are others.
export function parts(node, ...children) {
	const next = node.cloneNode(false);
	next.append(...children.map(child));
	if (!next.isEqualNode(node)) node.replaceChildren(...next.childNodes);
}

// time is an element with a time in UTC, and that of the reader on hover.
export function time(d) {
	return el("time", { datetime: d.toISOString(), title: local(d) }, utc(d));
}

// keyed makes the children of a parent those of items, in order. The element of a key stays, with its focus.
export function keyed(parent, items, key, make, fill) {
	const old = new Map(Array.from(parent.children, (c) => [c.dataset.key, c]));
	let at = parent.firstElementChild;
	for (const item of items) {
		const k = key(item);
		let node = old.get(k);
		if (node) old.delete(k);
		else {
			node = make(item);
			node.dataset.key = k;
		}
		fill(node, item);
		if (node === at) at = at.nextElementSibling;
		else parent.insertBefore(node, at);
	}
	for (const node of old.values()) node.remove();
}

// Levels, the worst first: a shape and a word beside the colour.
export const levels = ["broken", "attention", "unknown", "working", "good"];
const shapes = { good: "●", working: "▶", attention: "▲", broken: "■", unknown: "?" };

export const levelOf = (x) => (levels.includes(x) ? x : "unknown");
export const shapeOf = (x) => shapes[levelOf(x)];

export function chip(level) {
	const l = levelOf(level);
	return el("span", { class: "chip", "data-level": l }, el("span", { "aria-hidden": "true" }, shapes[l]), " " + l);
}

export async function copyText(button, value) {
	const label = button.dataset.label || (button.dataset.label = button.textContent);
	try {
		await navigator.clipboard.writeText(value);
		button.textContent = "Copied";
	} catch {
		button.textContent = fallback(value) ? "Copied" : "Not copied";
	}
	clearTimeout(button.timer);
	button.timer = setTimeout(() => (button.textContent = label), 2000);
}

// fallback copies where the clipboard of the browser is for https only.
function fallback(value) {
	const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
	area.value = value;
	document.body.append(area);
	const had = document.activeElement;
	area.select();
	const done = document.execCommand("copy");
	area.remove();
	had?.focus();
	return done;
}
