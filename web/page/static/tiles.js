// The five figures, what the target lacks, and the pipeline.
import { $, el, parts, time, figure, text, keyed } from "./dom.js";
import { bytes, count, date, known, percent, seconds } from "./format.js";

const tiles = [
	{ key: "oldest", label: "Oldest unapplied", big: (s) => seconds(s.ageOfOldestUnappliedSeconds), sub: oldest },
	{ key: "p99", label: "End to end, p99", big: (s) => seconds(s.latency?.p99Seconds), sub: latency },
	{ key: "fuel", label: "Oplog rolls over in", big: fuel, sub: fuelSub, more: gauge },
	{ key: "cut", label: "Consistent as of", big: consistent, sub: consistentSub },
	{ key: "verified", label: "Verified as of", big: verified, sub: verifiedSub },
];

export function showTiles(s) {
	keyed($("tiles"), tiles, (t) => t.key, make, (node, t) => {
		const [, big, more, sub] = node.children;
		const value = t.big(s);
		if (value instanceof Date) {
			big.classList.remove("unknown");
			parts(big, time(value));
		} else figure(big, value);
		if (t.more) t.more(more, s);
		parts(sub, ...[t.sub(s)].flat());
	});
}

function make(t) {
	return el("div", { class: "card tile", id: "tile-" + t.key }, el("h2", null, t.label), el("p", "big"), el("div", "more"), el("p", "dim"));
}

const or = (x) => x ?? "unknown";

function oldest(s) {
	let out = "lag " + or(seconds(s.lagSeconds));
	if (known(s.lagTrend) && Math.abs(s.lagTrend) >= 0.01) out += ", " + (s.lagTrend > 0 ? "grows " : "shrinks ") + Math.abs(s.lagTrend).toFixed(2) + " s/s";
	return out;
}

function latency(s) {
	const l = s.latency;
	if (!l) return "from source to acknowledgement";
	if (stands(s)) return leads;
	if (!known(l.clockAheadSeconds)) return "the clock of the source is not known";
	if (l.samples === 0) return "nothing was acknowledged lately";
	return "p50 " + or(seconds(l.p50Seconds)) + ", p95 " + or(seconds(l.p95Seconds)) + "; operations of the last minute: " + or(count(l.samples));
}

const stands = (s) => s.state === "standby";
const leads = "the leader knows";

// A young oplog has nothing older than what a restart reads, and is not gone.
const gone = (s) => s.oplogWindowLeftSeconds === 0 && (known(s.oplogRolloverSeconds) || s.state === "stale");
function fuel(s) {
	return gone(s) ? "gone" : seconds(s.oplogRolloverSeconds);
}

function fuelSub(s) {
	if (gone(s)) return "the source no longer has what a restart would read";
	const left = seconds(s.oplogWindowLeftSeconds);
	const again = rereads(s);
	return (left && fuel(s) === null ? "its oldest entry does not move, or its pace is not known yet; " : "") + "a restart has " + (left ? left + " to spare" : "an unknown time") + ", and reads " + (again === null ? "an unknown part" : seconds(again)) + " again";
}

// rereads is how much of the oplog a restart reads again, in seconds.
function rereads(s) {
	const from = s.checkpoint?.fetchFrom?.t;
	const newest = s.optimes?.sourceNewest?.t;
	return known(from) && known(newest) ? Math.max(0, newest - from) : null;
}

// gauge draws the source's oplog, and where in it a restart reads from.
function gauge(node, s) {
	const left = s.oplogWindowLeftSeconds;
	const again = rereads(s);
	if (!known(left)) {
		parts(node);
		return;
	}
	const whole = left + (again ?? 0);
	const share = whole > 0 ? left / whole : 0;
	const rollover = s.oplogRolloverSeconds;
	if (!node.firstElementChild) {
		node.append(el("div", { class: "gauge", role: "img" }, el("div", "fuel"), el("div", "mark")), el("div", "scale dim", el("span", null, "oldest"), el("span", null, "newest entry")));
	}
	const bar = node.firstElementChild;
	bar.setAttribute("aria-label", "Of the source's oplog, " + percent(share) + " are older than what a restart reads from");
	const lasts = gone(s) ? 0 : rollover ?? Infinity;
	bar.dataset.level = lasts < 600 ? "broken" : lasts < 7200 ? "attention" : "good";
	bar.firstElementChild.style.width = bar.lastElementChild.style.left = (share * 100).toFixed(1) + "%";
}

function consistent(s) {
	return s.consistent === false && !stands(s) ? "not yet" : date(s.exactAt);
}

function consistentSub(s) {
	if (stands(s)) return leads;
	if (s.consistent === false) return s.leftOut?.length ? "collections are left out: " + names(s.leftOut.map((x) => x.namespace)) : "the copy, or the oplog since it began, is not finished";
	const d = date(s.exactAt);
	const now = date(s.at);
	return (d && now ? "the target is what the source was, " + seconds(Math.max(0, (now - d) / 1000)) + " ago" + inexact(s) : "what the target equals is not known") + cut(s);
}

// inexact names the collections that operations diverged in, or that something else has written to.
function inexact(s) {
	const list = [...(s.diverged?.namespaces ?? []), ...(s.guard?.namespaces ?? [])].map((x) => x.namespace);
	const all = [...new Set(list)].sort();
	if (s.guard?.more) all.push("others");
	return all.length ? ", but for " + names(all, s.diverged?.more) : "";
}

// names names some of a list; unlisted are those that are only counted.
function names(list, unlisted = 0) {
	const more = Math.max(0, list.length - 3) + unlisted;
	return list.slice(0, 3).join(", ") + (more > 0 ? " and " + more + " more" : "");
}

