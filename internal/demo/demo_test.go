package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func show(t *testing.T, cfg Config) (Result, string) {
	t.Helper()
	var out bytes.Buffer
	cfg.Out, cfg.Documents, cfg.Catchup = &out, 3000, 5*time.Minute
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	res, err := d.Run(t.Context())
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	return res, out.String()
}

// TestStopped: it ends at once, from any of its steps, with why, and leaves nothing
// behind; TestMain sees to that.
func TestStopped(t *testing.T) {
	for _, after := range []time.Duration{0, 60 * time.Millisecond, 1500 * time.Millisecond} {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		timer := time.AfterFunc(after, func() { cancel(why) })
		d, err := New(Config{Seed: 3, Out: io.Discard, InPlace: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Run(ctx); !errors.Is(err, why) {
			t.Errorf("stopped after %s: %v", after, err)
		}
		timer.Stop()
	}
}

// TestBehind: a target that cannot catch up is an error, not equality.
func TestBehind(t *testing.T) {
	d, err := New(Config{Seed: 4, Writing: 300 * time.Millisecond, Catchup: time.Nanosecond, Documents: 10, Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(t.Context()); !errors.Is(err, errNotCaughtUp) {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{Writing: -1, Documents: -1}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Error(err)
	}
}

// TestScreen: progress takes the place of itself, on a terminal; elsewhere there is
// one line a second.
func TestScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := screen{out: &out, inPlace: true}
		s.line("a")
		s.progress("b")
		s.progress("c")
		s.line("d")
		s.progress(strings.Repeat("e", 200))
		s.end()
		want := "a\n" + wipeLine + "b" + wipeLine + "c" + wipeLine + "d\n" + wipeLine + strings.Repeat("e", columns) + wipeLine
		if out.String() != want {
			t.Errorf("%q", out.String())
		}
		out.Reset()
		s = screen{out: &out}
		for range 25 {
			s.progress("b")
			time.Sleep(100 * time.Millisecond)
		}
		s.line("d")
		s.end()
		if out.String() != "b\nb\nb\nd\n" {
			t.Errorf("%q", out.String())
		}
	})
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

// TestEqual: the demo shows what it says. On a slow machine clients may need longer than three seconds for their
// first transaction.
func TestEqual(t *testing.T) {
	for writing := 3 * time.Second; ; writing *= 4 {
		res, _ := show(t, Config{Seed: 1, Writing: writing})
		if !res.Compared.Equal() || res.Compared.Documents == 0 || res.Ops == 0 || res.SourceFailovers != 1 || res.TargetFailovers != 1 {
			t.Fatalf("%+v", res)
		}
		if res.Written.Transactions > 0 {
			return
		}
		if writing > time.Minute/2 {
			t.Fatalf("no transaction in %s: %+v", writing, res)
		}
	}
}

// TestTampered: a document changed without the mirror is found.
func TestTampered(t *testing.T) {
	tamper := func(ctx context.Context, target *driver.Set) error {
		body, err := bson.Marshal(bson.D{
			{Key: "update", Value: filled}, // which has it, however little the clients have written
			{Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: 7}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "by", Value: "nobody"}}}}},
			}}},
		})
		if err != nil {
			return err
		}
		reply, err := target.Call(ctx, mongo.Command{DB: filledDB, Body: body})
		if n, _ := reply.Lookup("nModified").AsInt64OK(); err == nil && n != 1 {
			t.Errorf("%d documents were changed", n)
		}
		return err
	}
	res, out := show(t, Config{Seed: 2, Writing: time.Second, tamper: tamper})
	if len(res.Compared.Differences) != 1 || res.Compared.Differences[0].NS != filledDB+"."+filled {
		t.Errorf("%+v", res.Compared)
	}
	if !bytes.Contains([]byte(out), []byte("\nFAIL")) {
		t.Error("the summary does not say so")
	}
}

// TestElection: an election of the target while the sets are compared delays the result.
func TestElection(t *testing.T) {
	elects := func(ctx context.Context, target *driver.Set) error {
		body, err := bson.Marshal(bson.D{
			{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: 5}}},
			{Key: "data", Value: bson.D{
				{Key: "failCommands", Value: bson.A{"find", "listCollections"}},
				{Key: "errorCode", Value: servererr.NotPrimaryNoSecondaryOk},
			}},
		})
		if err != nil {
			return err
		}
		_, err = target.Call(ctx, mongo.Command{DB: "admin", Body: body})
		return err
	}
	if res, _ := show(t, Config{Seed: 6, Writing: time.Second, tamper: elects}); !res.Compared.Equal() {
		t.Errorf("%+v", res.Compared)
	}
}

// lines passes its writes on, line by line.
type lines struct {
	all  bytes.Buffer
	each func(line string)
}

func (w *lines) Write(p []byte) (int, error) {
	w.all.Write(p)
	for bytes.ContainsRune(w.all.Bytes(), '\n') {
		w.each(strings.TrimSuffix(string(w.all.Next(bytes.IndexByte(w.all.Bytes(), '\n')+1)), "\n"))
	}
	return len(p), nil
}

// TestKeep: the page is served from the start; after the comparison everything continues until the context
// is done, which is not an error.
func TestKeep(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	address := ""
	get := func(path string) string {
		reply, err := http.Get(address + path)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer func() { _ = reply.Body.Close() }()
		body, err := io.ReadAll(reply.Body)
		if err != nil || reply.StatusCode != http.StatusOK {
			t.Errorf("%s: %d, %v", path, reply.StatusCode, err)
		}
		return string(body)
	}
	out := &lines{each: func(line string) {
		t.Log(line)
		if _, at, ok := strings.Cut(line, "the page of the link is at "); ok {
			address = at
		}
		if strings.HasPrefix(line, "target  mongodb://") {
			if !strings.Contains(get(""), "<h1 id=\"link\">") || !strings.Contains(get("status"), `"link":"demo"`) {
				t.Error("the page, or the status, is not served")
			}
			if !strings.Contains(get("history?range=1h"), `"lagSeconds"`) {
				t.Error("the history is not served")
			}
			_ = get("requests")
			cancel(errors.New("enough"))
		}
	}}
	d, err := New(Config{Seed: 5, Writing: time.Second, Documents: 100, Catchup: 5 * time.Minute, Out: out, Listen: "127.0.0.1:0", Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := d.Run(ctx)
	if err != nil || !res.Compared.Equal() || address == "" {
		t.Errorf("%v, %s, at %q", err, res.Compared.String(), address)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestLagUnknown: a lag that was never known, as when the clients end during the copy, is not 0.
func TestLagUnknown(t *testing.T) {
	t.Parallel()
	var r Result
	r.addLags(nil)
	if text := r.String(); !strings.Contains(text, "\nlag        unknown: ") {
		t.Errorf("no lag was known, and the summary is%s", text)
	}
	r.addLags([]float64{0.5, 0.25, 0})
	if text := r.String(); !strings.Contains(text, "\nlag        0.250 s in the median, 0.500 s at most\n") {
		t.Errorf("the summary is%s", text)
	}
}
