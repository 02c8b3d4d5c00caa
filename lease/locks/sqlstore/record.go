package sqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease/locks"
)

// columns are those of the table of locks but for state, in the order in which scan reads them.
const columns = "name, process, id, term, renewals, ttl, expires, since, modified, who, why"

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(into ...any) error }

// scan reads the columns, and the state after them.
func scan(row scanner) (locks.Record, error) {
	var r locks.Record
	var id string
	var ttl, expires, since, modified int64
	if err := row.Scan(&r.Name, &r.Process, &id, &r.Term, &r.Renewals, &ttl, &expires, &since, &modified, &r.Who, &r.Why, &r.State); err != nil {
		return locks.Record{}, err
	}
	var err error
	if r.ID, err = bson.ObjectIDFromHex(id); err != nil {
		return locks.Record{}, fmt.Errorf("%w: id %q of the lock %s: %w", errDamaged, id, r.Name, err)
	}
	r.TTL, r.When, r.Modified = time.Duration(ttl)*time.Millisecond, date(since), date(modified)
	if ttl > 0 {
		r.Expires = date(expires)
	}
	return r, nil
}

// maybe is scan for a statement that may have no result.
func maybe(row scanner) (locks.Record, bool, error) {
	r, err := scan(row)
	if errors.Is(err, sql.ErrNoRows) {
		return locks.Record{}, false, nil
	}
	return r, err == nil, err
}

// date is a time as the tables have it.
func date(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }

// overtakes is the ID that a claim may replace; none is that if it names none.
func overtakes(c *locks.Claim) string {
	if c.Overtake.IsZero() {
		return ""
	}
	return c.Overtake.Hex()
}

// The longest strings of both dialects, in bytes. A server that is not strict would cut them.
const (
	maxKey = 1000
	maxWhy = 8000
)

var (
	errSize    = errors.New("it has no room in the table")
	errDamaged = errors.New("the record is damaged")
)

// fits reports what of a claim has no room in the tables.
func fits(c *locks.Claim) error {
	err := errors.Join(fitsKey("name", c.Name), fitsKey("process", c.Process), fitsKey("part of the process", c.Who))
	if len(c.Why) > maxWhy {
		err = errors.Join(err, fmt.Errorf("%w: the reason has %d bytes, more than %d", errSize, len(c.Why), maxWhy))
	}
	return err
}

func fitsKey(what, s string) error {
	if len(s) > maxKey {
		return fmt.Errorf("%w: the %s has %d bytes, more than %d", errSize, what, len(s), maxKey)
	}
	return nil
}

// names are the quoted names of the tables.
type names struct{ locks, pings string }

// quote returns the names between quotes.
func (c Config) quote(mark string) (names, error) {
	if c.Locks == "" {
		c.Locks = "locks"
	}
	if c.Pings == "" {
		c.Pings = "lockpings"
	}
	if c.Locks == c.Pings {
		return names{}, fmt.Errorf("the locks and the pings cannot be in one table, %q", c.Locks)
	}
	for _, name := range []string{c.Locks, c.Pings} {
		for part := range strings.SplitSeq(name, ".") {
			if part == "" || strings.ContainsAny(part, "\x00\"`") || strings.Count(name, ".") > 1 {
				return names{}, fmt.Errorf("%q cannot be the name of a table: want TABLE or SCHEMA.TABLE, without quotes", name)
			}
		}
	}
	quoted := func(name string) string { return mark + strings.ReplaceAll(name, ".", mark+"."+mark) + mark }
	return names{locks: quoted(c.Locks), pings: quoted(c.Pings)}, nil
}

// filler returns a function that puts the names and common expressions into a statement.
func (n names) filler(now string) func(string) string {
	ended := "ttl > 0 AND expires <= " + now
	return strings.NewReplacer("{locks}", n.locks, "{pings}", n.pings, "{columns}", columns, "{ended}", ended, "{now}", now).Replace
}
