package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// KeeperConfig says which lease a Keeper renews, and how often.
type KeeperConfig struct {
	// Target runs commands on the primary of the replica set that has the document. It
	// must not retry, and should have connections of its own: a renewal must not wait for
	// data.
	Target mongo.Caller
	// DB, Collection and ID identify the document, Holder this process: as in Config.
	DB, Collection, ID string
	Holder             string
	// TTL is how long the lease lasts after a renewal. Default DefaultTTL.
	TTL time.Duration
	// Every is the time between two renewals. Default a fifth of the TTL.
	Every time.Duration
	// Margin is how long before its end by the store's clock the process stops using the
	// lease. Default a fifth of the TTL.
	Margin time.Duration
	// Renewed, if not nil, is called after each renewal with its duration, or its error.
	Renewed func(took time.Duration, err error)
}

// DefaultTTL is how long a lease lasts without a renewal.
const DefaultTTL = 10 * time.Second

// Keeper keeps the leases that one process acquires on one document, one after the other:
// it renews them, and ends a context when they are over.
//
// The end is counted on this process's clocks from the moment when the last successful
// renewal was sent. The server counts from a later one, when it executed the renewal. So
// the process stops using the lease at least Margin before the store's clock says that
// another one may acquire it, however wrong the clocks are, if they run at the same speed.
//
// Its methods are safe for concurrent use. A nil Keeper keeps nothing and ends nothing.
type Keeper struct {
	cfg KeeperConfig

	mu sync.Mutex // guards the fields below
	// term and grant are those of the present lease, until is when it is over; both clocks
	// count.
	term  int64
	grant bson.ObjectID
	until time.Time
	// asked is the newest term that was asked for, 0 for none.
	asked int64
	// changes counts the writes sent to change the grant: see change.
	changes int64
	// offer is whether the grant is offered to others, offerKnown that renewals have to say so.
	offer, offerKnown bool
	// over ends the context of Lead, nil if there is none. lost is why it has ended.
	over  context.CancelCauseFunc
	lost  error
	timer *time.Timer
	// stats are without Left. Others means that another process had the lease when this one last
	// began to acquire it.
	stats  Stats
	others bool
}

// NewKeeper returns a Keeper that has no lease yet.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.Every == 0 {
		cfg.Every = cfg.TTL / 5
	}
	if cfg.Margin == 0 {
		cfg.Margin = cfg.TTL / 5
	}
	if cfg.Renewed == nil {
		cfg.Renewed = func(time.Duration, error) {}
	}
	return &Keeper{cfg: cfg}
}

// Lead returns a context that ends with the lease: with ErrExpired or ErrFenced. It begins
// before a lease is acquired, and lasts from one acquisition to the next. End must be
// called before the next Lead, and after everything that used the lease has returned. From
// then on the sessions of these leases can still not be used.
func (k *Keeper) Lead(ctx context.Context) (leading context.Context, end func()) {
	leading, over := context.WithCancelCause(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget()
	k.lost, k.over = nil, over
	return leading, func() {
		over(nil)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.over = nil
		if k.lost == nil {
			k.lost = ErrExpired
		}
		k.stop()
	}
}

// forget makes it have no lease. mu is held.
func (k *Keeper) forget() {
	k.term, k.grant, k.until, k.changes, k.offer, k.offerKnown = 0, bson.ObjectID{}, time.Time{}, 0, false, false
	k.stop()
}

func (k *Keeper) stop() {
	if k.timer != nil {
		k.timer.Stop()
	}
}

// hold begins to keep a lease, which was requested at that time.
func (k *Keeper) hold(l *Lease, sent time.Time) error {
	if k == nil {
		return errors.New("hold a lease that ends: it has no Keeper")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return k.lost
	}
	if k.over == nil {
		return errors.New("hold a lease that ends: Lead was not called")
	}
	k.term, k.grant, k.changes, k.until = l.term, l.grant, 0, time.Time{}
	if k.extend(sent); isOver(k.until) {
		k.lose(fmt.Errorf("%w: it took longer to acquire it", ErrExpired))
		return k.lost
	}
	return nil
}

// extend makes the lease last until a time after sent, unless it lasts longer. mu is held.
func (k *Keeper) extend(sent time.Time) {
	if until := sent.Add(k.cfg.TTL - k.cfg.Margin); until.After(k.until) {
		k.until = until
	}
	k.stop()
	k.timer = time.AfterFunc(time.Until(k.until), func() { _ = k.Err() })
}

// lose ends the lease. mu is held.
func (k *Keeper) lose(err error) {
	if k.lost != nil {
		return
	}
	k.lost = err
	k.stop()
	if k.over != nil {
		k.over(err)
	}
}

// isOver reports whether it is later than until by either clock. The monotonic clock
// stops while a machine is suspended, and the wall clock may be set back.
func isOver(until time.Time) bool {
	now := time.Now()
	return !now.Before(until) || !now.Round(0).Before(until.Round(0))
}

// Err returns why the lease is over, nil if it is not, or if none was acquired yet.
func (k *Keeper) Err() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost == nil && !k.until.IsZero() && isOver(k.until) {
		k.lose(ErrExpired)
	}
	return k.lost
}

