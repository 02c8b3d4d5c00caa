package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/web/page"
)

// TestStates: each state is shown with its verdict, and unknown figures as unknown.
func TestStates(t *testing.T) {
	t.Parallel()
	unknown := map[string][]string{
		"steady": {}, "catching-up": {}, "target-slow": {}, "paused": {"p99"},
		"copying": {"oldest", "p99"}, "source-gone": {"p99"},
		"stale": {"oldest", "p99", "cut"}, "standby": {"oldest", "p99", "fuel", "cut", "verified"}, "failed": {"oldest", "p99", "cut"},
		"resyncing": {}, "disconnected": {}, "interrupted": {}, "older": {"p99"},
	}
	for _, g := range states() {
		t.Run(g.name, func(t *testing.T) {
			f := serve(t, g.state)
			if g.history != nil {
				g.history(f.history)
			}
			b := open(t, f.URL)
			v := g.state["verdict"].(object)
			b.shown("sentence", v["sentence"].(string))
			b.shown("level", v["level"].(string))
			b.wait(`document.querySelectorAll(".chart").length > 5`)
			if next, _ := v["next"].(string); next != "" {
				b.shown("command", next)
			}
			if back, is := g.state["back"].(object); is {
				b.shown("ends", "the way back of link "+back["link"].(string))
			}
			var got []string
			for _, tile := range eval[[]string](b, `Array.from(document.querySelectorAll(".tile .big.unknown"), (e) => e.parentElement.id)`) {
				got = append(got, strings.TrimPrefix(tile, "tile-"))
			}
			want, ok := unknown[g.name]
			if !ok || !slices.Equal(got, want) && len(got)+len(want) > 0 {
				t.Errorf("unknown are the tiles %v: want %v", got, want)
			}
			if title := eval[string](b, "document.title"); !strings.Contains(title, v["level"].(string)+" · dr") {
				t.Errorf("the title is %q", title)
			}
			b.quiet(f.URL)
		})
	}
}

// TestUpdates: a status and an event that come later are shown; a field that goes becomes unknown.
func TestUpdates(t *testing.T) {
	t.Parallel()
	f := serve(t, state("lagSeconds", 7.0, "+cut", cutOf(12)))
	b := open(t, f.URL)
	b.shown("tile-oldest", "lag 7 s")
	b.shown("tile-cut", "newest cut 12 s ago: S 1795528915:4, T 1795528916:11")
	f.set(func() { f.state["noCut"] = "the link is paused" })
	b.shown("tile-cut", "no newer cut: the link is paused")
	f.set(func() {
		f.state = state("lagSeconds", 9.0, "verdict.level", "working", "verdict.sentence", "Another one.")
		f.events = append(f.events, `{"id":2000,"at":"2026-11-24T14:02:08Z","level":"WARN","kind":"lease","message":"lease lost","fields":{"term":"13"}}`)
	})
	b.shown("tile-oldest", "lag 9 s")
	b.shown("sentence", "Another one.")
	b.shown("level", "working")
	b.shown("timeline", "lease lost")
	f.set(func() { f.state = state("lagSeconds", nil, "ageOfOldestUnappliedSeconds", missing) })
	b.shown("tile-oldest", "lag unknown")
	b.wait(`document.querySelector("#tile-oldest .big").textContent === "unknown"`)
	b.quiet(f.URL)
}

// TestInexact: the page does not say of collections that are known not to be exact that they are.
func TestInexact(t *testing.T) {
	t.Parallel()
	f := serve(t, state("verified", nil))
	b := open(t, f.URL)
	b.wait(`/the target is what the source was, [0-9.]+ m?s ago$/.test(document.querySelector("#tile-cut > .dim:last-child").textContent)`)
	f.set(func() {
		f.state["diverged"] = object{"operations": 9, "first": "2026-11-24T14:02:06.9Z", "more": 7, "namespaces": []any{
			object{"namespace": "shop.b", "source": "shop.b", "operations": 2}, object{"namespace": "shop.a", "source": "shop.a", "operations": 1},
		}}
		f.state["guard"] = object{
			"mode": "alarm", "watching": true, "total": 3, "kinds": object{}, "newest": []any{}, "more": 0, "gaps": []any{},
			"namespaces": []any{object{"namespace": "shop.b", "source": "shop.b", "count": 3}},
		}
	})
	b.shown("tile-cut", " ago, but for shop.a, shop.b and 7 more")
	b.shown("tile-verified", "not exact since operations diverged: shop.b, shop.a and 7 more")
	f.set(func() {
		f.state["diverged"] = nil
		f.state["guard"].(object)["namespaces"], f.state["guard"].(object)["more"] = []any{}, 2
	})
	b.shown("tile-cut", " ago, but for others")
	b.quiet(f.URL)
}

