package clone

import (
	"github.com/oplogrep/replicator/initialsync/progress"
)

// IsPortable reports whether the copy of a collection can continue with another member, given
// its ranges: all are copied, or those that are not continue by _id, which is the same
// everywhere, or have no place yet.
//
// Record ids are specific to a member. The documents up to a record id, or in a range of them,
// differ between members: on another one, a document that was not read may be at a place
// that counts as read. If one range of a collection is open, those that are done do not count
// either.
func IsPortable(coll *progress.Collection, ranges []progress.Range) (bool, error) {
	portable, done := true, true
	for i := range ranges {
		r := &ranges[i]
		done = done && r.Done
		sp, err := parseSpec(r.Spec)
		if err != nil {
			return false, err
		}
		at, err := parsePlace(r.At)
		if err != nil {
			return false, err
		}
		switch {
		case isCapped(coll):
			portable = false
		case sp.order == byID || at.order == byID:
		case !sp.whole() || at.order != "":
			portable = false
		}
	}
	return portable || done, nil
}

// HasOrder reports whether a collection can be read in the order of _id, which is the same
// on all members.
func HasOrder(coll *progress.Collection) bool {
	return !isCapped(coll) && (coll.IDIndex != nil || isClustered(coll))
}

// MustDrop reports whether a collection has to be dropped from the target before its
// documents are read again, from another member. started says that progress is recorded.
//
// The order of a capped one would not be the source's; and its documents are written before
// that is recorded. The documents of any other one may stay: they are replaced, and the
// oplog deletes those that the source has deleted. It is dropped because inserting is
// faster; but the system collections of admin cannot be dropped.
func MustDrop(coll *progress.Collection, started bool) bool {
	return isCapped(coll) || started && !isDirect(coll, coll.NS)
}
