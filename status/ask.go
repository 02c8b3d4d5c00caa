package status

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/replset"
)

// staleAnswers is the number of unanswered queries after which the last answer
// is dropped.
const staleAnswers = 3

// askLoop queries both sides until ctx is done. An unanswered query makes a value
// unknown; reporting an unreachable side is left to the pipeline.
func (t *Tracker) askLoop(ctx context.Context) {
	tick, follow := time.NewTicker(askEvery), time.NewTicker(followEvery)
	defer tick.Stop()
	defer follow.Stop()
	for all := true; ; {
		if all {
			t.askSource(ctx)
			t.askTarget(ctx)
		}
		if all || t.mustFollow() {
			t.askBlock(ctx)
			t.askCutover(ctx)
		}
		select {
		case <-tick.C:
			all = true
		case <-follow.C:
			all = false
		case <-ctx.Done():
			return
		}
	}
}

// mustFollow reports whether a cutover, or a block of the source's writes, is shown.
func (t *Tracker) mustFollow() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blocked || t.cutover.is != nil
}

// askSource reads the oldest entry of the oplog, unless the pipeline knows it.
func (t *Tracker) askSource(ctx context.Context) {
	if live := t.follows(); live != nil {
		if p := live(); knowsWindow(&p, time.Now()) {
			return
		}
	}
	if t.cfg.Source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	oldest, err := replset.OldestEntry(ctx, t.cfg.Source)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.oldest, t.asked = oldest.OpTime.TS, time.Now()
}

// askBlock reads whether writes of users to the source are blocked. Servers without such a block
// do not have the collection.
func (t *Tracker) askBlock(ctx context.Context) {
	if t.cfg.Source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	f := replset.Find{
		DB: "config", Collection: "user_writes_critical_sections",
		Filter: bsoncore.NewDocumentBuilder().AppendBoolean("blockUserWrites", true).Build(),
	}
	_, doc, err := f.Run(ctx, t.cfg.Source)
	if err != nil {
		return
	}
	on := false
	if doc != nil {
		on, _ = doc.Lookup("blockUserWrites").BooleanOK()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocked, t.blockAsked = on, time.Now()
}

// sourceBlocked holds while writes of users to the source are blocked.
func sourceBlocked(s *Snapshot) (string, time.Time) {
	if on := s.Source.WritesBlocked; on == nil || !*on {
		return "", time.Time{}
	}
	if c := s.Cutover; c != nil && c.BlocksSource {
		return "Writes of applications to the source are blocked by a cutover.", time.Time{}
	}
	return "Writes of applications to the source are blocked.", time.Time{}
}

// askTarget reads the set's name and its primary.
func (t *Tracker) askTarget(ctx context.Context) {
	if t.cfg.Target == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	reply, err := replset.Hello(ctx, t.cfg.Target)
	if err != nil {
		return
	}
	set, _ := reply.Lookup("setName").StringValueOK()
	host, _ := reply.Lookup("primary").StringValueOK()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.targetSet, t.targetHost = set, host
}
