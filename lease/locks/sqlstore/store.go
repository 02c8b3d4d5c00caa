package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease/locks"
)

// Config says where a store keeps its records.
type Config struct {
	// Locks and Pings are the names of the tables, as the server's catalog spells them; a schema or
	// database may precede, with a dot. Defaults locks and lockpings.
	Locks, Pings string
}

// Store is a locks.Store in two tables of a SQL database.
type Store struct {
	db *sql.DB
	dialect
	statements statements
	tables     names
}

// dialect has the parts of statements that differ between servers.
type dialect interface {
	// acquire and renew return whether there is a record. Acquire is called again otherwise.
	acquire(ctx context.Context, db *sql.DB, c *locks.Claim) (locks.Record, bool, error)
	renew(ctx context.Context, db *sql.DB, name, id string) (locks.Record, bool, error)
	// weak returns an error for unsafe settings of the server, the connection and the tables.
	weak(ctx context.Context, db *sql.DB, n names) ([]string, error)
}

// statements are the other ones, in the SQL of the server.
type statements struct {
	create                                         []string
	release, list, clock, ping, pinged, removePing string
}

// Postgres returns a Store in a PostgreSQL database, version 12 or later. Db is not closed by it.
func Postgres(db *sql.DB, cfg Config) (*Store, error) {
	n, err := cfg.quote(`"`)
	if err != nil {
		return nil, err
	}
	return newPostgres(db, n, postgresNow), nil
}

// MySQL returns a Store in a database of MySQL, version 5.7.8 or later, or of MariaDB, version 10.2 or
// later. Db is not closed by it.
func MySQL(db *sql.DB, cfg Config) (*Store, error) {
	n, err := cfg.quote("`")
	if err != nil {
		return nil, err
	}
	return newMySQL(db, n, mysqlNow), nil
}

// Acquire implements locks.Store.
func (s *Store) Acquire(ctx context.Context, c locks.Claim) (locks.Record, error) {
	what := "acquire " + c.Name
	if err := fits(&c); err != nil {
		return locks.Record{}, failed(ctx, what, err)
	}
	for range attempts {
		record, found, err := s.acquire(ctx, s.db, &c)
		if err != nil {
			return locks.Record{}, failed(ctx, what, err)
		}
		if found {
			return record, nil
		}
	}
	return locks.Record{}, failed(ctx, what, fmt.Errorf("%w: other processes changed the record %d times meanwhile", locks.ErrUnavailable, attempts))
}

// attempts is how often a claim is executed that finds the record changed by another one. It
// has had no effect then.
const attempts = 10

// Renew implements locks.Store.
func (s *Store) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	record, found, err := s.renew(ctx, s.db, name, id.Hex())
	if err == nil && !found {
		err = locks.ErrLost
	}
	return record, failed(ctx, "renew "+name, err)
}

// Release implements locks.Store.
func (s *Store) Release(ctx context.Context, name string, id bson.ObjectID) error {
	_, err := s.db.ExecContext(ctx, s.statements.release, name, id.Hex())
	return failed(ctx, "release "+name, err)
}

// List implements locks.Store.
func (s *Store) List(ctx context.Context, process string) ([]locks.Record, error) {
	list, err := s.list(ctx, process)
	return list, failed(ctx, "list the locks", err)
}

func (s *Store) list(ctx context.Context, process string) (list []locks.Record, err error) {
	rows, err := s.db.QueryContext(ctx, s.statements.list, process)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has the error
	for rows.Next() {
		record, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, record)
	}
	return list, rows.Err()
}

// Clock implements locks.Store.
func (s *Store) Clock(ctx context.Context) (locks.Moment, error) {
	var now int64
	var standby bool
	var election string
	err := s.db.QueryRowContext(ctx, s.statements.clock).Scan(&now, &standby, &election)
	if err == nil && standby {
		err = fmt.Errorf("%w: the server that answered takes no writes", locks.ErrUnavailable)
	}
	if err != nil {
		return locks.Moment{}, failed(ctx, "ask for the time", err)
	}
	return locks.Moment{Time: date(now), Election: election}, nil
}

// Ping implements locks.Store.
func (s *Store) Ping(ctx context.Context, process string) error {
	err := fitsKey("process", process)
	if err == nil {
		_, err = s.db.ExecContext(ctx, s.statements.ping, process)
	}
	return failed(ctx, "ping as "+process, err)
}

// Pinged implements locks.Store.
func (s *Store) Pinged(ctx context.Context, process string) (time.Time, error) {
	var at int64
	switch err := s.db.QueryRowContext(ctx, s.statements.pinged, process).Scan(&at); {
	case errors.Is(err, sql.ErrNoRows):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, failed(ctx, "read the ping of "+process, err)
	}
	return date(at), nil
}

// RemovePing implements locks.Store.
func (s *Store) RemovePing(ctx context.Context, process string) error {
	_, err := s.db.ExecContext(ctx, s.statements.removePing, process)
	return failed(ctx, "remove the ping of "+process, err)
}
