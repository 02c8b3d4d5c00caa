package batcher

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// TestPassOver: of entries that are passed over nothing is applied, of transactions of one entry, of
// several, and of prepared ones too; everything else is, and the checkpoint goes on over both.
func TestPassOver(t *testing.T) {
	t.Parallel()
	tokens := strings.Fields("i1 *i2 t(i3) *t(i4) *p1(i5) p2(i6) *e1(i7) e2(i8) *q3(i9) q4(i10) *k3 k4 c:drop *c:create a(i11) *a(i12) *p5(i13) *x5 n1 i14")
	l := newLog()
	over := map[oplog.OpTime]bool{}
	var r oplog.Reply
	for _, token := range tokens {
		name, passed := strings.CutPrefix(token, "*")
		e := l.entry(t, 100, name)
		over[e.OpTime] = passed
		r.Entries = append(r.Entries, e)
	}
	var asked []oplog.OpTime
	b := must.Get(New(Config{SpillDir: t.TempDir(), PassOver: func(e *oplog.Entry) (bool, error) {
		asked = append(asked, e.OpTime)
		return over[e.OpTime], nil
	}}))(t)
	in, out := make(chan oplog.Reply, 1), make(chan batch.Batch, len(tokens))
	in <- r
	close(in)
	must.Succeed(t, b.Run(t.Context(), in, out))
	var got []string
	for x := range out {
		got = append(got, l.describe(t, &x))
	}
	want := []string{
		"batch [i1 t(i3)=i3 e2(i8)=i6,i8 k4=i10] entries 12 weight 5 last 12 from 12 bytes 0",
		"alone [c:drop] entries 1 weight 1 last 13 from 13 bytes 0",
		"batch [a(i11)=i11 i14] entries 7 weight 2 last 20 from 20 bytes 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(asked) != len(tokens) || !slices.IsSortedFunc(asked, oplog.OpTime.Compare) {
		t.Errorf("asked about %v", asked)
	}
}
