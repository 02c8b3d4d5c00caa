package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/race"
	"github.com/oplogrep/replicator/internal/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// TestScenarios plays the files of testdata/faults: what is done to two embedded
// sets and a link between them, and what the link announces meanwhile. They run
// on real time, so a step waits for what it expects, and only what is the same
// each time is in the files:
//
//	sets [source=N] [target=N] [source-oplog=BYTES] ...   start two sets
//	do [show=(KIND,...)]                                   lines, each an act
//
// The acts are those of func act. The output of do is the events, each line once
// in the order of their first coming, and then what the acts said. States that
// change into each other in a working link are "running" both. Members are called
// A, B, C in the order in which they were read. With show=decisions the steps of the
// link are left out, where it is a matter of time which of them are taken again.
func TestScenarios(t *testing.T) {
	t.Parallel()
	runScenarios(t, "testdata/faults/*")
}

// TestCopies plays those of testdata/copies: links that begin with a copy.
func TestCopies(t *testing.T) {
	t.Parallel()
	runScenarios(t, "testdata/copies/*")
}

func runScenarios(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	// Each run with the race detector plays another half of them.
	half := rand.IntN(2)
	for i, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			if race.Enabled && i%2 != half {
				t.Skip("with the race detector every other scenario is played, by chance")
			}
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
	for _, arg := range d.CmdArgs {
		if arg.Key == "show" {
			show = arg.Vals
		}
	}
	return w.output(show, w.acts(d))
}

// acts does the lines of a scenario and returns what they say.
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

// fail ends a scenario whose act could not be done, with all that was announced.
func (w *world) fail(pos, line string, err error) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		w.t.Logf("%s %s: %s %s", e.at.Format("05.000"), e.link, e.event.Message(), e.event.LogValue())
	}
	w.t.Fatalf("%s: %s: %v", pos, line, err)
}

// act does what a line says:
//
//	start [NAME] [KEY=VALUE ...]     start a link; see configure
//	drain|stop|ended [NAME]          end it, in order or at once; or wait for its end
//	await STATE|caught-up [NAME]     running, steady, stale, ...; or a checkpoint at
//	                                 the source's newest entry
//	await told TEXT                  an event whose line begins so
//	equal                            compare the sets
//	state [NAME]                     say it
//	durable [NAME]                   say whether all that is applied is durable
//	drained [NAME]                   check that the last checkpoint is at what was fetched
//	late MARK SECONDS                check that so much time has passed since
//	load [slow] | load stop          a workload on the source; slow where it is not all
//	                                 that is waited for
//	hold TEXT | release              keep the link where it tells TEXT; let it go on
//	limit OPS                        request for a speed of the copy, in documents per second
//	resync NS                        request for a collection to be copied again
//	await held                       until the link is kept where hold says
//	await copied N                   until that many documents are copied
//	await resync STATE NS            until a request has come to that state
//	damage                           change a byte of the spool
//	spools                           say how many files are on disk
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
		l.stop(pipeline.ErrStopped)
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
		// The views and indexes that the target does not have, as the status tells them.
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
	case "held":
		return w.untilOf(l, "something to be held", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.held != "" && w.kept == w.free
		})
	case "resync":
		return w.awaitResync(args[1], args[2])
	case "applied": // not only what is durable
		want := w.newest()
		return w.untilOf(l, "everything applied", func() bool { return !l.p.Snapshot().Log.Applied.Before(want) })
	case "fetched":
		want := w.newest()
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

// configure starts a link with a configuration of KEY=VALUE.
func (w *world) configure(name string, args []string) error {
	cfg := pipeline.Config{Writers: 4, RetryMax: time.Second, Await: time.Second}
	var sc scope.Config
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "link":
			cfg.Link = value
		case "writers":
			cfg.Writers = n
		case "relaxed":
			cfg.Relaxed = true
		case "report":
			cfg.ReportDivergence = true
		case "serialized":
			cfg.UniqueIndexes = ddl.Serialized
		case "local":
			cfg.ReadConcern = pipeline.ReadLocal
		case "exclude":
			sc.Exclude = append(sc.Exclude, value)
		case "map":
			sc.Map = append(sc.Map, strings.ReplaceAll(value, ":", "="))
		case "read":
			cfg.Rules.Mode = syncsource.Mode(value)
		case "checkpoint":
			d, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			cfg.CheckpointInterval = d
		case "delay":
			d, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			cfg.Delay = d
		case "flush":
			cfg.FlushDocs, cfg.CoalesceWindow = n, n
		case "start-at":
			cfg.StartAt.Timestamp = w.marks[value]
		default:
			if err := w.configureCopy(&cfg, key, value); err != nil {
				return err
			}
		}
	}
	return w.start(name, cfg, sc)
}

