package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// limit is how long anything may take that has to happen.
const limit = time.Minute

var (
	browser    context.Context // of the one Chromium of all tests
	browserWhy string          // why there is none
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		path := chromium()
		if path == "" {
			browserWhy = "no Chromium: install Debian's package chromium, or set CHROMIUM"
			return m.Run()
		}
		profile, err := os.MkdirTemp("", "page-browser-*")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _, _ = os.RemoveAll(profile), os.RemoveAll(built) }()
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
			chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.WSURLReadTimeout(limit),
		)
		alloc, end := chromedp.NewExecAllocator(context.Background(), options...)
		defer end()
		var close context.CancelFunc
		browser, close = chromedp.NewContext(alloc)
		defer close()
		if err := chromedp.Do(browser); err != nil {
			fmt.Fprintln(os.Stderr, "start", path, err)
			return 1
		}
		return m.Run()
	}())
}

// chromium returns the path of the browser, empty if there is none.
func chromium() string {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(cmp.Or(name, "-")); err == nil {
			return path
		}
	}
	return ""
}

// step is what a tab does.
type step = chromedp.Action[chromedp.Void]

// tab is a tab of the browser, that watches what the page does.
type tab struct {
	context.Context
	t    testing.TB
	fail context.CancelCauseFunc // ends what the test waits for

	mu       sync.Mutex // guards the rest
	said     []string   // errors and warnings on the console
	requests []string   // addresses that were loaded
}

// open opens a page in a tab of its own.
func open(t testing.TB, address string, actions ...step) *tab {
	t.Helper()
	if browser == nil {
		if os.Getenv("REQUIRE_BROWSER") != "" {
			t.Fatal(browserWhy)
		}
		t.Skip(browserWhy)
	}
	b := &tab{t: t}
	parent, fail := context.WithCancelCause(browser)
	b.fail = fail
	t.Cleanup(func() { fail(nil) })
	ctx, end := chromedp.NewContext(parent, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.hear))
	t.Cleanup(end)
	ctx, stop := context.WithTimeoutCause(ctx, 5*limit, fmt.Errorf("the test took longer than %s", 5*limit))
	t.Cleanup(stop)
	b.Context = ctx
	b.run(append(actions, chromedp.Navigate(address))...)
	return b
}

// hear is told what the page does.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		why := fmt.Sprintf("exception: %s:%d: %s", e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber+1, e.ExceptionDetails.Text)
		if x := e.ExceptionDetails.Exception; x != nil {
			why += " " + x.Description
		}
		b.said = append(b.said, why)
		b.fail(errors.New(why)) // what a test waits for may never come now
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			var said strings.Builder
			said.WriteString(string(e.Type) + ":")
			for _, a := range e.Args {
				said.WriteString(" " + string(a.Value) + a.Description)
			}
			b.said = append(b.said, said.String())
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.said = append(b.said, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func (b *tab) run(steps ...step) {
	b.t.Helper()
	if err := chromedp.Do(b, steps...); err != nil {
		if cause := context.Cause(b); cause != nil {
			err = cause
		}
		b.t.Fatalf("%v\n%s", err, b.text())
	}
}

// text is what the page shows, for messages.
func (b *tab) text() string {
	ctx, stop := context.WithTimeout(context.WithoutCancel(b), 10*time.Second)
	defer stop()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 3000)`))
	if err != nil {
		text = err.Error()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return "the page shows:\n" + text + "\nand said: " + strings.Join(b.said, "\n")
}

// poll waits until an expression is true.
func (b *tab) poll(expression string) error {
	_, err := chromedp.Run(b, chromedp.Poll[bool]("Boolean("+expression+")", chromedp.WithPollingTimeout(limit), chromedp.WithPollingInterval(20*time.Millisecond)))
	return err
}

// wait waits until an expression is true.
func (b *tab) wait(expression string) {
	b.t.Helper()
	if err := b.poll(expression); err != nil {
		b.t.Fatalf("waiting for %s: %v: %v\n%s", expression, err, context.Cause(b), b.text())
	}
}

// arrives waits until the page goes to a path by itself.
func (b *tab) arrives(path string) {
	b.t.Helper()
	for deadline := time.Now().Add(limit); ; {
		// What waits in a page ends with it, by an error.
		err := b.poll(fmt.Sprintf(`location.pathname === %q && document.readyState === "complete"`, path))
		switch {
		case err == nil:
			return
		case b.Err() != nil || time.Now().After(deadline):
			b.t.Fatalf("waiting for %s: %v: %v\n%s", path, err, context.Cause(b), b.text())
		}
	}
}

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", expression, err, b.text())
	}
	return v
}

// shown waits until an element has a text.
func (b *tab) shown(id, text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.getElementById(%q)?.textContent.includes(%q)", id, text))
}

// quiet checks that the console has no messages but the allowed ones, and that no request went to another
// server.
func (b *tab) quiet(server string, allowed ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
said:
	for _, s := range b.said {
		for _, a := range allowed {
			if strings.Contains(s, a) {
				continue said
			}
		}
		b.t.Errorf("the console: %s", s)
	}
	if len(b.requests) == 0 {
		b.t.Error("no request was seen")
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, server+"/") && !strings.HasPrefix(r, "data:") && r != "about:blank" {
			b.t.Errorf("a request left the server %s: %s", server, r)
		}
	}
}

// click clicks an element, as a script does: where it is on the screen does not matter.
func (b *tab) click(id string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.getElementById(%q)?.checkVisibility()", id))
	eval[bool](b, fmt.Sprintf("document.getElementById(%q).click() || true", id))
}

// fill sets the value of a field, found by a selector, as a user does.
func (b *tab) fill(selector, value string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(() => { const f = document.querySelector(%q); f.focus(); f.value = ""; return true })()`, selector))
	b.run(chromedp.KeyEvent(value))
}
