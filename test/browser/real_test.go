package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/mongosim"
)

// program builds the program that serves the page.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "page-program-*")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "replicator")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/replicator")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/replicator: %w: %s", err, out)
	}
	return path, nil
})

// built is the folder of the program, removed after the tests.
var built string

// process is a process of the program.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	page string // its address, without a slash at the end

	mu    sync.Mutex // guards lines
	lines []string
}

// run starts a process that runs the link web, and waits until it serves the page.
func run(t *testing.T, source, target *mongosim.Set) *process {
	t.Helper()
	return start(t, "run", "--source", source.URI(), "--target", target.URI(), "--link", "web", "--spool-dir", t.TempDir())
}

// start starts the program, and waits until it serves the page.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(path, append(args, "--listen", "127.0.0.1:0", "--log-format", "json")...)}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	serving := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
			var line struct{ Page string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Page != "" && len(serving) == 0 {
				serving <- line.Page
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-ended
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.page, strings.Join(p.lines, "\n"))
		}
	})
	select {
	case at := <-serving:
		p.page = strings.TrimSuffix(at, "/")
	case <-ended:
		t.Fatalf("the program ended: %s", strings.Join(p.lines, "\n"))
	case <-time.After(limit):
		t.Fatal("the program does not serve the page")
	}
	return p
}

func connect(t *testing.T, set *mongosim.Set) *mongo.Collection {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	return client.Database("shop").Collection("orders")
}

// ends are a source and a target, with a collection of each.
type ends struct {
	t              *testing.T
	source, target *mongosim.Set
	from, to       *mongo.Collection
}

func startEnds(t *testing.T) *ends {
	t.Helper()
	begin := func(o mongosim.Options) *mongosim.Set {
		// Nobody makes them fail over, a busy machine neither: what a page asks meanwhile has a 503.
		o.ElectionTimeout = time.Hour
		set, err := mongosim.Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(set.Close)
		return set
	}
	source := begin(mongosim.Options{Dialect: "7.0", Seed: 1})
	target := begin(mongosim.Options{Dialect: "7.0", Seed: 2, SetName: "dr0"})
	return &ends{t: t, source: source, target: target, from: connect(t, source), to: connect(t, target)}
}

// insert inserts a document into the source.
func (e *ends) insert(id int) {
	e.t.Helper()
	if _, err := e.from.InsertOne(e.t.Context(), bson.D{{Key: "_id", Value: id}}); err != nil {
		e.t.Fatal(err)
	}
}

// has reports whether the target has a document.
func (e *ends) has(id int) bool {
	e.t.Helper()
	n, err := e.to.CountDocuments(e.t.Context(), bson.D{{Key: "_id", Value: id}})
	if err != nil {
		e.t.Fatal(err)
	}
	return n == 1
}

// await waits, by the statuses of a page, until the target has a document.
func (e *ends) await(b *tab, id int) {
	e.t.Helper()
	for deadline := time.Now().Add(limit); !e.has(id); {
		if time.Now().After(deadline) {
			e.t.Fatal("the link does not go on\n" + b.text())
		}
		b.later(1)
	}
}

// TestReal drives the page of two processes of one link: a pause by the button of the one that stands by
// really pauses the other; a takeover keeps the pause; a resume by button lets the link go on.
func TestReal(t *testing.T) {
	t.Parallel()
	if browser == nil {
		open(t, "") // which skips, or fails
	}
	e := startEnds(t)
	e.insert(1)
	first := run(t, e.source, e.target)
	a := open(t, first.page+"/")
	a.shown("level", "good")
	a.shown("sentence", "Steady")
	e.insert(3)
	a.shown("namespaces", "shop.orders")
	a.wait(`document.querySelectorAll("#tile-oldest .unknown, #stages .busy.nil").length === 0`)
	second := run(t, e.source, e.target)
	b := open(t, second.page+"/")
	b.shown("sentence", "Standing by")
	a.mayShoot("real-steady")
	b.mayShoot("real-standby")

	b.click("pause")
	b.fill("#ask-why", "by hand")
	b.click("ask-yes")
	b.shown("outcome", "Pause: done")
	b.shown("requests", "by hand")
	a.shown("held", "Paused")
	a.shown("held", "by hand")
	a.shown("sentence", "by hand")
	a.mayShoot("real-paused")
	e.insert(2)
	a.later(3)
	if e.has(2) {
		t.Error("the link applies while it is paused")
	}

	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.shown("live", "disconnected for")
	a.shown("level", "unknown")
	b.wait(`!document.getElementById("sentence").textContent.includes("Standing by")`)
	b.shown("held", "Paused")
	b.shown("held", "by hand")
	b.later(2)
	if e.has(2) {
		t.Error("the takeover forgot the pause")
	}
	b.click("resume")
	b.click("ask-yes")
	b.shown("outcome", "Resume: done")
	b.shown("held", "Not paused")
	b.shown("sentence", "Steady")
	e.await(b, 2)
	b.quiet(second.page)
	a.quiet(first.page, "ERR_")
}

// TestAgent drives the pages of a process of many links: the list, from the address of the process, and a
// link of it, on which a pause by button pauses that link alone.
func TestAgent(t *testing.T) {
	t.Parallel()
	if browser == nil {
		open(t, "") // which skips, or fails
	}
	e := startEnds(t)
	e.insert(1)
	links := filepath.Join(t.TempDir(), "links.yaml")
	file := fmt.Sprintf("defaults: {source: %q, target: %q, spool-dir: %q}\nlinks:\n  one: {include: [shop]}\n  two: {include: [crm]}\n",
		e.source.URI(), e.target.URI(), t.TempDir())
	if err := os.WriteFile(links, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := start(t, "agent", "--links", links)
	b := open(t, agent.page+"/")
	b.arrives("/fleet")
	const rows = `Array.from(document.querySelectorAll("#links tbody tr"))`
	b.wait(rows + `.length === 2 && ` + rows + `.every((r) => r.dataset.level === "good" && r.textContent.includes("Steady"))`)
	eval[bool](b, rows+`.find((r) => r.cells[0].textContent === "one").querySelector("a").click() || true`)
	b.arrives("/link/one/")
	b.shown("link", "one")
	b.shown("sentence", "Steady")
	b.wait(`document.querySelectorAll(".chart").length > 5`)
	b.click("pause")
	b.fill("#ask-why", "only this one")
	b.click("ask-yes")
	b.shown("outcome", "Pause: done")
	b.shown("held", "only this one")
	eval[bool](b, `document.querySelector("nav a").click() || true`)
	b.arrives("/fleet")
	b.wait(rows + `.map((r) => r.cells[0].textContent + "=" + r.dataset.level).sort().join() === "one=attention,two=good"`)
	b.shown("links", "only this one")
	// Of the process the host and the port, and all of its id on hover.
	b.wait(rows + `.every((r) => /^[^:]+:\d+$/.test(r.cells[2].textContent) && /^[^:]+:\d+:\d+:\w+$/.test(r.cells[2].title))`)
	b.mayShoot("agent")
	b.quiet(agent.page)
}

// later waits until the page has shown as many statuses more.
func (b *tab) later(statuses int) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`new Promise((done) => {
		let left = %d;
		new MutationObserver((_, o) => { if (--left <= 0) { o.disconnect(); done(true) } }).observe(document.getElementById("live"), { childList: true, subtree: true, characterData: true });
	})`, statuses))
}
