package sqlstore

import (
	"fmt"
	"time"
)

// Skew sets how far the server's clock is ahead for the statements of this store.
func (s *Store) Skew(by time.Duration) {
	ahead := func(now string) string { return fmt.Sprintf("(%s + %d)", now, by.Milliseconds()) }
	if _, ok := s.dialect.(*postgres); ok {
		*s = *newPostgres(s.db, s.tables, ahead(postgresNow))
		return
	}
	*s = *newMySQL(s.db, s.tables, ahead(mysqlNow))
}

// Unavailable reports whether the error of a call would be one that may pass.
func Unavailable(err error) bool { return passes(err) }
