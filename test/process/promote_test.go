package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

const (
	bankDB = "bank"
	// perCollection is how many accounts a collection has, balance what each has at first.
	perCollection, balance = 8, 100
	// mostRun is how long the source lives at most while it is written to.
	mostRun = 900 * time.Millisecond
)

var accounts = []string{"a", "b", "c"}

// TestPromote kills the whole source at a random moment, while money is moved between documents
// of several collections in transactions, and the program too in half of the runs: the target is
// promoted, with kills of that in between, and has exactly what the source had as of the recovery
// point, which is not older than the durable optime before. REPLICATOR_PROMOTE_SEEDS is how many
// runs there are, REPLICATOR_SEED the first.
func TestPromote(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts many processes: not with -short")
	}
	program := build(t)
	first := number(t, "REPLICATOR_SEED", 2)
	for seed := first; seed < first+number(t, "REPLICATOR_PROMOTE_SEEDS", 3); seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			h := &harness{
				TB: t, program: program, rnd: rand.New(rand.NewPCG(uint64(seed), 20)),
				source: mongosim.StartTest(t, mongosim.Options{Members: 1 + 2*(seed%2), Seed: int64(seed)}),
				target: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: int64(seed) + 1}),
			}
			h.from, h.to = connect(t, h.source), connect(t, h.target)
			(&promotion{harness: h, seed: seed, spool: t.TempDir()}).run(t)
		})
	}
}

// promotion is one run of TestPromote.
type promotion struct {
	*harness
	seed  int
	spool string
}

// recovery is what promote prints.
type recovery struct {
	Promoted      bool
	At, Heard     *optime
	Exact         bool
	MissingAtMost *int
	Ahead         []any
	Deferred      int
	RelayLog      struct {
		Last *optime
		Cut  bool
	}
}

type optime struct {
	T, I uint32
	Term int64
}

func (o *optime) opTime() oplog.OpTime {
	if o == nil {
		return oplog.OpTime{}
	}
	return oplog.OpTime{TS: bson.Timestamp{T: o.T, I: o.I}, Term: o.Term}
}

func (p *promotion) run(t *testing.T) {
	t.Helper()
	settings := append(p.settings(), "--spool-dir", p.spool)
	l := p.start(append(settings, "--relay-log", "16MiB")...)
	l.until(time.Minute, p.exists)
	p.found(t)
	end := p.move(t)
	l.until(time.Duration(p.rnd.Int64N(int64(mostRun))), nil)
	dies, first := p.seed%2 == 0, p.rnd.IntN(2) == 0
	if dies && first {
		l.kill()
	}
	for _, m := range p.source.Members() {
		must.Succeed(t, m.Kill())
	}
	end()
	if dies && !first {
		l.until(time.Duration(p.rnd.Int64N(int64(mostRun/2))), nil)
		l.kill()
	}
	durable := p.state().Applied
	damaged := dies && p.seed%4 == 0 && p.damage(t)
	for range p.rnd.IntN(3) {
		p.interrupted(t, settings)
	}
	would := p.promote(t, append(settings, "--dry-run"))
	got := p.promote(t, settings)
	again := p.promote(t, settings)
	if d := cmp.Diff(got, again); d != "" {
		t.Errorf("promoted again:\n%s", d)
	}
	if dies && would.At.opTime() != got.At.opTime() {
		t.Errorf("the dry run said %v, and it is %v", would.At, got.At)
	}
	if !dies {
		p.ends(t, l)
	}
	t.Logf("durable %s, exact %v up to %s, heard of %s, relay log cut %v", durable, got.Exact, got.At.opTime(), got.Heard.opTime(), got.RelayLog.Cut)
	if !got.Promoted || got.At.opTime().Before(durable) {
		t.Errorf("promoted %v at %s, and %s was durable", got.Promoted, got.At.opTime(), durable)
	}
	if !got.Exact && !damaged {
		t.Errorf("not exact: %v", got.Ahead)
	}
	p.prove(t, &got)
	if len(p.source.Members()) == 1 {
		p.rewind(t, got.At.opTime(), settings)
	}
}

