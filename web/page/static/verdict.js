// The verdict, and the state of the connection to the process.
import { $, text, parts, time, el, levelOf, shapeOf, copyText } from "./dom.js";
import { date, seconds, utc } from "./format.js";

let last = null; // the last Snapshot
let gone = null; // how long the process has been silent, or null

export function showVerdict(s) {
	last = s;
	text($("link"), s.link ?? "unknown");
	text($("ends"), ends(s));
	text($("version"), "replicator " + (s.version ?? "of an unknown version"));
	render();
}

// showLive is told each second; null means that the process answers.
export function showLive(silence) {
	gone = silence;
	document.body.classList.toggle("stale", gone !== null);
	const live = $("live");
	if (!gone && last) parts(live, "live, as of ", ...at(last.at));
	else text(live, gone?.since ? "disconnected for " + seconds(gone.seconds) : "connecting for " + seconds(gone?.seconds ?? 0));
	render();
}

const at = (t) => {
	const d = date(t);
	return d ? [time(d)] : ["an unknown time"];
};

function ends(s) {
	const side = (x, host) => [x?.set, host].filter(Boolean).join("/") || "unknown";
	return side(s.source, s.source?.host) + " → " + side(s.target, s.target?.primary) + (s.back ? ", the way back of link " + s.back.link : "");
}

function render() {
	const v = last?.verdict ?? {};
	const level = gone || !last ? "unknown" : levelOf(v.level);
	$("verdict").dataset.level = $("small").dataset.level = level;
	text($("shape"), shapeOf(level));
	text($("level"), level);
	text($("small"), shapeOf(level) + " " + level);
	document.title = shapeOf(level) + " " + level + " · " + (last?.link ?? "link") + " · replicator";
	$("verdict").classList.toggle("gone", gone !== null && last !== null);
	if (gone) {
		lost(v);
		return;
	}
	text($("sentence"), last ? v.sentence || "How the link is doing is unknown." : "Waiting for the first status of the process.");
	const since = date(v.since);
	if (since) parts($("since"), "since ", time(since), age(since, last?.at));
	else text($("since"), last ? "since an unknown time" : "");
	next(v.next);
	also(v.also ?? []);
}

function age(since, now) {
	const d = date(now);
	return d ? " (" + seconds(Math.max(0, (d - since) / 1000)) + ")" : "";
}

function lost(v) {
	if (!last) {
		text($("sentence"), "No status of the process yet.");
		text($("since"), "Does it run? This page tries again every few seconds.");
		return;
	}
	text($("sentence"), "How the link is doing is unknown: the process has not answered this page since " + utc(gone.since) + ".");
	parts($("since"), "Grey values are as of then. It said last: “" + (v.sentence ?? "unknown") + "”");
	next("Check the process, and the network to it. From any machine: replicator status --link " + (last.link ?? "LINK") + " --target " + uri(last.target));
	also([]);
}

// uri is the target's connection string without a login, for a shell.
function uri(target) {
	if (!target?.hosts?.length) return "…";
	return "'mongodb://" + target.hosts.join(",") + "/" + (target.set ? "?replicaSet=" + target.set : "") + "'";
}

let toCopy = "";

function next(command) {
	toCopy = command ?? "";
	$("next").hidden = !command;
	text($("command"), command ?? "");
	$("command").classList.toggle("prose", !/^(replicator|db\.|rs\.|kill) ?/.test(command ?? ""));
}

function also(list) {
	$("also").hidden = list.length === 0;
	parts($("also"), ...list.map((x) => el("li", null, x)));
}

$("copy").addEventListener("click", () => copyText($("copy"), toCopy));
