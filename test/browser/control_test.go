package browser

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
)

// key presses a key.
func (b *tab) key(name string) {
	b.t.Helper()
	keys := map[string]string{
		"Home": kb.Home, "End": kb.End, "ArrowRight": kb.ArrowRight, "ArrowLeft": kb.ArrowLeft, "PageDown": kb.PageDown, "Tab": kb.Tab,
		"Escape": kb.Escape, "Enter": kb.Enter,
	}
	b.run(chromedp.KeyEvent(keys[name]))
}

// asked waits for the n-th request, and returns it.
func (f *fixture) asked(b *tab, n int) object {
	b.t.Helper()
	b.wait(`!document.getElementById("ask").open`)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) < n {
		b.t.Fatalf("%d requests were sent: %v", len(f.requests), f.requests)
	}
	return f.requests[n-1]
}

func same(t *testing.T, got, want object) {
	t.Helper()
	text, err := json.Marshal(want) // numbers as they come from JSON
	if err != nil {
		t.Fatal(err)
	}
	var w object
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, got); d != "" {
		t.Error(d)
	}
}

// TestPause: the button asks first; a confirmed request is sent, and its outcome shown until it has ended.
func TestPause(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.shown("level", "good")
	b.click("pause")
	b.wait(`document.getElementById("ask").open`)
	b.shown("ask-text", "the source is read on")
	b.shown("ask-text", "The source's oplog lasts 26 h 5 min")
	b.key("Escape")
	b.wait(`!document.getElementById("ask").open`)
	b.click("pause")
	b.fill("#ask-why", "disk swap")
	b.click("ask-yes")
	same(t, f.asked(b, 1), object{"kind": "pause", "why": "disk swap", "args": object{}})
	b.shown("outcome", "Pause: asked")
	f.set(func() {
		f.outcome(object{"id": "101", "kind": "pause", "by": "page", "at": ago(0), "why": "disk swap", "args": object{}, "state": "done", "outcome": "paused at 1795528927:1"})
		f.state["control"].(object)["paused"] = object{"since": ago(0), "by": "page", "why": "disk swap", "mayLastSeconds": 7200}
	})
	b.shown("outcome", "Pause: done")
	b.shown("outcome", "paused at 1795528927:1")
	b.shown("held", "It may last 2 h more")
	f.set(func() { f.state["oplogRolloverSeconds"] = nil })
	b.shown("held", "How long it may last is not known; the source's oplog reaches back 2 h before the checkpoint")
	b.wait(`!document.getElementById("pause").checkVisibility() && document.getElementById("resume").checkVisibility()`)
	b.click("resume")
	b.click("ask-yes")
	same(t, f.asked(b, 2), object{"kind": "resume", "why": "", "args": object{}})
	f.set(func() {
		f.outcome(object{"id": "102", "kind": "resume", "by": "page", "at": ago(0), "args": object{}, "state": "failed", "outcome": "the lease was lost"})
	})
	b.shown("outcome", "Resume: failed")
	b.wait(`document.getElementById("outcome").dataset.level === "broken"`)
	b.quiet(f.URL)
}

// TestOtherRequests: each button sends what the CLI would.
func TestOtherRequests(t *testing.T) {
	t.Parallel()
	f := serve(t, state("control.throttle.applyOpsPerSecond", 500))
	b := open(t, f.URL)
	b.shown("held", "applying 500/s")
	b.click("throttle")
	b.wait(`document.querySelector("[name=applyOpsPerSecond]").value === "500"`)
	b.fill("[name=copyBytesPerSecond]", "20")
	b.fill("[name=applyOpsPerSecond]", "")
	b.click("ask-yes")
	// Unchanged fields are not sent: the copy may have a limit that the process was started with.
	same(t, f.asked(b, 1), object{"kind": "throttle", "why": "", "args": object{"copyBytesPerSecond": 20 << 20, "applyOpsPerSecond": nil}})
	b.click("throttle")
	eval[bool](b, `document.querySelector("[name=adaptive]").click() || true`)
	b.click("ask-yes")
	same(t, f.asked(b, 2), object{"kind": "throttle", "why": "", "args": object{"adaptive": true}})
	b.click("loglevel")
	eval[bool](b, `(document.getElementById("f-level").value = "debug") && true`)
	b.click("ask-yes")
	same(t, f.asked(b, 3), object{"kind": "logLevel", "why": "", "args": object{"level": "debug"}})
	b.click("loglevel")
	b.click("ask-yes")
	same(t, f.asked(b, 4), object{"kind": "logLevel", "why": "", "args": object{"level": "default"}})
	eval[bool](b, `document.querySelector("#namespaces tbody tr:nth-child(2) button").click() || true`)
	b.shown("ask-h", "Copy shop.carts again?")
	b.click("ask-yes")
	same(t, f.asked(b, 5), object{"kind": "resync", "why": "", "args": object{"namespaces": []any{"shop.carts"}}})
	b.click("verify")
	b.shown("ask-h", "Verify dr again?")
	b.click("ask-yes")
	same(t, f.asked(b, 6), object{"kind": "verify", "why": "", "args": object{}})
	b.quiet(f.URL)
}