// rewind checks that the source, once it is back, has its writes after the recovery point listed.
func (p *promotion) rewind(t *testing.T, at oplog.OpTime, settings []string) {
	t.Helper()
	want := 0
	for _, raw := range p.longest(at) {
		if e := must.Get(oplog.ParseEntry(raw))(t); e.OpTime.After(at) {
			want += len(touchedOps(t, &e))
		}
	}
	must.Succeed(t, p.source.Members()[0].Start())
	must.Get(p.source.AwaitPrimary(t.Context()))(t)
	var out, said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), p.program, slices.Concat([]string{"rewind", "--source", p.source.URI(), "--target", p.target.URI(), "--link", link}, settings)...)
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	exit, _ := errors.AsType[*exec.ExitError](err)
	differ := 0
	for line := range strings.Lines(out.String()) {
		var l struct{ Same bool }
		must.Succeed(t, json.Unmarshal([]byte(line), &l))
		if !l.Same {
			differ++
		}
	}
	if n := strings.Count(out.String(), "\n"); n != want {
		t.Errorf("%d writes are listed as lost, and %d are:\n%s%s", n, want, out.String(), said.String())
	}
	if differ == 0 && err != nil || differ > 0 && (exit == nil || exit.ExitCode() != 4) {
		t.Errorf("%d documents differ, and it ended with %v:\n%s", differ, err, said.String())
	}
	t.Logf("%d writes are lost, of %d documents that differ", want, differ)
}

// found opens the accounts.
func (p *promotion) found(t *testing.T) {
	t.Helper()
	for _, coll := range accounts {
		docs := bson.A{}
		for i := range perCollection {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "v", Value: balance}})
		}
		must.Succeed(t, client.ThroughElections(t.Context(), func() error {
			_, err := p.from.Call(t.Context(), bank(t, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}}))
			return err
		}))
	}
}

func bank(t *testing.T, cmd bson.D) mongo.Command {
	return mongo.Command{DB: bankDB, Body: must.Get(bson.Marshal(cmd))(t)}
}

// move moves money until the result is called.
func (p *promotion) move(t *testing.T) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	var clients sync.WaitGroup
	for n := range 3 {
		rnd := rand.New(rand.NewPCG(uint64(p.seed), uint64(n)))
		clients.Go(func() {
			for mongo.Pause(ctx, 4*time.Millisecond) == nil {
				amount := 1 + rnd.IntN(20)
				s := mongo.NewSession(p.from, mongo.NewSessionID(), 1)
				_ = s.InTxn(ctx, false, func(txn *mongo.Txn) error { // completely or not at all
					for _, by := range []int{amount, -amount} {
						cmd := bson.D{{Key: "update", Value: accounts[rnd.IntN(len(accounts))]}, {Key: "updates", Value: bson.A{bson.D{
							{Key: "q", Value: bson.D{{Key: "_id", Value: rnd.IntN(perCollection)}}},
							{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: by}}}}},
						}}}}
						reply, err := txn.Call(ctx, bank(t, cmd))
						if err == nil {
							_, err = mongo.Written(reply)
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
			}
		})
	}
	return func() { stop(nil); clients.Wait() }
}

// damage tears the end of the newest file of the relay log, or changes a byte in it. It returns false if the program
// was killed before there was one.
func (p *promotion) damage(t *testing.T) bool {
	t.Helper()
	files := must.Get(filepath.Glob(filepath.Join(p.spool, "*", "*", "*.spool")))(t)
	if len(files) == 0 {
		return false
	}
	name := slices.Max(files)
	content := must.Get(os.ReadFile(name))(t)
	at := len(content)/2 + p.rnd.IntN(len(content)/2)
	if p.rnd.IntN(2) == 0 {
		content = content[:at]
	} else {
		content[at] ^= 0x40
	}
	must.Succeed(t, os.WriteFile(name, content, 0o600))
	return true
}

// command is promote.
func (p *promotion) command(ctx context.Context, settings []string) *exec.Cmd {
	return exec.CommandContext(ctx, p.program, slices.Concat([]string{
		"promote", "--source-is-gone", "--target", p.target.URI(), "--link", link, "--json",
	}, settings)...)
}

// interrupted kills a promotion at a random moment.
func (p *promotion) interrupted(t *testing.T, settings []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(p.rnd.Int64N(int64(700*time.Millisecond))))
	defer cancel()
	err := p.command(ctx, settings).Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && ctx.Err() == nil && ok {
		t.Errorf("it ended by itself: %v", exit)
	}
}

