package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/oplogrep/replicator/lease/locks"
)

// failed wraps an error with the operation attempted, and marks transient ones. A call that ended
// with its context may have been executed.
func failed(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, locks.ErrLost):
		return fmt.Errorf("%s: %w", what, err)
	case ctx.Err() != nil, passes(err):
		return fmt.Errorf("%s: %w: %w", what, locks.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lasting has the classes and codes of SQLSTATE that do not pass without an operator:
// unsupported features, data that do not fit, a login, a database or schema that is absent, and
// syntax, rights and tables. MySQL has two limits of users among the last ones.
var lasting = regexp.MustCompile(`^(0A|21|22|23|28|3D|3F|42)`)

// passes reports whether the cause of an error may pass, which is assumed unless it is known
// not to. A deadlock or a conflict of transactions has had no effect; the caller waits before it
// retries, not this package.
func passes(err error) bool {
	if errors.Is(err, errSize) || errors.Is(err, errDamaged) {
		return false
	}
	number, state := stateOf(err)
	return number == "1203" || number == "1226" || !lasting.MatchString(state)
}

// mysqlText is how errors of MySQL begin, with their number and SQLSTATE.
var mysqlText = regexp.MustCompile(`^Error (\d{4,5}) \(([0-9A-Z]{5})\): `)

// stateOf returns the SQLSTATE of an error, and MySQL's number; empty if there is none. The
// drivers are not imported: those of PostgreSQL have a method for it, that of MySQL a text.
func stateOf(err error) (number, state string) {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return "", e.SQLState()
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if m := mysqlText.FindStringSubmatch(err.Error()); m != nil {
			return m[1], m[2]
		}
	}
	return "", ""
}
