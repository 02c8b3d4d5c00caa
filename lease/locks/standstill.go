package locks

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// standstill is a lock of another process, and since when this process has not seen it renewed.
type standstill struct {
	id             bson.ObjectID
	term, renewals int64
	since          time.Time
}

// ask sends a claim. If the lock was not renewed for longer than its TTL, by this process's clock, though it has not
// ended by the store's, it sends the claim again, as one that may replace it: the store's clock was set back. By its
// own clock the holder stopped using the lock a TTL after the last renewal was sent. If it takes it up again under the
// same ID, as a claim does whose reply was lost, that counts as a renewal, and the lock is not replaced.
func (e *Elect) ask(c *Claim, send func(Claim) (Record, error)) (Record, error) {
	sent := time.Now()
	now, err := send(*c)
	if err != nil || now.ID == c.ID || !e.standsStill(now, sent) {
		return now, err
	}
	c.Overtake, c.Renewals = now.ID, now.Renewals
	return send(*c)
}

// standsStill reports whether a lock, as it was read after sent, was not renewed for too long.
func (e *Elect) standsStill(now Record, sent time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.seen[now.Name]
	if now.TTL == 0 || was.id != now.ID || was.term != now.Term || was.renewals != now.Renewals {
		e.seen[now.Name] = standstill{id: now.ID, term: now.Term, renewals: now.Renewals, since: time.Now()}
		return false
	}
	return sent.Sub(was.since) > now.TTL*3/2
}