// promote promotes, and returns what it prints.
func (p *promotion) promote(t *testing.T, settings []string) recovery {
	t.Helper()
	var out, said bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, settings)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("promote: %v\n%s", err, said.String())
	}
	var r recovery
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return r
}

// ends checks that a process that was running ends by itself, with code 6.
func (p *promotion) ends(t *testing.T, l *life) {
	t.Helper()
	select {
	case err := <-l.ended:
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 6 || !strings.Contains(l.said.String(), "was promoted") {
			t.Errorf("the process that led ended with %v:\n%s", err, l.said.String())
		}
	case <-time.After(patience):
		_ = l.cmd.Process.Signal(syscall.SIGKILL)
		t.Errorf("the process that led did not end:\n%s", l.said.String())
	}
}

// prove compares the target with what the source had as of the recovery point.
func (p *promotion) prove(t *testing.T, r *recovery) {
	t.Helper()
	at, heard := r.At.opTime(), r.Heard.opTime()
	store := memstore.New(memstore.Config{})
	oracle := must.Get(memstore.NewApplier(store, memstore.Steady, txn.Config{}))(t)
	defer func() { must.Succeed(t, oracle.Close()) }()
	missing, there := 0, false
	later := map[string]bool{}
	for _, raw := range p.longest(at) {
		e := must.Get(oplog.ParseEntry(raw))(t)
		there = there || e.OpTime.Equal(at)
		switch {
		case !e.OpTime.After(at):
			must.Succeed(t, oracle.Apply(&e))
			continue
		case !e.OpTime.After(heard):
			missing++
		}
		touched(t, later, &e)
	}
	if !there {
		t.Fatalf("no member of the source has the recovery point %s", at)
	}
	if n := r.MissingAtMost; n != nil && *n < missing {
		t.Errorf("at most %d entries should be missing, and %d are", *n, missing)
	}
	total := 0
	for _, coll := range accounts {
		c, _ := store.Collection(oplog.Namespace(bankDB + "." + coll))
		want := map[string]string{}
		if c != nil {
			for doc := range c.All() {
				want[doc.Lookup("_id").String()] = doc.String()
			}
		}
		got := map[string]string{}
		reply := must.Get(p.to.Call(t.Context(), bank(t, bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: 1000}})))(t)
		for _, doc := range must.Get(mongo.ReadBatch(reply))(t).Docs {
			got[doc.Lookup("_id").String()] = doc.String()
			v, _ := doc.Lookup("v").AsInt64OK()
			total += int(v)
		}
		if !r.Exact { // what came later may be there
			for id := range later {
				if k, ok := strings.CutPrefix(id, coll+" "); ok {
					delete(want, k)
					delete(got, k)
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s, with a recovery point of %s:\n%s", coll, at, d)
		}
	}
	if n := total % (perCollection * balance); r.Exact && n != 0 {
		t.Errorf("%d is the sum of all accounts: money is lost", total)
	}
}

// touched adds the documents that an entry changes.
func touched(t *testing.T, all map[string]bool, e *oplog.Entry) {
	t.Helper()
	for _, op := range touchedOps(t, e) {
		all[fmt.Sprintf("%s %s", op.NS.Collection(), op.ID)] = true
	}
}

// touchedOps are the operations of an entry on the bank.
func touchedOps(t *testing.T, e *oplog.Entry) (ops []oplog.Op) {
	t.Helper()
	add := func(op oplog.Op) {
		if op.NS.DB() == bankDB {
			ops = append(ops, op)
		}
	}
	if e.Command != oplog.CommandApplyOps {
		add(e.Op)
		return ops
	}
	group := must.Get(e.ApplyOps())(t)
	for op, err := range group.Ops() {
		must.Succeed(t, err)
		add(op)
	}
	return ops
}

// longest returns the oplog of the member of the source that has the recovery point and the most
// after it.
func (p *promotion) longest(at oplog.OpTime) []bson.Raw {
	var best []bson.Raw
	for _, m := range p.source.Members() {
		list := m.Oplog(bson.Timestamp{})
		has := slices.ContainsFunc(list, func(raw bson.Raw) bool {
			e, err := oplog.ParseEntry(raw)
			return err == nil && e.OpTime.Equal(at)
		})
		if has && len(list) > len(best) {
			best = list
		}
	}
	return best
}
