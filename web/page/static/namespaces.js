// The table of namespaces.
import { $, el, text, keyed, figure } from "./dom.js";
import { bytes, bytesPerSecond, count, known, perSecond, seconds } from "./format.js";

const done = (n) => (known(n.bytesTotal) && n.bytesTotal > 0 && known(n.bytesDone) ? Math.min(1, n.bytesDone / n.bytesTotal) : null);

const columns = [
	{ key: "namespace", label: "Namespace", of: (n) => n.namespace, show: (n) => n.namespace ?? null },
	{ key: "phase", label: "Phase", of: (n) => n.phase, show: (n) => n.phase ?? null },
	{ key: "copied", label: "Copied", of: done, show: copied, number: true, maybe: true },
	{ key: "ops", label: "Operations", of: (n) => n.ops, show: (n) => count(n.ops), number: true },
	{ key: "rate", label: "Rate", of: (n) => n.opsPerSecond, show: (n) => perSecond(n.opsPerSecond), number: true },
	{ key: "volume", label: "Copy rate", of: (n) => n.bytesPerSecond, show: (n) => whileCopied(n, bytesPerSecond(n.bytesPerSecond)), number: true, maybe: true },
	{ key: "eta", label: "Time left", of: (n) => n.etaSeconds, show: (n) => whileCopied(n, seconds(n.etaSeconds)), number: true, maybe: true },
	{ key: "deferred", label: "Deferred indexes", of: (n) => n.deferredIndexes?.length, show: deferred },
	{ key: "hot", label: "Hot documents", of: (n) => n.hotDocuments?.[0]?.share, show: hot, maybe: true },
];

let rows = null; // null is unknown
let rest = null;
let sort = { key: "rate", down: true };
let order = new Map(); // of the rows as they are shown
let again = () => {};

export function startNamespaces(copyAgain) {
	again = copyAgain;
	const head = el("tr");
	for (const c of columns) {
		head.append(
			el("th", { scope: "col", "data-key": c.key, class: c.number ? "number" : null }, el("button", { type: "button", onclick: () => sortBy(c) }, c.label, el("span", { class: "arrow", "aria-hidden": "true" }))),
		);
	}
	head.append(el("th", { scope: "col" }, el("span", "hidden", "Action")));
	$("namespaces").tHead.append(head);
	$("search").addEventListener("input", render);
	mark();
}

export function showNamespaces(s) {
	rows = s.namespaces ?? null;
	rest = s.namespacesRest ?? null;
	// Rows do not move under a pointer.
	const busy = $("namespaces").matches(":hover, :focus-within");
	if (!busy) order = new Map();
	render();
}

function sortBy(c) {
	sort = { key: c.key, down: sort.key === c.key ? !sort.down : Boolean(c.number) };
	order = new Map();
	mark();
	render();
}

function mark() {
	for (const th of $("namespaces").tHead.rows[0].cells) {
		const mine = th.dataset.key === sort.key;
		if (mine) th.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
		else th.removeAttribute("aria-sort");
		const arrow = th.querySelector(".arrow");
		if (arrow) text(arrow, mine ? (sort.down ? " ▼" : " ▲") : "");
	}
}

// compare orders by the chosen column; unknown values come last either way.
function compare(a, b) {
	const of = columns.find((c) => c.key === sort.key).of;
	const [x, y] = [of(a) ?? null, of(b) ?? null];
	if (x === null || y === null) return (x === null) - (y === null) || otherwise(a, b);
	const d = typeof x === "string" ? x.localeCompare(y) : x - y;
	return (sort.down ? -d : d) || otherwise(a, b);
}

const otherwise = (a, b) => (b.bytesPerSecond ?? 0) - (a.bytesPerSecond ?? 0) || (b.ops ?? 0) - (a.ops ?? 0) || String(a.namespace).localeCompare(String(b.namespace));

function render() {
	const note = $("namespaces-note");
	const wanted = $("search").value.trim().toLowerCase();
	const shown = (rows ?? []).filter((n) => String(n.namespace).toLowerCase().includes(wanted)).sort(compare);
	if (order.size > 0) shown.sort((a, b) => (order.get(a.namespace) ?? 1e9) - (order.get(b.namespace) ?? 1e9));
	order = new Map(shown.map((n, i) => [n.namespace, i]));
	keyed($("namespaces").tBodies[0], shown, (n) => "ns " + n.namespace, make, fill);
	$("namespaces").hidden = shown.length === 0;
	for (const [i, c] of columns.entries()) {
		const none = c.maybe && shown.every((n) => c.show(n) === "–");
		for (const tr of $("namespaces").rows) tr.cells[i].hidden = none;
	}
	if (rows === null) text(note, "The namespaces are unknown: the process does not say.");
	else if (rows.length === 0) text(note, "This process has applied nothing since its start, or since its copy.");
	else if (shown.length === 0) text(note, "None of " + rows.length + " matches.");
	else text(note, (wanted ? shown.length + " of " + rows.length : "") + others());
}

function others() {
	if (!rest?.ops && !rest?.waiting) return "";
	return " All others: " + (count(rest.ops) ?? "unknown") + " operations, " + (perSecond(rest.opsPerSecond) ?? "at an unknown rate") + (rest.waiting ? "; " + count(rest.waiting) + " are left out, copied again or kept back" : "") + ".";
}

function make(n) {
	const tr = el("tr");
	for (const [i, c] of columns.entries()) tr.append(el(i === 0 ? "th" : "td", { "data-label": c.label, scope: i === 0 ? "row" : null, class: c.number ? "number" : null }));
	tr.append(el("td", "act", el("button", { type: "button", onclick: () => again(n.namespace) }, "Copy again…", el("span", "hidden", " " + n.namespace))));
	return tr;
}

function fill(tr, n) {
	for (const [i, c] of columns.entries()) {
		const v = c.show(n);
		const cell = tr.cells[i];
		cell.classList.toggle("nil", v === "–");
		if (c.key !== "copied") figure(cell, v);
		else bar(cell, v, done(n));
	}
}

function bar(cell, value, share) {
	if (!cell.firstChild) cell.append(el("span"), el("div", { class: "progress", "aria-hidden": "true" }, el("div")));
	figure(cell.firstChild, value);
	cell.lastChild.hidden = share === null;
	cell.lastChild.firstChild.style.width = ((share ?? 0) * 100).toFixed(1) + "%";
}

// A collection that is not being copied has no total.
const isCopied = (n) => n.bytesTotal != null;
function copied(n) {
	return whileCopied(n, bytes(n.bytesDone) && bytes(n.bytesDone) + " of " + bytes(n.bytesTotal));
}
const whileCopied = (n, value) => (isCopied(n) ? value : "–");

function deferred(n) {
	return n.deferredIndexes ? n.deferredIndexes.join(", ") || "–" : null;
}

// A document is named by its hash alone.
function hot(n) {
	const list = n.hotDocuments ?? [];
	return list.map((d) => "#" + d.hash + " " + Math.round(d.share * 100) + " %").join(", ") || "–";
}
