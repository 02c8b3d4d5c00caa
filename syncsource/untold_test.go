package syncsource

import (
	"errors"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestUntoldMembers: a member whose oldest entry could not be read, or is none, has not told how far its oplog reaches.
func TestUntoldMembers(t *testing.T) {
	t.Parallel()
	v := View{Answers: 10}
	for _, words := range []string{"rolled secondary 100:1@1", "empty secondary 100:1@1", "malformed secondary 100:1@1", "lost secondary 100:1@1"} {
		v.Members = append(v.Members, parseMember(t, words))
	}
	r := must.Get(NewResolver(ResolverConfig{}, &fixedViews{view: v}, &scenario{hosts: map[string]*fakeOplog{
		"rolled": {words: []string{"oldest=50:1@1"}}, "empty": {words: []string{"oldest=empty"}},
		"malformed": {words: []string{"oldest={}"}}, "lost": {words: []string{"oldest=network"}},
	}}))(t)
	_, err := r.Resolve(t.Context(), oplog.NewOpTime(10, 1, 1))
	stale, ok := errors.AsType[*TooStaleError](err)
	if !ok || !slices.Equal(slices.Sorted(slices.Values(stale.Untold)), []string{"empty", "lost", "malformed"}) {
		t.Errorf("%v: not told by %v", err, stale.Untold)
	}
}