// TestToken: a server that wants a token gets it; it is asked for once, and again if it is wrong.
func TestToken(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	f.token = "right"
	b := open(t, f.URL)
	b.shown("level", "good")
	b.click("pause")
	b.click("ask-yes")
	b.shown("ask-error", "wants a token")
	b.fill("#f-token", "wrong")
	b.click("ask-yes")
	b.shown("ask-error", "did not take the token")
	b.fill("#f-token", "right")
	b.click("ask-yes")
	same(t, f.asked(b, 1), object{"kind": "pause", "why": "", "args": object{}})
	b.click("loglevel")
	b.click("ask-yes")
	f.asked(b, 2)
	if kept := eval[string](b, `sessionStorage.getItem("replicator-token") + localStorage.length + document.cookie`); kept != "right0" {
		t.Errorf("the token is kept as %q", kept)
	}
	b.quiet(f.URL, "401")
}

// TestRefused: the reason of a refusal is shown, and of a server that is away.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.shown("level", "good")
	eval[bool](b, `(window.fetch = async () => new Response('{"error": "no such kind"}', { status: 400 })) && true`)
	b.click("pause")
	b.click("ask-yes")
	b.shown("ask-error", "Refused: no such kind")
	eval[bool](b, `(window.fetch = async () => { throw new TypeError("no network") }) && true`)
	b.click("ask-yes")
	b.shown("ask-error", "could not be sent: no network")
	b.wait(`!document.getElementById("ask-yes").disabled`)
}

// TestKeyboard: every control is reached by the tab key, in the order of the page, and shows that it has
// the focus.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.wait(`document.querySelectorAll(".chart").length > 5`)
	want := eval[int](b, `Array.from(document.querySelectorAll("a, button, input, select, [tabindex='0']")).filter((e) => e.checkVisibility()).length`)
	seen := 0
	for range want + 20 {
		b.key("Tab")
		n := eval[int](b, `(() => {
			const e = document.activeElement;
			if (e === document.body || e.seen) return -1;
			e.seen = true;
			const s = getComputedStyle(e);
			return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 ? 1 : 0;
		})()`)
		if n < 0 {
			break
		}
		if n == 0 {
			t.Errorf("no focus is seen on %s", eval[string](b, `document.activeElement.outerHTML`))
		}
		seen++
	}
	if seen != want || want < 25 {
		t.Errorf("%d of %d controls were reached", seen, want)
	}
}

// TestStandbyControl: a process that stands by has no requests in its status: the page reads them from the
// target, and shows the outcome of one.
func TestStandbyControl(t *testing.T) {
	t.Parallel()
	f := serve(t, state("control", nil))
	f.stored = []any{object{"id": "7", "kind": "throttle", "by": "mira", "at": ago(time.Minute), "why": "reports", "args": object{}, "state": "done"}}
	b := open(t, f.URL)
	b.shown("requests", "by mira: “reports”")
	b.shown("held", "is unknown")
	b.click("pause")
	b.click("ask-yes")
	same(t, f.asked(b, 1), object{"kind": "pause", "why": "", "args": object{}})
	b.shown("outcome", "Pause: asked")
	f.set(func() {
		f.outcome(object{"id": "101", "kind": "pause", "by": "page", "at": ago(0), "why": "", "args": object{}, "state": "done", "outcome": "paused at 1795528927:1"})
	})
	b.shown("outcome", "Pause: done")
	b.shown("requests", "paused at 1795528927:1")
	b.quiet(f.URL)
}
