package reading

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// From returns the entry to read from.
func (o *Oplog) From(st checkpoint.State) oplog.OpTime {
	if !o.earlier.IsNull() && !st.Applied.Before(o.earlierFor) {
		// The source need not keep that entry any longer.
		o.earlier, o.earlierFor = oplog.OpTime{}, oplog.OpTime{}
	}
	if !o.earlier.IsNull() && o.earlier.Before(st.FetchFrom) {
		return o.earlier
	}
	return st.FetchFrom
}

// fetchConfig says how the source is read, from the entry that a state needs.
func (o *Oplog) fetchConfig(src checkpoint.Source, st checkpoint.State) fetcher.Config {
	cfg := fetcher.Config{
		From: o.From(st), Resolver: o.cfg.Resolver, Watcher: o.cfg.Watcher, MirrorMember: o.cfg.MirrorMember,
		Reader: fetcher.ReaderConfig{
			AwaitTime: o.cfg.Await, ReplyBytes: buffer.ReplyBytes(o.cfg.Memory()), Observer: o.cfg.Observer, Registry: o.cfg.Registry,
			Meter: &o.cfg.Monitor.Gauges().Fetcher,
		},
	}
	if id, ok := src.ReplicaSetID.ObjectIDOK(); ok {
		cfg.Reader.ReplicaSetID = id
	}
	return cfg
}

// ReadEarlier makes the next attempt start reading where a transaction begins whose
// beginning was not read. There may be several: each begins before all entries read so
// far, or reading earlier does not help.
func (o *Oplog) ReadEarlier(ctx context.Context, broken *txn.BrokenChainError) (found bool, err error) {
	start, err := replset.ChainStart(ctx, o.cfg.Source, broken.Prev)
	switch {
	case err != nil && o.cfg.Passes(err):
		return false, err // the source did not answer
	case err != nil:
		return false, errors.Join(broken, err)
	case !o.earlier.IsNull() && !start.Before(o.earlier):
		return false, nil
	}
	o.earlier = start
	if broken.OpTime.After(o.earlierFor) {
		o.earlierFor = broken.OpTime
	}
	o.cfg.Observer.Tell(Earlier{From: start, For: broken.OpTime})
	return true, nil
}