// TestLacking: what the target lacks of the source's views, indexes and options is counted, and the first ones are named, also where there are many with
// long names; without any, nothing is shown.
func TestLacking(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("wörd😀", 40)
	indexes := make([]any, 1044)
	for i := range indexes {
		indexes[i] = object{"namespace": fmt.Sprint("shop.c", i), "name": fmt.Sprint("email_", i)}
	}
	f := serve(t, state())
	b := open(t, f.URL)
	b.shown("level", "good")
	hidden := `getComputedStyle(document.getElementById("lacking")).display === "none"`
	b.wait(hidden)
	is := func(want ...string) {
		t.Helper()
		want = append(want, "Drop or change them on the source; or --waive lacking at the cutover, and create them by hand after it.")
		b.wait(fmt.Sprintf(`[...document.querySelectorAll("#lacking h2, #lacking li, #lacking p")].map((e) => e.textContent).join("\n") === %q`, strings.Join(want, "\n")))
	}
	f.set(func() { f.state["lackingIndexes"] = indexes[:3] })
	is("The target lacks 3 indexes", "email_0 of shop.c0", "email_1 of shop.c1", "email_2 of shop.c2")
	f.set(func() {
		f.state["lackingIndexes"] = indexes
		f.state["lackingViews"] = []any{object{"namespace": "shop.v", "why": "its pipeline is invalid"}, object{"namespace": "shop.w", "why": ""}}
	})
	is("The target lacks 2 views, 1,044 indexes", "shop.v: its pipeline is invalid", "shop.w",
		"email_0 of shop.c0", "email_1 of shop.c1", "email_2 of shop.c2", "and 1,041 more: see replicator links")
	f.set(func() {
		delete(f.state, "lackingIndexes")
		f.state["lackingViews"] = []any{object{"namespace": long, "why": long + "\n" + long}}
	})
	cut := strings.Repeat("wörd😀", 24)
	is("The target lacks 1 view", cut+"…: "+cut+"…")
	f.set(func() {
		f.state["lackingViews"], f.state["lackingOptions"] = nil, []any{object{"namespace": "shop.a", "name": "validator"}}
	})
	is("The target lacks 1 option", "validator of shop.a")
	f.set(func() { f.state["lackingOptions"], f.state["lackingIndexes"] = nil, []any{} })
	b.wait(hidden)
	b.quiet(f.URL)
}

// TestVerified: the page counts the collections that the status does not list, and says what could not be compared and what the
// verification waits for.
func TestVerified(t *testing.T) {
	t.Parallel()
	list := make([]any, 100)
	for i := range list {
		list[i] = object{"namespace": fmt.Sprint("shop.c", i), "source": fmt.Sprint("shop.c", i), "why": "planted", "differences": 2, "found": []any{}}
	}
	verified := object{
		"at": nil, "ageSeconds": nil, "cut": nil, "why": "not verified: shop.c0: not compared yet", "continuous": true, "waiting": "the link is paused",
		"collections": 300, "verified": 30, "new": 0, "unverified": []any{}, "moreUnverified": 0, "unchecked": list[:2], "moreUnchecked": 0,
		"differences": 500, "kinds": object{}, "differing": list, "moreDiffering": 150, "round": object{"number": 2}, "lastRound": nil, "bytes": 0,
	}
	f := serve(t, state("verified", verified))
	b := open(t, f.URL)
	b.shown("tile-verified", "500 differences in shop.c0, shop.c1, shop.c2 and 247 more; could not be compared: shop.c0, shop.c1; not verified: shop.c0: not compared yet; waits: the link is paused")
	f.set(func() {
		verified["unchecked"], verified["moreUnchecked"], verified["differing"] = list, 20, list[:2]
		delete(verified, "moreDiffering") // that of an earlier release
		delete(verified, "waiting")
	})
	b.shown("tile-verified", "500 differences in shop.c0, shop.c1; could not be compared: shop.c0, shop.c1, shop.c2 and 117 more; not verified: shop.c0: not compared yet")
	b.quiet(f.URL)
}

