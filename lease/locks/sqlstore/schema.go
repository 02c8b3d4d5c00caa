package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Schema returns the statements that create the tables, for administrators who do not
// create tables with Create.
func (s *Store) Schema() []string { return slices.Clone(s.statements.create) }

// Create creates the tables if they are absent. It changes none that exists. A program should
// not call it at each start: it needs rights that the other calls do not need.
func (s *Store) Create(ctx context.Context) error {
	for _, statement := range s.statements.create {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return failed(ctx, "create a table of the locks", err)
		}
	}
	return nil
}

// ErrWeak is wrapped by the errors of Check that say what the settings do not keep.
var ErrWeak = errors.New("the server does not keep what the locks rely on")

// Check returns an error if the server's settings, or those of a connection, break the contract of a
// store: locks that were granted would be lost in a crash of the server, or
// would never have been granted. It cannot find out whether a server that takes over has
// everything: see the package's comment.
func (s *Store) Check(ctx context.Context) error {
	faults, err := s.weak(ctx, s.db, s.tables)
	if err != nil {
		return failed(ctx, "check the server of the locks", err)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s", ErrWeak, strings.Join(faults, "; "))
	}
	return nil
}

// postgresSettings has the table's name in $1.
const postgresSettings = `SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('synchronous_commit'), (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1::text))`

// weak implements dialect.
func (p *postgres) weak(ctx context.Context, db *sql.DB, n names) (faults []string, err error) {
	var standby bool
	var fsync, pages, commit string
	var persistence sql.NullString
	if err := db.QueryRowContext(ctx, p.settings, n.locks).Scan(&standby, &fsync, &pages, &commit, &persistence); err != nil {
		return nil, err
	}
	if standby {
		faults = append(faults, "it is a standby: connect to the primary (target_session_attrs=read-write)")
	}
	if fsync == "off" {
		faults = append(faults, "a crash of the machine loses granted locks: set fsync=on")
	}
	if pages == "off" {
		faults = append(faults, "a crash of the machine can damage the table: set full_page_writes=on")
	}
	if commit == "off" {
		faults = append(faults, "a crash loses granted locks: set synchronous_commit=on for the connections of the locks")
	}
	switch {
	case !persistence.Valid:
		faults = append(faults, "the table "+n.locks+" is absent: call Create")
	case persistence.String != "p":
		faults = append(faults, "a crash empties the table "+n.locks+": ALTER TABLE "+n.locks+" SET LOGGED")
	}
	return faults, nil
}

// mysqlSettings is for a table that has to exist.
const (
	mysqlSettings = `SELECT CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF'), @@autocommit,
	@@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog`
	mysqlEngine = `SELECT engine FROM information_schema.tables WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`
)

// weak implements dialect.
func (m *mysql) weak(ctx context.Context, db *sql.DB, n names) (faults []string, err error) {
	var standby, autocommit, binlog bool
	var flush, sync int64
	if err := db.QueryRowContext(ctx, mysqlSettings).Scan(&standby, &autocommit, &flush, &binlog, &sync); err != nil {
		return nil, err
	}
	if standby {
		faults = append(faults, "it is read-only: connect to the primary")
	}
	if !autocommit {
		faults = append(faults, "nothing is committed: set autocommit=1 for the connections of the locks")
	}
	if flush != 1 {
		faults = append(faults, "a crash of the machine loses granted locks: set innodb_flush_log_at_trx_commit=1")
	}
	if binlog && sync != 1 {
		faults = append(faults, "a crash of the machine loses what replicas have: set sync_binlog=1")
	}
	schema, table := sql.NullString{}, strings.Trim(n.locks, "`")
	if before, after, ok := strings.Cut(table, "`.`"); ok {
		schema, table = sql.NullString{String: before, Valid: true}, after
	}
	var engine string
	switch err := db.QueryRowContext(ctx, mysqlEngine, schema, table).Scan(&engine); {
	case errors.Is(err, sql.ErrNoRows):
		faults = append(faults, "the table "+n.locks+" is absent: call Create")
	case err != nil:
		return nil, err
	case !strings.EqualFold(engine, "InnoDB"):
		faults = append(faults, "the table "+n.locks+" has the engine "+engine+": ALTER TABLE "+n.locks+" ENGINE = InnoDB")
	}
	return faults, nil
}