const stamp = (x) => (x ? x.t + ":" + x.i : "unknown");

// A cut is read at T, and is the source as of S.
function cut(s) {
	const c = s.cut;
	return (c ? "; newest cut " + or(seconds(c.ageSeconds)) + " ago: S " + stamp(c.source) + ", T " + stamp(c.target) : "") + (s.noCut ? "; no newer cut: " + s.noCut : "");
}

function verified(s) {
	if (!s.verified) return stands(s) ? null : "not yet";
	return s.verified.at ? date(s.verified.at) : "not yet";
}

// The link is verified as of the oldest comparison of any part, by whichever process.
function verifiedSub(s) {
	if (stands(s)) return leads;
	const v = s.verified;
	const met = s.applier?.divergences;
	const diverged = s.diverged?.namespaces?.length ? "; not exact since operations diverged: " + names(s.diverged.namespaces.map((d) => d.namespace), s.diverged.more) : "";
	const more = (known(met) ? "; " + count(met) + " divergences met since the process started" : "") + diverged;
	if (!v || !v.round) return "no comparison is recorded" + more;
	const age = known(v.ageSeconds) ? seconds(v.ageSeconds) + " ago; " : "";
	const where = v.differences > 0 ? " in " + names(v.differing.map((d) => d.namespace), v.moreDiffering) : "";
	const unchecked = (v.unchecked?.length ?? 0) + (v.moreUnchecked ?? 0);
	const open = unchecked > 0 ? "; could not be compared: " + names(v.unchecked.map((x) => x.namespace), v.moreUnchecked) : "";
	return age + count(v.differences) + " differences" + where + open + (v.why ? "; " + v.why : "") + (v.waiting ? "; waits: " + v.waiting : "") + more;
}

// showLacking counts what the target lacks of the source's views, indexes and options of collections, and names the first ones.
export function showLacking(s) {
	const counts = [];
	const rows = [];
	const add = (list, kind, many, link, of) => {
		const n = list?.length;
		if (!n) return;
		counts.push(count(n) + " " + kind + (n > 1 ? many : ""));
		for (const x of list.slice(0, 3)) rows.push(of(x).filter(Boolean).map(short).join(link));
		if (n > 3) rows.push("and " + count(n - 3) + " more: see replicator links");
	};
	add(s.lackingViews, "view", "s", ": ", (v) => [v.namespace, v.why]);
	add(s.lackingIndexes, "index", "es", " of ", (i) => [i.name, i.namespace]);
	add(s.lackingOptions, "option", "s", " of ", (o) => [o.name, o.namespace]);
	const advice = "Drop or change them on the source; or --waive lacking at the cutover, and create them by hand after it.";
	const list = el("ul", "also", ...rows.map((r) => el("li", null, r)));
	parts($("lacking"), ...(rows[0] ? [el("h2", null, "The target lacks " + counts.join(", ")), list, el("p", "dim", advice)] : []));
}

// short cuts a long text between two characters.
const short = (x) => x.replace(/^(.{120}).+/su, "$1…");

const order = ["syncsource", "fetcher", "buffer", "batcher", "applier", "feedback"];
const shares = { syncsource: "without a member", buffer: "without room" };
const titleOf = (name) => (name === "syncsource" ? "sync source" : name);

export function showPipeline(s) {
	const at = new Map((s.stages ?? []).map((x) => [x.name, x]));
	const tight = s.bottleneck?.stage;
	const rows = order.map((name) => ({ name, ...at.get(name) }));
	keyed($("stages"), rows, (r) => r.name, makeStage, (node, r) => fillStage(node, r, s, tight === r.name));
	if (tight) parts($("bottleneck"), el("strong", null, "Bottleneck: " + titleOf(tight)), s.bottleneck.why ? " (" + s.bottleneck.why + ")" : "");
	else text($("bottleneck"), "No bottleneck is known.");
}

function makeStage(r) {
	return el(
		"li",
		"stage",
		el("h3", null, titleOf(r.name)),
		el("p", "depth"),
		el("div", { class: "busy", "aria-hidden": "true" }, el("div")),
		el("p", "dim share"),
		el("p", "why"),
	);
}

function fillStage(node, r, s, tight) {
	const [, depth, busy, share, why] = node.children;
	node.classList.toggle("tight", tight);
	if (r.name === "syncsource") {
		figure(depth, s.source?.host || (s.source ? "none" : null));
		text(why, s.source?.why ?? "");
	} else {
		figure(depth, r.depthUnit === "bytes" ? bytes(r.depth) : known(r.depth) ? count(r.depth) + " " + (r.depthUnit ?? "") : "busy" in r && !r.depthUnit ? "–" : null);
		text(why, r.name === "buffer" ? bufferWhy(s) : r.name === "feedback" ? s.feedback?.state ?? "" : "");
	}
	const p = percent(r.busy);
	busy.firstElementChild.style.width = p === null ? "0" : Math.min(100, r.busy * 100).toFixed(0) + "%";
	busy.classList.toggle("nil", p === null);
	text(share, (tight ? "▲ bottleneck, " : "") + (shares[r.name] ?? "busy") + " " + (p ?? "unknown"));
}

function bufferWhy(s) {
	const b = s.buffer;
	if (!b) return "";
	const room = known(b.bytes) && known(b.limitBytes) && b.limitBytes > 0 ? "of " + bytes(b.limitBytes) : "";
	const held = [room, b.full ? "full: reading waits" : ""].filter(Boolean).join(", ");
	const spool = s.spool ? "spool " + or(bytes(s.spool.bytes)) + (s.spool.full ? ", full" : "") : "";
	return [held, spool].filter(Boolean).join("; ");
}
