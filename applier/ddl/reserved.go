package ddl

import (
	"context"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// An index of type 2dsphere on measurements is logged, and listed, as one of the buckets, of a type that is the server's
// own. Later patch releases of 8.0 refuse that type to every user but __system (SERVER-118711). The log also has what the
// client has asked for, of the time series, which makes the same index.

// reservedKind is that type, askedSpec the field with the index as the client has asked for it.
const (
	reservedKind = "2dsphere_bucket"
	askedSpec    = "originalSpec"
)

// makeReserved builds indexes that were refused where one of them may be of a type that users must not name: that one
// through the time series.
func (s *step) makeReserved(ctx context.Context, coll *catalog.Collection, specs []*DeferredSpec, refused error) error {
	var plain, reserved []*DeferredSpec
	for _, h := range specs {
		if of, is := ofSeries(h); is {
			reserved = append(reserved, of)
		} else {
			plain = append(plain, h)
		}
	}
	if len(reserved) == 0 || !coll.NS.IsBuckets() {
		return refused
	}
	series, exists, err := s.cfg.Catalog.Get(ctx, coll.NS.Series())
	switch {
	case err != nil:
		return err
	case !exists || series.Type != catalog.TypeTimeseries:
		return refused
	}
	if len(plain) > 0 {
		if err := s.make(ctx, coll, plain); err != nil {
			return err
		}
	}
	if err := s.sendBuild(ctx, series, reserved); err != nil {
		return err
	}
	return s.hideReserved(ctx, coll, specs)
}

// hideReserved hides indexes that were built through the time series, or unhides them, where collMod has changed that since a client has
// asked for them: it changes the index of the buckets alone.
func (s *step) hideReserved(ctx context.Context, coll *catalog.Collection, specs []*DeferredSpec) error {
	for _, h := range specs {
		asked, is := ofSeries(h)
		hidden := split(h.Spec).truth("hidden")
		if !is || split(asked.Spec).truth("hidden") == hidden {
			continue
		}
		index := fields{{"name", stringValue(h.Index)}, {"hidden", boolValue(hidden)}}
		d := change{
			db: coll.NS.DB(), name: "collMod", first: coll.NS.Collection(), coll: coll,
			rest: fields{{"index", documentValue(index.document())}},
		}
		if _, err := s.send(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// hidePresent does that for indexes of a copy that an earlier attempt has built, and may have had no time to hide: they are not built again.
func (b *build) hidePresent(ctx context.Context) error {
	var present []*DeferredSpec
	for i := range b.wanted {
		h := &b.wanted[i]
		is := named(b.present, h.Index)
		if b.mode == Copied && !b.toBuild[i] && is != nil && split(is).truth("hidden") != split(h.Spec).truth("hidden") {
			present = append(present, h)
		}
	}
	return b.hideReserved(ctx, b.coll, present)
}

// ofSeries returns an index of buckets as one of the time series, false if it is of a type that a user may name.
func ofSeries(h *DeferredSpec) (*DeferredSpec, bool) {
	asked, _ := rawbson.Lookup(h.Spec, askedSpec)
	spec, has := asked.Document()
	if !isReserved(h) || !has {
		return nil, false
	}
	of := *h
	of.Spec = spec
	return &of, true
}

// isReserved reports whether an index is of a type that a user must not name.
func isReserved(h *DeferredSpec) bool {
	key, _ := rawbson.Lookup(h.Spec, "key")
	pattern, _ := key.Document()
	for it := rawbson.NewIter(pattern); it.Next(); {
		if kind, _ := it.Text(); kind == reservedKind {
			return true
		}
	}
	return false
}
