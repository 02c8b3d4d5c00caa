package pipeline_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestScenarios plays the files of testdata/faults: acts on two embedded sets and a
// link between them, and the events of the link. They run in real time, so a step
// waits for the state it expects, and the files contain only output that is the same
// in every run:
//
//	sets [source=N] [target=N] [source-oplog=BYTES] ...   start two sets, whose members do not
//	                                                       elect by themselves but with elects,
//	                                                       after 4 s, or source-election=MILLISECONDS
//	do [show=(KIND,...)] [order=any]                       lines, each an act
//
// The acts are those of func act. The output of do is the events, each line once
// in the order in which they first occur, and then the output of the acts. States
// that alternate in a working link are both printed as "running". Members are called
// A, B, C in the order in which they were read. With show=decisions the steps of the
// link are left out, where it is a matter of time which of them are taken again; with
// order=any the events are sorted, where it is a matter of time which comes first.
func TestScenarios(t *testing.T) {
	t.Parallel()
	runScenarios(t, "testdata/faults/*", race.One)
}

// TestCopies plays those of testdata/copies: links that begin with a copy.
func TestCopies(t *testing.T) {
	t.Parallel()
	runScenarios(t, "testdata/copies/*", race.One)
}

func runScenarios(t *testing.T, pattern string, played func(i int) bool) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i, file := range files {
		if !played(i) {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			var w *world
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "sets":
					exact := mongosim.GentleMoods("a file has the trace of its own faults; TestMoods plays it with all of them")
					w = newWorld(t, setOptions(t, d, "source", 1, exact), setOptions(t, d, "target", 2, exact))
					return ""
				case "do":
					return w.do(d)
				}
				d.Fatalf(t, "unknown command %s", d.Cmd)
				return ""
			})
		})
	}
}

func setOptions(t *testing.T, d *datadriven.TestData, which string, seed int64, moods mongosim.Moods) mongosim.Options {
	// Sets of one seed would have one identity.
	o := mongosim.Options{Members: 3, Seed: seed, TTLInterval: -1, Moods: moods}
	// A busy machine is no reason for an election, whose events no file has.
	switch {
	case moods.All:
	case d.HasArg("elects"):
		o.ElectionTimeout = 4 * time.Second
	default:
		o.ElectionTimeout = time.Hour
	}
	var n int
	for name, set := range map[string]func(){
		"":          func() { o.Members = n },
		"-oplog":    func() { o.OplogBytes = int64(n) },
		"-journal":  func() { o.JournalDelay = time.Duration(n) * time.Millisecond },
		"-election": func() { o.ElectionTimeout = time.Duration(n) * time.Millisecond },
	} {
		if d.HasArg(which + name) {
			d.ScanArgs(t, which+name, &n)
			set()
		}
	}
	if d.HasArg(which + "-dialect") {
		d.ScanArgs(t, which+"-dialect", &o.Dialect)
	}
	return o
}

func (w *world) do(d *datadriven.TestData) string {
	var show []string
	sorted := false
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "show":
			show = arg.Vals
		case "order":
			sorted = true
		default:
			d.Fatalf(w.t, "unknown argument %s", arg.Key)
		}
	}
	said := w.acts(d)
	lines := w.journal(show)
	if sorted {
		slices.Sort(lines)
	}
	if lines = append(lines, said...); len(lines) == 0 {
		return "ok\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

// acts carries out the lines of a scenario and returns their output.
func (w *world) acts(d *datadriven.TestData) (said []string) {
	for line := range strings.Lines(d.Input) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		says, err := w.act(line)
		if err != nil {
			w.fail(d.Pos, line, err)
		}
		if says != "" {
			said = append(said, says)
		}
	}
	return said
}

