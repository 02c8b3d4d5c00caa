// The stream of statuses, and whether it lives. A server that says nothing, or the same time again and
// again, is as gone as one that refuses the connection.

const silentAfter = 8000; // ms
const reopenAfter = 16000;
const retryAfter = 2000;

// follow calls on.status with each Snapshot, on.event with each event, on.fresh once connected, and on.live
// each second: with null, or since when the server is silent.
export function follow(address, on) {
	let stream = null;
	// When the stream was opened last.
	let opened = 0;
	// The next status is the first of its connection.
	let fresh = true;
	// No connection, or none yet.
	let down = true;
	// When the last status was made.
	let at = "";
	let heard = 0;
	const began = Date.now();

	function open() {
		stream?.close();
		opened = Date.now();
		fresh = down = true;
		stream = new EventSource(address);
		stream.addEventListener("status", (m) => {
			const s = parse(m.data);
			if (!s || s.at === at) return;
			at = s.at;
			heard = Date.now();
			down = false;
			// Before the status is shown, as one of a process that answers.
			check();
			on.status(s);
			if (fresh) on.fresh();
			fresh = false;
			check();
		});
		stream.addEventListener("event", (m) => {
			const e = parse(m.data);
			if (e) on.event(e);
		});
		stream.onerror = () => {
			fresh = down = true;
			check();
		};
	}

	function check() {
		const now = Date.now();
		const silent = now - Math.max(heard, opened);
		if (silent > reopenAfter || (stream.readyState === EventSource.CLOSED && now - opened > retryAfter)) open();
		if (!down && now - heard <= silentAfter) on.live(null);
		else on.live({ since: heard ? new Date(heard) : null, seconds: Math.max(0, Math.round((now - (heard || began)) / 1000)) });
	}

	open();
	setInterval(check, 1000);
}

function parse(data) {
	try {
		const v = JSON.parse(data);
		return v && typeof v === "object" ? v : null;
	} catch {
		return null;
	}
}