// Until returns when the lease is over unless it is renewed, zero if there is none.
func (k *Keeper) Until() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return time.Time{}
	}
	return k.until
}

// Run renews the leases that are acquired, until ctx is done. It does not wait for a reply
// before it sends the next renewal, as a server may answer each of them slowly, or one may
// hang on a connection that is dead.
func (k *Keeper) Run(ctx context.Context) {
	var renewals sync.WaitGroup
	defer renewals.Wait()
	failed := make(chan struct{}, 1)
	due := time.Now().Add(k.cfg.Every)
	next := time.NewTimer(k.cfg.Every)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			renewals.Go(func() {
				if k.renew(ctx) == nil {
					return
				}
				select {
				case failed <- struct{}{}:
				default:
				}
			})
			due = time.Now().Add(k.cfg.Every)
		case <-failed:
			if again := time.Now().Add(k.cfg.Every / 4); again.Before(due) {
				due = again
			}
		case <-ctx.Done():
			return
		}
		next.Reset(time.Until(due))
	}
}

// renew renews the lease, if there is one. An error means that it should be tried again.
func (k *Keeper) renew(ctx context.Context) error {
	if k.Err() != nil {
		return nil
	}
	k.mu.Lock()
	term, grant := k.term, k.grant
	k.changes++
	number := k.changes
	set := bson.D{{Key: fieldLease + "." + fieldExpires, Value: until(k.cfg.TTL)}}
	if k.offerKnown {
		set = append(set, bson.E{Key: fieldLease + "." + fieldOffered, Value: k.offer})
	}
	k.mu.Unlock()
	if term == 0 {
		return nil
	}
	// The lease may last longer than it does now, by another renewal; not by this one.
	ctx, cancel := context.WithTimeout(ctx, k.cfg.TTL-k.cfg.Margin)
	defer cancel()
	sent := time.Now()
	n, err := k.change(ctx, func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "term", term)
		return bsoncore.AppendObjectIDElement(dst, fieldLease+"."+fieldID, grant)
	}, number, set)
	took := time.Since(sent)
	if err == nil && n == 0 {
		err = k.whyNotRenewed(ctx, grant)
	}
	failed := err
	if failed == nil && n == 0 {
		failed = k.Err()
	}
	if failed != nil || n == 1 {
		k.renewed(took, failed)
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n == 1 && k.lost == nil && k.grant == grant {
		k.extend(sent)
	}
	return nil
}

