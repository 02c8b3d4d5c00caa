package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/sqlstore"
)

// weakened has settings of a session, or a statement, and what Check says then.
var weakened = map[string][]struct {
	setting     [2]string
	change, has string
}{
	"PostgreSQL": {
		{[2]string{"synchronous_commit", "off"}, "", "set synchronous_commit=on"},
		{[2]string{}, "ALTER TABLE %s SET UNLOGGED", "SET LOGGED"},
		{[2]string{}, "ALTER TABLE %s RENAME TO gone_%[1]s", "is absent: call Create"},
	},
	"MariaDB": {
		{[2]string{"autocommit", "0"}, "", "set autocommit=1"},
		{[2]string{}, "ALTER TABLE %s ENGINE = Aria", "ENGINE = InnoDB"},
		{[2]string{}, "RENAME TABLE %s TO gone_%[1]s", "is absent: call Create"},
	},
}

// TestCheck: settings weaker than the contract are found, and only those.
func TestCheck(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		for _, w := range weakened[s.name] {
			t.Run(w.has, func(t *testing.T) {
				store, cfg := s.tables(t)
				before := fmt.Sprint(store.Check(t.Context()))
				if strings.Contains(before, w.has) || s.binary != "" && before != "<nil>" {
					t.Fatalf("before: %s", before)
				}
				db := s.db
				if w.setting[0] != "" {
					db = s.connect(t, w.setting)
					defer db.Close() //nolint:errcheck // nothing was begun
				} else {
					must.Get(db.ExecContext(t.Context(), fmt.Sprintf(w.change, cfg.Locks)))(t)
				}
				if strings.Contains(w.change, "gone") {
					defer func() {
						must.Get(db.ExecContext(context.Background(), "ALTER TABLE gone_"+cfg.Locks+" RENAME TO "+cfg.Locks))(t)
					}()
				}
				err := must.Get(s.open(db, cfg))(t).Check(t.Context())
				if !errors.Is(err, sqlstore.ErrWeak) || errors.Is(err, locks.ErrUnavailable) || !strings.Contains(err.Error(), w.has) {
					t.Errorf("Check returns %v, want %s", err, w.has)
				}
			})
		}
	})
}

// TestQualified: a table in another schema, and names that cannot be those of tables.
func TestQualified(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		must.Get(s.db.ExecContext(t.Context(), "CREATE SCHEMA IF NOT EXISTS "+quoted(s, "x y")))(t)
		cfg := sqlstore.Config{Locks: "x y.a-b", Pings: "x y.select"}
		store := must.Get(s.open(s.db, cfg))(t)
		must.Succeed(t, store.Create(t.Context()))
		defer func() {
			must.Get(s.db.ExecContext(context.Background(), "DROP TABLE "+quoted(s, "x y")+"."+quoted(s, "a-b")+", "+quoted(s, "x y")+"."+quoted(s, "select")))(t)
			must.Get(s.db.ExecContext(context.Background(), "DROP SCHEMA "+quoted(s, "x y")))(t)
		}()
		if err := store.Check(t.Context()); err != nil && s.binary != "" {
			t.Error(err)
		}
		must.Succeed(t, store.Ping(t.Context(), "p"))
	})
}

func quoted(s *server, name string) string {
	if s.driver == "mysql" {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

func TestNamesOfTables(t *testing.T) {
	t.Parallel()
	for _, open := range []func(*sql.DB, sqlstore.Config) (*sqlstore.Store, error){sqlstore.Postgres, sqlstore.MySQL} {
		for _, cfg := range []sqlstore.Config{{Locks: "x", Pings: "x"}, {Locks: `a"b`}, {Pings: "a`b"}, {Locks: "a.b.c"}, {Locks: ".a"}, {Pings: "a\x00"}, {Locks: "lockpings"}} {
			if _, err := open(nil, cfg); err == nil {
				t.Errorf("%+v is accepted", cfg)
			}
		}
		if schema := must.Get(open(nil, sqlstore.Config{}))(t).Schema(); len(schema) != 2 || strings.Contains(strings.Join(schema, ""), "{") {
			t.Errorf("%q", schema)
		}
	}
}

// TestErrors: an operator's errors do not pass, all others may.
func TestErrors(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		absent := must.Get(s.open(s.db, sqlstore.Config{Locks: "absent", Pings: "absent_p"}))(t)
		if err := absent.Ping(t.Context(), "p"); err == nil || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("a table that is absent: %v", err)
		}
		if _, err := absent.List(t.Context(), ""); err == nil || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("a table that is absent: %v", err)
		}
		db := s.connect(t)
		must.Succeed(t, db.Close())
		if err := must.Get(s.open(db, sqlstore.Config{}))(t).Ping(t.Context(), "p"); !errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("a closed handle: %v", err)
		}
	})
	for text, passes := range map[string]bool{
		"Error 1213 (40001): Deadlock found when trying to get lock": true,
		"Error 1205 (HY000): Lock wait timeout exceeded":             true,
		"Error 1203 (42000): User has too many connections":          true,
		"Error 1290 (HY000): The server is running with --read-only": true,
		"Error 1146 (42S02): Table 'x.locks' doesn't exist":          false,
		"Error 1045 (28000): Access denied":                          false,
		"driver: bad connection":                                     true,
	} {
		if got := sqlstore.Unavailable(fmt.Errorf("a: %w", errors.New(text))); got != passes {
			t.Errorf("%s: may pass %t", text, got)
		}
	}
	for state, passes := range map[string]bool{"40001": true, "40P01": true, "25006": true, "57P01": true, "53300": true, "42P01": false, "28P01": false, "22021": false} {
		if got := sqlstore.Unavailable(fmt.Errorf("a: %w", sqlState(state))); got != passes {
			t.Errorf("%s: may pass %t", state, got)
		}
	}
}

// sqlState is an error of a PostgreSQL driver.
type sqlState string

func (s sqlState) Error() string    { return "ERROR: something (SQLSTATE " + string(s) + ")" }
func (s sqlState) SQLState() string { return string(s) }