// TestRestart: while the server is away everything is grey, and unknown; when it is back, everything is
// live again, without a reload.
func TestRestart(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.shown("level", "good")
	address := f.Listener.Addr().String()
	f.stop()
	port := hold(t, address)
	b.shown("live", "disconnected for")
	b.shown("level", "unknown")
	b.shown("sentence", "has not answered this page since")
	b.wait(`document.body.classList.contains("stale") && getComputedStyle(document.querySelector("#tiles")).filter === "grayscale(1)"`)
	b.wait(`document.title.includes("unknown")`)

	again := &fixture{t: t, state: state("verdict.sentence", "Back again."), history: historyOf("1h"), changed: make(chan struct{})}
	again.Server = httptest.NewUnstartedServer(again.handler())
	_ = again.Listener.Close()
	again.Listener = port()
	again.Start()
	t.Cleanup(again.stop)
	b.shown("sentence", "Back again.")
	b.shown("level", "good")
	b.wait(`!document.body.classList.contains("stale")`)
	b.quiet(f.URL, "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET")
}

// hold keeps the port of a server that is gone from all others: it closes each connection. The function returned ends
// that, and returns the listener.
func hold(t *testing.T, address string) (port func() net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}()
	set := func(deadline time.Time) {
		if err := listener.(*net.TCPListener).SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
	}
	stop := sync.OnceFunc(func() { set(time.Now()); <-ended })
	t.Cleanup(func() { stop(); _ = listener.Close() })
	return func() net.Listener { stop(); set(time.Time{}); return listener }
}

// TestSilent: a server that keeps the connection and says nothing is as gone as one that closed it; so is
// one that says the same again and again. The page says so after eight seconds, not when it connects anew.
func TestSilent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture){
		"mute":  func(f *fixture) { f.mute = true },
		"still": func(f *fixture) { f.still = time.Now() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t, state())
			b := open(t, f.URL)
			b.shown("level", "good")
			f.set(func() { change(f) })
			b.shown("live", "disconnected for")
			b.shown("level", "unknown")
			if n := eval[int](b, `parseInt(document.getElementById("live").textContent.match(/for (\d+) s/)?.[1] ?? -1)`); n < 8 {
				t.Errorf("it is said after %d s", n) // not sooner than what a busy machine may take
			}
			f.set(func() { f.mute, f.still = false, time.Time{} })
			b.shown("level", "good")
			b.quiet(f.URL)
		})
	}
}

// TestHostile: names, errors and hosts are text, wherever they are shown.
func TestHostile(t *testing.T) {
	t.Parallel()
	const evil = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"'><svg onload=window.pwned=3>`
	s := state(
		"link", evil, "version", evil, "verdict.sentence", evil, "verdict.also", []any{evil},
		"source.host", evil, "source.set", evil, "source.why", evil, "target.primary", evil, "bottleneck", object{"stage": evil, "why": evil},
		"consistent", false, "+leftOut", []any{object{"namespace": evil}}, "feedback.state", evil,
		"+lackingViews", []any{object{"namespace": evil, "why": evil}}, "+lackingIndexes", []any{object{"namespace": evil, "name": evil}},
		"control.paused", object{"since": ago(time.Minute), "by": evil, "why": evil, "mayLastSeconds": 9},
	)
	s["verdict"].(object)["next"] = evil
	ns := s["namespaces"].([]any)[0].(object)
	ns["namespace"], ns["phase"], ns["deferredIndexes"] = evil, evil, []any{evil}
	r := s["control"].(object)["requests"].([]any)[0].(object)
	r["by"], r["why"], r["outcome"], r["kind"], r["args"] = evil, evil, evil, evil, object{evil: evil}
	s["stages"].([]any)[4].(object)["depthUnit"] = evil
	f := serve(t, s)
	f.history["events"] = []any{object{"id": evil, "at": ago(time.Minute), "level": evil, "kind": evil, "message": evil, "fields": object{evil: evil}}}
	f.links = object{"at": ago(0), "links": []any{object{"link": evil, "leader": evil, "state": evil, "verdict": object{"level": evil, "sentence": evil}, "at": ago(0), "page": "javascript:window.pwned=4"}}}

	b := open(t, f.URL)
	for _, id := range []string{"link", "sentence", "command", "also", "ends", "lacking", "bottleneck", "held", "namespaces", "timeline", "requests", "stages", "version"} {
		b.shown(id, "<img src=x")
	}
	clean := `window.pwned === undefined && document.querySelectorAll("img, svg, main script, iframe").length === 0`
	b.wait(clean)
	b.wait(`!!document.querySelector("#namespaces td.act button")`)
	eval[bool](b, `document.querySelector("#namespaces td.act button").click() || true`)
	b.shown("ask-h", "<img src=x")
	b.wait(clean)
	b.quiet(f.URL)

	b = open(t, f.URL+"/fleet")
	b.shown("links", "<img src=x")
	b.wait(clean + ` && !document.querySelector("#links a")`)
	b.quiet(f.URL)
}

