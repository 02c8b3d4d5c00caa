// Package sqlstore keeps the locks of package locks in a database of PostgreSQL, MySQL or
// MariaDB, in two tables. The program that imports it brings the driver:
//
//	db, err := sql.Open("pgx", "postgres://app@db1,db2/app?target_session_attrs=read-write")
//	store, err := sqlstore.Postgres(db, sqlstore.Config{})
//	elect := locks.NewElect(locks.ElectConfig{Store: store})
//
// # Tables
//
// [Store.Create] creates them; or an administrator executes the statements that [Store.Schema] returns:
//
//	locks      name, process, id, term, renewals, ttl, expires, since, modified, who, why, state
//	lockpings  process, ping
//
// Times are milliseconds since 1970 in UTC, by the server's clock, whatever the time zone of a
// session. A row of locks is never deleted, and must not be: its term would start over, and the
// fencing with it. Names, processes and who have at most 1,000 bytes, why 8,000; PostgreSQL also wants valid
// UTF-8 without zeros.
//
// The user needs SELECT, INSERT and UPDATE on both, DELETE on lockpings.
//
// # Statements
//
// Each change is one statement that is committed by itself, with its conditions and the clock in it: a
// compare-and-set. Any isolation level will do; with more than READ COMMITTED, PostgreSQL refuses
// more of them when processes contend. A deadlock, a conflict of transactions, a lock wait that took too long and a
// lost connection are errors that wrap locks.ErrUnavailable, and are for the caller to retry.
//
// The time of Acquire and Renew in PostgreSQL is clock_timestamp(), read when the row has been locked. now() would be that of
// before the wait for it: a lock would seem to have been acquired before the last one was released. MySQL's is UTC_TIMESTAMP(6), when the server began with the statement, as
// its clock for later (SYSDATE) has the session's time zone, and writes other times on replicas. A
// statement that waited may be late by that, as one of a slow network is: it never makes a lock
// end earlier, and never ends one too early for others.
//
// With PostgreSQL each call is one statement. One of MySQL that changes a row does not return it, so that
// Acquire reads, writes and reads again, and Renew writes and reads: the ID in the record, not the
// number of rows, says whether the lock was acquired. Waiting for a lock reads, and writes nothing.
//
// # One server
//
// The database handle must lead to one server at a time, the one that takes the writes: no proxy that sends reads
// elsewhere, no second node of a Galera cluster. [Store.Clock] fails on a server that takes none.
// Its election is which server answers, and when it was started; of PostgreSQL also the timeline.
// The clocks of servers that may take over should agree: locks that end go by the new one's.
//
// # Durability
//
// A grant must not be lost, or two processes have a lock. A crash of the server loses none if it writes
// each commit to disk: [Store.Check] returns an error if its settings do not say so. The administrator must
// make sure that a server that takes over has every commit:
//
//   - PostgreSQL: synchronous_standby_names with synchronous_commit=on, and only a synchronous
//     standby is promoted.
//   - MySQL, MariaDB: semi-synchronous replication that waits after the sync (AFTER_SYNC) and does not
//     time out (rpl_semi_sync_source_timeout, rpl_semi_sync_master_timeout), or group replication with
//     the consistency BEFORE_ON_PRIMARY_FAILOVER; a Galera cluster, if all write to the same node.
//
// With asynchronous replication a takeover may give a lock to a second process until the first one finds out with its
// next renewal, and a term may be granted again: what the lock protects is then not fenced. The same holds for a
// restored backup.
package sqlstore
