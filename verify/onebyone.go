package verify

import (
	"context"
	"slices"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// listingShare limits the part (1/n) of the time that listing the collections again takes.
const listingShare = 20

// oneByOne compares collections in their order, and lists those again that are left once the list is
// old: their options and indexes are compared as of when they were listed.
func (v *Verifier) oneByOne(ctx context.Context, all []settled) error {
	for len(all) > 0 {
		if time.Since(v.listed) > max(v.cfg.Refresh, listingShare*v.listing) {
			var err error
			if all, err = v.settleAgain(ctx, all); err != nil {
				return err
			}
			continue
		}
		s := &all[0]
		all = all[1:]
		c, err := v.collection(ctx, s)
		if err != nil {
			return err
		}
		if err := v.done(c); err != nil {
			return err
		}
	}
	return nil
}

// settleAgain compares the catalogs of some collections again, and keeps their order. One that is not
// there any more is left out.
func (v *Verifier) settleAgain(ctx context.Context, all []settled) ([]settled, error) {
	began := time.Now()
	list, err := v.settle(ctx)
	if err != nil {
		return nil, err
	}
	now := make(map[oplog.Namespace]*settled, len(list))
	for i := range list {
		now[list[i].sourceNS] = &list[i]
	}
	var left []settled
	for i := range all {
		s := now[all[i].sourceNS]
		if s == nil {
			v.leave(all[i].want, nil)
			if v.stores() {
				if err := v.forget(ctx, all[i].sourceNS, has(list, all[i].want)); err != nil {
					return nil, err
				}
			}
			continue
		}
		v.leave(all[i].want, []settled{*s})
		left = append(left, *s)
	}
	v.listed, v.listing = time.Now(), time.Since(began)
	return left, nil
}

// has reports whether a list has a collection of the source, under whatever name.
func has(list []settled, of *listed) bool {
	return of != nil && of.uuid != (oplog.UUID{}) && slices.ContainsFunc(list, func(s settled) bool { return s.want != nil && s.want.uuid == of.uuid })
}
