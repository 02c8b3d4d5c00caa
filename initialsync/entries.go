package initialsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// The document with the feature compatibility version.
const (
	versions    = "admin.system.version"
	fcvDocument = "featureCompatibilityVersion"
)

// ErrFCVChanged reports that the source's feature compatibility version was changed
// during the copy.
var ErrFCVChanged = errors.New("the source's feature compatibility version was changed while it was copied")

// entries checks the oplog of a copy. It is safe for concurrent use.
type entries struct {
	mu   sync.Mutex // guards the fields below
	copy checkpoint.Copy
	// ending is not nil while the copy's Stop is determined and recorded: closed after that.
	ending chan struct{}
}

// advanced sets the recorded progress of the copy.
func (e *entries) advanced(c *checkpoint.Copy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copy = *c
	if e.ending != nil {
		close(e.ending)
		e.ending = nil
	}
}

// ends is called before the copy's Stop is determined: until advanced is called next, by this
// attempt or the next one, check does not return for an entry that changes the feature
// compatibility version, which may be after Stop.
func (e *entries) ends() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ending == nil {
		e.ending = make(chan struct{})
	}
}

// check returns [ErrFCVChanged] if entries change the feature compatibility version while
// the copy is not consistent.
func (e *entries) check(ctx context.Context, list []oplog.Entry) error {
	for {
		e.mu.Lock()
		begin, stop, ending := e.copy.Begin, e.copy.Stop, e.ending
		e.mu.Unlock()
		err := find(list, begin, stop)
		if err == nil || ending == nil {
			return err
		}
		select {
		case <-ending:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// find returns [ErrFCVChanged] if entries from begin to stop change the feature compatibility
// version.
func find(list []oplog.Entry, begin, stop oplog.OpTime) error {
	for i := range list {
		x := &list[i]
		if x.NS != versions || !x.Kind.IsCRUD() || !x.OpTime.After(begin) || !bytes.Contains(x.Raw, []byte(fcvDocument)) {
			continue
		}
		if !stop.IsNull() && x.OpTime.After(stop) {
			continue
		}
		return fmt.Errorf("%w, at %s", ErrFCVChanged, x.OpTime)
	}
	return nil
}