// onSet does something to a set:
//
//	insert|update|delete NS FROM..TO [KEY=VALUE ...]   on=MEMBER, w=N, size=BYTES
//	txn NS FROM..TO                     insert in one transaction
//	prepare NAME NS FROM..TO            and leave it prepared; commit NAME, abort NAME
//	seed P, reshape P, cluster P        see seeded and reshaped
//	run DB JSON                         a command on the primary; run-refused, where
//	                                    that is to be said
//	failpoint NAME MODE                 of the primary
//	wipe MEMBER                         empty its disk
//	count NS                            say how many documents there are
//	unsettle                            step down until that ends an attempt
//	mark NAME                           remember the time of the newest entry
//	isolate MEMBER                      cut it off from the other members
//	await primary|synced|rollback       wait for one, for all, or for a rollback
//	ACTION                              of mongosim: kill 0, stepdown, cut A client
func (w *world) onSet(c *cluster, args []string, line string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	switch verb := args[0]; verb {
	case "insert", "update", "delete":
		return "", w.writes(ctx, c, verb, args[1:])
	case "txn":
		return "", c.transaction(ctx, "txn", args[1:], "commitTransaction")
	case "prepare":
		return "", c.transaction(ctx, args[1], args[2:], "prepareTransaction")
	case "commit":
		return "", c.endPrepared(ctx, args[1], "commitTransaction")
	case "abort":
		return "", c.endPrepared(ctx, args[1], "abortTransaction")
	case "seed", "reshape", "cluster":
		return "", c.reshape(ctx, map[string]string{"seed": seeded, "reshape": reshaped, "cluster": clustered}[verb], args[1])
	case "failpoint":
		p := c.Primary()
		if p == nil {
			return "", mongosim.ErrNoPrimary
		}
		_, err := c.on(ctx, p.ID(), "admin", bson.D{{Key: "configureFailPoint", Value: args[1]}, {Key: "mode", Value: args[2]}})
		return "", err
	case "wipe":
		n, err := w.memberOf(c, args[1])
		if err != nil {
			return "", err
		}
		return "", c.Member(n).Wipe()
	case "run", "run-refused":
		var cmd bson.D
		text := line[strings.Index(line, args[1])+len(args[1]):]
		if err := bson.UnmarshalExtJSON([]byte(text), false, &cmd); err != nil {
			return "", err
		}
		err := c.write(ctx, args[1], cmd)
		if verb == "run-refused" {
			return "refused: " + kind(err), nil
		}
		return "", err
	case "count":
		n, err := c.count(ctx, args[1])
		return fmt.Sprintf("%d documents in %s", n, args[1]), err
	case "unsettle":
		return "", w.unsettle(ctx, c)
	case "mark":
		if w.marks == nil {
			w.marks = map[string]bson.Timestamp{}
		}
		w.marks[args[1]] = w.newest().TS
		return "", nil
	case "isolate":
		n, err := w.memberOf(c, args[1])
		if err != nil {
			return "", err
		}
		w.isolated = n + 1
		c.Isolate(n)
		return "", nil
	case "await":
		switch args[1] {
		case "primary":
			_, err := c.AwaitPrimary(ctx)
			return "", err
		case "synced":
			if err := c.AwaitReady(ctx); err != nil {
				return "", err
			}
			return "", c.AwaitSynced(ctx)
		case "another": // primary than MEMBER
			n, err := w.memberOf(c, args[2])
			if err != nil {
				return "", err
			}
			return "", w.until("another primary", func() bool { p := c.Primary(); return p != nil && p.ID() != n })
		}
	case "forge": // a checkpoint behind the source's newest entry
		return "", w.forge(ctx)
	case "replace": // all of its data by another set of the same name
		return "", w.replace()
	}
	for i, word := range args {
		if i > 0 {
			if n, err := w.memberOf(c, word); err == nil {
				args[i] = strconv.Itoa(n)
			}
		}
	}
	a, err := mongosim.ParseAction(strings.Join(args, " "))
	if err != nil {
		return "", err
	}
	return "", c.Do(ctx, a)
}

// span reads FROM..TO.
func span(text string) (from, to int, err error) {
	a, b, ok := strings.Cut(text, "..")
	from, errFrom := strconv.Atoi(a)
	to, errTo := strconv.Atoi(b)
	if !ok || errFrom != nil || errTo != nil {
		return 0, 0, fmt.Errorf("%q is not FROM..TO", text)
	}
	return from, to, nil
}

// writes sends the commands of an act that writes, some documents at a time.
func (w *world) writes(ctx context.Context, c *cluster, verb string, args []string) error {
	db, coll, _ := strings.Cut(args[0], ".")
	from, to, err := span(args[1])
	if err != nil {
		return err
	}
	member, size, concern := -1, 0, bson.D(nil)
	for _, arg := range args[2:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "on":
			if member, err = w.memberOf(c, value); err != nil {
				return err
			}
		case "w":
			n, _ := strconv.Atoi(value)
			concern = bson.D{{Key: "w", Value: n}}
		case "size":
			size, _ = strconv.Atoi(value)
		default:
			return fmt.Errorf("unknown option %s", key)
		}
	}
	step := 50
	if size > 100_000 {
		step = 1
	}
	for at := from; at <= to; at += step {
		cmd := statements(verb, coll, at, min(at+step-1, to), size)
		if concern != nil {
			cmd = append(cmd, bson.E{Key: "writeConcern", Value: concern})
		}
		if member >= 0 {
			_, err = c.on(ctx, member, db, cmd)
		} else {
			err = c.write(ctx, db, cmd)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func statements(verb, coll string, from, to, size int) bson.D {
	list := bson.A{}
	for id := from; id <= to; id++ {
		byID := bson.D{{Key: "_id", Value: id}}
		switch verb {
		case "insert":
			doc := bson.D{{Key: "_id", Value: id}, {Key: "x", Value: id % 7}}
			if size > 0 {
				doc = append(doc, bson.E{Key: "filler", Value: strings.Repeat("x", size)})
			}
			list = append(list, doc)
		case "update":
			list = append(list, bson.D{{Key: "q", Value: byID}, {Key: "u", Value: bson.D{
				{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "$push", Value: bson.D{{Key: "list", Value: id}}},
			}}})
		case "delete":
			list = append(list, bson.D{{Key: "q", Value: byID}, {Key: "limit", Value: 1}})
		}
	}
	field := map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[verb]
	return bson.D{{Key: verb, Value: coll}, {Key: field, Value: list}}
}

func lackingNames(l ddl.Lacking) string {
	var names []string
	for i := range l.Views {
		names = append(names, l.Views[i].Name())
	}
	for _, h := range l.Indexes {
		names = append(names, string(h.NS)+"/"+h.Index)
	}
	return strings.Join(names, " ")
}