// act does what a line says:
//
//	start [NAME] [KEY=VALUE ...]     start a link; see configure
//	drain|stop|ended [NAME]          end it, in order or at once, also where hold keeps it;
//	                                 or wait for its end
//	await STATE|caught-up [NAME]     running, steady, stale, ...; or a checkpoint at
//	                                 the source's newest entry
//	await told TEXT                  an event whose line begins so
//	equal                            compare the sets
//	state [NAME]                     say it
//	durable [NAME]                   say whether all that is applied is durable
//	drained [NAME]                   check that the last checkpoint is at the last entry fetched
//	late MARK SECONDS                check that SECONDS have passed since MARK
//	load [slow] | load stop          a workload on the source; slow where it is not all
//	                                 that is waited for
//	hold TEXT | release              keep the link where it tells TEXT; let it go on
//	limit OPS                        request for a speed of the copy, in documents per second
//	resync NS                        request for a collection to be copied again
//	await held                       until the link is kept where hold says
//	await copied N                   until that many documents are copied
//	await resync STATE NS            until a request has come to that state
//	await spooled                    until all of the source's entries are on disk
//	damage first|last                change a byte of the first or last record of the spool
//	spools                           say how many files are on disk
//	disk freeze|heal                 nothing is written to the spools; all is again
//	consistent [NAME]                say whether the metadata say so
//	source|target ...                see onSet
func (w *world) act(line string) (string, error) {
	words := strings.Fields(line)
	verb, args := words[0], words[1:]
	switch verb {
	case "source":
		return w.onSet(w.source, args, line)
	case "target":
		return w.onSet(w.target, args, line)
	case "start":
		name := "a"
		if len(args) > 0 && len(args[0]) == 1 {
			name, args = args[0], args[1:]
		}
		return "", w.configure(name, args)
	case "load":
		if len(args) > 0 && args[0] == "stop" {
			return "", w.endLoad()
		}
		cfg := traffic.Config{DB: "shop", Seed: 1, Pause: 15 * time.Millisecond}
		if len(args) > 0 {
			cfg.Clients, cfg.Pause, cfg.KeeperPause = 2, 100*time.Millisecond, 500*time.Millisecond
		}
		return "", w.beginLoad(cfg)
	case "hold", "release", "limit", "resync", "consistent", "damage", "spools":
		return w.copyAct(verb, args)
	case "disk":
		w.disk.set(args[0] == "freeze")
		return "", nil
	case "equal":
		return w.equal(w.link(args))
	case "drain", "stop", "ended":
		return "", w.end(verb, w.link(args))
	case "drained":
		l := w.link(args)
		if got, want := l.reached, l.p.Snapshot().Fetched; !got.Equal(want) {
			return "", fmt.Errorf("the checkpoint is at %s, fetched is %s", got, want)
		}
		return "", nil
	case "durable":
		p := w.link(args).p.Snapshot().Progress
		return fmt.Sprintf("everything applied is durable: %t", p.Durable.Equal(p.Applied)), nil
	case "late":
		seconds, err := strconv.Atoi(args[1])
		if now, want := time.Now().Unix(), int64(w.marks[args[0]].T)+int64(seconds); err == nil && now < want {
			err = fmt.Errorf("at %d, not %d yet", now, want)
		}
		return "", err
	case "state":
		return "state " + word(w.link(args).p.Snapshot().State), nil
	case "await":
		return "", w.await(args)
	}
	return "", errors.New("unknown act")
}

func (w *world) link(args []string) *link {
	if len(args) > 0 {
		return w.links[args[len(args)-1]]
	}
	return w.links["a"]
}

func (w *world) end(how string, l *link) error {
	switch how {
	case "drain":
		l.drain(nil)
	case "stop":
		l.stop(failure.ErrStopped)
		w.release()
	}
	return w.until("the end of "+l.name, func() bool {
		select {
		case <-l.done:
			return true
		default:
			return false
		}
	})
}

func (w *world) await(args []string) error {
	what := args[0]
	l := w.link(args[1:])
	if l == nil {
		l = w.links["a"]
	}
	switch what {
	case "caught-up":
		return w.caughtUp(l)
	case "lacking":
		// What the target lacks, as the status reports them.
		want := strings.Join(args[1:], " ")
		l := w.links["a"]
		return w.untilOf(l, "the target to lack "+want, func() bool { return lackingNames(l.p.Snapshot().Lacking) == want })
	case "told":
		text := strings.Join(args[1:], " ")
		l := w.links["a"]
		return w.untilOf(l, text, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range w.events {
				if line, _ := w.line(e); line != "" && strings.HasPrefix(line, text) {
					return true
				}
			}
			return false
		})
	case "copied":
		return w.awaitCopied(args[1])
	case "spooled":
		w.awaitSpooled(l)
		return nil
	case "held":
		return w.untilOf(l, "something to be held", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.held != "" && w.kept == w.free
		})
	case "resync":
		return w.awaitResync(args[1], args[2])
	case "applied": // durable or not
		want, err := w.known(l)
		if err != nil {
			return err
		}
		return w.untilOf(l, "everything applied", func() bool { return !l.p.Snapshot().Log.Applied.Before(want) })
	case "fetched":
		want, err := w.known(l)
		if err != nil {
			return err
		}
		return w.untilOf(l, "everything fetched", func() bool { return !l.p.Snapshot().Fetched.Before(want) })
	case "busy": // something is being applied
		before := l.p.Snapshot().Progress.Ops
		return w.untilOf(l, "operations", func() bool { return l.p.Snapshot().Progress.Ops > before+20 })
	}
	return w.untilOf(l, "the state "+what, func() bool {
		s := l.p.Snapshot().State
		return string(s) == what || word(s) == what
	})
}

func lackingNames(l ddl.Lacking) string {
	var names []string
	for i := range l.Views {
		names = append(names, l.Views[i].Name())
	}
	for _, h := range l.Indexes {
		names = append(names, string(h.NS)+"/"+h.Index)
	}
	for _, o := range l.Options {
		names = append(names, string(o.NS)+":"+o.Name)
	}
	return strings.Join(names, " ")
}
