package origin

import "errors"

var (
	// ErrState is a member that can be read from neither as primary nor as
	// secondary. That may pass.
	ErrState = errors.New("it is neither primary nor secondary")
	// ErrUncommitted is an entry that a member does not know as committed by a
	// majority within the time that it has for that.
	ErrUncommitted = errors.New("not known to be committed by a majority")
)

// ChangedError is a member that is not what it was: it rolled back, was copied
// anew, or is another one.
type ChangedError struct {
	// Host is empty where it is not known.
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

// FCVError is a source whose feature compatibility version cannot be relied on.
type FCVError struct{ What string }

func (e *FCVError) Error() string {
	return "the source's feature compatibility version: " + e.What
}