// TestDirection: a name that turns the direction of the text after it, or has control characters, is shown with them
// escaped; a command is copied as it is.
func TestDirection(t *testing.T) {
	t.Parallel()
	const name = "a\u202egpj.b\u0007\u061c"
	s := state("link", name, "verdict.sentence", name+" is held.", "bottleneck", object{"stage": "applier", "why": name})
	s["verdict"].(object)["next"] = "replicator resume --link '" + name + "'"
	f := serve(t, s)
	f.links = object{"at": ago(0), "omitted": 0, "error": "", "links": []any{linkOf(name, "good", name+" is held.", "steady", 0.4, 93900, time.Second)}}
	b := open(t, f.URL)
	b.shown("sentence", `a\u202egpj.b\u0007\u061c is held.`)
	b.shown("bottleneck", `(a\u202egpj.b\u0007\u061c)`)
	eval[bool](b, `(document.execCommand = () => { window.copied = document.querySelector("textarea")?.value; return true }, Object.defineProperty(navigator, "clipboard", { value: { writeText: async (t) => { window.copied = t } } }), true)`)
	b.click("copy")
	b.wait(`window.copied === "replicator resume --link 'a\u202egpj.b\u0007\u061c'"`)
	b.quiet(f.URL)
	b = open(t, f.URL+"/fleet")
	b.shown("links", `a\u202egpj.b\u0007\u061c is held.`)
	b.quiet(f.URL)
}

// TestPrefix: the page works below a prefix, as a proxy or an agent has it.
func TestPrefix(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	mux := http.NewServeMux()
	mux.Handle("/link/dr/", http.StripPrefix("/link/dr", f.handler()))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	b := open(t, server.URL+"/link/dr/")
	b.shown("level", "good")
	b.wait(`document.querySelectorAll(".chart").length > 5`)
	b.quiet(server.URL)
}

// TestTimes: times are in UTC, and local on hover.
func TestTimes(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.shown("since", "UTC")
	b.wait(`document.querySelector("#since time").title.endsWith("your time") && document.querySelector("#since time").dateTime.endsWith("Z")`)
}

// TestTable: the namespaces can be searched and sorted, and a row that stays is the same element.
func TestTable(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	const names = `Array.from(document.querySelectorAll("#namespaces tbody th"), (e) => e.textContent)`
	b.wait(names + `.length === 4`)
	first := eval[[]string](b, names)[0]
	if first != "shop.orders" {
		t.Errorf("the busiest namespace is %s", first)
	}
	eval[bool](b, `(window.row = document.querySelector("#namespaces tbody tr")) && document.querySelector("#namespaces th[data-key=namespace] button").click() || true`)
	b.wait(names + `[0] === "crm.people" && document.querySelector("#namespaces th[data-key=namespace]").ariaSort === "ascending"`)
	b.wait(`window.row.isConnected && window.row.cells[0].textContent === "shop.orders"`)
	b.fill("#search", "CARTS")
	b.wait(names + `.join() === "shop.carts"`)
	b.fill("#search", "zzz")
	b.shown("namespaces-note", "None of 4 matches.")
}

