package syncsource

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// TestLevel: the latest writes do not decide which member is copied. While clients write, the primary is ahead of
// the others, by as much as its reply to hello is newer than theirs.
func TestLevel(t *testing.T) {
	t.Parallel()
	primary, near, far := "p primary 100:9@2 ping=30ms", "n secondary 99:1@2 ping=1ms", "f secondary 99:5@2 ping=20ms"
	for name, tt := range map[string]struct {
		rules   Rules
		members []string
		except  string
		level   oplog.OpTime
		want    string
	}{
		"the nearest":                      {members: []string{primary, near, far}, level: oplog.NewOpTime(99, 1, 2), want: "n"},
		"a secondary only":                 {rules: Rules{Mode: ModeSecondary}, members: []string{primary, far}, level: oplog.NewOpTime(99, 5, 2), want: "f"},
		"the primary only":                 {rules: Rules{Mode: ModePrimary}, members: []string{primary, near}, level: oplog.NewOpTime(100, 9, 2), want: "p"},
		"tags":                             {rules: Rules{TagSets: []map[string]string{{"dc": "a"}}}, members: []string{primary, near, far + " tags=dc:a"}, level: oplog.NewOpTime(99, 5, 2), want: "f"},
		"the nearest was tried":            {members: []string{primary, near, far}, except: "n", level: oplog.NewOpTime(99, 5, 2), want: "f"},
		"one that lags":                    {members: []string{primary, "n secondary 69:1@2 ping=1ms"}, level: oplog.NewOpTime(100, 9, 2), want: "p"},
		"one that lags as far as allowed":  {members: []string{primary, "n secondary 70:1@2 ping=1ms"}, level: oplog.NewOpTime(70, 1, 2), want: "n"},
		"all that may be read lag":         {rules: Rules{Mode: ModeSecondary}, members: []string{primary, "n secondary 50:1@2 ping=1ms", "f secondary 51:1@2 ping=9ms"}, level: oplog.NewOpTime(50, 1, 2), want: "n"},
		"a primary that is cut off":        {members: []string{primary + " term=2", far, "n primary 101:1@1 ping=1ms term=1"}, level: oplog.NewOpTime(101, 1, 1), want: "f"},
		"nobody has written":               {members: []string{"p primary 9:1@1 ping=9ms", "n secondary 9:1@1 ping=1ms"}, level: oplog.NewOpTime(9, 1, 1), want: "n"},
		"all were tried":                   {members: []string{near}, except: "n"},
		"pinned to one that lags":          {rules: Rules{Pinned: "n"}, members: []string{primary, "n secondary 50:1@2 ping=1ms"}, level: oplog.NewOpTime(50, 1, 2), want: "n"},
		"pinned to one that is not listed": {rules: Rules{Pinned: "x"}, members: []string{primary}},
	} {
		var v View
		v.Answers = 10
		hosts := map[string]*fakeOplog{}
		for _, words := range tt.members {
			m := parseMember(t, words)
			v.Members, hosts[m.Host] = append(v.Members, m), &fakeOplog{words: []string{"oldest=1:1@1"}}
		}
		tt.rules.AcceptEqual = true
		r, err := NewResolver(ResolverConfig{Rules: tt.rules}, &fixedViews{view: v}, &scenario{hosts: hosts})
		if err != nil {
			t.Fatal(err)
		}
		r = r.Another()
		except := map[string]bool{tt.except: true}
		level := r.Level(except)
		if level != tt.level {
			t.Errorf("%s: %s, want %s", name, level, tt.level)
		}
		if tt.want == "" {
			continue
		}
		r.Deny(tt.except, time.Minute, "was tried")
		if source, err := r.Resolve(t.Context(), level); err != nil || source.Host != tt.want {
			t.Errorf("%s: %q, %v, want %s", name, source.Host, err, tt.want)
		}
	}
}
