package origin

import "errors"

var (
	// ErrState reports a member that is neither primary nor secondary, so that it
	// cannot be read. This may be transient.
	ErrState = errors.New("it is neither primary nor secondary")
	// ErrUncommitted reports that a member did not know an entry as majority-committed
	// within the time limit.
	ErrUncommitted = errors.New("not known to be committed by a majority")
)

// ChangedError reports a member that has changed: it rolled back, was resynced, or is
// another one.
type ChangedError struct {
	// Host is empty if it is not known.
	Host string
	What string
}

func (e *ChangedError) Error() string {
	who := "the member"
	if e.Host != "" {
		who += " " + e.Host
	}
	return who + " is not what it was when the copy began: " + e.What
}

// FCVError reports a source whose feature compatibility version cannot be relied on.
type FCVError struct{ What string }

func (e *FCVError) Error() string {
	return "the source's feature compatibility version: " + e.What
}