// change changes the grant in the document that matches where. The changes of a term are
// numbered, and one does nothing after one with a larger number: a server may execute a
// renewal long after it has begun with it, and $$NOW is that time, so that it would make the
// lease end earlier than its holder expects.
func (k *Keeper) change(ctx context.Context, where func(dst []byte) []byte, number int64, set bson.D) (int64, error) {
	stage, err := marshal(bson.D{{Key: "$set", Value: append(set, bson.E{Key: fieldLease + "." + fieldDuration, Value: number})}})
	if err != nil {
		return 0, err
	}
	reply, err := k.cfg.Target.Call(ctx, metadata.PrimaryOnly(metadata.Update(k.cfg.DB, k.cfg.Collection, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = where(bsoncore.AppendStringElement(dst, "_id", k.cfg.ID))
			return metadata.AppendDoc(dst, fieldLease+"."+fieldDuration, func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "$lt", number)
			})
		},
		Stage: stage,
	})))
	if err != nil {
		return 0, err
	}
	return metadata.Written(reply)
}

// Offer begins or ceases to offer the lease to a process whose Claim accepts that, with a
// renewal: the lease is kept until one has acquired it. An error means that the next renewal
// has to say so.
func (k *Keeper) Offer(ctx context.Context, offer bool) error {
	k.mu.Lock()
	k.offer, k.offerKnown = offer, k.offerKnown || offer
	k.mu.Unlock()
	return k.renew(ctx)
}

// whyNotRenewed returns the reason why a renewal of a grant matched no document. The lease
// is not lost to a newer grant of this process, which has acquired it again, or a later renewal.
func (k *Keeper) whyNotRenewed(ctx context.Context, grant bson.ObjectID) error {
	doc, err := metadata.FindOne(ctx, k.cfg.Target, k.cfg.DB, k.cfg.Collection, metadata.ByID(k.cfg.ID))
	if err != nil {
		return err
	}
	why := fmt.Errorf("renew it: its document is gone: %w", ErrRewound)
	if doc != nil {
		r := metadata.NewReader(doc)
		now := ReadRecord(r)
		if r.Err() != nil || now.Holder == k.cfg.Holder {
			return r.Err()
		}
		why = fmt.Errorf("renew it: %w: %s", ErrFenced, now)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.grant == grant {
		k.lose(why)
	}
	return nil
}

// asks records that a term is asked for, which may be granted although the reply is lost.
func (k *Keeper) asks(term int64) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = max(k.asked, term)
}

// Release gives the lease back, so that another process can acquire it at once. Nothing may
// use it any more. That includes a lease that was granted although Acquire has failed, as the
// reply was lost, but not one that a later Keeper of this process has asked for: the server may
// execute a try after that. A Keeper that has asked for none gives none back. It tries again after
// transient errors, until ctx is done.
func (k *Keeper) Release(ctx context.Context) error {
	k.mu.Lock()
	number, lost, asked := k.changes, errors.Is(k.lost, ErrFenced), k.asked
	k.forget()
	k.mu.Unlock()
	if lost {
		return nil
	}
	ours := func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "holder", k.cfg.Holder)
		return metadata.AppendDoc(dst, "term", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$lte", asked) })
	}
	for {
		number++
		_, err := k.change(ctx, ours, number, bson.D{
			{Key: fieldLease + "." + fieldReleased, Value: true},
			{Key: fieldLease + "." + fieldExpires, Value: "$$NOW"},
		})
		if err == nil {
			return nil
		}
		if !mayPass(err) || mongo.Pause(ctx, min(k.cfg.Every/4, releaseAgain)) != nil {
			return fmt.Errorf("give the lease back: %w", err)
		}
	}
}

// releaseAgain is the longest pause before a lease is given back again.
const releaseAgain = 100 * time.Millisecond

// mayPass reports whether a write may succeed if it is sent again.
func mayPass(err error) bool {
	switch servererr.Classify(err) {
	case servererr.Lost, servererr.Unconfirmed:
		return true
	default:
		return mongo.Passes(err)
	}
}