// TestTimeline: the events can be filtered, and copied as JSON.
func TestTimeline(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	const rows = `document.querySelectorAll("#timeline li").length`
	b.wait(rows + ` === 6`)
	set := func(id, value string) {
		eval[bool](b, `(() => { const s = document.getElementById("`+id+`"); s.value = "`+value+`"; return s.dispatchEvent(new Event("input")) })()`)
	}
	set("atleast", "attention")
	b.wait(rows + ` === 2`)
	set("atleast", "")
	set("kind", "ddl")
	b.wait(rows + ` === 1`)
	b.shown("timeline", "create index applied")
	// The button says so for two seconds only.
	eval[bool](b, `((e) => {
		navigator.clipboard.writeText = async (x) => { window.copied = x };
		new MutationObserver(() => { window.said ??= e.textContent }).observe(e, { childList: true });
		e.click();
		return true;
	})(document.getElementById("copyjson"))`)
	b.wait(`JSON.parse(window.copied ?? "[]")[0]?.fields.namespace === "shop.orders" && window.said === "Copied"`)
	set("kind", "")
	b.fill("#filter", "mira")
	b.wait(rows + ` === 1`)
	b.shown("timeline", "paused")
}

// TestCharts: the charts have lines, gaps where nothing is known, one crosshair that keys move, and events
// at it; another range is another request.
func TestCharts(t *testing.T) {
	t.Parallel()
	f := serve(t, state())
	b := open(t, f.URL)
	b.wait(`document.querySelectorAll(".chart canvas").length === 6`)
	eval[bool](b, `document.querySelector(".plot").focus() || true`)
	b.key("Home")
	b.wait(`document.querySelectorAll(".u-cursor-x:not(.u-off)").length === 6`)
	b.wait(`document.querySelector("#marked time") !== null`)
	at := eval[string](b, `document.getElementById("marked").textContent`)
	b.key("ArrowRight")
	b.wait(`!document.getElementById("marked").textContent.startsWith(` + "`" + at + "`" + `)`)
	for range 7 {
		b.key("PageDown")
	}
	for n := 0; !strings.Contains(eval[string](b, `document.getElementById("marked").textContent`), "paused"); n++ {
		if n == 20 {
			t.Fatal("the crosshair has passed the event\n" + b.text())
		}
		b.key("ArrowRight")
	}
	b.wait(`document.querySelector(".legend b").textContent.endsWith("s")`)
	eval[bool](b, `document.querySelector("[data-range='6h']").click() || true`)
	b.wait(`document.querySelector("[data-range='6h']").ariaPressed === "true" && performance.getEntriesByType("resource").some((e) => e.name.endsWith("history?range=6h"))`)
	b.quiet(f.URL)
}

// TestPolicyHolds: the browser refuses what the policy forbids, so that the header is in force.
func TestPolicyHolds(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(page.Handler())
	t.Cleanup(server.Close)
	b := open(t, server.URL)
	b.wait(`document.readyState === "complete"`)
	eval[bool](b, `(() => { const s = document.createElement("script"); s.textContent = "window.inline = 1"; document.body.append(s); return true })()`)
	if eval[bool](b, `window.inline === 1`) {
		t.Error("an inline script ran")
	}
}

// TestYoungOplog: an oplog that has nothing older than what a restart reads, and does not move, is not gone;
// one that moves is, and that of a stale link.
func TestYoungOplog(t *testing.T) {
	t.Parallel()
	f := serve(t, state("oplogWindowLeftSeconds", 0.0, "oplogRolloverSeconds", nil))
	b := open(t, f.URL)
	b.shown("tile-fuel", "its oldest entry does not move, or its pace is not known yet")
	b.wait(`document.querySelector("#tile-fuel .big").textContent === "unknown" && document.querySelector(".gauge").dataset.level === "good"`)
	f.set(func() { f.state = state("oplogWindowLeftSeconds", 0.0, "oplogRolloverSeconds", 0.0) })
	b.wait(`document.querySelector("#tile-fuel .big").textContent === "gone" && document.querySelector(".gauge").dataset.level === "broken"`)
	b.shown("tile-fuel", "the source no longer has what a restart would read")
	f.set(func() { f.state = state("oplogWindowLeftSeconds", 0.0, "oplogRolloverSeconds", nil, "state", "stale") })
	b.wait(`document.querySelector("#tile-fuel .big").textContent === "gone" && document.querySelector(".gauge").dataset.level === "broken"`)
	f.set(func() { f.state = state("oplogWindowLeftSeconds", 50.0, "oplogRolloverSeconds", 7000.0) })
	b.wait(`document.querySelector("#tile-fuel .big").textContent === "116 min" && document.querySelector(".gauge").dataset.level === "attention"`)
	b.quiet(f.URL)
}
