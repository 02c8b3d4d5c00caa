package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

func linkOf(name, level, sentence, state string, lag, left any, seen time.Duration) object {
	return object{
		"link": name, "leader": "mirror-2/4711", "from": "metadata", "state": state, "lagSeconds": lag, "oplogWindowLeftSeconds": left, "at": ago(seen), "page": "",
		"verdict": object{"name": "x", "level": level, "sentence": sentence, "since": ago(time.Hour), "also": []any{}},
	}
}

// fleet is what /links answers.
func fleet() object {
	return object{"at": ago(0), "omitted": 0, "error": "", "links": []any{
		linkOf("dr", "good", "Steady. Exact as of 14:02:07.4 UTC, 0.8 s ago. The source's oplog lasts about 26 h.", "steady", 0.4, 93900, time.Second),
		linkOf("reports", "good", "Steady. Exact as of 14:02:06.1 UTC, 2 s ago.", "steady", 0.9, 43900, time.Second),
		linkOf("crm", "attention", "The target is slow: flow control since 13:58:02 UTC. Lag grows 0.4 s/s; the oplog lasts 3 h 10 min at this pace.", "catching-up", 96, 11400, 2*time.Second),
		linkOf("eu-west", "working", "Copying: 31 of 120 collections, 418,220 of about 1,301,912 MiB, about 3 h 12 min left. The target is not consistent yet.", "initial-sync", nil, 93900, time.Second),
		linkOf("billing", "broken", "The oplog alone cannot bring the target up to date: no member of rs4 has the entry 1795528921:1 t7 any more.", "stale", nil, 0, 12*time.Minute),
		linkOf("archive", "good", "Steady. Exact as of 11:12:01.2 UTC, 1 s ago.", "steady", 0.2, 93900, 3*time.Hour),
	}}
}

// TestOfMany: the page of a process of many links goes to the list of all, and asks for nothing that only one link has.
func TestOfMany(t *testing.T) {
	t.Parallel()
	f := serve(t, object{"at": ago(0), "version": "1", "links": []any{}})
	f.links, f.mute = fleet(), true
	b := open(t, f.URL)
	eval[bool](b, `(window.fetch = new Proxy(fetch, { apply(f, on, args) { sessionStorage.asked = args[0]; return Reflect.apply(f, on, args) } }), true)`)
	f.set(func() { f.mute = false })
	b.arrives("/fleet")
	b.shown("links", "Steady")
	if asked := eval[string](b, `sessionStorage.asked ?? ""`); asked != "" {
		t.Errorf("asked for %s", asked)
	}
	b.quiet(f.URL)
}

// TestFleet: the worst link is first; a link without a recent report is unknown; the filters are in the
// address, and come from it.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	f.links = fleet()
	b := open(t, f.URL+"/fleet")
	const names = `Array.from(document.querySelectorAll("#links tbody th"), (e) => e.textContent).join()`
	b.wait(names + ` === "billing,crm,archive,eu-west,reports,dr"`)
	b.shown("summary", "1 broken, 1 attention, 1 unknown, 1 working, 2 good.")
	b.shown("links", "Nothing heard for 3 h. It said last: Steady.")
	eval[bool](b, `document.querySelector("[value=good]").click() || true`)
	b.fill("[name=q]", "14:02:06")
	b.wait(names + ` === "reports" && location.search === "?q=14%3A02%3A06&level=good"`)
	b.run(chromedp.Reload())
	b.wait(names + ` === "reports" && document.querySelector("[value=good]").checked`)
	f.set(func() { f.links.(object)["omitted"], f.links.(object)["error"] = 201, "no primary" })
	b.shown("summary", "2 good. 201 more are not shown. Links may be missing: no primary.")
	b.fill("[name=q]", "zzz")
	b.shown("none", "None of 6 links matches.")
	b.quiet(f.URL)
	f.stop()
	b.shown("live", "disconnected for")
	b.wait(`document.body.classList.contains("stale") && document.title.startsWith("?")`)
}

// TestFleetSizes: a long name in a verdict does not push the columns after it out of sight, and without links there is
// no table.
func TestFleetSizes(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	f.links = object{"at": ago(0), "omitted": 0, "error": "", "links": []any{}}
	b := open(t, f.URL+"/fleet")
	b.shown("summary", "The target's metadata have no links.")
	b.wait(`!document.querySelector("#links").checkVisibility() && document.querySelector("section").hidden`)
	f.set(func() {
		f.links.(object)["links"] = []any{linkOf("dr", "good", "Copying "+strings.Repeat("x", 250)+".", "steady", 0.4, 93900, time.Second)}
	})
	b.shown("links", "xxx")
	for _, width := range []int64{1280, 1000, 390} {
		b.look(false, width)
		b.wait(`((e) => e.scrollWidth <= e.clientWidth)(document.querySelector(".wide"))`)
	}
	b.quiet(f.URL)
}
