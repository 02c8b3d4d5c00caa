package status

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestLoginRefused: of a source that is silent because it refuses the login, that is the verdict, with what to do;
// one that is heard from is not silent, whatever one of its members refuses.
func TestLoginRefused(t *testing.T) {
	t.Parallel()
	const refused = "a:1 refuses the login: log in to a:1: no such user"
	for after, want := range map[time.Duration]string{time.Second: "steady", 13 * time.Second: "source-silent", 2 * time.Minute: "source-gone"} {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) { steadily(s); s.State, s.LoginRefused = monitor.Steady, refused })
			time.Sleep(after)
		})
		v := &s.Verdict
		if says := strings.HasPrefix(v.Sentence, "The source refuses the login") && strings.Contains(v.Sentence, refused) && strings.Contains(v.Next, "password"); v.Name != want || says != (want != "steady") {
			t.Errorf("after %s: %s: %s\n%s", after, v.Name, v.Sentence, v.Next)
		}
	}
}
