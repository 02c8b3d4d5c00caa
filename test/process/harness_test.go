package process

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// link is the link's name.
const link = "kill"

// harness is the two sets, and the program between them.
type harness struct {
	testing.TB
	program        string
	rnd            *rand.Rand
	source, target *mongosim.Set
	// versions are those of the source and of the target, empty for the usual one of both.
	versions [2]string
	from, to *driver.Set
	// begin says how a new link begins: by default with what comes from now on.
	begin []string
	// lead says how the program gets the lease: by default it takes it over, as the process
	// before it was killed.
	lead []string
	// noCappedKeys is that of traffic.Config.
	noCappedKeys bool
	// rare says that traffic.Config.Rare is written too, by sets that delete expired documents every expiry.
	rare bool
	// changes are the step-downs under way.
	changes sync.WaitGroup
}

// expiry is how often sets delete expired documents where some are written.
const expiry = 300 * time.Millisecond

// write has clients write to a database of the source until end is called, which
// waits for them.
func (h *harness) write(db string, seed uint64) (end func()) {
	cfg := traffic.Config{Cluster: h.from, DB: db, Seed: seed, Pause: 5 * time.Millisecond, NoCappedKeys: h.noCappedKeys, Rare: h.rare, Embedded: true}
	if h.versions[0] != "" {
		cfg.Between(h.major(0), h.major(1))
	}
	clients, err := traffic.New(cfg)
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(h.Context())
	soft, rest := context.WithCancelCause(ctx)
	written := make(chan error, 1)
	var writing sync.WaitGroup
	h.Cleanup(func() {
		cancel(nil)
		writing.Wait()
	})
	writing.Go(func() { written <- clients.Run(ctx, soft) })
	return func() {
		rest(nil)
		if err := <-written; err != nil {
			h.Fatal(err)
		}
		h.Logf("written to %s: %+v", db, clients.Stats())
	}
}

// build builds the program as it is.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replicator")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/oplogrep/replicator/cmd/replicator").CombinedOutput()
	if err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

func connect(t testing.TB, set *mongosim.Set) *driver.Set {
	t.Helper()
	return client.Open(t, driver.Config{URI: set.URI(), AppName: "test"}) // without moods
}

// newest is the newest entry of the source.
func (h *harness) newest() oplog.OpTime {
	p, err := h.source.AwaitPrimary(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	v, _ := p.Status()
	return v.LastApplied
}

// state is the link's, of nothing while there is none.
func (h *harness) state() checkpoint.State {
	st, err := h.load()
	if err != nil {
		return checkpoint.State{} // no primary just now
	}
	return st
}

// load reads the link's state, an empty one if there is none.
func (h *harness) load() (checkpoint.State, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: h.to, Link: link})
	if err != nil {
		h.Fatal(err)
	}
	st, _, err := store.Load(h.Context())
	return st, err
}

// reached is the link's checkpoint, null while there is none.
func (h *harness) reached() oplog.OpTime { return h.state().Applied }

func (h *harness) exists() bool { return !h.reached().IsNull() }

// equal compares the sets.
func (h *harness) equal() {
	var deferred ddl.Specs
	err := client.ThroughElections(h.Context(), func() (err error) {
		deferred, err = ddl.ReadDeferred(h.Context(), h.to, "replicator", link)
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	report, err := compare.Compare(h.Context(), compare.Cluster(h.from), compare.Cluster(h.to), compare.Options{
		Deferred: deferred, AnyFieldOrder: h.begin != nil && h.versions[0] != "" && h.major(0) < 5, // as in the e2e tests of copies
	})
	if err != nil {
		h.Fatal(err)
	}
	h.Log(report.String())
	if !report.Equal() {
		h.Fail()
	}
}

// count is how many documents a collection of the target has.
func (h *harness) count(db, coll string) int {
	body, err := bson.Marshal(bson.D{{Key: "count", Value: coll}})
	if err != nil {
		h.Fatal(err)
	}
	reply, err := h.to.Call(h.Context(), mongo.Command{DB: db, Body: body})
	if err != nil {
		return 0 // no primary just now
	}
	n, _ := reply.Lookup("n").AsInt64OK()
	return int(n)
}

// output is what the program has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// String returns all of it.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// life is a run of the program.
type life struct {
	h     *harness
	cmd   *exec.Cmd
	said  output
	ended chan error
	// alone is set if no other process runs the link during this life: the program is not to find then that a collection has to be
	// copied again.
	alone bool
}

// start starts the program.
func (h *harness) start(args ...string) *life {
	l := &life{h: h, ended: make(chan error, 1)}
	begin := h.begin
	if begin == nil {
		begin = []string{"--start-at", "now"}
	}
	lead := h.lead
	if lead == nil {
		lead = []string{"--takeover"}
	}
	// A process that serves nothing has its number in the name by which it leads.
	l.cmd = exec.CommandContext(h.Context(), h.program, slices.Concat([]string{
		"run", "--source", h.source.URI(), "--target", h.target.URI(), "--link", link,
		"--await", "1s", "--log-format", "text", "--log-level", "info", "--progress", "none", "--listen", "none",
	}, begin, lead, args)...)
	l.cmd.Stderr = &l.said
	if err := l.cmd.Start(); err != nil {
		h.Fatal(err)
	}
	go func() { l.ended <- l.cmd.Wait() }()
	h.Cleanup(l.watched)
	return l
}

// watched checks that the program has taken no write of the link for a foreign one, and that
// nothing but a server's state kept it from looking.
func (l *life) watched() {
	for line := range strings.Lines(l.said.String()) {
		if strings.Contains(line, "to be copied") && (strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")) {
			l.h.Logf("process %d: %s", l.cmd.Process.Pid, line)
			if l.alone && strings.Contains(line, "level=WARN") { // the other level is of a late command, which may be late without another process
				l.h.Errorf("process %d copies a collection again, and no other one ran meanwhile", l.cmd.Process.Pid)
			}
		}
		if strings.Contains(line, `msg="foreign write to the target"`) || strings.Contains(line, `level=WARN msg="the target is not watched`) {
			l.h.Errorf("process %d: %s", l.cmd.Process.Pid, line)
		}
	}
}

// until waits for a time, or until done says so, which it must if it is not nil.
// The program must not end by itself meanwhile.
func (l *life) until(atMost time.Duration, done func() bool) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for done == nil || !done() {
		select {
		case err := <-l.ended:
			l.h.Fatalf("it ended by itself: %v\n%s", err, l.said.String())
		case <-look.C:
		case <-timer.C:
			if done != nil {
				_ = l.cmd.Process.Kill()
				err := <-l.ended
				l.h.Fatalf("it did not get there in %s, and was ended: %v\n%s", atMost, err, l.said.String())
			}
			return
		}
	}
}

// kill ends it at once.
func (l *life) kill() {
	_ = l.cmd.Process.Kill() // if it has ended, that shows now
	err := <-l.ended
	exit, ok := errors.AsType[*exec.ExitError](err)
	if ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return
		}
	}
	l.h.Fatalf("it ended by itself: %v\n%s", err, l.said.String())
}

// end ends it in order.
func (l *life) end() {
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		l.h.Fatal(err)
	}
	if err := <-l.ended; err != nil {
		l.h.Fatalf("it did not end in order: %v\n%s", err, l.said.String())
	}
}
